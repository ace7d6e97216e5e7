"""What a workload says is to be done: its settings, its levers, and what its source varied."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.schema.formats import MISSING
from tunemark.site import results_table, tables, wording
from tunemark.site.page import Fact, Page, model_path, workload_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.results_table import Group, cost_cell, memory_cell, rate_cell, result_cell, status_cell, trust_cell
from tunemark.site.tables import Cell, Column, Line, Table


def facts(row: Row) -> list[Fact]:
    """Return model, samples, batch and optimizer of a workload."""
    return [
        Fact("Model", row["model"], href=model_path(row["model"])),
        Fact("Weights", row["weights"]),
        Fact("Task", wording.TASKS.get(row["task"], str(row["task"]))),
        Fact("Method", wording.method(row)),
        *([Fact("Adapters", row["lora"])] if row["lora"] else []),
        *([Fact("Frozen weights", row["quantisation"])] if row["quantisation"] else []),
        Fact("Data", row["dataset"]),
        Fact("Tokens in a row", wording.plain(row["sequence_length"])),
        Fact("Padding", "packed documents" if row["packing"] else row["padding"]),
        Fact("Micro-batch", wording.plain(row["micro_batch"]), "rows of one forward and backward on one device"),
        Fact("Gradient accumulation", wording.plain(row["gradient_accumulation"]), "micro-steps in an optimizer step"),
        Fact("Optimizer", wording.words(row["optimizer"])),
        Fact("Learning rate", wording.plain(row["learning_rate"])),
        Fact("Tier", row["tier"]),
        Fact("Card", f"data/workloads/{row['matrix'] or row['workload']}.toml"),
        Fact("Source", row["source"]),
    ]


def levers(row: Row) -> list[Fact]:
    """Return what changes speed and memory of a workload, and on which devices it is to run."""
    apart = row["tensor_parallel"] * row["pipeline_parallel"]
    return [
        Fact("Devices", wording.plain(row["devices"]), "each has its own rows; a card for one device runs on several as it is"),
        Fact("Strategy", row["strategy"], "auto: DDP on several devices" if row["strategy"] == "auto" else ""),
        *([Fact("Tensor x pipeline parallel", f"{row['tensor_parallel']} x {row['pipeline_parallel']}")] if apart > 1 else []),
        Fact("Offload", row["offload"]),
        Fact("Compute", row["compute"], "auto: bf16 where the device has it" if row["compute"] == "auto" else ""),
        Fact("Attention", wording.words(row["attention"])),
        Fact("Checkpointing", row["gradient_checkpointing"]),
        Fact("Fused kernels", row["fused_kernels"]),
        Fact("Compile", row["compile"]),
    ]


def axes(rows: list[Row]) -> Table | None:
    """Return the settings that the source varied; None when it varied none."""
    lines = (Line((tables.text(row["field"]), tables.text(", ".join(row["choices"])))) for row in rows)
    return tables.table("What the source varied", [Column("Setting"), Column("Values")], lines, searchable=False) if rows else None


# MOVE: was tunemark.site.pages.workloads: Workloads and their measured results, ranked within comparability groups only.

CRUMBS = (("Workloads", "workloads/index"),)


@dataclass(frozen=True, slots=True)
class RankedGroup:
    """A comparability group as a page shows it."""

    title: str
    note: str
    table: Table


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of workloads and a page for each."""
    context: dict[str, object] = {"table": _list(catalogue, None), "matrices": _matrices(catalogue)}
    yield Page("workloads/index", "Workloads", "workloads.md.j2", context)
    for workload in catalogue.workloads:
        rows = catalogue.results_where(workload=workload["workload"], source="measured")
        context = {
            "workload": workload,
            "facts": facts(workload),
            "levers": levers(workload),
            "axes": axes(catalogue.axes.get(workload["workload"], [])),
            "siblings": _siblings(catalogue, workload),
            "groups": _groups(catalogue, rows),
        }
        yield Page(workload_path(workload["workload"]), workload["title"], "workload.md.j2", context, CRUMBS)


def _matrices(catalogue: Catalogue) -> list[tuple[str, Table]]:
    """Return the cells of each matrix of workloads, under its name."""
    names = sorted({row["matrix"] for row in catalogue.workloads if row["matrix"]})
    return [(name, _list(catalogue, name)) for name in names]


def _siblings(catalogue: Catalogue, workload: Row) -> list[Fact]:
    """Return the other cells of the matrix that a workload is one of."""
    matrix = workload["matrix"]
    cells = (row for row in catalogue.workloads if matrix and row["matrix"] == matrix and row["workload"] != workload["workload"])
    return [
        Fact(cell["workload"].removeprefix(f"{matrix}-"), f"{cell['model']}, {wording.method(cell)}", href=workload_path(cell["workload"]))
        for cell in cells
    ]


def _list(catalogue: Catalogue, matrix: str | None) -> Table:
    """Return the workloads of a matrix, or those that have a card of their own."""
    columns = [
        Column("Workload"),
        Column("Tier"),
        Column("Model"),
        Column("Method"),
        Column("Data"),
        Column("Tokens in a row", numeric=True),
        Column("Devices", numeric=True),
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
                _count(row["devices"]),
                _count(len(catalogue.results_where(workload=row["workload"], source="measured"))),
            )
        )
        for row in catalogue.workloads
        if row["matrix"] == matrix
    )
    return tables.table(matrix or "Workloads", columns, lines, interactive=True)


def _count(number: int) -> Cell:
    return Cell(str(number), sort=number)


def _groups(catalogue: Catalogue, rows: Sequence[Row]) -> list[RankedGroup]:
    made = results_table.groups(rows)
    varying = results_table.varying_keys(made)
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
    ranks = results_table.rank_ranges(group)
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
