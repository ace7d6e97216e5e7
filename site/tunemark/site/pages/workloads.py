"""Workloads: what each runs, and its measured results ranked within comparability groups."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.schema.formats import MISSING
from tunemark.site import tables, wording
from tunemark.site.page import RATES, Fact, Page, model_path, workload_path
from tunemark.site.queries import Catalogue
from tunemark.site.results_table import (
    Group,
    cost_cell,
    division_cell,
    groups,
    memory_cell,
    rank_ranges,
    rate_cell,
    result_cell,
    results_table,
    runs_behind,
    status_cell,
    trust_cell,
    varying_keys,
)
from tunemark.site.tables import Cell, Column, Row, Table, quantity_column, text_column

CRUMBS = (("Workloads", "workloads/index"),)


@dataclass(frozen=True, slots=True)
class RankedGroup:
    """A comparability group as a page shows it."""

    title: str
    note: str
    table: Table


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of workloads and a page for each."""
    matrices = sorted({row["matrix"] for row in catalogue.workloads if row["matrix"]})
    lists: dict[str, object] = {"table": _list(catalogue, None), "matrices": [(name, _list(catalogue, name)) for name in matrices]}
    yield Page("workloads/index", "Workloads", "workloads.md.j2", lists)
    for workload in catalogue.workloads:
        key = workload["workload"]
        measured, published = catalogue.results_where(workload=key, source="measured"), _published(catalogue, workload)
        context = _context(catalogue, workload, measured, published)
        yield Page(workload_path(key), workload["title"], "workload.md.j2", context, CRUMBS)


def _context(catalogue: Catalogue, workload: Row, measured: list[Row], published: list[Row]) -> dict[str, object]:
    without = frozenset({"model", "method", "samples_per_s"})
    return {
        "workload": workload,
        "facts": _facts(workload),
        "levers": _levers(workload),
        "axes": _axes(catalogue.axes.get(workload["workload"], [])),
        "siblings": _siblings(catalogue, workload),
        "published": results_table(catalogue, published, "Published results of this model, method and length", without=without)
        if published
        else None,
        "groups": _ranked_groups(catalogue, measured),
    }


def _list(catalogue: Catalogue, matrix: str | None) -> Table:
    """Return the workloads of a matrix, or with None the workloads that have a card of their own."""
    columns: list[Column[Row]] = [
        Column("Workload", lambda row: tables.text(row["title"], href=workload_path(row["workload"]), small=row["workload"])),
        text_column("Tier", "tier"),
        Column("Model", lambda row: tables.text(row["model"], href=model_path(row["model"]))),
        Column("Method", lambda row: tables.text(wording.method(row))),
        text_column("Dataset", "dataset"),
        Column("Sequence length", lambda row: tables.number(row["sequence_length"], wording.plain), numeric=True),
        Column("Devices", lambda row: tables.number(row["devices"]), numeric=True),
        Column(
            "Measured results",
            lambda row: tables.number(len(catalogue.results_where(workload=row["workload"], source="measured"))),
            numeric=True,
        ),
    ]
    rows = [row for row in catalogue.workloads if row["matrix"] == matrix]
    return tables.table(matrix or "Workloads", columns, rows, interactive=True)


def _facts(row: Row) -> list[Fact]:
    """Return model, data, batch and optimizer of a workload."""
    return [
        Fact("Model", row["model"], href=model_path(row["model"])),
        Fact("Weights", row["weights"]),
        Fact("Task", wording.TASKS.get(row["task"], str(row["task"]))),
        Fact("Method", wording.method(row)),
        *([Fact("Adapters", row["lora"])] if row["lora"] else []),
        *([Fact("Frozen weights", row["quantisation"])] if row["quantisation"] else []),
        Fact("Dataset", row["dataset"]),
        Fact("Sequence length", wording.plain(row["sequence_length"]), "tokens per row"),
        Fact("Padding", "packed documents" if row["packing"] else row["padding"]),
        Fact("Micro-batch", wording.plain(row["micro_batch"]), "rows per forward and backward on one device"),
        Fact("Gradient accumulation", wording.plain(row["gradient_accumulation"]), "micro-steps per optimizer step"),
        Fact("Optimizer", wording.words(row["optimizer"])),
        Fact("Learning rate", wording.plain(row["learning_rate"])),
        Fact("Tier", row["tier"]),
        Fact("Card", f"data/workloads/{row['matrix'] or row['workload']}.toml"),
        Fact("Source", row["source"]),
    ]


def _published(catalogue: Catalogue, workload: Row) -> list[Row]:
    """Return published and converted results with a rate and with the model, the method and the sequence length of a workload."""
    rows = catalogue.published_by_work.get((workload["model"], workload["method"]), ())
    return [row for row in rows if row["sequence_length"] == workload["sequence_length"] and any(row[rate] is not None for rate in RATES)]


