"""Ranks within a comparability group: a range of ranks where 95% intervals overlap, none for what may not be ranked."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.schema.quantities import QUANTITIES
from tunemark.site import tables, wording
from tunemark.site.page import document_path, model_path, result_path, workload_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table


@dataclass(frozen=True, slots=True)
class Group:
    """Results that may be compared, or those that compare with nothing."""

    key: str | None
    """The comparability group; None when a condition is unknown."""
    rows: tuple[Row, ...]


def groups(rows: Sequence[Row]) -> list[Group]:
    """Return results by comparability group, the largest first, the incomparable last."""
    members: dict[str | None, list[Row]] = {}
    for row in rows:
        members.setdefault(row["comparability_group"], []).append(row)
    made = [Group(key, tuple(_fastest_first(found))) for key, found in members.items()]
    return sorted(made, key=lambda group: (group.key is None, -len(group.rows), group.key or ""))


def rank_ranges(group: Group) -> dict[str, str]:
    """Return the rank of each result that has one: `1`, or `1 to 2` where intervals overlap."""
    if group.key is None:
        return {}
    ranked = [row for row in group.rows if row["rankable"] and not row["failed"] and row["tokens_per_s"] is not None]
    return {row["result_id"]: _range(row, ranked) for row in ranked}


def _range(row: Row, ranked: Sequence[Row]) -> str:
    low, high = _ends(row)
    best = 1 + sum(_ends(other)[0] > high for other in ranked)
    worst = len(ranked) - sum(_ends(other)[1] < low for other in ranked)
    return str(best) if best == worst else f"{best} to {worst}"


def _ends(row: Row) -> tuple[float, float]:
    rate = row["tokens_per_s"]
    return (row["tokens_per_s_low"] or rate, row["tokens_per_s_high"] or rate)


def _fastest_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["failed"], not row["rankable"], -(row["tokens_per_s"] or 0), row["result_id"]))


def varying_keys(made: Sequence[Group]) -> list[str]:
    """Return the comparability keys in which groups differ from each other."""
    firsts = [group.rows[0] for group in made if group.key is not None]
    return [key for key in COMPARABILITY_KEYS if len({str(row[key]) for row in firsts}) > 1]


# MOVE: was tunemark.site.results_table: Rows of results as a table: every line leads to the result's page, failures come last, nothing unknown is 0.

AMBIGUOUS = "ambiguous"
COLUMNS: dict[str, Column] = {
    "devices": Column("Accelerator", explained="Accelerator and how many of it; leads to the result."),
    "model": Column("Model"),
    "method": Column("Method"),
    "status": Column("Status"),
    "step_time_s": tables.head("step_time_s"),
    "tokens_per_s": tables.head("tokens_per_s"),
    "samples_per_s": tables.head("samples_per_s"),
    "peak_memory_bytes": tables.head("peak_memory_bytes"),
    "cost": Column("Cost per 1k samples", numeric=True, explained="At the cheapest on-demand offer in the price book; whole instances."),
    "trust": Column("Trust", explained="How much stands behind the result."),
    "origin": Column("From", explained="The workload of a measured result, or the document that printed it."),
}


def results_table(catalogue: Catalogue, rows: Iterable[Row], name: str, *, without: frozenset[str] = frozenset()) -> Table:
    """Return a sortable table of results, in a useful order: measured first, newest first, failures and what cannot be true last."""
    shown = [key for key in COLUMNS if key not in without]
    lines = (Line(tuple(_CELLS[key](catalogue, row) for key in shown), last=row["failed"] or row["impossible"]) for row in ordered(rows))
    return tables.table(name, [COLUMNS[key] for key in shown], lines, interactive=True, searchable=False)


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Return results in the order in which they are shown."""
    return sorted(
        rows, key=lambda row: (row["failed"], row["impossible"], row["source"] != "measured", -(row["started_us"] or 0), row["result_id"])
    )


