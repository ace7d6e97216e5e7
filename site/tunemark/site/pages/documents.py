"""Source documents: their summary, their tables reproduced digit for digit, and their results."""

import re
from collections.abc import Iterator
from urllib.parse import urlencode

from tunemark.site import tables, wording
from tunemark.site.page import Fact, Page, audit_path, document_path, result_path, statement_path
from tunemark.site.pages import audit
from tunemark.site.pages.mlperf import differences, entries_table
from tunemark.site.pages.published import claims_table
from tunemark.site.queries import MARKED, Catalogue
from tunemark.site.render import web_link
from tunemark.site.results_table import results_table
from tunemark.site.tables import Cell, Column, Row, Table

CRUMBS = (("Documents", "documents/index"),)
MOST_NAMES = 4
"""More accelerators than this are counted, not named."""
REFERENCE = re.compile(r"\{([^{}/]+)/([^{}/]+)\}")
"""A cell refers to a printed figure or label as `{record/name}`."""


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of documents and a page for each."""
    yield Page(
        "documents/index",
        "Documents",
        "documents.md.j2",
        {"table": _list(catalogue), "count": sum(row["trust"] != "measured" for row in catalogue.results)},
    )
    for row in catalogue.sources:
        yield Page(document_path(row["source"]), row["title"], "document.md.j2", _context(catalogue, row), CRUMBS)


def _context(catalogue: Catalogue, row: Row) -> dict[str, object]:
    source = row["source"]
    results = catalogue.results_where(source=source)
    converted = bool(results) and all(result["trust"] == "converted" for result in results)
    return {
        "document": row,
        "facts": _facts(row),
        "rebuilt": [rebuilt(catalogue, printed) for printed in catalogue.tables if printed["source"] == source],
        "results": (entries_table if converted else _results)(catalogue, results) if results else None,
        "differences": differences(catalogue, results) if converted else None,
        "counts": audit.verdict_counts(catalogue.findings_by_source.get(source, ()), source),
        "audit": audit_path(source),
        "statements": _statements(catalogue, source),
    }


def _list(catalogue: Catalogue) -> Table:
    def devices(row: Row) -> Cell:
        names = {result["accelerator_name"] for result in catalogue.results_where(source=row["source"]) if result["accelerator_name"]}
        return tables.text(", ".join(sorted(names)) if len(names) <= MOST_NAMES else f"{len(names)} kinds", sort=len(names))

    def methods(row: Row) -> Cell:
        used = {result["method"] for result in catalogue.results_where(source=row["source"])}
        return tables.text(", ".join(name for method, name in wording.METHODS.items() if method in used))

    def credible(row: Row) -> Cell:
        results = [result["result_id"] for result in catalogue.results_where(source=row["source"])]
        doubted = {
            record
            for finding in catalogue.findings_by_source.get(row["source"], ())
            if finding["verdict"] != "ambiguous"
            for record in finding["record_ids"]
        }
        share = sum(result not in doubted for result in results) / len(results) if results else None
        return tables.number(share, lambda value: f"{value:.0%}")

    columns: list[Column[Row]] = [
        Column("Document", lambda row: tables.text(row["title"], href=document_path(row["source"]), small=row["source"])),
        Column("Results", lambda row: tables.number(len(catalogue.results_where(source=row["source"]))), numeric=True),
        Column(
            "Without a finding",
            credible,
            numeric=True,
            explained="Share of the results about which the audit reports nothing, or only that a figure is ambiguous.",
        ),
        Column("Methods", methods),
        Column("Accelerators", devices),
        Column("Content", lambda row: tables.text(row["summary"], small=row["published_on"] or "")),
    ]
    return tables.table("Source documents", columns, catalogue.sources, interactive=True)


def _results(catalogue: Catalogue, results: list[Row]) -> Table:
    return results_table(
        catalogue, results, "Results of this document", without=frozenset({"trust"}), explorer=urlencode({"source": results[0]["source"]})
    )


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
        marked = catalogue.marked_cells
        verdicts = [(marked[reference], reference[0]) for reference in REFERENCE.findall(cell["template"]) if reference in marked]
        verdict, record = min(verdicts, key=lambda item: MARKED.index(item[0]), default=("", ""))
        place = _finding_path(catalogue, record) if record else None
        made[cell["column_number"] - 1] = Cell(printed, href=result_path(fresh[0]) if fresh else None, mark=verdict, mark_href=place)
    return made


def _finding_path(catalogue: Catalogue, record: str) -> str:
    """Return the place of the findings about a result or a statement."""
    if record in catalogue.result_ids:
        return f"{result_path(record)}#audit-findings"
    return statement_path(catalogue.statement_sources[record], record)


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
