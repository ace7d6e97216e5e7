"""Accelerators: facts with their source, results on them and their prices."""

from collections.abc import Iterator
from urllib.parse import urlencode

from tunemark.schema.formats import significant, usd
from tunemark.site import tables, wording
from tunemark.site.page import Fact, Page, accelerator_path
from tunemark.site.pages import prices
from tunemark.site.queries import Catalogue
from tunemark.site.results_table import MOST_BESIDE, best_rates, results_table
from tunemark.site.tables import Cell, Column, Row, Table, text_column

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
"""Fact -> label and unit."""
LISTED = ("memory_gib", "memory_bandwidth_gb_s", "peak_bf16_tflops", "tdp_w")
UNVERIFIED = "unverified"
UNITS = {"device": "one device", "chip": "one chip", "core": "one core", "cpu": "one socket"}


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of accelerators and a page for each."""
    with_results = len({row["accelerator"] for row in catalogue.results} - {None})
    yield Page("accelerators/index", "Accelerators", "accelerators.md.j2", {"table": _list(catalogue), "with_results": with_results})
    for row in catalogue.accelerators:
        results = catalogue.results_where(accelerator=row["accelerator"])
        offers = [price for price in catalogue.prices if price["accelerator"] == row["accelerator"]]
        context = _context(catalogue, row, results, offers)
        yield Page(accelerator_path(row["accelerator"]), row["name"], "accelerator.md.j2", context, CRUMBS)


def _context(catalogue: Catalogue, row: Row, results: list[Row], offers: list[Row]) -> dict[str, object]:
    return {
        "accelerator": row,
        "headlines": _headlines(catalogue, row, len(results)),
        "facts": _facts(row),
        "unverified": bool(row["unverified"]),
        "source": wording.short_commits(row["source"]),
        "best": best_rates(catalogue, results, "Best rates by model and method", "model"),
        "results": results_table(
            catalogue,
            results,
            "Results on this accelerator",
            explorer=urlencode({"accelerator": row["name"]}),
            most=MOST_BESIDE,
        )
        if results
        else None,
        "prices": _prices(offers),
    }


def _list(catalogue: Catalogue) -> Table:
    columns: list[Column[Row]] = [
        Column(
            "Accelerator",
            lambda row: tables.text(row["name"], href=accelerator_path(row["accelerator"]), small=row["architecture"] or ""),
        ),
        text_column("Vendor", "vendor"),
        *(_fact_column(name) for name in LISTED),
        Column(
            "On demand from, USD/h",
            lambda row: tables.quantity("price_usd_per_hour", _cheapest_usd_per_hour(catalogue, row)),
            numeric=True,
            explained="Cheapest on-demand list price of one accelerator in the price book.",
        ),
        Column("Results", lambda row: tables.number(len(catalogue.results_where(accelerator=row["accelerator"]))), numeric=True),
    ]
    most_results_first = sorted(catalogue.accelerators, key=lambda row: -len(catalogue.results_where(accelerator=row["accelerator"])))
    return tables.table("Accelerators", columns, most_results_first, interactive=True, searchable=False)


def _headlines(catalogue: Catalogue, row: Row, results: int) -> list[Fact]:
    """Return the figures by which a reader decides: number of results, cheapest price, memory and peak."""
    offer = _cheapest_offer(catalogue, row)
    price = offer["usd_per_hour"] / offer["accelerator_count"] if offer else None
    whole = (
        "one accelerator"
        if offer is None or offer["accelerator_count"] == 1
        else f"{offer['accelerator_count']:g} for {usd(offer['usd_per_hour'])}/h"
    )
    shown = {
        "Results": (f"{results:,}", ""),
        "On demand from": (f"{usd(price)}/h" if price is not None else "", f"{whole}, list price"),
        "Memory": _headline(row, "memory_gib", ""),
        "Dense peak, bf16": _headline(row, "peak_bf16_tflops", "without sparsity"),
    }
    return [Fact(name, value, note) for name, (value, note) in shown.items() if value]


def _headline(row: Row, name: str, note: str) -> tuple[str, str]:
    """Return a figure of the card with its unit, and its note or that it is not verified."""
    shown = "" if row[name] is None else f"{_value(row[name], name)} {FACTS[name][1]}"
    return shown, UNVERIFIED if _is_unverified(row, name) else note


def _fact_column(name: str) -> Column[Row]:
    label, unit = FACTS[name]
    return Column(
        f"{label} ({unit})",
        lambda row: Cell(_value(row[name], name), sort=row[name], mark=UNVERIFIED if _is_unverified(row, name) else ""),
        numeric=True,
    )


def _cheapest_usd_per_hour(catalogue: Catalogue, row: Row) -> float | None:
    """Return the cheapest current on-demand price of one accelerator, or None without an offer."""
    offer = _cheapest_offer(catalogue, row)
    return None if offer is None else float(offer["usd_per_hour"] / offer["accelerator_count"])


def _cheapest_offer(catalogue: Catalogue, row: Row) -> Row | None:
    """Return the current on-demand offer with the cheapest accelerator, or None without an offer."""
    offers = (
        price
        for price in catalogue.prices
        if price["accelerator"] == row["accelerator"] and price["newest"] and price["kind"] == "on_demand"
    )
    return min(offers, key=lambda price: (price["usd_per_hour"] / price["accelerator_count"], price["accelerator_count"]), default=None)


def _value(value: float | None, name: str) -> str:
    if value is None or name == "launch_year":
        return wording.plain(None if value is None else str(value))
    return f"{value:,.0f}" if float(value).is_integer() else significant(value, 4)


def _is_unverified(row: Row, name: str) -> bool:
    card_name = name.removeprefix("peak_").removesuffix("_tflops").removesuffix("_tops")
    return row[name] is not None and (name in row["unverified"] or f"peak_tflops.{card_name}" in row["unverified"])


def _facts(row: Row) -> list[Fact]:
    return [
        Fact("Reports itself as", wording.plain(", ".join(row["aliases"]))),
        Fact("Vendor", row["vendor"]),
        Fact("Architecture", wording.plain(row["architecture"])),
        Fact("Counted as", UNITS.get(row["unit"], str(row["unit"]))),
        *((Fact("Physical cores", wording.plain(row["cpu_cores"]), row["cpu_clock"] or ""),) if row["cpu_cores"] else ()),
        *(
            Fact(
                label,
                f"{_value(row[name], name)} {unit}".strip() if row[name] is not None else _value(None, name),
                UNVERIFIED if _is_unverified(row, name) else "",
            )
            for name, (label, unit) in FACTS.items()
        ),
    ]


def _prices(rows: list[Row]) -> Table | None:
    return tables.table("Prices", prices.DATED, rows, interactive=True, searchable=False) if rows else None
