"""What is recorded about an entry of MLPerf: who submitted which system, and what its runs reached."""

from dataclasses import dataclass

from tunemark.schema.records.converted import MLPERF_LABEL
from tunemark.site import wording
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell

RUN_ENDS = {"ok": "reached", "missed": "missed the target", "aborted": "aborted", "incomplete": "incomplete"}


@dataclass(frozen=True, slots=True)
class Entry:
    """The recorded words and figures of a converted result; None where the database has none."""

    label: str
    """Belongs beside every figure."""
    round: str | None
    division: str | None
    submitter: str | None
    system: str | None
    availability: str | None
    nodes: int | None
    score_s: float | None
    """Mean without the fastest and the slowest run."""
    fastest_s: float | None
    slowest_s: float | None
    target: float | None
    """Eval loss at which a run may stop."""
    runs: tuple[Row, ...]
    """By number."""

    @property
    def reached(self) -> set[int]:
        """The numbers of the runs that reached the target."""
        return {row["run"] for row in self.runs if row["time_to_target_s"] is not None}


def entry(catalogue: Catalogue, row: Row) -> Entry:
    """Return the entry behind a converted result."""
    facts = {(fact["topic"], fact["name"]): fact["value"] for fact in catalogue.facts.get(row["result_id"], ())}
    nodes = row["nodes"] if row["nodes"] is not None else _number(facts.get(("system", "nodes")))
    return Entry(
        label=facts.get(("entry", "label")) or MLPERF_LABEL,
        round=facts.get(("entry", "round")),
        division=row["division"] or facts.get(("entry", "division")),
        submitter=facts.get(("entry", "submitter")),
        system=facts.get(("system", "name")),
        availability=facts.get(("system", "availability")),
        nodes=None if nodes is None else int(nodes),
        score_s=_number(facts.get(("derived", "time_to_target.score_s"))),
        fastest_s=_number(facts.get(("derived", "time_to_target.fastest_s"))),
        slowest_s=_number(facts.get(("derived", "time_to_target.slowest_s"))),
        target=_number(facts.get(("entry", "target_eval_loss"))),
        runs=tuple(catalogue.runs.get(row["result_id"], ())),
    )


def machines(nodes: int | None) -> str:
    """Return on how many machines."""
    if nodes is None:
        return "machines unknown"
    return "on one machine" if nodes == 1 else f"on {nodes:,} machines"


def time_cell(row: Row) -> Cell:
    """Return the median time to target with its interval."""
    value = row["time_to_target_s"]
    return Cell(
        wording.seconds(value), small=wording.seconds_interval(row["time_to_target_low_s"], row["time_to_target_high_s"]), sort=value
    )


def _number(value: str | None) -> float | None:
    return float(value) if value is not None and wording.NUMBER.fullmatch(value) else None
