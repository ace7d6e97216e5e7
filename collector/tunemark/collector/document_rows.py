"""How a source document becomes rows: its tables cell by cell, its statements, and the words and figures of both."""

import re
from collections.abc import Mapping

from tunemark.collector.rows import Row, Rows, merge
from tunemark.schema.records.published import Claim, DocumentTable, SourceDocument

REFERENCE = re.compile(r"\{([0-9]{3}-S?[0-9]{2,3})/[^}]*\}")


def document_rows(document: SourceDocument) -> Rows:
    """Return the rows of a source document by table."""
    rows: Rows = {
        "sources": [
            {
                "source": document.id,
                "read_on": document.read_on,
                **document.model_dump(
                    mode="json", include={"title", "authors", "published_on", "url", "origin_repository", "summary", "caveats"}
                ),
            }
        ],
    }
    for position, table in enumerate(document.tables, start=1):
        merge(rows, _table(document.id, position, table))
    for statement in document.statements:
        merge(
            rows,
            {"statements": [{"statement_id": statement.id, "source": document.id, "section": statement.section, "note": statement.note}]},
        )
        merge(rows, claim_rows(statement.id, statement.claims))
        merge(rows, {"labels": label_rows(statement.id, statement.labels)})
    return rows


def referred_ids(template: str) -> list[str]:
    """Return the results and statements that a cell refers to, in order, each once."""
    return list(dict.fromkeys(REFERENCE.findall(template)))


def claim_rows(record_id: str, claims: Mapping[str, Claim]) -> Rows:
    """Return claims and their readings."""
    return {
        "claims": [
            {"record_id": record_id, "quantity": quantity, "value": claim.value, "printed": claim.printed, "note": claim.note}
            for quantity, claim in claims.items()
        ],
        "readings": [
            {"record_id": record_id, "quantity": quantity, "meaning": reading.meaning, "value": reading.value}
            for quantity, claim in claims.items()
            for reading in claim.readings
        ],
    }


def label_rows(record_id: str, labels: Mapping[str, str]) -> list[Row]:
    """Return the printed words of a record."""
    return [{"record_id": record_id, "label": label, "printed": printed} for label, printed in labels.items()]


def _table(source: str, position: int, table: DocumentTable) -> Rows:
    cells = [
        {
            "source": source,
            "table_id": table.id,
            "row_number": row_number,
            "column_number": column_number,
            "template": cell,
            "result_ids": referred_ids(cell),
        }
        for row_number, row in enumerate(table.rows, start=1)
        for column_number, cell in enumerate(row, start=1)
    ]
    return {
        "document_tables": [
            {"source": source, "table_id": table.id, "position": position, "title": table.title, "columns": list(table.columns)}
        ],
        "document_cells": cells,
    }
