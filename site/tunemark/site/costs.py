"""Costs on a chosen price basis: which offer counts, and what a result costs on it. Pure functions of rows.

The script assets/cost.js repeats them for the basis that a reader chooses, and a test compares both. The rule of choice is
that of the views `costs` and `first_offers` of the database. See definitions#cost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tunemark.schema.facts.cards import FRACTION_TOLERANCE, OVERSIZED
from tunemark.schema.formats import HOUR_S
from tunemark.schema.recommendation import provider_name
from tunemark.site import wording
from tunemark.site.queries import BASIS_KIND, Catalogue
from tunemark.site.recommend_data import columnar
from tunemark.site.render import compact_json
from tunemark.site.tables import Row

DATA_PATH = "data/cost.json"
CSV_PATH = "data/costs.csv"
OWN = "own"
"""Kind of the basis of own prices per accelerator."""
DIGITS = 7
"""Significant digits of the rates in the data file."""
RATES = {
    "usd_per_1k_samples": ("samples_per_s", 1e3),
    "usd_per_1m_samples": ("samples_per_s", 1e6),
    "usd_per_1m_tokens": ("tokens_per_s", 1e6),
}
"""Cost -> its rate, and the number of units that it is for."""
TIMES = {"usd_per_epoch": "epoch_time_s", "usd_per_training": "train_time_s", "usd_per_run": "wall_s"}
"""Cost -> its duration."""
FIGURES = (*RATES, *TIMES)
SPEED = "samples_per_s_per_usd_hour"
NUMBERS = (
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "tokens_per_s",
    "tokens_per_s_low",
    "tokens_per_s_high",
    *TIMES.values(),
)
PRICE = ("accelerator", "provider", "rank", "instance", "region", "kind", "accelerators", "usd_per_hour", "effective_on", "fabric")


@dataclass(frozen=True, slots=True)
class Basis:
    """The price basis of a whole table."""

    kind: str = BASIS_KIND
    """Kind of price, or `own`."""
    provider: str | None = None
    """The only provider that counts; None for all of the default basis."""
    day: str | None = None
    """The prices are those in force on this day, as YYYY-MM-DD; None for the newest."""
    own: Mapping[str, float] = field(default_factory=dict)
    """US dollars per accelerator and hour, by accelerator."""


def in_force(prices: Iterable[Row], day: str | None) -> list[Row]:
    """Return the newest price of each provider, instance, region and kind on a day. Prices are sorted newest first."""
    newest: dict[tuple[object, ...], Row] = {}
    for price in prices:
        if day is None or price["effective_on"] <= day:
            newest.setdefault((price["provider"], price["instance"], price["region"], price["kind"]), price)
    return list(newest.values())


def choose(offers: Iterable[Row], basis: Basis, accelerator: str, devices: float, nodes: int = 1) -> Row | None:
    """Return the offer of one of `nodes` instances with `devices` accelerators in all, or None.

    The cheapest fitting instance counts. Instances with more than twice the accelerators that are needed come last. Several nodes need
    a training fabric. On-demand prices of providers outside the default basis do not count, unless the basis names the provider.
    """
    needed = devices / nodes
    fitting = [
        offer
        for offer in offers
        if offer["accelerator"] == accelerator
        and offer["kind"] == basis.kind
        and offer["accelerators"] >= needed * (1 - FRACTION_TOLERANCE)
        and (nodes == 1 or offer["fabric"])
        and (offer["provider"] == basis.provider if basis.provider else offer["rank"] is not None or basis.kind != BASIS_KIND)
    ]
    return min(fitting, key=lambda offer: _order(offer, needed), default=None)


def _order(offer: Row, needed: float) -> tuple[object, ...]:
    oversized = offer["accelerators"] > OVERSIZED * needed * (1 + FRACTION_TOLERANCE)
    return oversized, offer["usd_per_hour"], offer["accelerators"], offer["provider"], offer["instance"], offer["region"] or ""


def figures(result: Row, usd_per_hour: float) -> dict[str, float | None]:
    """Return all costs of a result at an hourly price, with the intervals that they inherit from its rates."""
    per_second = usd_per_hour / HOUR_S
    found: dict[str, float | None] = {}
    for name, (rate, units) in RATES.items():
        for ending, speed in (("", result[rate]), ("_low", result[f"{rate}_high"]), ("_high", result[f"{rate}_low"])):
            found[name + ending] = per_second / speed * units if speed else None
    for name, duration in TIMES.items():
        found[name] = None if result[duration] is None else per_second * result[duration]
    found[SPEED] = None if result["samples_per_s"] is None else result["samples_per_s"] / usd_per_hour
    return found


def priced(results: Iterable[Row], prices: Iterable[Row], basis: Basis) -> list[Row]:
    """Return the results with a cost on a basis: each with its `offer`, None for an own price, `usd_per_hour` and all figures."""
    offers, rows = in_force(prices, basis.day), []
    for result in results:
        devices, nodes = result["units"], result["nodes"]
        if basis.kind == OWN:
            offer, hourly = None, basis.own.get(result["accelerator"], 0) * devices
        else:
            offer = choose(offers, basis, result["accelerator"], devices, nodes)
            hourly = nodes * offer["usd_per_hour"] if offer else 0
        if hourly and any((costs := figures(result, hourly))[name] is not None for name in FIGURES):
            rows.append(result | costs | {"offer": offer, "usd_per_hour": hourly})
    return in_order(rows)


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Return results in the default order: the cheapest of each known model and method first, then the second of each, and so on.

    Cheap means per 1,000 samples; results without a rate are the last of their model and method. Groups with more results come first.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model_name"] or "", row["method"]), []).append(row)
    placed = []
    for (model, method), members in groups.items():
        cheapest = sorted(members, key=lambda row: (_or_last(row["usd_per_1k_samples"]), row["result_id"]))
        placed += [((not model, place, -len(members), model, method), row) for place, row in enumerate(cheapest)]
    return [row for _, row in sorted(placed, key=lambda item: item[0])]


def _or_last(value: float | None) -> float:
    return float("inf") if value is None else value


def front(rows: Iterable[Row], first: str, second: str) -> set[str]:
    """Return the ids of the results for which no other result is at least as good in two figures and better in one; less is better."""
    on_front: set[str] = set()
    best, at = float("inf"), float("inf")
    for row in sorted(rows, key=lambda row: (row[first], row[second])):
        if row[second] < best or (row[second], row[first]) == (best, at):
            on_front.add(row["result_id"])
            best, at = row[second], row[first]
    return on_front


# Data ----------------------------------------------------------------------------------------------


def as_of(catalogue: Catalogue) -> str | None:
    """Return the day of the current prices, or None if the database has none."""
    (row,) = catalogue.database.rows("select cast(max(as_of) as varchar) as day from collection")
    return str(row["day"]) if row["day"] else None


def price_rows(catalogue: Catalogue) -> list[Row]:
    """Return all prices of the price book, newest first; of one day, the one that the view `current_prices` prefers."""
    newest_first = sorted(sorted(catalogue.prices, key=lambda row: row["price"]), key=lambda row: row["effective_on"], reverse=True)
    named = (
        row | {"rank": row["provider_rank"], "accelerators": row["accelerator_count"], "fabric": row["fabric"] is not None}
        for row in newest_first
    )
    return [{name: row[name] for name in PRICE} for row in named]


def result_rows(catalogue: Catalogue, *, impossible: bool = False) -> list[Row]:
    """Return the finished results whose costs can be computed. Impossible results are left out unless they are asked for."""
    return [_result(row) for row in catalogue.results if _countable(row) and (impossible or not row["impossible"])]


def _countable(row: Row) -> bool:
    known = row["accelerator"] is not None and (row["accelerator_units"] or row["accelerator_count"])
    return not row["failed"] and bool(known) and any(row[name] for name in NUMBERS)


def _result(row: Row) -> Row:
    return {
        "result_id": row["result_id"],
        "accelerator": row["accelerator"],
        "devices": row["accelerator_count"],
        "units": row["accelerator_units"] or row["accelerator_count"],
        "nodes": row["nodes"] or 1,
        "model_name": row["model_name"],
        "method": row["method"],
        "sequence_length": row["sequence_length"],
        "trust": row["trust"],
        "trust_label": wording.trust(row),
        **{name: _rounded(row[name]) for name in NUMBERS},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def cost_json(catalogue: Catalogue) -> str:
    """Return the data of assets/cost.js: all prices, and the results with their rates."""
    results = result_rows(catalogue)
    used = {row["accelerator"] for row in results}
    data = {
        "as_of": as_of(catalogue),
        "accelerators": {row["accelerator"]: row["name"] for row in catalogue.accelerators if row["accelerator"] in used},
        "methods": wording.METHODS,
        "providers": {row["provider"]: provider_name(row["provider"]) for row in catalogue.prices},
        "prices": columnar(price_rows(catalogue)),
        "results": columnar(results),
    }
    return compact_json(data)


def default_costs(catalogue: Catalogue) -> list[Row]:
    """Return the costs of all results on the default basis, as the rows of a CSV file."""
    named = {row["result_id"]: row for row in catalogue.results}
    rows = priced(result_rows(catalogue), price_rows(catalogue), Basis(day=as_of(catalogue)))
    return [
        {name: value for name, value in row.items() if name not in {"offer", "trust_label"}}
        | {name: row["offer"][name] for name in ("provider", "instance", "region", "kind", "effective_on")}
        | {"instances": row["nodes"], "source": named[row["result_id"]]["source"]}
        for row in rows
    ]
