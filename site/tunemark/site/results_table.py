"""Tables of results: shared cells, comparability groups, rank ranges and the table of all results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.schema.formats import MISSING, significant
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.division import MEANING
from tunemark.schema.vocabulary import Division
from tunemark.site import tables, wording
from tunemark.site.page import accelerator_path, document_path, model_path, result_path, workload_path
from tunemark.site.queries import Catalogue, grouped
from tunemark.site.tables import Cell, Column, Row, Table, quantity_column

AMBIGUOUS = "ambiguous"
RATES = frozenset({"tokens_per_s", "samples_per_s", "step_time_s", "train_time_s"})


MOST_BEST = 20
"""Rows of a table of best rates."""
MOST_BESIDE = 50
"""Results in a table below a table of best rates."""
MOST_RESULTS = 200
"""Results in a table beside the explorer; the largest pages of 10,000 results would have more than a thousand."""


def results_table(
    catalogue: Catalogue,
    rows: Iterable[Row],
    name: str,
    *,
    without: frozenset[str] = frozenset(),
    explorer: str = "",
    most: int | None = None,
) -> Table:
    """Return a sortable table of results: measured first, newest first, failed and impossible results last.

    `explorer` is the query of the same selection in the explorer, such as `model=GPT-2`.
    """
    columns = {
        "devices": Column("Accelerator", result_cell, explained="Accelerator and device count; links to the result."),
        "model": Column("Model", _model_cell),
        "method": Column[Row]("Method", lambda row: tables.text(wording.method(row))),
        "status": Column[Row]("Status", lambda row: status_cell(row, verdict_on_rate(catalogue, row))),
        "step_time_s": _figure_column(catalogue, "step_time_s", lambda row: tables.quantity("step_time_s", row["step_time_s"])),
        "tokens_per_s": _figure_column(catalogue, "tokens_per_s", lambda row: rate_cell(row, "tokens_per_s")),
        "samples_per_s": _figure_column(catalogue, "samples_per_s", lambda row: rate_cell(row, "samples_per_s")),
        "mfu": Column[Row](
            "MFU",
            lambda row: tables.quantity("mfu", row["mfu"]),
            numeric=True,
            explained="Model FLOPs utilisation: without recomputed work.",
        ),
        "peak_memory_bytes": _figure_column(catalogue, "peak_memory_bytes", memory_cell),
        "cost": Column[Row](
            "Cost per 1k samples",
            lambda row: cost_cell(catalogue.basis_costs.get(row["result_id"])),
            numeric=True,
            explained="At the cheapest on-demand list price, for whole instances.",
        ),
        "trust": Column("Trust", trust_cell, explained="The evidence behind the result."),
        "origin": Column("From", _origin_cell, explained="Workload of a measured result, or the document that published it."),
    }
    shown = [column for key, column in columns.items() if key not in without]
    return tables.table(
        name,
        shown,
        ordered(rows),
        last=lambda row: row["failed"] or row["impossible"],
        interactive=True,
        searchable=False,
        most=most or MOST_RESULTS,
        all_rows=("All results in the explorer", f"results/index{'?' if explorer else ''}{explorer}"),
    )


def best_rates(catalogue: Catalogue, rows: Iterable[Row], name: str, key: str) -> Table | None:
    """Return the highest rate and the lowest cost by method and by `key`, `accelerator` or `model`; None without a usable result.

    Failed and impossible results are left out, and rates that the audit calls suspicious or inconsistent.
    """
    usable = [
        row
        for row in rows
        if not row["failed"] and not row["impossible"] and row["tokens_per_s"] and row[key] and not verdict_on_rate(catalogue, row)
    ]
    if not usable:
        return None
    columns: list[Column[list[Row]]] = [
        Column("Model", lambda group: _model_cell(group[0]))
        if key == "model"
        else Column("Accelerator", lambda group: tables.text(group[0]["accelerator_name"], href=accelerator_path(group[0]["accelerator"]))),
        Column("Method", lambda group: tables.text(wording.method(group[0]))),
        Column("Results", lambda group: tables.number(len(group)), numeric=True),
        Column(
            "Highest tokens/s per device",
            lambda group: _best_rate(max(group, key=_rate_per_device)),
            numeric=True,
            explained="Conditions such as row length differ between results.",
        ),
        Column(
            "Lowest cost per 1M tokens",
            lambda group: _best_cost(catalogue, group),
            numeric=True,
            explained="At the cheapest on-demand list price, for whole instances.",
        ),
    ]
    groups = grouped(usable, lambda row: (row[key], wording.method(row)))
    most_results_first = sorted(groups.values(), key=lambda group: (-len(group), group[0]["result_id"]))[:MOST_BEST]

    def place(group: list[Row]) -> tuple[object, ...]:
        first = group[0]
        if key == "model":
            return str(first["model_name"]).lower(), first["model"], wording.method(first)
        return -max(map(_rate_per_device, group)), first["result_id"]

    # A reader looks for a model by its name, and for an accelerator by its speed.
    return tables.table(name, columns, sorted(most_results_first, key=place), interactive=True, searchable=False, stacked=True)


def _rate_per_device(row: Row) -> float:
    return float(row["tokens_per_s"] / row["accelerator_count"])


def _best_rate(row: Row) -> Cell:
    length = f", {row['sequence_length']:,} tokens per row" if row["sequence_length"] else ""
    rate = _rate_per_device(row)
    return Cell(significant(rate), small=f"{wording.devices(row)}{length}", href=result_path(row["result_id"]), sort=rate)


def _best_cost(catalogue: Catalogue, group: Sequence[Row]) -> Cell:
    costs = {row["result_id"]: catalogue.basis_costs.get(row["result_id"]) for row in group}
    known = {result: cost["usd_per_1m_tokens"] for result, cost in costs.items() if cost and cost["usd_per_1m_tokens"] is not None}
    if not known:
        return Cell(MISSING)
    cheapest = min(known, key=known.__getitem__)
    return replace(cost_cell(costs[cheapest], "usd_per_1m_tokens", "cost_per_1m_tokens_usd"), href=result_path(cheapest))


def _figure_column(catalogue: Catalogue, key: str, cell: Callable[[Row], Cell]) -> Column[Row]:
    """Return the column of a figure; ambiguous figures are marked."""

    def marked(row: Row) -> Cell:
        shown = cell(row)
        readings = [reading["value"] for reading in catalogue.readings.get(row["result_id"], ()) if reading["quantity"] == key]
        if not readings:
            return shown
        small = shown.small if row[key] is not None else " or ".join(QUANTITIES[key].text(value) for value in readings)
        return replace(shown, small=small, mark=AMBIGUOUS)

    return quantity_column(key, marked)


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Return results in display order."""
    return sorted(
        rows, key=lambda row: (row["failed"], row["impossible"], row["source"] != "measured", -(row["started_us"] or 0), row["result_id"])
    )


