"""SQL queries to the database, and the description of its tables and views."""

import csv
import io
import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tunemark.collector.store.database import empty_database, open_database
from tunemark.schema.errors import TunemarkError
from tunemark.schema.safe_text import csv_cell


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Columns and rows of a query, values with full precision."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per row; repeated column names get a number."""
        names: list[str] = []
        for name in self.columns:
            repeats = sum(other == name or other.startswith(f"{name}_") for other in names)
            names.append(f"{name}_{1 + repeats}" if name in names else name)
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def csv(self) -> str:
        """Return the rows as CSV: NULL is empty, lists are JSON, and no text begins like a formula of a spreadsheet."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_cell(value) for value in row] for row in self.rows)
        return buffer.getvalue()


def run_query(sql: str, database: Path) -> QueryResult:
    """Return the result of one SELECT; the connection can neither write nor read other files.

    Raises TunemarkError for SQL that is wrong or not allowed, and when there is no database.
    """
    import duckdb  # noqa: PLC0415 - only queries need it

    with open_database(database) as connection:
        try:
            statements = len(connection.extract_statements(sql))
            if statements > 1:
                raise TunemarkError("SQL", " ".join(sql.split()), f"is {statements} statements; give one SELECT")
            relation = connection.sql(sql)
            if relation is None:
                raise TunemarkError("SQL", sql, "is not a query; give one SELECT")
            # Through Arrow, because fetching a time stamp with a time zone needs one more package.
            table = relation.to_arrow_table()
        except (duckdb.Error, RuntimeError) as error:
            # One line with the hints, followed by the line of SQL and the caret below it.
            lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
            place = next((number for number, line in enumerate(lines) if line.startswith("LINE ")), len(lines))
            hints = " ".join(line.strip() for line in (*lines[:place], *lines[place + 2 :])) or type(error).__name__
            if "not found" in hints or "does not " in hints:
                hints += "; `tunemark query --views` lists tables and columns"
            raise TunemarkError("SQL", " ".join(sql.split()), "\n".join([hints, *lines[place : place + 2]])) from error
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return QueryResult(list(table.schema.names), list(zip(*columns, strict=True)))


def relation_reference() -> QueryResult:
    """Return each table and view, followed by its columns, with the comments of views.sql.

    A row without a column describes the relation itself. Relations come in the order of views.sql.
    """
    with empty_database() as connection:
        rows = connection.sql(
            """
            with relations as (
                select table_oid as oid, table_name as relation, 'table' as kind, comment from duckdb_tables()
                union all
                select view_oid, view_name, 'view', comment from duckdb_views() where not internal
            )
            select relation, "column", type, coalesce(meaning, '') from (
                select oid, 0 as position, relation, '' as "column", kind as type, comment as meaning from relations
                union all
                select oid, column_index, relation, column_name, lower(data_type), c.comment
                from duckdb_columns() c join relations on oid = table_oid
            ) order by oid, position
            """
        ).fetchall()
    return QueryResult(["relation", "column", "type", "meaning"], rows)


def _cell(value: Any) -> object:  # noqa: ANN401 - any value of DuckDB
    if isinstance(value, bool):
        return str(value).lower()
    return csv_cell(json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of DuckDB
    """Return a decimal, such as a sum of integers, as a JSON number."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
