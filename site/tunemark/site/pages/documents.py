"""Source documents: their summary, their tables reproduced digit for digit, and their results."""

import re
from collections.abc import Iterator

from tunemark.site import tables, wording
from tunemark.site.page import Fact, Page, audit_path, document_path, result_path
from tunemark.site.pages import audit
from tunemark.site.pages.mlperf import differences, entries_table
from tunemark.site.pages.published import claims_table
from tunemark.site.queries import Catalogue
from tunemark.site.render import web_link
from tunemark.site.results_table import results_table
from tunemark.site.tables import Cell, Column, Row, Table, text_column

CRUMBS = (("Documents", "documents/index"),)
REFERENCE = re.compile(r"\{([^{}/]+)/([^{}/]+)\}")
"""A cell refers to a printed figure or label as `{record/name}`."""


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of documents and a page for each."""
    yield Page("documents/index", "Documents", "documents.md.j2", {"table": _list(catalogue)})
    for row in catalogue.sources:
        source = row["source"]
        results = catalogue.results_where(source=source)
        converted = bool(results) and all(result["trust"] == "converted" for result in results)
        context = {
            "document": row,
            "facts": _facts(row),
            "rebuilt": [rebuilt(catalogue, printed) for printed in catalogue.tables if printed["source"] == source],
            "results": (entries_table if converted else _results)(catalogue, results) if results else None,
            "differences": differences(catalogue, results) if converted else None,
            "counts": audit.verdict_counts(catalogue.findings_by_source.get(source, ()), source),
            "audit": audit_path(source),
            "statements": _statements(catalogue, source),
        }
        yield Page(document_path(source), row["title"], "document.md.j2", context, CRUMBS)


def _list(catalogue: Catalogue) -> Table:
    columns: list[Column[Row]] = [
        Column("Document", lambda row: tables.text(row["title"], href=document_path(row["source"]), small=row["source"])),
        text_column("Published", "published_on"),
        Column("Results", lambda row: tables.number(len(catalogue.results_where(source=row["source"]))), numeric=True),
        text_column("Content", "summary"),
    ]
    return tables.table("Source documents", columns, catalogue.sources, interactive=True)


def _results(catalogue: Catalogue, results: list[Row]) -> Table:
    return results_table(catalogue, results, "Results of this document", without=frozenset({"trust"}))


def rebuilt(catalogue: Catalogue, printed: Row) -> Table:
    """Return a table of a document as printed. Each row links each of its results once."""
    by_row: dict[int, list[Row]] = {}
    for cell in catalogue.cells.get((printed["source"], printed["table_id"]), ()):
        by_row.setdefault(cell["row_number"], []).append(cell)
    heads = printed["columns"]
    columns: list[Column[list[Cell]]] = [
        Column(head, lambda cells, index=index: cells[index])  # type: ignore[misc]
        for index, head in enumerate(heads)
    ]
    rows = (_printed_row(catalogue, cells, len(heads)) for _, cells in sorted(by_row.items()))
    return tables.table(printed["title"], columns, rows, searchable=False)


def _printed_row(catalogue: Catalogue, cells: list[Row], width: int) -> list[Cell]:
    made, linked = [Cell("")] * width, set()
    for cell in cells:
        fresh = [record for record in cell["result_ids"] if record in catalogue.result_ids and record not in linked]
        linked.update(fresh)
        printed = REFERENCE.sub(lambda match: printed_text(catalogue, match[1], match[2]), cell["template"])
        made[cell["column_number"] - 1] = Cell(printed, href=result_path(fresh[0]) if fresh else None)
    return made


def printed_text(catalogue: Catalogue, record: str, key: str) -> str:
    """Return the printed claim of that name, else the label, else the reference itself."""
    for claim in catalogue.claims.get(record, ()):
        if claim["quantity"] == key:
            return str(claim["printed"])
    for label in catalogue.labels.get(record, ()):
        if label["label"] == key:
            return str(label["printed"])
    return f"{{{record}/{key}}}"


def _facts(row: Row) -> list[Fact]:
    return [
        Fact("Authors", wording.plain(row["authors"])),
        Fact("Published", wording.plain(row["published_on"])),
        Fact("Address", wording.plain(row["url"]), href=web_link(row["url"])),
        Fact("Origin repository", wording.plain(row["origin_repository"])),
        Fact("Source id", row["source"]),
    ]


def _statements(catalogue: Catalogue, source: str) -> list[dict[str, object]]:
    """Return the rows of a document that are not results of runs: prices, device data, recommendations."""
    return [
        {
            "id": row["statement_id"],
            "section": row["section"],
            "note": row["note"] or "",
            "labels": [Fact(wording.words(label["label"]), label["printed"]) for label in catalogue.labels.get(row["statement_id"], ())],
            "claims": claims_table(catalogue.claims.get(row["statement_id"], [])),
            "findings": audit.findings_about(catalogue, row["statement_id"]),
        }
        for row in catalogue.statements
        if row["source"] == source
    ]