def workloads_of_model(catalogue: Catalogue, model: str) -> list[Fact]:
    """Return the workloads that train a model."""
    return [
        Fact(row["workload"], row["title"], href=workload_path(row["workload"])) for row in catalogue.workloads if row["model"] == model
    ]


def _levers(row: Row) -> list[Fact]:
    """Return the settings that change the speed and memory of a workload, and its devices."""
    parallel = row["tensor_parallel"] * row["pipeline_parallel"]
    return [
        Fact("Devices", wording.plain(row["devices"]), "each has its own rows; a card for one device also runs on several"),
        Fact("Strategy", row["strategy"], "auto: DDP on several devices" if row["strategy"] == "auto" else ""),
        *([Fact("Tensor x pipeline parallel", f"{row['tensor_parallel']} x {row['pipeline_parallel']}")] if parallel > 1 else []),
        Fact("Offload", row["offload"]),
        Fact("Compute", row["compute"], "auto: bf16 if the device supports it" if row["compute"] == "auto" else ""),
        Fact(
            "Attention",
            wording.words(row["attention"]),
            "auto: varlen for packed documents where supported, otherwise sdpa" if row["attention"] == "auto" else "",
        ),
        Fact("Checkpointing", row["gradient_checkpointing"]),
        Fact("Fused kernels", row["fused_kernels"]),
        Fact("Compile", row["compile"]),
    ]


def _axes(rows: list[Row]) -> Table | None:
    """Return the settings that the source varied, or None."""
    columns = [text_column("Setting", "field"), text_column("Values", "choices", ", ".join)]
    return tables.table("Settings that the source varied", columns, rows, searchable=False) if rows else None


def _siblings(catalogue: Catalogue, workload: Row) -> list[Fact]:
    """Return the other cells of the same matrix."""
    matrix = workload["matrix"]
    cells = (row for row in catalogue.workloads if matrix and row["matrix"] == matrix and row["workload"] != workload["workload"])
    return [
        Fact(cell["workload"].removeprefix(f"{matrix}-"), f"{cell['model']}, {wording.method(cell)}", href=workload_path(cell["workload"]))
        for cell in cells
    ]


def _ranked_groups(catalogue: Catalogue, rows: Sequence[Row]) -> list[RankedGroup]:
    made = groups(rows)
    varying = varying_keys(made)
    return [
        RankedGroup(
            f"Comparability group {number}" if group.key is not None else "Not comparable",
            _note(group, varying),
            _group_table(catalogue, group),
        )
        for number, group in enumerate(made, start=1)
    ]


def _note(group: Group, varying: Sequence[str]) -> str:
    if group.key is None:
        unknown = sorted({wording.words(key) for row in group.rows for key in COMPARABILITY_KEYS if row[key] is None})
        return f"Not ranked. Unknown for at least one result: {', '.join(unknown)}."
    first = group.rows[0]
    values = "; ".join(f"{wording.words(key)}: {wording.plain(first[key])}" for key in varying or COMPARABILITY_KEYS)
    return f"This group differs from the others by {values}." if varying else f"All results agree in {values}."


def _group_table(catalogue: Catalogue, group: Group) -> Table:
    ranks = rank_ranges(group, catalogue.configurations)
    columns: list[Column[Row]] = [
        Column("Accelerator", result_cell, explained="Links to the result."),
        Column(
            "Rank",
            lambda row: _rank_cell(row, ranks.get(row["result_id"]), runs_behind(row, catalogue.configurations)),
            numeric=True,
            explained="Of the configuration by tokens/s within this group and division: repeats share a rank. A range where the 95% intervals for one more run overlap.",
        ),
        Column("Division", division_cell, explained="Results are ranked within their division."),
        Column("Status", status_cell),
        quantity_column("tokens_per_s", lambda row: rate_cell(row, "tokens_per_s")),
        quantity_column("samples_per_s", lambda row: rate_cell(row, "samples_per_s")),
        quantity_column("step_time_s"),
        quantity_column("peak_memory_bytes", memory_cell),
        Column("Cost per 1k samples", lambda row: cost_cell(catalogue.basis_costs.get(row["result_id"])), numeric=True),
        Column("Trust", trust_cell),
        Column("Date", lambda row: tables.text(wording.day(row["started_us"])), tight=True),
    ]
    return tables.table("Results of this group", columns, group.rows, last=lambda row: row["failed"], interactive=True, searchable=False)


def _rank_cell(row: Row, rank: str | None, runs: str) -> Cell:
    if rank is not None:
        return Cell(rank, sort=float(rank.split(maxsplit=1)[0]), small=runs)
    if row["failed"] or row["rankable"]:
        return Cell(MISSING)
    return Cell(MISSING, small="not stable" if row["stable"] is False else "too few steps")
