"""The DuckDB file: written to a temporary file that replaces the old one, and opened read-only; and the rows of the facts of data/."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import FRACTION_TOLERANCE, OVERSIZED, AcceleratorCard, ModelCard, PriceBasis, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.files import refuse_unwritable, replacing
from tunemark.schema.physics.architecture import count_parameters

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pydantic import BaseModel

    from tunemark.schema.plan.capabilities import SupportMatrix


Row = dict[str, Any]
Rows = dict[str, list[Row]]
DECLARED: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("columns.toml").read_text(encoding="utf-8"))
"""Columns that are fields of a record."""
SQL_TYPES = {"integer": "integer", "number": "double", "boolean": "boolean"}
"""Kind of a field -> type of its column; of all others text."""


def field_at(record: Any, path: str) -> Any:  # noqa: ANN401 - any value of a record
    """Return the field at a dotted path of a record, whose parts are attributes, keys or places in a list; None where one is missing."""
    for part in path.split("."):
        if isinstance(record, tuple | list):
            record = record[int(part)] if int(part) < len(record) else None
        elif record is not None:
            record = record.get(part) if isinstance(record, Mapping) else getattr(record, part)
    return record


@cache
def _columns(name: str) -> list[tuple[str, str]]:
    """Return (column, path) of the columns that are fields of a record, by a name of columns.toml."""
    paths = DECLARED[name]
    if "*" in paths:
        named = {path.partition(" as ")[0] for path in paths}
        others = [path for path, kind, _ in _fields(name) if "." not in path and "object" not in kind and path not in named]
        paths = [path for each in paths for path in (others if each == "*" else [each])]
    return [(column or path.rpartition(".")[2], path) for path, _, column in (each.partition(" as ") for each in paths)]


@cache
def _fields(table: str) -> list[tuple[str, str, str]]:
    """Return path, kind and meaning of the fields of the record that gives a table's columns their types and meanings."""
    from tunemark.schema.records.published import SourceDocument
    from tunemark.schema.records.reading import field_reference
    from tunemark.schema.records.trace import DeviceUse

    records: dict[str, type[BaseModel]] = {"accelerators": AcceleratorCard, "models": ModelCard, "prices": PriceRow}
    records |= {"workloads": WorkloadCard, "sources": SourceDocument, "device_use": DeviceUse}
    return field_reference(records[table])


def columns_of(name: str, record: object) -> Row:
    """Return the columns that columns.toml declares under a name, with the values of their fields; None where a part of a path is missing."""
    return {column: field_at(record, path) for column, path in _columns(name)}


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


@cache
def sql_script() -> str:
    """Return views.sql with the columns of each record in place of FIELDS, but for those that have a line of their own, and their meanings."""
    constants = {"OLD_PRICE_DAYS": OLD_PRICE_DAYS, "FRACTION_TOLERANCE": FRACTION_TOLERANCE, "OVERSIZED": OVERSIZED}
    script = re.sub("|".join(constants), lambda name: str(constants[name[0]]), SQL_FILE.read_text(encoding="utf-8"))
    return re.sub(r"create table (\w+) \(\n    FIELDS,\n(.*?\n\));\n", _with_fields, script, flags=re.DOTALL)


def _with_fields(table: re.Match[str]) -> str:
    name, others = table.groups()
    known = {path: (kind, meaning) for path, kind, meaning in _fields(name)}
    fields = {column: known[path] for column, path in _columns(name) if path in known}
    columns, comments = "", ""
    for column, (kind, meaning) in fields.items():
        what, listed = kind.removesuffix(" or null").removeprefix("list of "), "[]" if kind.startswith("list of ") else ""
        null = "" if kind.endswith(" or null") else " not null"
        if not re.search(rf"^    {column} ", others, re.MULTILINE):
            columns += f"    {column} {SQL_TYPES.get(what, 'varchar')}{listed}{null},\n"
        words = f"{what.replace('` `', ' | ').replace('`', '')}: " if what.startswith("`") else ""
        comments += f"comment on column {name}.{column} is '{(words + meaning).replace(chr(39), 2 * chr(39))}';\n"
    return f"create table {name} (\n{columns}{others};\n{comments}"


def empty_database() -> "duckdb.DuckDBPyConnection":
    """Return a connection to a database in memory with all tables, views and comments, and no rows."""
    import duckdb

    connection = duckdb.connect(config=CLOSED)
    connection.execute(sql_script())
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
            connection.execute(sql_script())
            for name, table in tables.items():
                connection.register("incoming", table)
                # Sorted, so that equal inputs give equal contents in equal order.
                connection.execute(f"insert into {name} by name select * from incoming order by all")  # noqa: S608 - our own tables
    except (duckdb.IOException, duckdb.TransactionException, OSError) as error:
        fix = f"cannot be written ({_first_line(error)}); free some disk space or name another file. The old database is unchanged"
        raise TunemarkError("--db", str(path), fix, exit_code=Exit.INTERNAL) from error


