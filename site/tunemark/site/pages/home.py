"""The first page: the question, what is here to answer it, and the ways in."""

from collections.abc import Iterator

from tunemark.site import tables, wording
from tunemark.site.page import Page
from tunemark.site.pages.mlperf import rounds
from tunemark.site.queries import Catalogue, Row
from tunemark.site.results_table import memory_cell, rate_cell, result_cell, status_cell
from tunemark.site.tables import Column, Line, Table

NEWEST = 6
TITLE = "Which accelerator should I fine-tune this model on?"


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the first page."""
    measured = [row for row in catalogue.results if row["source"] == "measured"]
    trust = [(level, meaning, sum(row["trust"] == level for row in catalogue.results)) for level, meaning in wording.TRUST.items()]
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
    used = {row["accelerator"] for row in catalogue.results} - {None}
    came = len(rounds(catalogue))
    documents = len(catalogue.sources) - came
    fine_tuned = {row["model"] for row in catalogue.results} - {None}
    return [
        (_many("result", len(catalogue.results)), len(catalogue.results), "results/index"),
        ("of them measured", len(measured), "workloads/index"),
        (_many("accelerator", len(used)), len(used), "accelerators/index"),
        (_many("model", len(fine_tuned)), len(fine_tuned), "models/index"),
        (_many("source document", documents), documents, "documents/index"),
        *([(_many("MLPerf round", came), came, "documents/index")] if came else []),
        (_many("dated price", len(catalogue.prices)), len(catalogue.prices), "cost"),
    ]


def _many(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}s"


def _newest(measured: list[Row]) -> Table | None:
    if not measured:
        return None
    newest = sorted(measured, key=lambda row: (-(row["started_us"] or 0), row["result_id"]))[:NEWEST]
    columns = [
        Column("Accelerator"),
        Column("Workload"),
        Column("Status"),
        tables.head("tokens_per_s"),
        tables.head("peak_memory_bytes"),
        Column("Date", tight=True),
    ]
    lines = (
        Line(
            (
                result_cell(row),
                tables.text(row["workload"], small=wording.method(row)),
                status_cell(row),
                rate_cell(row, "tokens_per_s"),
                memory_cell(row),
                tables.text(wording.day(row["started_us"])),
            )
        )
        for row in newest
    )
    return tables.table("The newest measured runs", columns, lines, searchable=False)
