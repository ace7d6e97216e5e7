"""The page of a published result: what the document printed, digit for digit, and its possible meanings."""

from collections.abc import Iterator
from functools import partial

from tunemark.schema.quantities import QUANTITIES
from tunemark.site import tables, wording
from tunemark.site.page import Fact, Page, document_path
from tunemark.site.queries import Catalogue
from tunemark.site.result_page import result_page, sections
from tunemark.site.tables import Column, Row, Table, text_column

TOPICS = {"derived": "Derived values", "settings": "Settings", "packages": "Packages", "origin": "Origin"}


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield a page for each result of a document."""
    for row in catalogue.results:
        if row["source"] != "measured" and row["trust"] != "converted":
            crumbs = (("Documents", "documents/index"), (row["source_title"], document_path(row["source"])))
            yield result_page(catalogue, row, "published.md.j2", crumbs, partial(_context, catalogue, row))


def _context(catalogue: Catalogue, row: Row) -> dict[str, object]:
    record = row["result_id"]
    return {
        "claims": claims_table(catalogue.claims.get(record, [])),
        "readings": _readings_table(catalogue.readings.get(record, [])),
        "labels": [Fact(wording.words(label["label"]), label["printed"]) for label in catalogue.labels.get(record, [])],
        "topics": sections(catalogue, row, TOPICS, leave_out=frozenset({"conditions"})),
        "provenance": _provenance(row, catalogue.source_rows[row["source"]]),
    }


def claims_table(claims: list[Row]) -> Table | None:
    """Return printed figures with their values in our units."""
    columns: list[Column[Row]] = [
        text_column("Quantity", "quantity", _label),
        Column("As printed", lambda claim: tables.text(claim["printed"]), numeric=True),
        Column("In our units", lambda claim: tables.text(_shown(claim)), numeric=True),
        text_column("Note", "note"),
    ]
    return tables.table("Printed figures", columns, claims, searchable=False) if claims else None


def _readings_table(readings: list[Row]) -> Table | None:
    columns: list[Column[Row]] = [
        text_column("Quantity", "quantity", _label),
        text_column("Reading", "meaning"),
        Column("Value", lambda reading: tables.text(_shown(reading)), numeric=True),
    ]
    return tables.table("Readings of ambiguous figures", columns, readings, searchable=False) if readings else None


def _label(key: str) -> str:
    return QUANTITIES[key].label if key in QUANTITIES else key


def _shown(row: Row) -> str:
    registered = QUANTITIES.get(row["quantity"])
    return registered.text(row["value"]) if registered else wording.plain(row["value"])


def _provenance(row: Row, source: Row) -> list[Fact]:
    return [
        Fact("Result", row["result_id"]),
        Fact("Document", row["source_title"], href=document_path(row["source"])),
        Fact("Published", wording.plain(source["published_on"])),
        Fact("Read on", wording.plain(source["read_on"])),
        Fact("Section", wording.plain(row["section"])),
        Fact("File", row["file"]),
        Fact("SHA-256", row["sha256"]),
    ]