def open_database(path: Path) -> "duckdb.DuckDBPyConnection":
    """Return a read-only connection; raises TunemarkError when the file is missing or is not a database."""
    import duckdb

    if not path.is_file():
        raise TunemarkError("--db", str(path), "no such database; run `tunemark collect` first")
    try:
        return duckdb.connect(str(path), read_only=True, config={**CLOSED, "lock_configuration": True})
    except duckdb.Error as error:
        fix = f"cannot be opened as a database ({_first_line(error)}); run `tunemark collect` again"
        raise TunemarkError("--db", str(path), fix) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def fact_rows(facts: FactBase) -> Rows:
    """Return all rows of the fact base; raises TunemarkError (exit code 3) if facts contradict each other."""
    for workload in facts.workloads.values():
        facts.model(workload.model)
    for line, row in enumerate(facts.prices, start=2):
        if row.accelerator not in facts.accelerators:
            place = f"data/prices/prices.csv:{line}: accelerator"
            fix = "no such card in data/accelerators; add the card or correct the key"
            raise TunemarkError(place, row.accelerator, fix, exit_code=Exit.INVALID)
    known = facts.known
    listed = [known.released_on(each.library, version) for each in known.libraries for version in each.released_on]
    return {
        "accelerators": [
            columns_of("accelerators", card) | {"cpu_clock": card.cpu.clock_words() if card.cpu and card.peak_tflops else None}
            for card in facts.accelerators.values()
        ],
        "models": [
            columns_of("models", card) | {"matrix_parameters": count_parameters(card).matrix_multiplied} for card in facts.models.values()
        ],
        "workloads": [_workload(card, facts.matrix_of(card.key)) for card in facts.workloads.values()],
        "workload_axes": [row for card in facts.workloads.values() for row in _axes(card)],
        "support": list(_support(facts.support)) if facts.support else [],
        "gate_scores": [{"position": place, **row} for place, row in enumerate(facts.gate_scores, start=1)],
        "prices": price_rows(facts.prices, facts.price_basis),
        "releases": [columns_of("releases", row) for row in (*known.releases, *listed)],
    }


def price_id(row: PriceRow) -> str:
    """Return the id of a price: provider/instance/region/kind/date, with `any` for a price of all regions."""
    return f"{row.provider}/{row.instance}/{row.region or 'any'}/{row.kind.value}/{row.effective_on.isoformat()}"


def price_rows(prices: Sequence[PriceRow], basis: PriceBasis) -> list[Row]:
    """Return the price book with an id, the rank of the provider and the fabric for each price. Questions ask it, so no schema is computed."""
    ranks = {provider: place for place, provider in enumerate(basis.providers, start=1)}
    placed = [{"provider_rank": ranks.get(row.provider), "fabric": basis.fabric_of(row.provider, row.instance)} for row in prices]
    stated = [{"price": price_id(row), **row.model_dump(exclude={"kind"}), "kind": row.kind.value} for row in prices]
    return [row | place for row, place in zip(stated, placed, strict=True)]


def _workload(card: WorkloadCard, matrix: str | None) -> Row:
    return columns_of("workloads", card) | {
        "matrix": matrix,
        "lora": card.lora and f"rank {card.lora.rank}, alpha {card.lora.alpha}, on {', '.join(card.lora.target_modules)}",
        "quantisation": card.quantisation and card.quantisation.format + (", scales quantised too" if card.quantisation.double else ""),
    }


def _axes(card: WorkloadCard) -> Iterator[Row]:
    rows = []
    for axis in card.axes:
        at = ", ".join(f"{field}={as_text(value)}" for field, value in axis.at.items())
        rows.append((f"{axis.field} at {at}" if at else axis.field, [as_text(value) or "none" for value in axis.values]))
    rows += [(", ".join(point), [", ".join(as_text(value) or "none" for value in point.values())]) for point in card.points]
    for position, (field, choices) in enumerate(rows, start=1):
        yield {"workload": card.key, "position": position, "field": field, "choices": choices}


def _support(matrix: "SupportMatrix") -> Iterator[Row]:
    for backend, family in matrix.families.items():
        for position, feature in enumerate(matrix.features, start=1):
            reason, need = family.cannot.get(feature), family.needs.get(feature)
            supported = {"supported": reason is None, "reason": reason, "needs": need.package if need and reason is None else None}
            yield {"backend": backend.value, "position": position, "feature": feature.value, **supported}
