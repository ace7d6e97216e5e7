"""Source documents: what they say, their tables rebuilt digit for digit, and their results."""

import re
from collections.abc import Iterator

from tunemark.site import tables, wording
from tunemark.site.page import Fact, Page, audit_path, document_path, result_path
from tunemark.site.pages import audit
from tunemark.site.pages.mlperf import differences, entries_table
from tunemark.site.pages.published import claims_table
from tunemark.site.queries import Catalogue, Row
from tunemark.site.render import web_link
from tunemark.site.results_table import results_table
from tunemark.site.tables import Cell, Column, Line, Table

CRUMBS = (("Documents", "documents/index"),)
REFERENCE = re.compile(r"\{([^{}/]+)/([^{}/]+)\}")


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of documents and a page for each."""
    yield Page("documents/index", "Documents", "documents.md.j2", {"table": _list(catalogue)})
    for row in catalogue.sources:
        results = catalogue.results_where(source=row["source"])
        converted = bool(results) and all(result["trust"] == "converted" for result in results)
        context = {
            "document": row,
            "facts": _facts(row),
            "rebuilt": [rebuilt(catalogue, found) for found in catalogue.tables if found["source"] == row["source"]],
            "results": (entries_table if converted else _results)(catalogue, results) if results else None,
            "differences": differences(catalogue, results) if converted else None,
            "counts": audit.in_a_line(catalogue.findings_by_source.get(row["source"], ()), row["source"]),
            "audit": audit_path(row["source"]),
            "statements": _statements(catalogue, row["source"]),
        }
        yield Page(document_path(row["source"]), row["title"], "document.md.j2", context, CRUMBS)


def _results(catalogue: Catalogue, results: list[Row]) -> Table:
    return results_table(catalogue, results, "Results of this document", without=frozenset({"trust"}))


def rebuilt(catalogue: Catalogue, found: Row) -> Table:
    """Return a table of a document as it was printed; each result it speaks of is linked once in a row."""
    rows: dict[int, list[Row]] = {}
    for cell in catalogue.cells.get((found["source"], found["table_id"]), ()):
        rows.setdefault(cell["row_number"], []).append(cell)
    columns = [Column(head) for head in found["columns"]]
    return tables.table(
        found["title"], columns, (_line(catalogue, cells, len(columns)) for _, cells in sorted(rows.items())), searchable=False
    )


def _line(catalogue: Catalogue, cells: list[Row], width: int) -> Line:
    made, linked = [Cell("")] * width, set()
    for cell in cells:
        fresh = [record for record in cell["result_ids"] if record in catalogue.result_ids and record not in linked]
        linked.update(fresh)
        printed = REFERENCE.sub(lambda match: printed_text(catalogue, match[1], match[2]), cell["template"])
        made[cell["column_number"] - 1] = Cell(printed, href=result_path(fresh[0]) if fresh else None)
    return Line(tuple(made))


def printed_text(catalogue: Catalogue, record: str, key: str) -> str:
    """Return what a reference prints: the claim of that name, else the label; the reference itself when there is neither."""
    for claim in catalogue.claims.get(record, ()):
        if claim["quantity"] == key:
            return str(claim["printed"])
    for label in catalogue.labels.get(record, ()):
        if label["label"] == key:
            return str(label["printed"])
    return f"{{{record}/{key}}}"


def _list(catalogue: Catalogue) -> Table:
    columns = [Column("Document"), Column("Published"), Column("Results", numeric=True), Column("What it measures")]
    lines = (
        Line(
            (
                tables.text(row["title"], href=document_path(row["source"]), small=row["source"]),
                tables.text(row["published_on"]),
                _count(len(catalogue.results_where(source=row["source"]))),
                tables.text(row["summary"]),
            )
        )
        for row in catalogue.sources
    )
    return tables.table("Source documents", columns, lines, interactive=True)


def _count(number: int) -> Cell:
    return Cell(str(number), sort=number)


def _facts(row: Row) -> list[Fact]:
    return [
        Fact("Authors", wording.plain(row["authors"])),
        Fact("Published", wording.plain(row["published_on"])),
        Fact("Address", wording.plain(row["url"]), href=web_link(row["url"])),
        Fact("Origin repository", wording.plain(row["origin_repository"])),
        Fact("Number here", row["source"]),
    ]


def _statements(catalogue: Catalogue, source: str) -> list[tuple[str, str, str, list[Fact], Table | None, list[audit.Told]]]:
    """Return the rows of a document that are no results: id, section, note, words, figures, findings."""
    return [
        (
            row["statement_id"],
            row["section"],
            row["note"] or "",
            [Fact(wording.words(label["label"]), label["printed"]) for label in catalogue.labels.get(row["statement_id"], ())],
            claims_table(catalogue.claims.get(row["statement_id"], [])),
            audit.told(catalogue, row["statement_id"]),
        )
        for row in catalogue.statements
        if row["source"] == source
    ]
