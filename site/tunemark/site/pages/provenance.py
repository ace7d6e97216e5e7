"""Where every fact comes from: one table per kind of fact, with source and date, and what nobody has verified."""

from collections.abc import Callable, Iterator

from tunemark.site import tables, wording
from tunemark.site.page import Page, accelerator_path, document_path, model_path, prices_path, result_path, workload_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

CRUMBS = (("Guide", "guide/index"),)
DATED_BY = {"provider": "day of the price list", "catalog": "day on which a catalogue without dates was read"}


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the provenance page."""
    context = {
        "accelerators": _accelerators(catalogue.accelerators),
        "models": _cards("Models", catalogue.models, lambda row: model_path(row["model"]), "name"),
        "workloads": _cards("Workloads", catalogue.workloads, lambda row: workload_path(row["workload"]), "title"),
        "prices": _prices(catalogue.prices),
        "results": _results(catalogue),
    }
    yield Page("guide/provenance", "Where facts come from", "provenance.md.j2", context, CRUMBS)


def _table(name: str, heads: tuple[str, ...], rows: Iterator[tuple[Cell, ...]]) -> Table:
    return tables.table(name, [Column(head) for head in heads], map(Line, rows), interactive=True, searchable=False)


def _accelerators(rows: list[Row]) -> Table:
    cells = (
        (
            tables.text(row["name"], href=accelerator_path(row["accelerator"])),
            tables.text(row["source"]),
            tables.text(", ".join(row["unverified"])),
        )
        for row in rows
    )
    return _table("Accelerators", ("Accelerator", "Source", "Not read at a source"), cells)


def _cards(name: str, rows: list[Row], path: Callable[[Row], str], label: str) -> Table:
    cells = ((tables.text(row[label], href=path(row)), tables.text(row["source"])) for row in rows)
    return _table(name, (name.removesuffix("s"), "Source"), cells)


def _prices(rows: list[Row]) -> Table:
    cells = (
        (
            tables.text(f"{row['provider']} {row['instance']}", href=prices_path(row["accelerator"]), small=wording.words(row["kind"])),
            tables.quantity("price_usd_per_hour", row["usd_per_hour"]),
            tables.text(row["effective_on"], small=DATED_BY[row["dated_by"]]),
            tables.text(row["source"], small=row["notes"] or ""),
        )
        for row in rows
    )
    return _table("Prices", ("Offer", "USD/h", "Known on", "Source"), cells)


def _results(catalogue: Catalogue) -> Table:
    """Return the results that others obtained: the document, and the repository where only that has the row."""
    origins = {
        result_id: fact["value"]
        for result_id, facts in catalogue.facts.items()
        for fact in facts
        if fact["topic"] == "origin" and fact["name"] != "document"
    }
    known = {row["source"] for row in catalogue.sources}
    cells = (
        (
            tables.text(row["result_id"], href=result_path(row["result_id"])),
            tables.text(
                row["source_title"], href=document_path(row["source"]) if row["source"] in known else None, small=row["section"] or ""
            ),
            tables.text(origins.get(row["result_id"])),
            tables.text(row["file"]),
        )
        for row in catalogue.results
        if row["trust"] in {"published", "converted"}
    )
    return _table("Results of others", ("Result", "Document", "Only in its repository", "File here"), cells)
