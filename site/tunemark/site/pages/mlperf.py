"""MLPerf entries: the list of a round's entries, and a page for each converted result.

Entries are listed but not ranked, because no two systems ran under the same conditions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.converted import MLPERF_LABEL
from tunemark.site import tables, wording
from tunemark.site.charts import loss_of_runs
from tunemark.site.page import Fact, Page, document_path, result_path
from tunemark.site.queries import Catalogue
from tunemark.site.result_page import LABELS, headlines, result_page, sections
from tunemark.site.results_table import rate_cell, trust_cell
from tunemark.site.tables import Cell, Column, Row, Table

RUN_STATUS = {"ok": "reached", "missed": "missed the target", "aborted": "aborted", "incomplete": "incomplete"}
TOPICS = {
    "packages": "Software",
    "settings": "Settings",
    "system": "System description",
    "derived": "Derived from the logs",
    "entry": "Entry",
}
MEDIAN = "median of all runs; a run that missed the target counts as longer than any other"
SCORE = "mean without the fastest and the slowest run, times the scaling factor of the entry; a run that misses the target counts as the slowest"
COST = "Samples are counted as in the logs. A sample is a packed row of several documents. The cost of training covers the median time to target, without loading and compiling."


@dataclass(frozen=True, slots=True)
class Entry:
    """The recorded text and figures of a converted result; None where the database has none."""

    row: Row
    label: str
    """The label that must accompany every figure."""
    round: str | None
    division: str | None
    submitter: str | None
    system: str | None
    availability: str | None
    nodes: int | None
    score_s: float | None
    """Official score."""
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

    @property
    def reached_of_all(self) -> str:
        """The number of runs that reached the target, of all runs."""
        return f"{len(self.reached)} of {len(self.runs)}"


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield a page for each converted result."""
    for row in catalogue.results_where(trust="converted"):
        made = entry(catalogue, row)
        crumbs = (("Documents", "documents/index"), (row["source_title"], document_path(row["source"])))
        page = result_page(catalogue, row, "converted.md.j2", crumbs, partial(_context, catalogue, made))
        origin = ", ".join(part for part in (made.submitter, f"MLPerf {made.round}" if made.round else None) if part)
        yield replace(page, title=f"{page.title} ({origin})" if origin else page.title)


def rounds(catalogue: Catalogue) -> list[Row]:
    """Return the sources whose results are converted."""
    converted = {row["source"] for row in catalogue.results if row["trust"] == "converted"}
    return [row for row in catalogue.sources if row["source"] in converted]


def entry(catalogue: Catalogue, row: Row) -> Entry:
    """Return the entry behind a converted result."""
    facts = {(fact["topic"], fact["name"]): fact["value"] for fact in catalogue.facts.get(row["result_id"], ())}
    nodes = row["nodes"] if row["nodes"] is not None else _number(facts.get(("system", "nodes")))
    return Entry(
        row=row,
        label=facts.get(("entry", "label")) or MLPERF_LABEL,
        round=facts.get(("entry", "round")),
        division=row["division"] or facts.get(("entry", "division")),
        submitter=facts.get(("entry", "submitter")),
        system=facts.get(("system", "name")),
        availability=facts.get(("system", "availability")),
        nodes=None if nodes is None else int(nodes),
        score_s=row["mlperf_score_s"],
        fastest_s=_number(facts.get(("derived", "time_to_target.fastest_s"))),
        slowest_s=_number(facts.get(("derived", "time_to_target.slowest_s"))),
        target=_number(facts.get(("entry", "target_eval_loss"))),
        runs=tuple(catalogue.runs.get(row["result_id"], ())),
    )


def _number(value: str | None) -> float | None:
    return float(value) if value is not None and wording.NUMBER.fullmatch(value) else None


