"""What is recorded about an entry of MLPerf: who submitted which system, and what its runs reached."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.converted import MLPERF_LABEL
from tunemark.site import tables, wording
from tunemark.site.charts import loss_of_runs
from tunemark.site.page import Fact, Page, document_path, result_path
from tunemark.site.pages.result import LABELS, result_page, sections
from tunemark.site.queries import Catalogue, Row
from tunemark.site.results_table import rate_cell, trust_cell
from tunemark.site.tables import Cell, Column, Line, Table

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


# MOVE: was tunemark.site.pages.mlperf: The entries of an MLPerf round as a list, and in what they differ: no ranking, for no two systems ran the same.

COLUMNS = (
    Column("Submitter and system", explained="Leads to the result."),
    Column("Accelerator", explained="Accelerator and how many of it, on all machines together."),
    Column(
        "Time to target",
        numeric=True,
        tight=True,
        explained="Median of all runs, one that missed the target counting as the longest; below, an interval of at least 95%.",
    ),
    Column("MLPerf score", numeric=True, explained="Mean without the fastest and the slowest run, the rule of MLPerf Training."),
    Column("Samples/s", numeric=True, tight=True, explained="Packed rows a second while training; below, the 95% interval over the runs."),
    Column("Rows in a step", numeric=True, explained="Rows in an optimizer step, over all accelerators: the submitter's choice."),
    Column("Runs", numeric=True, explained="Runs that reached the target, of all of the entry."),
    Column("Trust", explained="How much stands behind the result."),
)


def rounds(catalogue: Catalogue) -> list[Row]:
    """Return the sources whose results are converted."""
    converted = {row["source"] for row in catalogue.results if row["trust"] == "converted"}
    return [row for row in catalogue.sources if row["source"] in converted]


def entries_table(catalogue: Catalogue, rows: Sequence[Row]) -> Table:
    """Return the entries by accelerator and number of accelerators; every head sorts."""
    ordered = sorted(
        rows, key=lambda row: (row["failed"], wording.plain(row["accelerator_name"]), row["accelerator_count"] or 0, row["section"] or "")
    )
    lines = (_line(catalogue, row) for row in ordered)
    return tables.table("Entries of this round", COLUMNS, lines, interactive=True, searchable=False)


def _line(catalogue: Catalogue, row: Row) -> Line:
    found = entry(catalogue, row)
    name = found.submitter or row["result_id"]
    devices = wording.devices(row)
    cells = (
        Cell(name, small=found.system or "", href=result_path(row["result_id"]), sort=f"{name} {found.system or ''}".lower()),
        Cell(devices, small=machines(found.nodes), sort=_by_count(row)),
        time_cell(row),
        Cell(wording.seconds(found.score_s), sort=found.score_s),
        rate_cell(row, "samples_per_s"),
        Cell(wording.plain(row["global_batch"]), sort=row["global_batch"]),
        Cell(f"{len(found.reached)} of {len(found.runs)}", sort=len(found.reached)),
        trust_cell(row),
    )
    return Line(cells, last=row["failed"])


def _by_count(row: Row) -> str:
    # The collator of tables.js compares digits as numbers: 8 stands before 16.
    return f"{wording.plain(row['accelerator_name'])} x {row['accelerator_count'] or 0}".lower()


def differences(catalogue: Catalogue, rows: Sequence[Row]) -> list[str]:
    """Return in which conditions, settings and software these entries differ, in words."""
    conditions = [label.lower() for name, label in LABELS.items() if name != "epochs" and len({str(row[name]) for row in rows}) > 1]
    recorded = {
        topic: [
            {fact["name"]: fact["value"] for fact in catalogue.facts.get(row["result_id"], ()) if fact["topic"] == topic} for row in rows
        ]
        for topic in ("settings", "packages")
    }
    names = sorted({name for settings in recorded["settings"] for name in settings})
    settings = [wording.words(name) for name in names if len({found.get(name) for found in recorded["settings"]}) > 1]
    software = ["software"] if len({tuple(sorted(found.items())) for found in recorded["packages"]}) > 1 else []
    return [*conditions, *settings, *software]


# MOVE: was tunemark.site.pages.mlperf: The page of a converted result: what the runs of an MLPerf entry reached, from their raw logs.

TOPICS = {
    "packages": "Software",
    "settings": "Settings",
    "system": "System, as described",
    "derived": "Derived from the logs",
    "entry": "Entry",
}
MEDIAN = "median of all runs; one that missed the target counts as longer than any other"
SCORE = "mean without the fastest and the slowest run, the rule of MLPerf Training; a run that misses the target counts as the slowest"
COST = "Samples are those of the logs. A run is the median time to target: loading and compiling are left out."


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield a page for each converted result."""
    for row in catalogue.results:
        if row["trust"] == "converted":
            yield _page(catalogue, row)


def _page(catalogue: Catalogue, row: Row) -> Page:
    found = entry(catalogue, row)
    crumbs = (("Documents", "documents/index"), (row["source_title"], document_path(row["source"])))
    page = result_page(catalogue, row, "converted.md.j2", crumbs, _more(catalogue, row, found))
    told = ", ".join(part for part in (found.submitter, f"MLPerf {found.round}" if found.round else None) if part)
    return replace(page, title=f"{page.title} ({told})" if told else page.title)


