"""The DuckDB file: built new beside the old one and put in its place whole, read without the right to write."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunemark.collector.documentation import SQL_FILE, documented_relations
from tunemark.schema.errors import Exit, TunemarkError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# Nothing is fetched, no extension is loaded, and SQL reads no files: the database is all there is.
CLOSED: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "enable_external_access": False,
}


def arrow_schemas() -> "dict[str, pa.Schema]":
    """Return the Arrow schema of each table of the database."""
    import duckdb  # noqa: PLC0415 - only commands that load or ask need it

    with duckdb.connect(config=CLOSED) as connection:
        connection.execute(SQL_FILE.read_text(encoding="utf-8"))
        names = [name for (name,) in connection.sql("select table_name from duckdb_tables() order by 1").fetchall()]
        return {name: connection.sql(f"select * from {name} limit 0").to_arrow_table().schema for name in names}  # noqa: S608 - names of our own tables


def as_arrow(rows: list[dict[str, Any]], schema: "pa.Schema") -> "pa.Table":
    """Return rows as an Arrow table; raises KeyError for a column that the table does not have."""
    import pyarrow as pa  # noqa: PLC0415 - only commands that load need it

    unknown = sorted({name for row in rows for name in row} - set(schema.names))
    if unknown:
        raise KeyError(", ".join(unknown))
    return pa.Table.from_pylist(rows, schema=schema)


def build_database(path: Path, tables: "Mapping[str, pa.Table]") -> None:
    """Write a new database with these rows and replace the old one; on any failure the old one is untouched.

    Raises
    ------
    TunemarkError
        When the disk does not take it.

    """
    import duckdb  # noqa: PLC0415 - as above

    try:
        with _replacing(path) as partial, duckdb.connect(str(partial), config=CLOSED) as connection:
            connection.execute(SQL_FILE.read_text(encoding="utf-8"))
            for name, table in tables.items():
                _insert(connection, name, table)
            _comment(connection)
    except (duckdb.IOException, duckdb.TransactionException, OSError) as error:
        fix = f"cannot be written ({_first_line(error)}); free some disk space, or name another place. What was there is untouched"
        raise TunemarkError("--db", str(path), fix, exit_code=Exit.INTERNAL) from error


def open_database(path: Path) -> "duckdb.DuckDBPyConnection":
    """Return a connection that can only read; raises TunemarkError when there is no database."""
    import duckdb  # noqa: PLC0415 - as above

    if not path.is_file():
        raise TunemarkError("--db", str(path), "there is no database; run `tunemark collect` first")
    try:
        return duckdb.connect(str(path), read_only=True, config={**CLOSED, "lock_configuration": True})
    except duckdb.Error as error:
        raise TunemarkError(
            "--db", str(path), f"not a database that can be opened ({_first_line(error)}); run `tunemark collect` again"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside the file; when all went well it takes the file's place, else it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        partial = Path(folder) / path.name
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)


def _insert(connection: "duckdb.DuckDBPyConnection", name: str, table: "pa.Table") -> None:
    connection.register("incoming", table)
    # Sorted, so that equal inputs give equal contents in equal order.
    connection.execute(f"insert into {name} by name select * from incoming order by all")  # noqa: S608 - names of our own tables
    connection.unregister("incoming")


def _comment(connection: "duckdb.DuckDBPyConnection") -> None:
    """Put the comments of views.sql into the database, where any DuckDB client shows them."""
    for relation in documented_relations():
        connection.execute(f"comment on {relation.kind} {relation.name} is {_quoted(relation.comment)}")
        if relation.kind == "table":
            for column in relation.columns:
                if column.comment:
                    connection.execute(f"comment on column {relation.name}.{column.name} is {_quoted(column.comment)}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