def result_cell(row: Row) -> Cell:
    """Return the cell that leads to a result."""
    return Cell(wording.devices(row), small=row["result_id"], href=result_path(row["result_id"]), sort=wording.devices(row).lower())


def status_cell(row: Row) -> Cell:
    """Return how a result ended, and the time to its target where it has one."""
    kind = "failed" if row["failed"] else row["status"]
    reached = row["time_to_target_s"]
    small = "" if reached is None else f"target in {wording.seconds(reached)}"
    return Cell(wording.words(row["status"]), badge=kind, sort=row["status"], small=small, mark="impossible" if row["impossible"] else "")


def trust_cell(row: Row) -> Cell:
    """Return how much stands behind a result."""
    label = wording.trust(row)
    return Cell(label, badge=row["trust"], explained=wording.trust_in_full(row), sort=label.lower(), small=row["division"] or "")


def rate_cell(row: Row, key: str) -> Cell:
    """Return a rate with its 95% interval."""
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    return Cell(wording.rate(row[key], low, high), small=wording.interval(low, high), sort=row[key])


def memory_cell(row: Row) -> Cell:
    """Return the peak memory and how it was taken."""
    return tables.quantity("peak_memory_bytes", row["peak_memory_bytes"], small=row["peak_memory_method"] or "")


def accuracy_cell(row: Row) -> Cell:
    """Return the accuracy with its standard error."""
    error = row["accuracy_se"]
    small = "" if error is None else f"standard error {wording.standard_error('accuracy', error)}"
    return tables.quantity("accuracy", row["accuracy"], small=small)


def cost_cell(cost: Row | None, column: str = "usd_per_1k_samples", key: str = "cost_per_1k_samples_usd") -> Cell:
    """Return a cost and the offer it stands on."""
    value = cost[column] if cost else None
    return tables.quantity(key, value, small=wording.offer(cost))


def origin_cell(row: Row) -> Cell:
    """Return where a result came from."""
    if row["source"] != "measured":
        return tables.text(row["source"], href=document_path(row["source"]), small=row["section"] or "")
    return tables.text(
        row["workload"], href=workload_path(row["workload"]) if row["workload"] else None, small=wording.day(row["started_us"])
    )


def _model_cell(row: Row) -> Cell:
    known = row["model"] is not None
    return tables.text(row["model_name"], href=model_path(row["model"]) if known else None)


def _marked(cell: Cell, catalogue: Catalogue, row: Row, key: str) -> Cell:
    """Return the cell of a figure; when it is ambiguous, marked, and with its readings where none of them could be chosen."""
    readings = [reading["value"] for reading in catalogue.readings.get(row["result_id"], ()) if reading["quantity"] == key]
    if not readings:
        return cell
    small = cell.small if row[key] is not None else " or ".join(QUANTITIES[key].text(value) for value in readings)
    return replace(cell, small=small, mark=AMBIGUOUS)


_CELLS: dict[str, Callable[[Catalogue, Row], Cell]] = {
    "devices": lambda _, row: result_cell(row),
    "model": lambda _, row: _model_cell(row),
    "method": lambda _, row: tables.text(wording.method(row)),
    "status": lambda _, row: status_cell(row),
    "step_time_s": lambda catalogue, row: _marked(tables.quantity("step_time_s", row["step_time_s"]), catalogue, row, "step_time_s"),
    "tokens_per_s": lambda catalogue, row: _marked(rate_cell(row, "tokens_per_s"), catalogue, row, "tokens_per_s"),
    "samples_per_s": lambda catalogue, row: _marked(rate_cell(row, "samples_per_s"), catalogue, row, "samples_per_s"),
    "peak_memory_bytes": lambda catalogue, row: _marked(memory_cell(row), catalogue, row, "peak_memory_bytes"),
    "cost": lambda catalogue, row: cost_cell(catalogue.cheapest.get(row["result_id"])),
    "trust": lambda _, row: trust_cell(row),
    "origin": lambda _, row: origin_cell(row),
}
