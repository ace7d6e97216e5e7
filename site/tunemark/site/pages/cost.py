"""Costs: each result at the cheapest on-demand offer with the price row cited, and results without a price."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tunemark.site import tables, wording
from tunemark.site.page import Page, prices_path
from tunemark.site.queries import Catalogue
from tunemark.site.results_table import cost_cell, result_cell, trust_cell
from tunemark.site.tables import Column, Row, Table, quantity_column

FIGURES = {
    "usd_per_1k_samples": "cost_per_1k_samples_usd",
    "usd_per_1m_samples": "cost_per_1m_samples_usd",
    "usd_per_1m_tokens": "cost_per_1m_tokens_usd",
    "usd_per_epoch": "cost_per_epoch_usd",
    "usd_per_run": "cost_usd",
}
"""Column of the view `costs` -> quantity."""


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the cost page."""
    finished = [row for row in catalogue.results if not row["failed"]]
    with_offer = [row | {"cost": catalogue.cheapest[row["result_id"]]} for row in finished if row["result_id"] in catalogue.cheapest]
    priced = [row for row in with_offer if any(row["cost"][name] is not None for name in FIGURES)]
    context = {
        "table": _table(priced),
        "priced": len(priced),
        "finished": len(finished),
        "impossible": sum(row["impossible"] for row in priced),
        "no_rate": len(with_offer) - len(priced),
        "no_price": _no_price([row for row in finished if row["result_id"] not in catalogue.cheapest]),
    }
    yield Page("cost", "Cost", "cost.md.j2", context)


def _table(priced: list[Row]) -> Table:
    """Return the table of results, each with its cheapest offer under `cost`."""
    columns: list[Column[Row]] = [
        Column("Accelerator", lambda row: replace(result_cell(row), mark="impossible" if row["impossible"] else "")),
        Column("Model", lambda row: tables.text(row["model_name"], small=wording.method(row))),
        *(_figure_column(column, key) for column, key in FIGURES.items()),
        Column("Price", lambda row: tables.quantity("price_usd_per_hour", row["cost"]["usd_per_hour"], small="per hour"), numeric=True),
        Column(
            "Offer",
            lambda row: tables.text(wording.offer(row["cost"]), href=prices_path(row["accelerator"]), small=row["cost"]["region"] or ""),
        ),
        Column("Trust", trust_cell),
    ]
    by_model = sorted(
        priced,
        key=lambda row: (
            row["impossible"],
            row["model_name"] or "",
            row["method"],
            row["cost"]["usd_per_1m_samples"] or float("inf"),
            row["result_id"],
        ),
    )
    return tables.table("Costs", columns, by_model, last=lambda row: row["impossible"], interactive=True, searchable=False)


def _figure_column(column: str, key: str) -> Column[Row]:
    return quantity_column(key, lambda row: replace(cost_cell(row["cost"], column, key), small=""))


def _no_price(missing: list[Row]) -> Table | None:
    if not missing:
        return None
    counted = Counter((row["accelerator_name"] or "unknown", _why(row)) for row in missing)
    columns: list[Column[tuple[tuple[str, str], int]]] = [
        Column("Accelerator", lambda item: tables.text(item[0][0])),
        Column("Results", lambda item: tables.number(item[1]), numeric=True),
        Column("Reason", lambda item: tables.text(item[0][1])),
    ]
    return tables.table("Results without a price", columns, sorted(counted.items()), searchable=False)


def _why(row: Row) -> str:
    if row["accelerator"] is None:
        return "the accelerator has no card, so no offer matches"
    if row["accelerator_count"] is None:
        return "the number of accelerators is unknown"
    return "the price book has no on-demand offer with it"
