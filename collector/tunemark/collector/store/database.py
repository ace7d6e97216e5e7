"""The DuckDB file: written to a temporary file that replaces the old one, and opened read-only."""

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.files import refuse_unwritable, replacing

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


Row = dict[str, Any]
Rows = dict[str, list[Row]]


def field_at(record: Any, path: str) -> Any:  # noqa: ANN401 - any value of a record
    """Return the field at a dotted path of a record, whose parts are attributes, keys or places in a list; None where one is missing."""
    for part in path.split("."):
        if isinstance(record, tuple | list):
            record = record[int(part)] if int(part) < len(record) else None
        elif record is not None:
            record = record.get(part) if isinstance(record, Mapping) else getattr(record, part)
    return record


@cache
def _declared_columns() -> dict[str, list[tuple[str, str]]]:
    """Return (column, path) of the columns that are fields of a record, by the names of columns.toml."""
    declared = tomllib.loads(Path(__file__).with_name("columns.toml").read_text(encoding="utf-8"))
    parts = {name: [path.partition(" as ") for path in paths] for name, paths in declared.items()}
    return {name: [(column or path.rpartition(".")[2], path) for path, _, column in of] for name, of in parts.items()}


def columns_of(name: str, record: object) -> Row:
    """Return the columns that columns.toml declares under a name, with the values of their fields; None where a part of a path is missing."""
    return {column: field_at(record, path) for column, path in _declared_columns()[name]}


def fact(topic: str, name: str, value: object, reason: object = None) -> Row:
    """Return a row of `result_facts` without its result."""
    return {"topic": topic, "name": name, "value": as_text(value), "reason": reason}


def as_text(value: object) -> str | None:
    """Return a value as text: strings unchanged, None as None, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def merge(target: Rows, added: Rows) -> None:
    """Append rows to the rows of the same table."""
    for table, rows in added.items():
        target.setdefault(table, []).extend(rows)


# duckdb and pyarrow are imported by the functions that need them, so that importing this module stays cheap.
# ruff: noqa: PLC0415

SQL_FILE = Path(__file__).with_name("views.sql")
"""Tables, views and the comments that describe them."""
OLD_PRICE_DAYS = 30
"""Age above which a price shows it: a reader should look an older one up before renting."""
CLOSED: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "enable_external_access": False,
}
"""Settings under which SQL reads no other file, and no extension is fetched or loaded."""


def empty_database() -> "duckdb.DuckDBPyConnection":
    """Return a connection to a database in memory with all tables, views and comments, and no rows."""
    import duckdb

    connection = duckdb.connect(config=CLOSED)
    connection.execute(SQL_FILE.read_text(encoding="utf-8").replace("OLD_PRICE_DAYS", str(OLD_PRICE_DAYS)))
    return connection


def arrow_schemas() -> "dict[str, pa.Schema]":
    """Return the Arrow schema of each table of the database."""
    with empty_database() as connection:
        names = [name for (name,) in connection.sql("select table_name from duckdb_tables() order by 1").fetchall()]
        return {name: connection.sql(f"select * from {name} limit 0").to_arrow_table().schema for name in names}  # noqa: S608 - our own tables


def as_arrow(rows: list[Row], schema: "pa.Schema") -> "pa.Table":
    """Return rows as an Arrow table; raises KeyError for a column that the table does not have."""
    import pyarrow as pa

    unknown = sorted({name for row in rows for name in row} - set(schema.names))
    if unknown:
        raise KeyError(", ".join(unknown))
    return pa.Table.from_pylist(rows, schema=schema)


def refuse_unwritable_database(path: Path) -> None:
    """Raise TunemarkError if a database cannot be written to this path."""
    if path.is_dir():
        raise TunemarkError("--db", str(path), "is a folder; name a file")
    refuse_unwritable("--db", path.parent, named=path)


def build_database(path: Path, tables: "Mapping[str, pa.Table]") -> None:
    """Write a new database with these rows and replace the old one. On any failure the old one is kept.

    Raises TunemarkError when the file cannot be written.
    """
    import duckdb

    refuse_unwritable_database(path)
    try:
        with replacing(path) as partial, duckdb.connect(str(partial), config=CLOSED) as connection:
            connection.execute(SQL_FILE.read_text(encoding="utf-8").replace("OLD_PRICE_DAYS", str(OLD_PRICE_DAYS)))
            for name, table in tables.items():
                _insert(connection, name, table)
    except (duckdb.IOException, duckdb.TransactionException, OSError) as error:
        fix = f"cannot be written ({_first_line(error)}); free some disk space or name another file. The old database is unchanged"
        raise TunemarkError("--db", str(path), fix, exit_code=Exit.INTERNAL) from error


def _insert(connection: "duckdb.DuckDBPyConnection", name: str, table: "pa.Table") -> None:
    connection.register("incoming", table)
    # Sorted, so that equal inputs give equal contents in equal order.
    connection.execute(f"insert into {name} by name select * from incoming order by all")  # noqa: S608 - our own tables
    connection.unregister("incoming")


def open_database(path: Path) -> "duckdb.DuckDBPyConnection":
    """Return a read-only connection; raises TunemarkError when the file is missing or is not a database."""
    import duckdb

    if not path.is_file():
        raise TunemarkError("--db", str(path), "no such database; run `tunemark collect` first")
    try:
        return duckdb.connect(str(path), read_only=True, config={**CLOSED, "lock_configuration": True})
    except duckdb.Error as error:
        raise TunemarkError(
            "--db", str(path), f"cannot be opened as a database ({_first_line(error)}); run `tunemark collect` again"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
