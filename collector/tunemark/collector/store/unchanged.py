"""Skip a collection if the existing database was built from the same inputs: files, code and day."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from tunemark.collector.gate.cross_file_checks import committed_files
from tunemark.collector.gate.read import SUBMISSIONS
from tunemark.collector.store.database import open_database
from tunemark.schema import errors
from tunemark.schema.errors import TunemarkError

if TYPE_CHECKING:
    import duckdb

CODE = Path(__file__).parents[2]
"""The package of the collector."""
SCHEMA = Path(errors.__file__).parent
"""The package of the schema, wherever it is installed."""


def inputs_sha256(root: Path) -> str:
    """Return the hash of all inputs of a collection: the files of data and submissions, which of them git tracks, and the code."""
    digest = hashlib.sha256()
    folders = (root / "data", root / SUBMISSIONS, CODE, SCHEMA)
    for folder in folders:
        for path in sorted(_files(folder)):
            digest.update(f"{path.relative_to(folder)}\0".encode(errors="surrogateescape"))
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update("\0".join(sorted(committed_files(root))).encode(errors="surrogateescape"))
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that could be inputs, without caches."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            yield path


def counts_if_unchanged(database: Path, digest: str, as_of: date, tables: Iterable[str]) -> tuple[dict[str, int], dict[str, int]] | None:
    """Return the rows by table and the results by source of a database with these inputs; None if it is missing or has other inputs.

    A database that left out a file, or noted something about one, counts as changed, so that this is reported again.
    """
    try:
        with open_database(database) as connection:
            same = _row(connection, "select inputs_sha256 = ? and as_of = ? and complete from collection", [digest, as_of])
            if not same:
                return None
            rows = {name: _row(connection, f"select count(*) from {name}") for name in tables}  # noqa: S608 - our own tables
            sources = connection.execute("select source from result_rows").fetchall()
    except (TunemarkError, LookupError):
        return None
    return rows, dict(Counter(source for (source,) in sources))


def _row(connection: "duckdb.DuckDBPyConnection", sql: str, values: list[object] | None = None) -> int:
    """Return the single value of a query. Raises LookupError if there is none, such as in a database of an older version."""
    import duckdb  # noqa: PLC0415 - not needed to import this module

    try:
        row = connection.execute(sql, values or []).fetchone()
    except duckdb.Error as error:
        raise LookupError(str(error)) from error
    if row is None:
        raise LookupError(sql)
    return int(row[0])
