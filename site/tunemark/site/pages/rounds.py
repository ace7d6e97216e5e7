"""The entries of an MLPerf round as a list, and in what they differ: no ranking, for no two systems ran the same."""

from collections.abc import Sequence

from tunemark.site import tables, wording
from tunemark.site.entries import entry, machines, time_cell
from tunemark.site.page import result_path
from tunemark.site.pages.conditions import LABELS
from tunemark.site.queries import Catalogue, Row
from tunemark.site.results_table import rate_cell, trust_cell
from tunemark.site.tables import Cell, Column, Line, Table

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
