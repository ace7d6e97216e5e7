"""The tables and views of the database with their comments, read from views.sql: the one place that describes them."""

import re
from dataclasses import dataclass
from pathlib import Path

SQL_FILE = Path(__file__).with_name("views.sql")

HEAD = re.compile(r"^create (?P<kind>table|view) (?P<name>\w+)(?: \(| as)\s*(?:-- (?P<comment>.*))?$")
COLUMN = re.compile(r"^    (?P<name>\w+) (?P<type>\w+(?:\[\])?)[^-]*(?:-- (?P<comment>.*))?$")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    type: str
    comment: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or a view."""

    kind: str
    """`table` or `view`."""
    name: str
    comment: str
    columns: tuple[Column, ...]
    """Empty for a view: its query says which columns it has."""


def documented_relations() -> list[Relation]:
    """Return tables and views in the order of views.sql."""
    relations: list[Relation] = []
    above: list[str] = []
    columns: list[Column] = []
    for line in SQL_FILE.read_text(encoding="utf-8").splitlines():
        head = HEAD.match(line)
        column = COLUMN.match(line)
        if head:
            columns = []
            comment = head["comment"] or " ".join(above)
            relations.append(Relation(head["kind"], head["name"], comment, ()))
        elif column and relations and relations[-1].kind == "table" and column["name"] != "primary":
            columns.append(Column(column["name"], column["type"], (column["comment"] or "").strip()))
            relations[-1] = Relation(relations[-1].kind, relations[-1].name, relations[-1].comment, tuple(columns))
        # A comment directly above a view describes it; a rule of dashes is a heading.
        above = [*above, line.removeprefix("-- ")] if line.startswith("-- ") and "-----" not in line else []
    return relations


def relations_with_view_columns() -> list[Relation]:
    """Return tables and views, the views with the columns that their queries have."""
    import duckdb  # noqa: PLC0415 - only `query --views` needs it

    with duckdb.connect() as connection:
        connection.execute(SQL_FILE.read_text(encoding="utf-8"))
        described = connection.sql(
            "select table_name, column_name, data_type from duckdb_columns() order by table_oid, column_index"
        ).fetchall()
    of: dict[str, list[Column]] = {}
    for table, name, kind in described:
        of.setdefault(table, []).append(Column(name, kind.lower(), ""))
    return [
        relation if relation.columns else Relation(relation.kind, relation.name, relation.comment, tuple(of.get(relation.name, ())))
        for relation in documented_relations()
    ]


def view_reference() -> list[tuple[str, str, str, str]]:
    """Return (relation, column, type, meaning) for all; a row without a column describes the relation itself."""
    rows = []
    for relation in relations_with_view_columns():
        rows.append((relation.name, "", relation.kind, relation.comment))
        rows.extend((relation.name, column.name, column.type, column.comment) for column in relation.columns)
    return rows
