"""Costs: results on the default price basis and on one that the reader chooses, owned hardware, and results without a price.

The sections on prices over time and on time against cost are in cost_over_time.py.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.recommendation import provider_name
from tunemark.site import costs, tables, wording
from tunemark.site.cost_over_time import frontiers, histories, token_fronts
from tunemark.site.page import Page, prices_path
from tunemark.site.queries import BASIS_KIND, Catalogue
from tunemark.site.results_table import result_cell, trust_cell
from tunemark.site.tables import Cell, Column, Row, Table, quantity_column

FIGURES = {
    "usd_per_1k_samples": "cost_per_1k_samples_usd",
    "usd_per_1m_tokens": "cost_per_1m_tokens_usd",
    "usd_per_epoch": "cost_per_epoch_usd",
    "usd_per_training": "cost_training_usd",
    "usd_per_run": "cost_usd",
}
"""Column of the view `costs` -> quantity."""
OTHER_KINDS = {
    "spot": "capacity that the provider can take back",
    "reserved": "capacity booked ahead",
    "marketplace": "asking prices of single hosts, which vary by host and hour",
}
"""Other kinds of price and their meaning, in the order of the page."""
SHOWN = 50
"""Rows of a table before the reader chooses a basis. The CSV file has all of them."""
EXAMPLE_HARDWARE = "nvidia-rtx-4090"


@dataclass(frozen=True)
class OtherBasis:
    """The costs on another kind of price."""

    title: str
    meaning: str
    number: int
    """Results with a cost; the table shows the first of them."""
    table: Table


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the cost page."""
    finished = [row for row in catalogue.results if not row["failed"]]
    basis = catalogue.basis_costs
    with_offer = [row | {"cost": basis[row["result_id"]]} for row in finished if row["result_id"] in basis]
    priced = _with_a_cost(with_offer)
    days = sorted(row["cost"]["effective_on"] for row in priced)
    context = {
        "table": _table("Costs", _first(priced)),
        "form": _form(catalogue),
        "frontiers": list(frontiers(catalogue)),
        "token_fronts": token_fronts(catalogue),
        "histories": list(histories(catalogue)),
        "shown": min(SHOWN, len(priced)),
        "providers": _providers(catalogue),
        "days": list(dict.fromkeys((days[0], days[-1]))) if days else [],
        "others": list(_others(catalogue, finished)),
        "priced": len(priced),
        "finished": len(finished),
        "impossible": sum(row["impossible"] for row in priced),
        "no_rate": len(with_offer) - len(priced),
        "no_price": _no_price(catalogue, [row for row in finished if row["result_id"] not in basis]),
    }
    yield Page("cost", "Cost", "cost.md.j2", context)


def _with_a_cost(rows: list[Row]) -> list[Row]:
    return [row for row in rows if any(row["cost"][name] is not None for name in FIGURES)]


def _providers(catalogue: Catalogue) -> list[str]:
    """Return the names of the providers of the default basis."""
    return sorted({provider_name(row["provider"]) for row in catalogue.prices if row["provider_rank"] is not None}, key=str.lower)


def _others(catalogue: Catalogue, finished: list[Row]) -> Iterator[OtherBasis]:
    """Yield the costs on each other kind of price that any result has."""
    for kind, meaning in OTHER_KINDS.items():
        offers = catalogue.first_offers.get(kind, {})
        rows = [row | {"cost": offers[row["result_id"]]} for row in finished if row["result_id"] in offers]
        priced = _with_a_cost(rows)
        if priced:
            title = f"{wording.words(kind).capitalize()} prices"
            yield OtherBasis(title, meaning, len(priced), _table(title, _first(priced)))


def _first(priced: list[Row]) -> list[Row]:
    """Return the first results in the default order, impossible ones last."""
    by_id = {row["result_id"]: row for row in priced}
    placed = costs.in_order([row["cost"] | {name: row[name] for name in ("result_id", "model_name", "method")} for row in priced])
    rows = sorted((by_id[row["result_id"]] for row in placed), key=lambda row: row["impossible"])
    return rows[:SHOWN]


def _form(catalogue: Catalogue) -> dict[str, object]:
    """Return the choices of the forms: kinds of price, providers, days, and accelerators with results or offers."""
    newest = [row for row in catalogue.prices if row["newest"]]
    results = costs.result_rows(catalogue)
    used, offered = {row["accelerator"] for row in results}, {row["accelerator"] for row in newest if row["kind"] == BASIS_KIND}
    named = {row["accelerator"]: row["name"] for row in catalogue.accelerators}
    number = Counter(row["accelerator"] for row in results)
    return {
        "kinds": [
            (kind, wording.words(kind)) for kind in (BASIS_KIND, *OTHER_KINDS) if any(row["kind"] == kind for row in catalogue.prices)
        ],
        "providers": sorted(
            {(provider_name(row["provider"]), row["provider"]) for row in catalogue.prices}, key=lambda item: item[0].lower()
        ),
        "first_day": min((row["effective_on"] for row in catalogue.prices), default=None),
        "as_of": costs.as_of(catalogue),
        "models": sorted({row["model_name"] for row in results if row["model_name"]}),
        "methods": [(key, name) for key, name in wording.METHODS.items() if any(row["method"] == key for row in results)],
        "accelerators": [(key, name) for key, name in named.items() if key in used],
        "own": sorted(((key, name) for key, name in named.items() if key in used), key=lambda item: (-number[item[0]], item[1])),
        "offered": [row for row in catalogue.accelerators if row["accelerator"] in offered],
        "example": next((row for row in catalogue.accelerators if row["accelerator"] == EXAMPLE_HARDWARE), None),
    }


def _table(name: str, priced: list[Row]) -> Table:
    """Return the table of results, each with an offer under `cost`."""
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
    return tables.table(name, columns, priced, last=lambda row: row["impossible"], interactive=True, searchable=False)


def _figure_column(column: str, key: str) -> Column[Row]:
    return quantity_column(key, lambda row: _figure_cell(row["cost"], column, key))


def _figure_cell(cost: Row, column: str, key: str) -> Cell:
    """Return a cost with the interval that it inherits from the rate."""
    low, high = cost.get(f"{column}_low"), cost.get(f"{column}_high")
    show = QUANTITIES[key].text
    interval = "" if low is None or high is None else f"{show(low)} to {show(high)}"
    return tables.quantity(key, cost[column], small=interval)


def _no_price(catalogue: Catalogue, missing: list[Row]) -> Table | None:
    if not missing:
        return None
    offered = {
        price["accelerator"]
        for price in catalogue.prices
        if price["newest"] and price["kind"] == BASIS_KIND and price["provider_rank"] is not None
    }
    counted = Counter((row["accelerator_name"] or "unknown", _why(row, offered)) for row in missing)
    columns: list[Column[tuple[tuple[str, str], int]]] = [
        Column("Accelerator", lambda item: tables.text(item[0][0])),
        Column("Results", lambda item: tables.number(item[1]), numeric=True),
        Column("Reason", lambda item: tables.text(item[0][1])),
    ]
    return tables.table("Results without a price", columns, sorted(counted.items()), searchable=False)


def _why(row: Row, offered: set[str]) -> str:
    if row["accelerator"] is None:
        return "the accelerator has no card, so no offer matches"
    if row["accelerator_count"] is None:
        return "the number of accelerators is unknown"
    if row["accelerator"] not in offered:
        return "the price book has no on-demand offer with it"
    if (row["nodes"] or 1) > 1:
        return "no offer of this size has a training fabric between nodes"
    return "no offer has enough accelerators in one instance"
