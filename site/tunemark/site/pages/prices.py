"""Price tables: every offer in force per hour, day and week, for the whole instance and per accelerator, and prices that documents print."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tunemark.schema.formats import usd
from tunemark.schema.recommendation import provider_name
from tunemark.site import tables, wording
from tunemark.site.page import Page, prices_path, statement_path
from tunemark.site.queries import BASIS_KIND, Catalogue, grouped
from tunemark.site.recommend_data import rentable
from tunemark.site.render import web_link
from tunemark.site.tables import Cell, Column, Row, Table, text_column

PATH = "prices"
CRUMBS = (("Cost", "cost"),)
DAY, WEEK = 24, 168
"""Hours."""
PERIODS = {"hour": 1, "day": DAY, "week": WEEK}
PRINTED = {"price_usd_per_day": DAY, "price_usd_per_week": WEEK}
"""Printed quantity -> hours of its period."""
DATED_BY = {
    "provider": "day of the price list",
    "catalog": "day on which a catalogue without dates was read",
    "inferred": "inferred from earlier and later price lists",
}
SCOPE_RULES = ("price-scope", "offer-holds")
"""Audit rules on what a printed price covers."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """An hourly price in a statement of a document, with the printed prices of other periods."""

    statement: str
    source: str
    hourly: float
    printed: dict[str, Row]
    """Claims by quantity."""
    labels: str
    findings: tuple[Row, ...]


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the page of price tables."""
    offers = sorted((row for row in catalogue.prices if row["newest"]), key=lambda row: (_name(catalogue, row).lower(), each_usd(row)))
    days = sorted({row["effective_on"] for row in offers})
    context = {
        "cheapest": _cheapest(catalogue, offers),
        "offers": _offers(catalogue, offers),
        "claimed": _claims(list(claimed_prices(catalogue))),
        "number": len(offers),
        "providers": len({row["provider"] for row in offers}),
        "days": list(dict.fromkeys((days[0], days[-1]))) if days else [],
    }
    yield Page(PATH, "Prices", "prices.md.j2", context, CRUMBS)


def each_usd(row: Row) -> float:
    """Return the hourly price of one accelerator of an instance in US dollars."""
    return float(row["usd_per_hour"] / row["accelerator_count"])


def _name(catalogue: Catalogue, row: Row) -> str:
    return next((each["name"] for each in catalogue.accelerators if each["accelerator"] == row["accelerator"]), str(row["accelerator"]))


# Prices with their sources -------------------------------------------------------------------------


def _known_on(row: Row) -> Cell:
    return tables.text(row["effective_on"], small=DATED_BY[row["dated_by"]] + ("" if row["newest"] else "; not the newest"))


DATED: tuple[Column[Row], ...] = (
    Column("Instance", lambda row: tables.text(row["instance"], small=provider_name(row["provider"]))),
    text_column("Kind", "kind", wording.words),
    Column("Accelerators", lambda row: tables.number(row["accelerator_count"], wording.plain), numeric=True),
    Column("USD/h", lambda row: tables.quantity("price_usd_per_hour", row["usd_per_hour"]), numeric=True),
    Column("USD/h each", lambda row: tables.quantity("price_usd_per_hour", each_usd(row)), numeric=True),
    text_column("Region", "region"),
    Column("Fabric", lambda row: tables.text(row["fabric"]), explained="Network between several nodes of this instance."),
    Column("Known on", _known_on, tight=True),
    Column("Source", lambda row: tables.text(wording.short_commits(row["source"]), href=web_link(row["source"]), small=row["notes"] or "")),
)
"""Columns of a price with its date and its source."""


# Offers --------------------------------------------------------------------------------------------


def _cheapest(catalogue: Catalogue, offers: Sequence[Row]) -> Table:
    """Return the cheapest on-demand price of each accelerator, and the cheapest price of any other kind."""
    without_cpu = rentable(catalogue)
    groups = grouped((row for row in offers if row["accelerator"] in without_cpu), lambda row: _name(catalogue, row))
    items = []
    for name, rows in groups.items():
        listed = [row for row in rows if row["kind"] == BASIS_KIND]
        others = [row for row in rows if row["kind"] != BASIS_KIND]
        if listed:
            items.append((name, min(listed, key=each_usd), min(others, key=each_usd, default=None)))
    columns: list[Column[tuple[str, Row, Row | None]]] = [
        Column("Accelerator", lambda item: tables.text(item[0], href=prices_path(item[1]["accelerator"]))),
        Column("Per hour", lambda item: tables.number(each_usd(item[1]), usd), numeric=True, explained="One accelerator, on demand."),
        Column("Per day", lambda item: tables.number(DAY * each_usd(item[1]), usd), numeric=True, explained="24 hours."),
        Column("Per week", lambda item: tables.number(WEEK * each_usd(item[1]), usd), numeric=True, explained="168 hours."),
        Column(
            "Whole instance",
            lambda item: Cell(f"{usd(item[1]['usd_per_hour'])}/h", small=_size(item[1], without_cpu), sort=item[1]["usd_per_hour"]),
            numeric=True,
            explained="The price of the instance that has to be rented.",
        ),
        Column("Offer", lambda item: tables.text(provider_name(item[1]["provider"]), small=item[1]["instance"])),
        Column("As of", lambda item: tables.text(item[1]["effective_on"]), tight=True),
        Column(
            "Cheapest spot, reserved or marketplace",
            lambda item: _other(item[2]),
            numeric=True,
            explained="Per accelerator and hour.",
        ),
    ]
    return tables.table("Cheapest on-demand price per accelerator", columns, items, interactive=True, searchable=False, stacked=True)


