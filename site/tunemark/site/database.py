"""The database, opened read-only. Its views are documented in the collector's views.sql; tables of pages are in pages.sql and results.sql."""

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Self, TypeVar

import duckdb
import pyarrow as pa

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.site import columns, functions
from tunemark.site.page import Row

Key = TypeVar("Key", bound=Hashable)
TABLES = [Path(__file__).with_name(name) for name in ("pages.sql", "results.sql")]


class Database:
    """The collector's database, open for reading, with the formats of values as functions and with the tables of pages."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raise TunemarkError if it is missing or is not a database of this version."""
        if not path.is_file():
            raise TunemarkError("database", str(path), "run `tunemark collect` first")
        try:
            self._connection = duckdb.connect(str(path), read_only=True)
        except duckdb.Error as error:
            raise TunemarkError("database", str(path), f"cannot be opened ({_first_line(error)}); run `tunemark collect` again") from error
        # Several threads add numbers, and list rows without an order, in any order: two builds would differ.
        self._connection.execute("set threads to 1")
        columns.add_to(self._connection)
        functions.add_to(self._connection)
        for file in TABLES:
            self.rows(file.read_text(encoding="utf-8"))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._connection.close()

    def rows(self, query: str, *parameters: object, **named: object) -> list[Row]:
        """Return the rows of a query with parameters `?`, or named ones `$name`. Raise TunemarkError if the database has another layout."""
        try:
            cursor = self._connection.execute(query, named or list(parameters))
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]
        except duckdb.CatalogException as error:
            raise TunemarkError(
                "database", _first_line(error), "it was written by another version; run `tunemark collect` again", exit_code=Exit.INVALID
            ) from error

    def add(self, name: str, columns: str, rows: list[Row]) -> None:
        """Make a temporary table of rows. `columns` are the names of its columns with their types."""
        self.rows(f"create or replace temp table {name} ({columns})")
        if rows:
            # Rows as a parameter would take ten times as long.
            self._connection.register("added", pa.Table.from_pylist(rows))
            self.rows(f"insert into {name} by name from added")
            self._connection.unregister("added")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Return rows by key, in their order."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
