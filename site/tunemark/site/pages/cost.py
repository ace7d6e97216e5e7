"""What work costs: each result at the cheapest on-demand offer, the price row cited; and what has no price."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tunemark.site import tables, wording
from tunemark.site.page import Page, prices_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.results_table import cost_cell, result_cell, trust_cell
from tunemark.site.tables import Cell, Column, Line, Table

FIGURES = {
    "usd_per_1k_samples": "cost_per_1k_samples_usd",
    "usd_per_1m_samples": "cost_per_1m_samples_usd",
    "usd_per_1m_tokens": "cost_per_1m_tokens_usd",
    "usd_per_epoch": "cost_per_epoch_usd",
    "usd_per_run": "cost_usd",
}


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the cost page."""
    finished = [row for row in catalogue.results if not row["failed"]]
    offered = [(row, catalogue.cheapest[row["result_id"]]) for row in finished if row["result_id"] in catalogue.cheapest]
    priced = [(row, cost) for row, cost in offered if any(cost[name] is not None for name in FIGURES)]
    context = {
        "table": _table(priced),
        "priced": len(priced),
        "finished": len(finished),
        "impossible": sum(row["impossible"] for row, _ in priced),
        "no_rate": len(offered) - len(priced),
        "no_price": _no_price(catalogue, finished),
    }
    yield Page("cost", "Cost", "cost.md.j2", context)


def _table(priced: list[tuple[Row, Row]]) -> Table:
    columns = [
        Column("Accelerator"),
        Column("Model"),
        *(tables.head(key) for key in FIGURES.values()),
        Column("Price", numeric=True),
        Column("Offer"),
        Column("Trust"),
    ]
    ordered = sorted(
        priced,
        key=lambda pair: (
            pair[0]["impossible"],
            pair[0]["model_name"] or "",
            pair[0]["method"],
            pair[1]["usd_per_1m_samples"] or float("inf"),
            pair[0]["result_id"],
        ),
    )
    return tables.table("Cost of work", columns, (_line(row, cost) for row, cost in ordered), interactive=True, searchable=False)


def _line(row: Row, cost: Row) -> Line:
    figures = (Cell(cell.text, sort=cell.sort) for cell in (cost_cell(cost, column, key) for column, key in FIGURES.items()))
    return Line(
        (
            replace(result_cell(row), mark="impossible" if row["impossible"] else ""),
            tables.text(row["model_name"], small=wording.method(row)),
            *figures,
            tables.quantity("price_usd_per_hour", cost["usd_per_hour"], small="per hour"),
            tables.text(wording.offer(cost), href=prices_path(row["accelerator"]), small=cost["region"] or ""),
            trust_cell(row),
        ),
        last=row["impossible"],
    )


def _no_price(catalogue: Catalogue, finished: list[Row]) -> Table | None:
    missing = [row for row in finished if row["result_id"] not in catalogue.cheapest]
    if not missing:
        return None
    counted = Counter((row["accelerator_name"] or "unknown", _why(row)) for row in missing)
    columns = [Column("Accelerator"), Column("Results", numeric=True), Column("Why")]
    lines = (Line((tables.text(name), Cell(str(number), sort=number), tables.text(why))) for (name, why), number in sorted(counted.items()))
    return tables.table("Results without a price", columns, lines, searchable=False)


def _why(row: Row) -> str:
    if row["accelerator"] is None:
        return "the accelerator has no card, so no offer can be matched"
    if row["accelerator_count"] is None:
        return "the number of accelerators is unknown"
    return "no on-demand offer with it in the price book"