def entries_table(catalogue: Catalogue, rows: Sequence[Row]) -> Table:
    """Return the entries of a round by accelerator and device count; every column sorts."""
    by_accelerator = sorted(
        rows, key=lambda row: (row["failed"], wording.plain(row["accelerator_name"]), row["accelerator_count"] or 0, row["section"] or "")
    )
    columns: list[Column[Entry]] = [
        Column("Submitter and system", _submitter_cell, explained="Links to the result."),
        Column("Accelerator", _devices_cell, explained="Accelerator and device count, over all machines."),
        Column(
            "Time to target",
            _time_cell,
            numeric=True,
            tight=True,
            explained="Median of all runs; a run that missed the target counts as the longest. Below: an interval of at least 95%.",
        ),
        Column(
            "MLPerf score",
            lambda item: tables.number(item.score_s, wording.seconds),
            numeric=True,
            explained="The official score: mean without the fastest and the slowest run, times the entry's scaling factor.",
        ),
        Column(
            "Samples/s",
            lambda item: rate_cell(item.row, "samples_per_s"),
            numeric=True,
            tight=True,
            explained="Packed rows per second while training. Below: the 95% interval over the runs.",
        ),
        Column(
            "FLOP/s per accelerator",
            lambda item: tables.quantity("model_flop_per_s", _flop_per_s_of_one(item.row)),
            numeric=True,
            explained="Model FLOPs, without recomputed ones. There is no MFU for accelerators with fp8, since logs do not record the number format.",
        ),
        Column(
            "Energy per run",
            lambda item: tables.quantity("energy_per_run_j", item.row["energy_per_run_j"]),
            numeric=True,
            explained="Of all nodes and switches from start to target, if the submitter measured power. The result's page states what was measured.",
        ),
        Column(
            "Global batch",
            lambda item: tables.number(item.row["global_batch"], wording.plain),
            numeric=True,
            explained="Rows per optimizer step over all accelerators, chosen by the submitter.",
        ),
        Column(
            "Runs",
            lambda item: Cell(item.reached_of_all, sort=len(item.reached)),
            numeric=True,
            explained="Runs that reached the target, of all runs of the entry.",
        ),
        Column("Trust", lambda item: trust_cell(item.row), explained="The evidence behind the result."),
    ]
    entries = (entry(catalogue, row) for row in by_accelerator)
    return tables.table("Entries of this round", columns, entries, last=lambda item: item.row["failed"], interactive=True, searchable=False)


def _submitter_cell(item: Entry) -> Cell:
    name = item.submitter or item.row["result_id"]
    return tables.text(name, small=item.system or "", href=result_path(item.row["result_id"]), sort=f"{name} {item.system or ''}".lower())


def _devices_cell(item: Entry) -> Cell:
    # The collator of tables.js compares digits as numbers, so that 8 sorts before 16.
    sort = f"{wording.plain(item.row['accelerator_name'])} x {item.row['accelerator_count'] or 0}".lower()
    return Cell(wording.devices(item.row), small=_machines(item.nodes), sort=sort)


def _machines(nodes: int | None) -> str:
    if nodes is None:
        return "machines unknown"
    return "on one machine" if nodes == 1 else f"on {nodes:,} machines"


def _time_cell(item: Entry) -> Cell:
    seconds, interval = item.row["time_to_target_s"], _time_interval(item.row)
    return Cell(wording.seconds(seconds), small=interval, sort=seconds)


def _time_interval(row: Row) -> str:
    return wording.seconds_interval(row["time_to_target_low_s"], row["time_to_target_high_s"])


def differences(catalogue: Catalogue, rows: Sequence[Row]) -> list[str]:
    """Return the conditions, settings and software in which these entries differ, in words."""

    def recorded(topic: str) -> list[dict[str, str]]:
        facts = (catalogue.facts.get(row["result_id"], ()) for row in rows)
        return [{fact["name"]: fact["value"] for fact in recorded if fact["topic"] == topic} for recorded in facts]

    conditions = [label.lower() for name, label in LABELS.items() if name != "epochs" and len({str(row[name]) for row in rows}) > 1]
    settings = recorded("settings")
    names = sorted({name for values in settings for name in values})
    differing = [wording.words(name) for name in names if len({values.get(name) for values in settings}) > 1]
    software = ["software"] if len({tuple(sorted(packages.items())) for packages in recorded("packages")}) > 1 else []
    return [*conditions, *differing, *software]


def _context(catalogue: Catalogue, made: Entry) -> dict[str, object]:
    row = made.row
    chart = loss_of_runs(catalogue.database.curves(row["result_id"]), made.reached, made.target)
    return {
        "label": made.label,
        "note": (row["note"] or "").removeprefix(f"{made.label}.").strip(),
        "headlines": _headlines(catalogue, made),
        "unknown": "",
        "entry": _facts(made),
        "runs": _runs(made),
        "charts": [chart] if chart else [],
        "more_figures": _figures(catalogue, made),
        "cost_note": COST,
        "topics": sections(catalogue, row, TOPICS, leave_out=frozenset({"conditions"})),
        "provenance": _provenance(row),
    }


