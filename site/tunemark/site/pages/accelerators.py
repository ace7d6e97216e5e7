"""Accelerators: facts with their source, results on them, prices of them."""

from collections.abc import Iterator

from tunemark.schema.formats import significant
from tunemark.site import tables, wording
from tunemark.site.page import Fact, Page, accelerator_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.render import web_link
from tunemark.site.results_table import results_table
from tunemark.site.tables import Cell, Column, Line, Table

CRUMBS = (("Accelerators", "accelerators/index"),)
FACTS: dict[str, tuple[str, str]] = {
    "memory_gib": ("Memory", "GiB"),
    "memory_bandwidth_gb_s": ("Memory bandwidth", "GB/s"),
    "peak_bf16_tflops": ("Peak bf16, dense", "TFLOP/s"),
    "peak_fp16_tflops": ("Peak fp16, dense", "TFLOP/s"),
    "peak_tf32_tflops": ("Peak tf32, dense", "TFLOP/s"),
    "peak_fp32_tflops": ("Peak fp32", "TFLOP/s"),
    "peak_fp8_tflops": ("Peak fp8, dense", "TFLOP/s"),
    "peak_int8_tops": ("Peak int8, dense", "TOP/s"),
    "tdp_w": ("Board power", "W"),
    "interconnect_gb_s": ("Interconnect", "GB/s"),
    "launch_year": ("Launched", ""),
    "msrp_usd": ("List price at launch", "USD"),
}
UNVERIFIED = "unverified"
UNITS = {"device": "one device", "chip": "one chip", "core": "one core"}


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of accelerators and a page for each."""
    yield Page("accelerators/index", "Accelerators", "accelerators.md.j2", {"table": _list(catalogue)})
    for row in catalogue.accelerators:
        results = catalogue.results_where(accelerator=row["accelerator"])
        context = {
            "accelerator": row,
            "facts": _facts(row),
            "unverified": bool(row["unverified"]),
            "source": wording.short_commits(row["source"]),
            "results": results_table(catalogue, results, "Results on this accelerator") if results else None,
            "prices": _prices([price for price in catalogue.prices if price["accelerator"] == row["accelerator"]]),
        }
        yield Page(accelerator_path(row["accelerator"]), row["name"], "accelerator.md.j2", context, CRUMBS)


def _list(catalogue: Catalogue) -> Table:
    shown = ("memory_gib", "memory_bandwidth_gb_s", "peak_bf16_tflops", "tdp_w")
    heads = [Column(f"{FACTS[name][0]} ({FACTS[name][1]})", numeric=True) for name in shown]
    columns = [
        Column("Accelerator"),
        Column("Vendor"),
        *heads,
        Column("On demand from, USD/h", numeric=True, explained="Cheapest on-demand price of one accelerator in the price book."),
        Column("Results", numeric=True),
    ]
    lines = (
        Line(
            (
                tables.text(row["name"], href=accelerator_path(row["accelerator"]), small=row["architecture"] or ""),
                tables.text(row["vendor"]),
                *(_number(row, name) for name in shown),
                _cheapest(catalogue, row),
                _count(len(catalogue.results_where(accelerator=row["accelerator"]))),
            )
        )
        for row in catalogue.accelerators
    )
    return tables.table("Accelerators", columns, lines, interactive=True, searchable=False)


def _number(row: Row, name: str) -> Cell:
    return Cell(_value(row[name], name), sort=row[name], mark=UNVERIFIED if row[name] is not None and _is_unverified(row, name) else "")


def _count(number: int) -> Cell:
    return Cell(str(number), sort=number)


def _cheapest(catalogue: Catalogue, row: Row) -> Cell:
    offers = [
        price["usd_per_hour"] / price["accelerator_count"]
        for price in catalogue.prices
        if price["accelerator"] == row["accelerator"] and price["newest"] and price["kind"] == "on_demand"
    ]
    return tables.quantity("price_usd_per_hour", min(offers, default=None))


def _value(value: float | None, name: str) -> str:
    if value is None or name == "launch_year":
        return tables.text(value).text
    return f"{value:,.0f}" if float(value).is_integer() else significant(value, 4)


def _is_unverified(row: Row, name: str) -> bool:
    card_name = name.removeprefix("peak_").removesuffix("_tflops").removesuffix("_tops")
    return name in row["unverified"] or f"peak_tflops.{card_name}" in row["unverified"]


def _facts(row: Row) -> list[Fact]:
    said = [
        Fact("Reports itself as", wording.plain(", ".join(row["aliases"]))),
        Fact("Vendor", row["vendor"]),
        Fact("Architecture", wording.plain(row["architecture"])),
        Fact("Counted as", UNITS.get(row["unit"], str(row["unit"]))),
    ]
    for name, (label, unit) in FACTS.items():
        known = row[name] is not None
        value = f"{_value(row[name], name)} {unit}".strip() if known else _value(None, name)
        said.append(Fact(label, value, UNVERIFIED if known and _is_unverified(row, name) else ""))
    return said


def _prices(prices: list[Row]) -> Table | None:
    if not prices:
        return None
    columns = [
        Column("Instance"),
        Column("Kind"),
        Column("Accelerators", numeric=True),
        Column("USD/h", numeric=True),
        Column("USD/h each", numeric=True),
        Column("Region"),
        Column("Known on", tight=True),
        Column("Source"),
    ]
    return tables.table("Prices", columns, (_price_line(price) for price in prices), interactive=True, searchable=False)


def _dated(price: Row) -> str:
    how = {"provider": "day of the price list", "catalog": "day a catalogue was read", "inferred": "inferred"}[price["dated_by"]]
    return how if price["newest"] else f"{how}; not the newest"


def _price_line(price: Row) -> Line:
    count = price["accelerator_count"]
    cells = (
        tables.text(price["instance"], small=price["provider"]),
        tables.text(wording.words(price["kind"])),
        Cell(wording.plain(count), sort=count),
        tables.quantity("price_usd_per_hour", price["usd_per_hour"]),
        tables.quantity("price_usd_per_hour", price["usd_per_hour"] / count if count else None),
        tables.text(price["region"]),
        tables.text(price["effective_on"], small=_dated(price)),
        tables.text(wording.short_commits(price["source"]), href=web_link(price["source"]), small=price["notes"] or ""),
    )
    return Line(cells)
