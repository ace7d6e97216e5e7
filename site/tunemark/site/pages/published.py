"""The page of a published result: what the document printed, digit for digit, and what it may mean."""

from collections.abc import Iterator

from tunemark.schema.quantities import QUANTITIES
from tunemark.site import tables, wording
from tunemark.site.page import Fact, Page, document_path
from tunemark.site.pages.result import result_page, sections
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Column, Line, Table

TOPICS = {"derived": "Derived by us", "settings": "Settings", "packages": "Packages", "origin": "Origin"}


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield a page for each result of a document."""
    for row in catalogue.results:
        if row["source"] != "measured" and row["trust"] != "converted":
            crumbs = (("Documents", "documents/index"), (row["source_title"], document_path(row["source"])))
            yield result_page(catalogue, row, "published.md.j2", crumbs, _more(catalogue, row))


def _more(catalogue: Catalogue, row: Row) -> dict[str, object]:
    record = row["result_id"]
    return {
        "claims": claims_table(catalogue.claims.get(record, [])),
        "readings": _readings_table(catalogue.readings.get(record, [])),
        "labels": [Fact(wording.words(label["label"]), label["printed"]) for label in catalogue.labels.get(record, [])],
        "topics": sections(catalogue, row, TOPICS, leave_out=frozenset({"conditions"})),
        "provenance": _provenance(row),
    }


def claims_table(claims: list[Row]) -> Table | None:
    """Return printed figures beside our reading of them."""
    if not claims:
        return None
    columns = [Column("Quantity"), Column("As printed", numeric=True), Column("In our units", numeric=True), Column("Note")]
    lines = (
        Line(
            (
                tables.text(QUANTITIES[claim["quantity"]].label if claim["quantity"] in QUANTITIES else claim["quantity"]),
                tables.text(claim["printed"]),
                tables.text(_shown(claim)),
                tables.text(claim["note"]),
            )
        )
        for claim in claims
    )
    return tables.table("Printed figures", columns, lines, searchable=False)


def _readings_table(readings: list[Row]) -> Table | None:
    if not readings:
        return None
    columns = [Column("Quantity"), Column("If it means"), Column("It is", numeric=True)]
    lines = (
        Line(
            (
                tables.text(QUANTITIES[row["quantity"]].label if row["quantity"] in QUANTITIES else row["quantity"]),
                tables.text(row["meaning"]),
                tables.text(_shown(row)),
            )
        )
        for row in readings
    )
    return tables.table("Readings of ambiguous figures", columns, lines, searchable=False)


def _shown(row: Row) -> str:
    known = QUANTITIES.get(row["quantity"])
    return known.text(row["value"]) if known else wording.plain(row["value"])


def _provenance(row: Row) -> list[Fact]:
    return [
        Fact("Result", row["result_id"]),
        Fact("Document", row["source_title"], href=document_path(row["source"])),
        Fact("Section", wording.plain(row["section"])),
        Fact("File", row["file"]),
        Fact("SHA-256", row["sha256"]),
    ]
