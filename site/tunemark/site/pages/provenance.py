"""Where every fact comes from: one table per kind of fact, with source and date, and what nobody has verified."""

from collections.abc import Callable, Iterable, Iterator

from tunemark.schema.records.converted import MLPERF_LABEL
from tunemark.site import tables, wording
from tunemark.site.page import Page, accelerator_path, document_path, model_path, prices_path, result_path, workload_path
from tunemark.site.queries import Catalogue, Row
from tunemark.site.results_table import trust_cell
from tunemark.site.tables import Cell, Column, Line, Table

CRUMBS = (("Guide", "guide/index"),)
DATED_BY = {
    "provider": "day of the price list",
    "catalog": "day on which a catalogue without dates was read",
    "inferred": "follows from the price lists around it",
}
SECTIONS = ("prices", "accelerators", "models", "workloads", "documents", "statements", "results")
"""In the order of the page."""


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the provenance page."""
    made = {
        "prices": _prices(catalogue),
        "accelerators": _accelerators(catalogue.accelerators),
        "models": _models(catalogue.models),
        "workloads": _workloads(catalogue.workloads),
        "documents": _documents(catalogue.sources),
        "statements": _statements(catalogue),
        "results": _results(catalogue),
    }
    sections = [(name, made[name].name, len(made[name].lines)) for name in SECTIONS]
    context = {"sections": sections, "tables": made, "label": MLPERF_LABEL}
    yield Page("guide/provenance", "Where facts come from", "provenance.md.j2", context, CRUMBS)


def _table(name: str, heads: tuple[str, ...], rows: Iterable[tuple[Cell, ...]]) -> Table:
    return tables.table(name, [Column(head) for head in heads], map(Line, rows), interactive=True, searchable=False, stacked=True)


def _source(row: Row, small: str = "") -> Cell:
    """Return where a fact was read, with commits shortened: whole ones are in the file of the fact."""
    return tables.text(wording.short_commits(row["source"]), small=small)


def _accelerators(rows: list[Row]) -> Table:
    cells = (
        (
            tables.text(row["name"], href=accelerator_path(row["accelerator"])),
            _source(row),
            tables.text(row["read_on"]),
            tables.text(", ".join(row["unverified"])),
        )
        for row in rows
    )
    return _table("Accelerators", ("Accelerator", "Source", "Read on", "Not read at a source"), cells)


def _models(rows: list[Row]) -> Table:
    cells = ((tables.text(row["name"], href=model_path(row["model"])), _source(row), tables.text(row["read_on"])) for row in rows)
    return _table("Models", ("Model", "Source", "Read on"), cells)


def _workloads(rows: list[Row]) -> Table:
    cells = ((tables.text(row["title"], href=workload_path(row["workload"])), _source(row)) for row in rows)
    return _table("Workloads", ("Workload", "Source"), cells)


def _prices(catalogue: Catalogue) -> Table:
    names = {row["accelerator"]: row["name"] for row in catalogue.accelerators}
    ordered = sorted(catalogue.prices, key=lambda row: (names.get(row["accelerator"]) or row["accelerator"]).lower())
    cells = (
        (
            tables.text(names.get(row["accelerator"]) or row["accelerator"], href=prices_path(row["accelerator"])),
            tables.text(f"{row['provider']} {row['instance']}", small=", ".join(_terms(row))),
            tables.quantity("price_usd_per_hour", row["usd_per_hour"]),
            tables.text(row["effective_on"], small=DATED_BY[row["dated_by"]]),
            _source(row, small=row["notes"] or ""),
        )
        for row in ordered
    )
    return _table("Prices", ("Accelerator", "Offer", "USD/h", "Known on", "Source"), cells)


def _terms(row: Row) -> Iterator[str]:
    yield wording.words(row["kind"])
    yield f"{row['accelerator_count']:g} of it"
    if row["region"]:
        yield row["region"]


def _documents(rows: list[Row]) -> Table:
    cells = (
        (
            tables.text(row["title"], href=document_path(row["source"])),
            tables.text(wording.short_commits(row["url"] or row["origin_repository"]), small=row["authors"] or ""),
            tables.text(row["published_on"]),
            tables.text(row["read_on"]),
        )
        for row in rows
    )
    return _table("Documents", ("Document", "Source", "Published on", "Read on"), cells)


def _statements(catalogue: Catalogue) -> Table:
    documents = {row["source"]: row for row in catalogue.sources}
    cells = (
        (
            tables.text(row["statement_id"], small=_words(catalogue, row["statement_id"])),
            tables.text(", ".join(claim["printed"] for claim in catalogue.claims.get(row["statement_id"], ()))),
            tables.text(documents[row["source"]]["title"], href=document_path(row["source"]), small=row["section"] or ""),
            tables.text(documents[row["source"]]["read_on"]),
            tables.text(row["note"]),
        )
        for row in catalogue.statements
        if row["source"] in documents
    )
    return _table("Statements of documents", ("Statement", "As printed", "Document", "Read on", "Note"), cells)


def _words(catalogue: Catalogue, record: str) -> str:
    return ", ".join(label["printed"] for label in catalogue.labels.get(record, ()))


def _results(catalogue: Catalogue) -> Table:
    """Return the results that others obtained: the document, and the repository where only that has the row."""
    origins = _origins(catalogue)
    documents = {row["source"]: row for row in catalogue.sources}
    cells = (
        (
            tables.text(row["result_id"], href=result_path(row["result_id"])),
            trust_cell(row),
            tables.text(row["source_title"], href=_known(row["source"], documents, document_path), small=row["section"] or ""),
            tables.text(_day(documents.get(row["source"]))),
            tables.text(wording.short_commits(origins.get(row["result_id"]))),
            tables.text(row["file"]),
        )
        for row in catalogue.results
        if row["trust"] in {"published", "converted"}
    )
    return _table("Results of others", ("Result", "Trust", "Document", "Of", "Only in its repository", "File here"), cells)


def _origins(catalogue: Catalogue) -> dict[str, str | None]:
    return {
        result_id: fact["value"]
        for result_id, facts in catalogue.facts.items()
        for fact in facts
        if fact["topic"] == "origin" and fact["name"] != "document"
    }


def _known(source: str, documents: dict[str, Row], path: Callable[[str], str]) -> str | None:
    return path(source) if source in documents else None


def _day(document: Row | None) -> object:
    """Return the date of a document: of its publication where that is known, else of reading it."""
    return None if document is None else document["published_on"] or document["read_on"]
