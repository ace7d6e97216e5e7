"""Workloads and their measured results, ranked within comparability groups only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.schema.formats import MISSING
from tunemark.site import ranking, tables, wording
from tunemark.site.page import Fact, Page, model_path, workload_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.ranking import Group
from tunemark.site.results_table import cost_cell, memory_cell, rate_cell, result_cell, status_cell, trust_cell
from tunemark.site.tables import Cell, Column, Line, Table

CRUMBS = (("Workloads", "workloads/index"),)


@dataclass(frozen=True, slots=True)
class RankedGroup:
    """A comparability group as a page shows it."""

    title: str
    note: str
    table: Table


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of workloads and a page for each."""
    yield Page("workloads/index", "Workloads", "workloads.md.j2", {"table": _list(catalogue)})
    for workload in catalogue.workloads:
        rows = catalogue.results_where(workload=workload["workload"], source="measured")
        context = {"workload": workload, "facts": _facts(workload), "groups": _groups(catalogue, rows)}
        yield Page(workload_path(workload["workload"]), workload["title"], "workload.md.j2", context, CRUMBS)


def _list(catalogue: Catalogue) -> Table:
    columns = [
        Column("Workload"),
        Column("Tier"),
        Column("Model"),
        Column("Method"),
        Column("Data"),
        Column("Tokens in a row", numeric=True),
        Column("Measured results", numeric=True),
    ]
    lines = (
        Line(
            (
                tables.text(row["title"], href=workload_path(row["workload"]), small=row["workload"]),
                tables.text(row["tier"]),
                tables.text(row["model"], href=model_path(row["model"])),
                tables.text(wording.method(row)),
                tables.text(row["dataset"]),
                Cell(wording.plain(row["sequence_length"]), sort=row["sequence_length"]),
                _count(len(catalogue.results_where(workload=row["workload"], source="measured"))),
            )
        )
        for row in catalogue.workloads
    )
    return tables.table("Workloads", columns, lines, interactive=True)


def _count(number: int) -> Cell:
    return Cell(str(number), sort=number)


def _facts(row: Row) -> list[Fact]:
    return [
        Fact("Model", row["model"], href=model_path(row["model"])),
        Fact("Task", wording.TASKS.get(row["task"], str(row["task"]))),
        Fact("Method", wording.method(row)),
        Fact("Data", row["dataset"]),
        Fact("Tokens in a row", wording.plain(row["sequence_length"])),
        Fact("Micro-batch", wording.plain(row["micro_batch"]), "rows of one forward and backward on one device"),
        Fact("Gradient accumulation", wording.plain(row["gradient_accumulation"]), "micro-steps in an optimizer step"),
        Fact("Learning rate", wording.plain(row["learning_rate"])),
        Fact("Tier", row["tier"]),
        Fact("Card", f"data/workloads/{row['workload']}.toml"),
        Fact("Source", row["source"]),
    ]


def _groups(catalogue: Catalogue, rows: Sequence[Row]) -> list[RankedGroup]:
    made = ranking.groups(rows)
    varying = ranking.varying_keys(made)
    return [
        RankedGroup(_title(number, group), _note(group, varying), _table(catalogue, group)) for number, group in enumerate(made, start=1)
    ]


def _title(number: int, group: Group) -> str:
    return f"Comparability group {number}" if group.key is not None else "Not comparable"


def _note(group: Group, varying: Sequence[str]) -> str:
    first = group.rows[0]
    if group.key is None:
        unknown = sorted({wording.words(key) for row in group.rows for key in COMPARABILITY_KEYS if row[key] is None})
        return f"Not ranked: unknown for at least one of them is {', '.join(unknown)}."
    keys = varying or list(COMPARABILITY_KEYS)
    said = "; ".join(f"{wording.words(key)}: {wording.plain(first[key])}" for key in keys)
    return f"Sets this group apart: {said}." if varying else f"All agree in {said}."


def _table(catalogue: Catalogue, group: Group) -> Table:
    ranks = ranking.rank_ranges(group)
    columns = [
        Column("Accelerator", explained="Leads to the result."),
        Column("Rank", numeric=True, explained="By tokens/s within this group; a range where 95% intervals overlap."),
        Column("Status"),
        tables.head("tokens_per_s"),
        tables.head("samples_per_s"),
        tables.head("step_time_s"),
        tables.head("peak_memory_bytes"),
        Column("Cost per 1k samples", numeric=True),
        Column("Trust"),
        Column("Date", tight=True),
    ]
    lines = (_line(catalogue, row, ranks.get(row["result_id"], MISSING)) for row in group.rows)
    return tables.table("Results of this group", columns, lines, interactive=True, searchable=False)


def _line(catalogue: Catalogue, row: Row, rank: str) -> Line:
    cells = (
        result_cell(row),
        _rank_cell(row, rank),
        status_cell(row),
        rate_cell(row, "tokens_per_s"),
        rate_cell(row, "samples_per_s"),
        tables.quantity("step_time_s", row["step_time_s"]),
        memory_cell(row),
        cost_cell(catalogue.cheapest.get(row["result_id"])),
        trust_cell(row),
        tables.text(wording.day(row["started_us"])),
    )
    return Line(cells, last=row["failed"])


def _rank_cell(row: Row, rank: str) -> Cell:
    if rank != MISSING:
        return Cell(rank, sort=float(rank.split(maxsplit=1)[0]))
    if row["failed"] or row["rankable"]:
        return Cell(rank)
    return Cell(rank, small="not stable" if row["stable"] is False else "too few steps")