def _headlines(catalogue: Catalogue, made: Entry) -> list[Fact]:
    row, interval = made.row, _time_interval(made.row)
    low, high = row["samples_per_s_low"], row["samples_per_s_high"]
    rates = wording.interval(low, high)
    spread = f"95% interval over the runs {rates}" if rates else "no interval"
    at_least = f"interval of at least 95%, by order statistics, {interval}" if interval else "too few runs for an interval"
    return [
        Fact("Time to target", wording.seconds(row["time_to_target_s"]), f"{MEDIAN}; {at_least}"),
        Fact("MLPerf score", wording.seconds(made.score_s), SCORE),
        Fact("Samples/s", wording.rate(row["samples_per_s"], low, high), f"{_sample(row)}; while training; {spread}"),
        *headlines(catalogue, row, ("mfu", "cost")),
        Fact("Accelerators", wording.plain(row["accelerator_count"]), f"{wording.plain(row['accelerator_name'])}, {_machines(made.nodes)}"),
        Fact("Runs at the target", made.reached_of_all, "runs of the entry with a time to target"),
    ]


def _flop_per_s_of_one(row: Row) -> float | None:
    """Return model FLOP/s per accelerator, or None."""
    rate, count = row["model_flop_per_s"], row["accelerator_count"]
    return rate / count if rate and count else None


def _sample(row: Row) -> str:
    if not row["packing"] or row["sequence_length"] is None:
        return "samples as counted in the logs"
    return f"a sample is a packed row of {row['sequence_length']:,} tokens"


def _facts(made: Entry) -> list[Fact]:
    return [
        Fact("Round", wording.plain(made.round), href=document_path(made.row["source"])),
        Fact("Submitter", wording.plain(made.submitter)),
        Fact("System", wording.plain(made.system)),
        Fact("Division", wording.plain(made.division)),
        Fact("Availability", wording.plain(made.availability)),
        Fact("Machines", wording.plain(made.nodes)),
        Fact("Target", wording.plain(made.target), "eval loss; from the benchmark's rules if the logs of this entry do not record it"),
    ]


def _runs(made: Entry) -> Table | None:
    columns: list[Column[Row]] = [
        Column("Run", lambda run: Cell(f"Run {run['run']}", small=run["file"], sort=run["run"])),
        Column(
            "Status",
            lambda run: Cell(
                RUN_STATUS.get(run["status"]) or wording.words(run["status"]),
                badge="ok" if run["status"] == "ok" else "failed",
                sort=run["status"],
            ),
        ),
        Column(
            "Time to target",
            lambda run: tables.number(run["time_to_target_s"], wording.seconds),
            numeric=True,
            explained="From run_start to run_stop: includes evaluation, excludes loading.",
        ),
        Column("Samples", lambda run: tables.number(run["samples"], wording.plain), numeric=True, explained="Training samples of the run."),
        Column(
            "Samples/s",
            lambda run: tables.number(run["samples_per_s"], wording.rate),
            numeric=True,
            explained="While training, without evaluation.",
        ),
        Column(
            "Before the clock",
            lambda run: tables.number(run["init_s"], wording.seconds),
            numeric=True,
            explained="From init_start to init_stop: not part of the time to target.",
        ),
    ]
    by_status = sorted(made.runs, key=lambda run: (run["status"] != "ok", run["run"]))
    if not made.runs:
        return None
    return tables.table(
        "Runs of this entry", columns, by_status, last=lambda run: run["status"] != "ok", interactive=True, searchable=False
    )


def _figures(catalogue: Catalogue, made: Entry) -> list[Fact]:
    row = made.row
    reasons = {fact["name"]: fact["reason"] or "" for fact in catalogue.facts.get(row["result_id"], ()) if fact["topic"] == "derived"}
    return [
        Fact("Fastest run", wording.seconds(made.fastest_s)),
        Fact("Slowest run", wording.seconds(made.slowest_s), "of the runs that reached the target"),
        *(
            Fact(QUANTITIES[key].label, QUANTITIES[key].text(row[key]), reasons.get(key, ""))
            for key in ("step_time_s", "eval_loss", "energy_per_run_j", "energy_per_sample_j")
            if row[key] is not None
        ),
        Fact("Evaluation rows", wording.plain(row["evaluation_rows"])),
    ]


def _provenance(row: Row) -> list[Fact]:
    return [
        Fact("Result", row["result_id"]),
        Fact("Round", row["source_title"], href=document_path(row["source"])),
        Fact("File", row["file"]),
        Fact("SHA-256", row["sha256"]),
    ]