def _size(row: Row, accelerators: Collection[str]) -> str:
    """Return the number of accelerators of an instance, or of sockets of a CPU."""
    unit = "accelerator" if row["accelerator"] in accelerators else "socket"
    return f"{row['accelerator_count']:.3g} {unit}{'s' * (row['accelerator_count'] > 1)}"


def _other(row: Row | None) -> Cell:
    if row is None:
        return tables.text(None)
    return Cell(f"{usd(each_usd(row))}/h", small=f"{wording.words(row['kind'])}, {provider_name(row['provider'])}", sort=each_usd(row))


def _offers(catalogue: Catalogue, offers: Sequence[Row]) -> Table:
    accelerators = rentable(catalogue)

    def whole(head: str, hours: int) -> Column[Row]:
        return Column(f"Per {head}, instance", lambda row: tables.number(hours * row["usd_per_hour"], usd), numeric=True)

    def each(head: str, hours: int) -> Column[Row]:
        return Column(f"Per {head}, accelerator", lambda row: tables.number(hours * each_usd(row), usd), numeric=True)

    hour, *longer = PERIODS.items()
    columns: list[Column[Row]] = [
        Column(
            "Accelerator",
            lambda row: tables.text(_name(catalogue, row), href=prices_path(row["accelerator"]), small=_size(row, accelerators)),
        ),
        # A phone shows these without scrolling.
        each(*hour),
        whole(*hour),
        Column("Offer", lambda row: tables.text(provider_name(row["provider"]), small=row["instance"])),
        Column("Kind", lambda row: tables.text(wording.words(row["kind"]), small=row["region"] or "")),
        *(whole(*period) for period in longer),
        *(each(*period) for period in longer),
        Column("As of, source", lambda row: tables.text(row["effective_on"], small=_shortened(row["source"]))),
    ]
    return tables.table("All offers in force", columns, offers, interactive=True, searchable=False)


def _shortened(source: str | None) -> str:
    """Return the repository or the address of a source, without the path of its file."""
    return (wording.short_commits(source) or "").partition(" ")[0]


# Documents -----------------------------------------------------------------------------------------


def claimed_prices(catalogue: Catalogue) -> Iterator[Claimed]:
    """Yield the hourly prices that statements of documents print."""
    for statement in catalogue.statements:
        key = statement["statement_id"]
        printed = {claim["quantity"]: claim for claim in catalogue.claims.get(key, ())}
        if "price_usd_per_hour" not in printed:
            continue
        labels = {label["label"]: label["printed"] for label in catalogue.labels.get(key, ())}
        words = ", ".join(labels[name] for name in ("provider", "instance", "accelerator") if name in labels)
        findings = tuple(row for row in catalogue.findings_about.get(key, ()) if row["rule"] in SCOPE_RULES)
        yield Claimed(key, statement["source"], printed["price_usd_per_hour"]["value"], printed, words, findings)


def _claims(items: Sequence[Claimed]) -> Table | None:
    def period(quantity: str) -> Column[Claimed]:
        hours = PRINTED[quantity]

        def cell(item: Claimed) -> Cell:
            claim, recomputed = item.printed.get(quantity), hours * item.hourly
            if claim is None:
                return tables.text(None)
            return Cell(
                claim["printed"], small=f"{hours} h: {usd(recomputed)} ({claim['value'] / recomputed - 1:+.1%})", sort=claim["value"]
            )

        return Column("Per day" if hours == DAY else "Per week", cell, numeric=True)

    columns: list[Column[Claimed]] = [
        Column(
            "Offer, as printed",
            lambda item: tables.text(item.labels, small=f"document {item.source}", href=statement_path(item.source, item.statement)),
        ),
        Column("Per hour", lambda item: Cell(item.printed["price_usd_per_hour"]["printed"], sort=item.hourly), numeric=True),
        *map(period, PRINTED),
        Column("What the price covers", lambda item: tables.text("; ".join(row["calculation"] for row in item.findings) or "no finding")),
    ]
    return tables.table("Prices that documents print", columns, items, searchable=False, stacked=True) if items else None