def result_cell(row: Row) -> Cell:
    """Return the cell that links to a result."""
    return tables.text(wording.devices(row), small=row["result_id"], href=result_path(row["result_id"]))


def verdict_on_rate(catalogue: Catalogue, row: Row) -> str:
    """Return `suspicious` or `inconsistent`, the worse one, if the audit says so of the rate of a result; else an empty text."""
    verdicts = {
        finding["verdict"]
        for finding in catalogue.findings_about.get(row["result_id"], ())
        if finding["record_ids"][0] == row["result_id"] and not RATES.isdisjoint(finding["quantities"] or ())
    }
    return next((word for word in ("inconsistent", "suspicious") if word in verdicts), "")


def status_cell(row: Row, verdict: str = "") -> Cell:
    """Return the status of a result, with its time to target if it has one, and the verdict of the audit on its rate."""
    kind = "failed" if row["failed"] else row["status"]
    reached = row["time_to_target_s"]
    small = "" if reached is None else f"target in {wording.seconds(reached)}"
    return Cell(
        wording.words(row["status"]), badge=kind, sort=row["status"], small=small, mark="impossible" if row["impossible"] else verdict
    )


def division_cell(row: Row) -> Cell:
    """Return the division of a measured result."""
    division = row["division"]
    return Cell(division, badge="plain", explained=MEANING[Division(division)], sort=division) if division else Cell(MISSING)


def trust_cell(row: Row) -> Cell:
    """Return the trust level of a result."""
    label = wording.trust(row)
    return Cell(label, badge=row["trust"], explained=wording.trust_in_full(row), sort=label.lower(), small=row["division"] or "")


def rate_cell(row: Row, key: str) -> Cell:
    """Return a rate with its 95% interval."""
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    return Cell(wording.rate(row[key], low, high), small=wording.interval(low, high), sort=row[key])