def _more(catalogue: Catalogue, row: Row, found: Entry) -> dict[str, object]:
    chart = loss_of_runs(catalogue.database.curves(row["result_id"]), found.reached, found.target)
    return {
        "label": found.label,
        "note": (row["note"] or "").removeprefix(f"{found.label}.").strip(),
        "headlines": _headlines(row, found),
        "entry": _entry(row, found),
        "runs": _runs(found),
        "charts": [chart] if chart else [],
        "more_figures": _figures(catalogue, row, found),
        "cost_said": COST,
        "topics": sections(catalogue, row, TOPICS, leave_out=frozenset({"conditions"})),
        "provenance": _provenance(row),
    }


def _headlines(row: Row, found: Entry) -> list[Fact]:
    interval = wording.seconds_interval(row["time_to_target_low_s"], row["time_to_target_high_s"])
    low, high = row["samples_per_s_low"], row["samples_per_s_high"]
    rates = wording.interval(low, high)
    spread = f"95% interval over the runs {rates}" if rates else "no interval"
    return [
        Fact("Time to target", wording.seconds(row["time_to_target_s"]), f"{MEDIAN}; {_at_least(interval)}"),
        Fact("MLPerf score", wording.seconds(found.score_s), SCORE),
        Fact("Samples/s", wording.rate(row["samples_per_s"], low, high), f"{_sample(row)}; while training; {spread}"),
        Fact("Accelerators", wording.plain(row["accelerator_count"]), f"{wording.plain(row['accelerator_name'])}, {machines(found.nodes)}"),
        Fact("Runs at the target", f"{len(found.reached)} of {len(found.runs)}", "runs of the entry with a time to target"),
    ]


def _at_least(interval: str) -> str:
    return f"interval of at least 95%, by order statistics, {interval}" if interval else "too few runs for an interval"


def _sample(row: Row) -> str:
    if not row["packing"] or row["sequence_length"] is None:
        return "samples as the logs count them"
    return f"a sample is a packed row of {row['sequence_length']:,} tokens"


def _entry(row: Row, found: Entry) -> list[Fact]:
    return [
        Fact("Round", wording.plain(found.round), href=document_path(row["source"])),
        Fact("Submitter", wording.plain(found.submitter)),
        Fact("System", wording.plain(found.system)),
        Fact("Division", wording.plain(found.division)),
        Fact("Availability", wording.plain(found.availability)),
        Fact("Machines", wording.plain(found.nodes)),
        Fact("Target", wording.plain(found.target), "eval loss; that of the benchmark's rules where this entry's logs do not say it"),
    ]


def _runs(found: Entry) -> Table | None:
    if not found.runs:
        return None
    columns = [
        Column("Run"),
        Column("Status"),
        Column("Time to target", numeric=True, explained="From run_start to run_stop: evaluation is part of it, loading is not."),
        Column("Samples", numeric=True, explained="Training samples until the end."),
        Column("Samples/s", numeric=True, explained="While training, evaluation left out."),
        Column("Before the clock", numeric=True, explained="From init_start to init_stop: not part of the time to target."),
    ]
    last = sorted(found.runs, key=lambda run: (run["status"] != "ok", run["run"]))
    return tables.table("Runs of this entry", columns, map(_run, last), interactive=True, searchable=False)


def _run(run: Row) -> Line:
    done = run["status"] == "ok"
    cells = (
        Cell(f"Run {run['run']}", small=run["file"], sort=run["run"]),
        Cell(RUN_ENDS.get(run["status"]) or wording.words(run["status"]), badge="ok" if done else "failed", sort=run["status"]),
        Cell(wording.seconds(run["time_to_target_s"]), sort=run["time_to_target_s"]),
        Cell(wording.plain(run["samples"]), sort=run["samples"]),
        Cell(wording.rate(run["samples_per_s"]), sort=run["samples_per_s"]),
        Cell(wording.seconds(run["init_s"]), sort=run["init_s"]),
    )
    return Line(cells, last=not done)


def _figures(catalogue: Catalogue, row: Row, found: Entry) -> list[Fact]:
    reasons = {fact["name"]: fact["reason"] or "" for fact in catalogue.facts.get(row["result_id"], ()) if fact["topic"] == "derived"}
    known = [
        Fact(QUANTITIES[key].label, QUANTITIES[key].text(row[key]), reasons.get(key, ""))
        for key in ("step_time_s", "eval_loss")
        if row[key] is not None
    ]
    return [
        Fact("Fastest run", wording.seconds(found.fastest_s)),
        Fact("Slowest run", wording.seconds(found.slowest_s), "of those that reached the target"),
        *known,
        Fact("Evaluation rows", wording.plain(row["evaluation_rows"])),
    ]


def _provenance(row: Row) -> list[Fact]:
    return [
        Fact("Result", row["result_id"]),
        Fact("Round", row["source_title"], href=document_path(row["source"])),
        Fact("File", row["file"]),
        Fact("SHA-256", row["sha256"]),
    ]
