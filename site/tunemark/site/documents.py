"""Tables of source documents, rebuilt digit for digit from what the records printed."""

import re
from collections.abc import Sequence

from tunemark.site import tables
from tunemark.site.database import Database, grouped
from tunemark.site.tables import Cell, Column, Row, Table

REFERENCE = re.compile(r"\{([^{}/]+)/([^{}/]+)\}")
"""A cell refers to a printed figure or label as `{record/name}`."""
TABLES = "from document_tables where source = $source order by position, table_id"
CELLS = "from document_cells where source = $source order by table_id, row_number, column_number"
LINKED = "select result_id from listed_results where list_contains($named, result_id)"
PRINTED = """
    select record_id, label as name, printed from labels where record_id in (select unnest($records))
    union all
    select record_id, quantity, printed from claims where record_id in (select unnest($records))
"""
MARKS = """
    select record, name, arg_min(verdict, severity) as verdict, any_value(href) as href
    from listed_findings, unnest(case when len(quantities) > 0 then quantities else conditions end) as about(name)
    where list_contains($records, record) and (verdict = 'impossible' or (verdict = 'suspicious' and is_first and len(quantities) > 0))
    group by all
"""


def printed_tables(database: Database, source: str) -> list[Table]:
    """Return the tables of a document as printed. Each row links each of its results once; impossible and suspicious figures are marked."""
    cells = database.rows(CELLS, source=source)
    references = {record for cell in cells for record, _ in REFERENCE.findall(cell["template"])}
    printed = {(row["record_id"], row["name"]): row["printed"] for row in database.rows(PRINTED, records=sorted(references))}
    marks = {(row["record"], row["name"]): row for row in database.rows(MARKS, records=sorted(references))}
    named = sorted({result for cell in cells for result in cell["result_ids"]})
    results = {row["result_id"] for row in database.rows(LINKED, named=named)}
    made = []
    for table in database.rows(TABLES, source=source):
        by_row = grouped((cell for cell in cells if cell["table_id"] == table["table_id"]), lambda cell: cell["row_number"])
        width = len(table["columns"])
        rows = [_row(members, width, results, printed, marks) for _, members in sorted(by_row.items())]
        columns: list[Column[list[Cell]]] = [
            Column(head, lambda cells, index=index: cells[index])  # type: ignore[misc]
            for index, head in enumerate(table["columns"])
        ]
        made.append(tables.table(table["title"], columns, rows, searchable=False))
    return made


def _row(
    cells: Sequence[Row], width: int, results: set[str], printed: dict[tuple[str, str], str], marks: dict[tuple[str, str], Row]
) -> list[Cell]:
    made, linked = [Cell("")] * width, set[str]()
    for cell in cells:
        fresh = [record for record in cell["result_ids"] if record in results and record not in linked]
        linked.update(fresh)
        text = REFERENCE.sub(lambda match: printed.get((match[1], match[2]), match[0]), cell["template"])
        found = [marks[reference] for reference in REFERENCE.findall(cell["template"]) if reference in marks]
        mark = min(found, key=lambda row: str(row["verdict"]), default=None)
        made[cell["column_number"] - 1] = Cell(
            text,
            href=f"results/{fresh[0]}" if fresh else None,
            mark=mark["verdict"] if mark else "",
            mark_href=_place(mark) if mark else None,
        )
    return made


def _place(mark: Row) -> str | None:
    """Return the place of the findings about a record: on the page of a result, or at a statement of a document."""
    href = mark["href"]
    return f"{href}#audit-findings" if href and "#" not in href else href