def memory_cell(row: Row) -> Cell:
    """Return the peak memory with its method of measurement."""
    return tables.quantity("peak_memory_bytes", row["peak_memory_bytes"], small=row["peak_memory_method"] or "")


def accuracy_cell(row: Row) -> Cell:
    """Return the accuracy with its standard error."""
    error = row["accuracy_se"]
    small = "" if error is None else f"standard error {wording.standard_error('accuracy', error)}"
    return tables.quantity("accuracy", row["accuracy"], small=small)


def cost_cell(cost: Row | None, column: str = "usd_per_1k_samples", key: str = "cost_per_1k_samples_usd") -> Cell:
    """Return a cost with the offer it is based on."""
    return tables.quantity(key, cost[column] if cost else None, small=wording.offer(cost))


def _origin_cell(row: Row) -> Cell:
    if row["source"] != "measured":
        return tables.text(row["source"], href=document_path(row["source"]), small=row["section"] or "")
    workload = row["workload"]
    return tables.text(workload, href=workload_path(workload) if workload else None, small=wording.day(row["started_us"]))


def _model_cell(row: Row) -> Cell:
    return tables.text(row["model_name"], href=model_path(row["model"]) if row["model"] is not None else None)


@dataclass(frozen=True, slots=True)
class Group:
    """Results of one comparability group, or the results that are not comparable with any other."""

    key: str | None
    """The comparability group; None if a condition is unknown."""
    rows: tuple[Row, ...]


def groups(rows: Sequence[Row]) -> list[Group]:
    """Return results by comparability group: largest group first, incomparable results last."""
    members: dict[str | None, list[Row]] = {}
    for row in rows:
        members.setdefault(row["comparability_group"], []).append(row)
    made = [Group(key, tuple(_fastest_first(group))) for key, group in members.items()]
    return sorted(made, key=lambda group: (group.key is None, -len(group.rows), group.key or ""))


def rank_ranges(group: Group, configurations: Mapping[str, Row]) -> dict[str, str]:
    """Return the rank of each rankable result: that of its configuration by tokens/s, as `1`, or `1 to 2` where intervals overlap.

    Each division has its own ranking: a standard and a tuned run differ in what they were allowed to choose. The interval is that for
    one more run. A single run has none: its interval covers that run only.
    """
    ranked = [
        row for row in group.rows if group.key is not None and row["rankable"] and not row["failed"] and row["tokens_per_s"] is not None
    ]
    return {
        result_id: rank
        for division in {row["division"] for row in ranked}
        for result_id, rank in _ranks_of([row for row in ranked if row["division"] == division], configurations).items()
    }


def _ranks_of(ranked: Sequence[Row], configurations: Mapping[str, Row]) -> dict[str, str]:
    """Return the ranks of results that are ranked together."""
    bounds = {row["configuration"] or row["result_id"]: _bounds(row, configurations.get(row["configuration"])) for row in ranked}

    def rank_range(low: float, high: float) -> str:
        best = 1 + sum(other_low > high for other_low, _ in bounds.values())
        worst = len(bounds) - sum(other_high < low for _, other_high in bounds.values())
        return str(best) if best == worst else f"{best} to {worst}"

    return {row["result_id"]: rank_range(*bounds[row["configuration"] or row["result_id"]]) for row in ranked}


def _bounds(row: Row, pooled: Row | None) -> tuple[float, float]:
    """Return the interval for one more run of a configuration, or of a single run."""
    if pooled and pooled["tokens_per_s_low"] is not None:
        return pooled["tokens_per_s_low"], pooled["tokens_per_s_high"]
    rate = row["tokens_per_s"]
    return row["tokens_per_s_low"] or rate, row["tokens_per_s_high"] or rate


def runs_behind(row: Row, configurations: Mapping[str, Row]) -> str:
    """Return the number of runs behind the rank of a result, in words."""
    pooled = configurations.get(row["configuration"])
    return f"{pooled['runs']} runs" if pooled and pooled["runs"] > 1 else "single run, no between-run interval"


def _fastest_first(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["failed"], not row["rankable"], -(row["tokens_per_s"] or 0), row["result_id"]))


def varying_keys(made: Sequence[Group]) -> list[str]:
    """Return the comparability keys in which groups differ from each other."""
    firsts = [group.rows[0] for group in made if group.key is not None]
    return [key for key in COMPARABILITY_KEYS if len({str(row[key]) for row in firsts}) > 1]
