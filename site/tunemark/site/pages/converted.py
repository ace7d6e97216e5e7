"""The page of a converted result: what the runs of an MLPerf entry reached, from their raw logs."""

from collections.abc import Iterator
from dataclasses import replace

from tunemark.schema.quantities import QUANTITIES
from tunemark.site import tables, wording
from tunemark.site.curves import loss_of_runs
from tunemark.site.entries import RUN_ENDS, Entry, entry, machines
from tunemark.site.page import Fact, Page, document_path
from tunemark.site.pages.result import result_page, sections
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

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
