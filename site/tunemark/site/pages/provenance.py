"""Provenance: one table per kind of fact with source and date, and the values that are not verified."""

from collections.abc import Iterable, Iterator, Sequence

from tunemark.schema.records.converted import MLPERF_LABEL
from tunemark.site import tables, wording
from tunemark.site.page import Page, accelerator_path, document_path, model_path, prices_path, result_path, workload_path
from tunemark.site.pages.prices import DATED
from tunemark.site.queries import Catalogue
from tunemark.site.results_table import MOST_RESULTS, trust_cell
from tunemark.site.tables import Column, Row, Table, text_column

CRUMBS = (("Guide", "guide/index"),)


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the provenance page."""
    made = [
        _prices(catalogue),
        _accelerators(catalogue),
        _models(catalogue),
        _workloads(catalogue),
        _documents(catalogue),
        _statements(catalogue),
        _results(catalogue),
    ]
    yield Page("guide/provenance", "Where facts come from", "provenance.md.j2", {"tables": made, "label": MLPERF_LABEL}, CRUMBS)


def _table(name: str, columns: Sequence[Column[Row]], rows: Iterable[Row], *, most: int | None = None) -> Table:
    others = ("The page of each result names its document, section and file.", "results/index")
    return tables.table(name, columns, rows, interactive=True, searchable=False, stacked=True, most=most, all_rows=others)


# Commits are shortened; the file of each fact has them in full.
SOURCE: Column[Row] = Column("Source", lambda row: tables.text(wording.short_commits(row["source"])))
READ_ON = text_column("Read on", "read_on")


def _prices(catalogue: Catalogue) -> Table:
    names = {row["accelerator"]: row["name"] for row in catalogue.accelerators}

    def name(row: Row) -> str:
        return str(names.get(row["accelerator"]) or row["accelerator"])

    accelerator = Column[Row]("Accelerator", lambda row: tables.text(name(row), href=prices_path(row["accelerator"])))
    return _table("Prices", [accelerator, *DATED], sorted(catalogue.prices, key=lambda row: name(row).lower()))


def _accelerators(catalogue: Catalogue) -> Table:
    columns = [
        Column[Row]("Accelerator", lambda row: tables.text(row["name"], href=accelerator_path(row["accelerator"]))),
        SOURCE,
        READ_ON,
        text_column("Not verified", "unverified", ", ".join),
    ]
    return _table("Accelerators", columns, catalogue.accelerators)


def _models(catalogue: Catalogue) -> Table:
    name = Column[Row]("Model", lambda row: tables.text(row["name"], href=model_path(row["model"])))
    return _table("Models", [name, SOURCE, READ_ON], catalogue.models)


def _workloads(catalogue: Catalogue) -> Table:
    title = Column[Row]("Workload", lambda row: tables.text(row["title"], href=workload_path(row["workload"])))
    return _table("Workloads", [title, SOURCE], catalogue.workloads)


def _documents(catalogue: Catalogue) -> Table:
    columns = [
        Column[Row]("Document", lambda row: tables.text(row["title"], href=document_path(row["source"]))),
        Column[Row](
            "Source", lambda row: tables.text(wording.short_commits(row["url"] or row["origin_repository"]), small=row["authors"] or "")
        ),
        text_column("Published on", "published_on"),
        READ_ON,
    ]
    return _table("Documents", columns, catalogue.sources)


def _statements(catalogue: Catalogue) -> Table:
    documents = {row["source"]: row for row in catalogue.sources}

    def labels(row: Row) -> str:
        return ", ".join(label["printed"] for label in catalogue.labels.get(row["statement_id"], ()))

    def printed(row: Row) -> str:
        return ", ".join(claim["printed"] for claim in catalogue.claims.get(row["statement_id"], ()))

    columns: list[Column[Row]] = [
        Column("Statement", lambda row: tables.text(row["statement_id"], small=labels(row))),
        Column("As printed", lambda row: tables.text(printed(row))),
        Column(
            "Document",
            lambda row: tables.text(documents[row["source"]]["title"], href=document_path(row["source"]), small=row["section"] or ""),
        ),
        Column("Read on", lambda row: tables.text(documents[row["source"]]["read_on"])),
        text_column("Note", "note"),
    ]
    return _table("Statements of documents", columns, (row for row in catalogue.statements if row["source"] in documents))


def _results(catalogue: Catalogue) -> Table:
    """Return the results of others: the document, and the repository if only that has the row."""
    documents = {row["source"]: row for row in catalogue.sources}
    origins = {
        result_id: fact["value"]
        for result_id, facts in catalogue.facts.items()
        for fact in facts
        if fact["topic"] == "origin" and fact["name"] != "document"
    }

    def date(row: Row) -> object:
        document = documents.get(row["source"])
        return None if document is None else document["published_on"] or document["read_on"]

    columns: list[Column[Row]] = [
        Column("Result", lambda row: tables.text(row["result_id"], href=result_path(row["result_id"]))),
        Column("Trust", trust_cell),
        Column(
            "Document",
            lambda row: tables.text(
                row["source_title"],
                href=document_path(row["source"]) if row["source"] in documents else None,
                small=row["section"] or "",
            ),
        ),
        Column("Date", lambda row: tables.text(date(row))),
        Column("Repository, if not in the document", lambda row: tables.text(wording.short_commits(origins.get(row["result_id"])))),
        text_column("File", "file"),
    ]
    return _table(
        "Results of others", columns, (row for row in catalogue.results if row["trust"] in {"published", "converted"}), most=MOST_RESULTS
    )
