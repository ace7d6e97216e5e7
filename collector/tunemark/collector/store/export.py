"""The collection as files for other tools: each table as Parquet and CSV, with a citation and a description of all columns.

The same database gives the same bytes: rows are ordered by all columns, times are in UTC, and nothing depends on the day or machine.
"""

import csv
import errno
import io
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tunemark.collector.store.database import open_database
from tunemark.collector.store.sql_query import relation_reference
from tunemark.schema import VERSION
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.files import replace_folder
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.safe_text import is_formula

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
README, CITATION = "README.md", "CITATION.cff"
FILES = frozenset({README, CITATION, *(f"{name}.{kind}" for name in RELATIONS for kind in ("parquet", "csv"))})
"""Names of all files of an export."""
TITLE = "Tunemark: measured and published fine-tuning results"
AUTHORS = "Tunemark contributors"
LICENCE = "CC-BY-4.0"


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
            (new / CITATION).write_bytes(citation(tables["sources"].to_pylist(), as_of).encode())
            replace_folder(folder, new, old)
    except OSError as error:
        full = error.errno == errno.ENOSPC
        fix = f"cannot be written ({error.strerror}); {'free some disk space' if full else 'name a place that you may write to'}"
        raise TunemarkError("folder", str(folder), fix, exit_code=Exit.INTERNAL if full else Exit.USAGE) from error
    return Exported(folder, rows)


def _check_folder(folder: Path, *, force: bool) -> None:
    """Raise TunemarkError if a folder must not be replaced: --force replaces exports, never other files."""
    if not folder.exists():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise TunemarkError("folder", str(folder), "is not a folder; name one")
    names = sorted(path.name for path in folder.iterdir())
    foreign = [name for name in names if name not in FILES]
    if foreign:
        raise TunemarkError("folder", str(folder), f"contains {foreign[0]}, which no export writes; name a new folder")
    if names and not force:
        raise TunemarkError("folder", str(folder), "is not empty; name a new folder, or replace the export in it with --force")


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
    columns = [column.to_pylist() for column in table.columns]
    (folder / f"{name}.csv").write_bytes(csv_text(table.schema.names, zip(*columns, strict=True)).encode())


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV (RFC 4180). NULL is empty, lists are JSON, and no text begins like a formula."""
    buffer = io.StringIO()
    # Python 3.11 quotes a carriage return in a text only if it is part of the line ending.
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return buffer.getvalue()


def _cell(value: Any) -> Any:  # noqa: ANN401 - any value of a table
    if isinstance(value, str):
        return f"'{value}" if is_formula(value) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date | datetime):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


# Description ------------------------------------------------------------------------------------------


def readme(rows: Mapping[str, int], as_of: str, *, complete: bool) -> str:
    """Return the description of an export: files, conventions, and each column with its type and meaning."""
    reference: dict[str, list[tuple[str, str, str]]] = {}
    for relation, column, kind, meaning in relation_reference().rows:
        reference.setdefault(relation, []).append((column, kind, meaning))
    # The columns of the view `results` are those of `result_rows`, which describes them.
    described = {column: meaning for column, _, meaning in reference["result_rows"]}
    return "\n".join(_readme_lines(rows, reference, described, as_of, complete=complete)) + "\n"


def _readme_lines(
    rows: Mapping[str, int],
    reference: Mapping[str, list[tuple[str, str, str]]],
    described: Mapping[str, str],
    as_of: str,
    *,
    complete: bool,
) -> Iterator[str]:
    yield from (f"# {TITLE}", "", f"Exported by `tunemark export` {VERSION} from a database built on {as_of}.")
    if not complete:
        yield "Some files had a problem when that database was built; `tunemark validate` lists them."
    yield from ("", "`results` has one row for each result; the other tables explain it and join on `result_id` or `source`.")
    yield ("Each table is there as Parquet and as CSV. Units are in the names of the columns; shares are 0 to 1; unknown is NULL.")
    yield "In CSV, NULL is empty, lists are JSON, times are in UTC, and a text that a spreadsheet would take for a formula (it begins with"
    yield "`=`, `+`, `-`, `@`, a tab or a carriage return) begins with an apostrophe. Parquet has the text unchanged."
    yield from ("", f"Licence: {LICENCE}. Cite it with `{CITATION}`, and name the source of a published figure (`sources`).", "")
    yield from ("| table | rows | contents |", "|---|---:|---|")
    yield from (f"| `{name}` | {count:,} | {_escaped(reference[name][0][2])} |" for name, count in rows.items())
    for name in rows:
        yield from ("", f"## {name}", "", "| column | type | meaning |", "|---|---|---|")
        for column, kind, meaning in reference[name][1:]:
            known = meaning or (described.get(column, "") if name == "results" else "")
            known = known or (QUANTITIES[column].meaning if column in QUANTITIES else "")
            yield f"| `{column}` | {kind} | {_escaped(known)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def citation(sources: Sequence[Mapping[str, Any]], as_of: str) -> str:
    """Return the citation of an export in the Citation File Format 1.2, with each source as a reference."""
    content: dict[str, Any] = {
        "cff-version": "1.2.0",
        "message": "If you use these results, please cite this collection, and the source of each published figure.",
        "title": TITLE,
        "type": "dataset",
        "authors": [{"name": AUTHORS}],
        "version": VERSION,
        "date-released": date.fromisoformat(as_of),
        "license": LICENCE,
        "keywords": ["benchmark", "fine-tuning", "LoRA", "accelerator", "cost"],
    }
    references = [_reference(source) for source in sources]
    if references:
        content["references"] = references
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=140)


def _reference(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a source as a reference; the format needs an author, so a source without one names its title."""
    reference: dict[str, Any] = {
        "type": "generic",
        "title": source["title"],
        "authors": [{"name": source.get("authors") or f"Authors of {source['title']}"}],
        "notes": f"Source {source['source']} of the collection.",
    }
    if source.get("url"):
        reference["url"] = source["url"]
    if source.get("read_on"):
        reference["date-accessed"] = source["read_on"]
    return reference
