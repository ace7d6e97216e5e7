"""The data as files: each published table as Parquet, CSV, JSON and in a DuckDB file, and a JSON file for each result.

Names and meanings are those of the collector's views.sql, or of the registered quantities. Parquet, CSV and JSON files are byte-identical
for identical databases. The DuckDB file is built from the Parquet files and is not.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb

from tunemark.schema import VERSION
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.reading import schema_files
from tunemark.schema.safe_text import is_formula
from tunemark.site.database import Database, grouped
from tunemark.site.page import NAME, QUESTION, Row, address
from tunemark.site.render import compact_json, file_name
from tunemark.site.text import one_line

FOLDER, API = "data", "api/v1"
DUCKDB_FILE = f"{FOLDER}/tunemark.duckdb"
STORAGE = "v1.4.0"
"""Storage format of the DuckDB file, named after the oldest DuckDB that reads it. DuckDB for browsers reads it too."""
MAIN = ("results", "accelerators", "models", "workloads", "prices", "findings", "sources")
"""Tables that are also published as CSV and JSON."""
TABLES = (
    *MAIN,
    *("costs", "known_rates", "throughput_model", "throughput_covariances", "throughput_errors", "throughput_refused"),
    *("claims", "readings", "labels", "result_facts", "configurations", "steps", "runs", "run_curves", "audit_rules"),
)
QUERIES = {"results": "from results_with_costs"}
"""The rows of a table; by default those of the table or view of the database with its name."""
DESCRIBED_BY = {"results": ("results", "result_rows", "costs", "results_with_costs"), "costs": ("prices", "costs")}
"""Tables and views with comments on the columns of a table; by default its own. The last one counts."""
COMPARABLE = "(select result_id, nearness, peer, peer_small as conditions, rate, tokens_per_s, samples_per_s from comparable_results)"
DETAILS = {"claims": "claims", "readings": "readings", "findings": "record_findings", "facts": "result_facts", "comparable": COMPARABLE}
"""Key in the file of a result -> the rows about it."""
OWNERS = ("record_id", "result_id")
CONTENTS = "select comment from (from duckdb_tables() select table_name as name, comment union all from duckdb_views() select view_name, comment) where name = ?"
COLUMNS = "select column_name, comment from duckdb_columns() where table_name = ? and comment is not null"
LICENCE = "https://creativecommons.org/licenses/by/4.0/"
KEYWORDS = ["benchmark", "fine-tuning", "LoRA", "QLoRA", "accelerator", "GPU", "Trainium", "cost", "throughput", "memory"]
ENCODINGS = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv"}


def query_of(table: str) -> str:
    """Return the query of all rows of a published table, in their order."""
    return f"from ({QUERIES.get(table, f'from {table}')}) order by all"


def contents(database: Database, table: str) -> str:
    """Return the contents of a table in a sentence or two."""
    return str(database.rows(CONTENTS, DESCRIBED_BY.get(table, (table,))[-1])[0]["comment"])


def fields(database: Database, table: str) -> list[Row]:
    """Return the columns of a table: name, type and meaning."""
    comments: dict[str, str] = {}
    for name in DESCRIBED_BY.get(table, (table,)):
        comments |= {row["column_name"]: row["comment"] for row in database.rows(COLUMNS, name)}
    described = database.rows(f"describe {query_of(table)}")
    return [
        {"field": row["column_name"], "kind": row["column_type"], "meaning": _meaning(row["column_name"], comments)} for row in described
    ]


def _meaning(name: str, comments: Mapping[str, str]) -> str:
    if name in comments:
        return comments[name]
    if name in QUANTITIES:
        return QUANTITIES[name].meaning
    sides = {"_low": "Lower", "_high": "Upper"}
    return next((f"{side} end of the 95% interval." for ending, side in sides.items() if name.endswith(ending)), "")


def published_tables(database: Database) -> list[Row]:
    """Return the published tables: name, contents, number of rows, and the paths of their files."""
    return [
        {
            "name": name,
            "contents": contents(database, name),
            "rows": database.rows(f"select count(*) as rows from ({query_of(name)})")[0]["rows"],  # noqa: S608 - our own names
            "parquet": f"{FOLDER}/{name}.parquet",
            "csv": f"{FOLDER}/{name}.csv" if name in MAIN else None,
            "json": f"{API}/{name}.json" if name in MAIN else None,
        }
        for name in TABLES
    ]


# Files ---------------------------------------------------------------------------------------------


def write(database: Database, folder: Path, links: Mapping[str, Mapping[str, str]]) -> None:
    """Write all files below the folder of a site. `links` are the paths of the files of each result."""
    for name in (FOLDER, f"{API}/results", "schema"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    tables = {name: database.rows(query_of(name)) for name in MAIN}
    for name in TABLES:
        target = _quoted(folder / FOLDER / f"{name}.parquet")
        database.rows(f"copy ({query_of(name)}) to {target} (format parquet, compression zstd)")
        if name in MAIN:
            (folder / FOLDER / f"{name}.csv").write_text(csv_text(tables[name]), encoding="utf-8")
    _write_duckdb(database, folder)
    version = database.rows("select left(max(inputs_sha256), 12) as data_version, cast(max(as_of) as varchar) as as_of from collection")[0]
    for name, rows in tables.items():
        _write_json(folder / API / f"{name}.json", {**version, "count": len(rows), "rows": [_plain(row) for row in rows]})
    index = {
        **version,
        "api_version": "v1",
        "tunemark_version": VERSION,
        "licence": LICENCE,
        "results": f"{API}/results/{{result_id}}.json",
    }
    _write_json(folder / API / "index.json", {**index, "tables": published_tables(database), "duckdb": DUCKDB_FILE})
    _write_results(database, links, tables["results"], folder)
    for name, text in schema_files().items():
        (folder / "schema" / name).write_text(text, encoding="utf-8")


def _write_results(database: Database, links: Mapping[str, Mapping[str, str]], rows: Sequence[Row], folder: Path) -> None:
    """Write the file of each result: its row, links, and what was printed, doubted and recorded."""
    details = {}
    for key, table in DETAILS.items():
        found = [_plain(row) for row in database.rows(f"from {table} order by all")]
        details[key] = grouped(found, lambda row: str(row.get("record_id") or row["result_id"]))
    for row in rows:
        result = row["result_id"]
        pages = {"page": None, "record": None, "steps": None, **links.get(result, {})}
        owned = {
            key: [{name: value for name, value in each.items() if name not in OWNERS} for each in found.get(result, [])]
            for key, found in details.items()
        }
        _write_json(folder / API / "results" / f"{file_name(result)}.json", {"result": _plain(row), "links": pages, **owned})


def _write_duckdb(database: Database, folder: Path) -> None:
    """Write a DuckDB file with all tables and their comments, from the Parquet files in the folder."""
    with duckdb.connect() as connection:
        connection.execute(f"attach {_quoted(folder / DUCKDB_FILE)} as made (storage_version '{STORAGE}')")
        connection.execute("use made")
        for name in TABLES:
            connection.execute(f"create table {name} as from {_quoted(folder / FOLDER / f'{name}.parquet')}")
            connection.execute(f"comment on table {name} is {_quoted(contents(database, name))}")
            for field in fields(database, name):
                if field["meaning"]:
                    connection.execute(f"comment on column {name}.{field['field']} is {_quoted(field['meaning'])}")
        connection.execute("use memory")
        connection.execute("detach made")


def _quoted(text: object) -> str:
    """Return a text as an SQL string."""
    return "'" + str(text).replace("'", "''") + "'"


def _plain(row: Row) -> Row:
    """Return a row as JSON has it: dates and times in ISO 8601, times in UTC."""
    return {name: _iso(value) if isinstance(value, date) else value for name, value in row.items()}


def _iso(value: date) -> str:
    return f"{value.isoformat()}Z" if isinstance(value, datetime) else value.isoformat()


def _write_json(path: Path, content: object) -> None:
    path.write_text(compact_json(content), encoding="utf-8")


def csv_text(rows: Sequence[Row]) -> str:
    """Return rows as CSV. Unknown values are empty, lists are JSON, and no text starts like a spreadsheet formula."""
    out = io.StringIO()
    if rows:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows(map(_cell, row.values()) for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    """Return a value that a spreadsheet does not read as a formula."""
    # The most frequent types come first: a table of 10,000 results has a million cells.
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, str):
        return _safe(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    return _iso(value) if isinstance(value, date) else value


@lru_cache(maxsize=10_000)
def _safe(text: str) -> str:
    text = one_line(text)
    return f"'{text}" if is_formula(text) else text


# For search engines --------------------------------------------------------------------------------


def creator(url: str) -> Row:
    """Return the authors of the data."""
    return {"@type": "Organization", "name": "Tunemark contributors", "url": url}


def dataset(database: Database, url: str) -> dict[str, Any]:
    """Return the description of the data as a schema.org Dataset, for a site at this address."""
    (counts,) = database.rows("select results, prices, (select cast(max(as_of) as varchar) from collection) as day from totals")
    described = {
        "@context": "https://schema.org/",
        "@type": "Dataset",
        "name": f"{NAME}: fine-tuning results of accelerators",
        "description": (
            f"{counts['results']:,} measured, published and converted results of fine-tuning language models on accelerators: conditions, "
            f"throughput, memory, utilisation and cost, with {counts['prices']:,} dated prices and an audit of each figure. {QUESTION}"
        ),
        "url": address(url, "data/index"),
        "license": LICENCE,
        "version": VERSION,
        "isAccessibleForFree": True,
        "keywords": KEYWORDS,
        "creator": creator(url),
        "distribution": [
            {
                "@type": "DataDownload",
                "name": f"{name}.{ending}",
                "description": contents(database, name),
                "contentUrl": f"{url}{FOLDER}/{name}.{ending}",
                "encodingFormat": kind,
            }
            for name in MAIN
            for ending, kind in ENCODINGS.items()
        ],
    }
    return {**described, "dateModified": counts["day"]} if counts["day"] else described
