"""The home page: the question, the evidence available to answer it, and the ways in."""

from collections.abc import Iterator

from tunemark.site import tables, wording
from tunemark.site.page import Page
from tunemark.site.pages.mlperf import rounds
from tunemark.site.queries import Catalogue
from tunemark.site.results_table import memory_cell, rate_cell, result_cell, status_cell
from tunemark.site.tables import Column, Row, Table, quantity_column

NEWEST = 6
TITLE = "Which accelerator should I fine-tune this model on?"


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the home page."""
    measured = catalogue.results_where(source="measured")
    trust = [(level, meaning, len(catalogue.results_where(trust=level))) for level, meaning in wording.TRUST.items()]
    context = {
        "counts": _counts(catalogue, measured),
        "newest": _newest(measured),
        "trust": trust,
        "published": len(catalogue.results_where(trust="published")),
        "documents": len(catalogue.sources) - len(rounds(catalogue)),
        "converted": len(catalogue.results_where(trust="converted")),
        "rounds": len(rounds(catalogue)),
    }
    yield Page("index", TITLE, "home.md.j2", context)


def _counts(catalogue: Catalogue, measured: list[Row]) -> list[tuple[str, int, str]]:
    """Return label, number and link of each count."""
    mlperf_rounds = len(rounds(catalogue))
    counts = [
        ("result", len(catalogue.results), "results/index"),
        ("measured result", len(measured), "workloads/index"),
        ("accelerator", len({row["accelerator"] for row in catalogue.results} - {None}), "accelerators/index"),
        ("model", len({row["model"] for row in catalogue.results} - {None}), "models/index"),
        ("source document", len(catalogue.sources) - mlperf_rounds, "documents/index"),
        *([("MLPerf round", mlperf_rounds, "documents/index")] if mlperf_rounds else []),
        ("dated price", len(catalogue.prices), "cost"),
    ]
    return [(noun if number == 1 else f"{noun}s", number, path) for noun, number, path in counts]


def _newest(measured: list[Row]) -> Table | None:
    if not measured:
        return None
    newest = sorted(measured, key=lambda row: (-(row["started_us"] or 0), row["result_id"]))[:NEWEST]
    columns: list[Column[Row]] = [
        Column("Accelerator", result_cell),
        Column("Workload", lambda row: tables.text(row["workload"], small=wording.method(row))),
        Column("Status", status_cell),
        quantity_column("tokens_per_s", lambda row: rate_cell(row, "tokens_per_s")),
        quantity_column("peak_memory_bytes", memory_cell),
        Column("Date", lambda row: tables.text(wording.day(row["started_us"])), tight=True),
    ]
    return tables.table("Newest measured runs", columns, newest, searchable=False)
