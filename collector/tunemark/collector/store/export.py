"""The collection as files for other tools: each table as Parquet and CSV, with a description of all columns.

The same database gives the same bytes: rows are ordered by all columns, times are in UTC, and nothing depends on the day or machine.
"""

import errno
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunemark.collector.store.database import open_database
from tunemark.collector.store.sql_query import QueryResult, relation_reference
from tunemark.schema import VERSION
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.files import replace_folder
from tunemark.schema.quantities import QUANTITIES

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

# duckdb and pyarrow are imported by the functions that need them, so that importing this module stays cheap.
# ruff: noqa: PLC0415

RELATIONS = (
    *("results", "sources", "claims", "readings", "labels", "result_facts", "configurations", "findings", "audit_rules"),
    *("accelerators", "models", "throughput_errors", "throughput_refused"),
)
"""Exported tables and views: results with everything that explains them."""
README = "README.md"
FILES = frozenset({README, *(f"{name}.{kind}" for name in RELATIONS for kind in ("parquet", "csv"))})
"""Names of all files of an export."""
TEXT = """\
# Tunemark: measured and published fine-tuning results

Exported by `tunemark export` {version} from a database built on {as_of}.{incomplete}

`results` has one row for each result; the other tables explain it and join on `result_id` or `source`.
Each table is there as Parquet and as CSV. Units are in the names of the columns; shares are 0 to 1; unknown is NULL.
In CSV, NULL is empty, lists are JSON, times are in UTC, and a text that a spreadsheet would take for a formula (it begins with
`=`, `+`, `-`, `@`, a tab or a carriage return) begins with an apostrophe. Parquet has the text unchanged.

Licence: CC-BY-4.0. Cite it as "Tunemark contributors, Tunemark {version}, {as_of}", and name the source of a published figure (`sources`).

| table | rows | contents |
|---|---:|---|"""


@dataclass(frozen=True, slots=True)
class Exported:
    """A written export."""

    folder: Path
    rows: Mapping[str, int]
    """Table -> number of rows."""


def export(database: Path, folder: Path, *, force: bool = False) -> Exported:
    """Write the collection to a folder, all files or none.

    Raises TunemarkError if there is no database, if the folder has files and `force` is not given, if it has files that no export
    writes, or if it cannot be written.
    """
    _check_folder(folder, force=force)
    with open_database(database) as connection:
        tables = {name: _table(connection, name) for name in RELATIONS}
        as_of, complete = connection.sql("select cast(as_of as varchar), complete from collection").fetchall()[0]
    rows = {name: table.num_rows for name, table in tables.items()}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside:
            new, old = Path(beside) / "new", Path(beside) / "old"
            new.mkdir()
            for name, table in tables.items():
                _write_table(new, name, table)
            (new / README).write_bytes(readme(rows, as_of, complete=bool(complete)).encode())
            replace_folder(folder, new, old)
    except OSError as error:
        full = error.errno == errno.ENOSPC
        fix = f"cannot be written ({error.strerror}); {'free some disk space' if full else 'name a place that you may write to'}"
        raise TunemarkError(str(folder), None, fix, exit_code=Exit.INTERNAL if full else Exit.USAGE) from error
    return Exported(folder, rows)


def _check_folder(folder: Path, *, force: bool) -> None:
    """Raise TunemarkError if a folder must not be replaced: --force replaces exports, never other files."""
    if not folder.exists():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise TunemarkError(str(folder), None, "is not a folder; name one")
    names = sorted(path.name for path in folder.iterdir())
    foreign = [name for name in names if name not in FILES]
    if foreign:
        raise TunemarkError(str(folder), None, f"contains {foreign[0]}, which no export writes; name a new folder")
    if names and not force:
        raise TunemarkError(str(folder), None, "is not empty; name a new folder, or replace the export in it with --force")


# Tables -----------------------------------------------------------------------------------------------


def _table(connection: "duckdb.DuckDBPyConnection", name: str) -> "pa.Table":
    """Return the rows of a table ordered by all columns, with times in UTC."""
    import pyarrow as pa

    table = connection.sql(f"select * from {name} order by all").to_arrow_table()  # noqa: S608 - our own tables
    for index, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type) and column.type.tz:
            utc = pa.timestamp(column.type.unit, tz="UTC")
            table = table.set_column(index, pa.field(column.name, utc), table.column(index).cast(utc))
    return table


def _write_table(folder: Path, name: str, table: "pa.Table") -> None:
    import pyarrow.parquet as pq

    pq.write_table(table.combine_chunks(), folder / f"{name}.parquet", compression="zstd", write_statistics=True)
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    (folder / f"{name}.csv").write_bytes(QueryResult(table.schema.names, rows).csv().encode())


# Description ------------------------------------------------------------------------------------------


def readme(rows: Mapping[str, int], as_of: str, *, complete: bool) -> str:
    """Return the description of an export: files, conventions, licence, and each column with its type and meaning."""
    reference: dict[str, list[tuple[str, str, str]]] = {}
    for relation, *described in relation_reference().rows:
        reference.setdefault(relation, []).append(tuple(text.replace("|", "\\|") for text in described))
    # The columns of the view `results` are those of `result_rows`, which describes them.
    of_results = {column: meaning for column, _, meaning in reference["result_rows"]}
    incomplete = "" if complete else " Some files had a problem when that database was built; `tunemark validate` lists them."
    lines = [TEXT.format(version=VERSION, as_of=as_of, incomplete=incomplete)]
    lines += [f"| `{name}` | {count:,} | {reference[name][0][2]} |" for name, count in rows.items()]
    for name in rows:
        lines += ["", f"## {name}", "", "| column | type | meaning |", "|---|---|---|"]
        for column, kind, meaning in reference[name][1:]:
            known = meaning or (of_results.get(column, "") if name == "results" else "")
            known = known or (QUANTITIES[column].meaning if column in QUANTITIES else "")
            lines.append(f"| `{column}` | {kind} | {known} |")
    return "\n".join(lines) + "\n"
