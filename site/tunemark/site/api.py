"""The static JSON API: one file per list and per result, and the JSON Schema of each, served at its `$id`.

The rows have the columns of tunemark.site.downloads. Within version 1, columns and files may be added but are never
renamed or removed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, create_model

from tunemark.schema import VERSION
from tunemark.schema.records.json_schema import ID_BASE, schema_files
from tunemark.site import downloads, reproduce
from tunemark.site.downloads import MAIN, Relation
from tunemark.site.page import api_path, badge_path, result_path
from tunemark.site.queries import Catalogue, grouped
from tunemark.site.render import ENDING, compact_json, file_name
from tunemark.site.tables import Row

API = "v1"
FOLDER = "api/v1"
SCHEMA_FOLDER = "schema"
"""Folder of the site that corresponds to `ID_BASE`."""
DRAFT = "https://json-schema.org/draft/2020-12/schema"
LICENCE = "CC-BY-4.0"
TYPES: dict[str, Any] = {
    "BIGINT": int,
    "BOOLEAN": bool,
    "DATE": date,
    "DOUBLE": float,
    "INTEGER": int,
    "TIMESTAMP": datetime,
    "VARCHAR": str,
    "VARCHAR[]": list[str],
}
"""DuckDB type -> Python type."""
DETAILS = {
    "claims": Relation("claims", "Figures exactly as printed."),
    "readings": Relation("readings", "All readings of each ambiguous figure."),
    "findings": Relation("record_findings", "Findings of the audit about this result.", described_by=("findings", "audit_rules")),
    "facts": Relation("result_facts", "Further facts, such as the plan, the packages and the conditions."),
}
"""Key of a result's file -> the rows about it."""
AT_ONCE = 1_000
"""Results whose files are made together."""
OWNERS = ("record_id", "result_id")
"""Columns with the id of the result that a row belongs to. The file of a result leaves them out."""


class Document(BaseModel):
    """The fields of the index and of every list.

    The file of a result lacks them, so that it stays the same while its result does.
    """

    model_config = ConfigDict(extra="forbid")

    data_version: str = Field(
        description="Changes when the data changes: the first 12 hexadecimal digits of the SHA-256 hash of all inputs."
    )
    as_of: date | None = Field(description="Day on which the data was collected; current prices are those in force on this day.")


class Endpoint(BaseModel):
    """A file of the API, or a pattern of files."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(description="Path relative to the folder of this index. Replace `{result_id}` by the id of a result.")
    contents: str
    rows: int | None = Field(description="Number of rows or files.")
    schema_id: str = Field(description="`$id` of its JSON Schema, which this site serves at that address.")


class Download(BaseModel):
    """A relation as files for other tools."""

    model_config = ConfigDict(extra="forbid")

    relation: str
    contents: str
    rows: int
    parquet: str = Field(description="Path relative to the address of the site, like `csv` and `json`.")
    csv: str | None
    json_: str | None = Field(alias="json")


class Index(Document):
    """The files of the API and of the downloads."""

    api_version: Literal["v1"]
    tunemark_version: str
    licence: str
    endpoints: list[Endpoint]
    downloads: list[Download]
    duckdb: str = Field(description="Path of the DuckDB file with all relations, relative to the address of the site.")


class Links(BaseModel):
    """Files and pages of a result, as paths relative to the address of the site."""

    model_config = ConfigDict(extra="forbid")

    page: str
    record: str | None = Field(description="The complete record, as submitted or imported.")
    steps: str | None = Field(description="Raw steps as CSV.")
    badge: str | None = Field(description="Badge as SVG.")


class Api:
    """The contents of the API for one database."""

    def __init__(self, catalogue: Catalogue, tables: Mapping[str, list[Row]] | None = None) -> None:
        """Keep the catalogue and the rows of the main relations by name. Other rows are read when they are needed."""
        self._catalogue = catalogue
        self._database = catalogue.database
        self._tables = tables or {}

    @cached_property
    def version(self) -> dict[str, str | None]:
        """The fields of `Document`."""
        rows = self._database.rows("select left(inputs_sha256, 12) as data_version, cast(as_of as varchar) as as_of from collection")
        return dict(rows[0]) if rows else {"data_version": "", "as_of": None}

    @cached_property
    def result_rows(self) -> list[Row]:
        """The rows of all results."""
        return self._rows(MAIN[0])

    def _rows(self, relation: Relation) -> list[Row]:
        found = self._tables.get(relation.name)
        return [_plain(row) for row in (downloads.rows(self._database, relation) if found is None else found)]

    # Schemas ---------------------------------------------------------------------------------------

    @cached_property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """The JSON Schema of each kind of file by its name."""
        models = {relation.name: self._list_model(relation) for relation in MAIN}
        models |= {"index": Index, "result": self._result_model()}
        return {name: _schema(name, model) for name, model in models.items()}

    def _row_model(self, relation: Relation, name: str, without: Sequence[str] = ()) -> type[BaseModel]:
        """Return the model of a row: one field per column, all present, null if unknown."""
        columns: dict[str, Any] = {}
        for field in downloads.fields(self._database, relation):
            if field.name not in without:
                kind = TYPES[field.kind]
                columns[field.name] = (kind if field.required else kind | None, Field(description=field.meaning or None))
        return create_model(name, __doc__=relation.contents, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **columns)

    def _list_model(self, relation: Relation) -> type[BaseModel]:
        row: Any = self._row_model(relation, "Row")
        return create_model(
            relation.name.capitalize(),
            __base__=Document,
            __doc__=relation.contents,
            count=(int, Field(description="Number of rows.")),
            rows=(list[row], ...),
        )

    def _result_model(self) -> type[BaseModel]:
        result: Any = self._row_model(MAIN[0], "Result")
        details: dict[str, Any] = {}
        for key, relation in DETAILS.items():
            row: Any = self._row_model(relation, key.capitalize(), without=OWNERS)
            details[key] = (list[row], Field(description=relation.contents))
        return create_model(
            "ResultFile",
            __config__=ConfigDict(extra="forbid"),
            __doc__="A result with its printed figures, readings, findings, facts and links to its files.",
            result=(result, ...),
            links=(Links, ...),
            **details,
        )

    # Files -----------------------------------------------------------------------------------------

    def index(self) -> dict[str, Any]:
        """Return the list of all files."""
        counts = {relation.name: downloads.count(self._database, relation) for relation in downloads.RELATIONS}
        endpoints: list[tuple[str, str, int | None, str]] = [("index.json", "This list of files.", None, "index")]
        endpoints += [(f"{relation.name}.json", relation.contents, counts[relation.name], relation.name) for relation in MAIN]
        endpoints += [
            (
                "results/{result_id}.json",
                "A result with its printed figures, readings, findings, facts and links to its files.",
                counts["results"],
                "result",
            )
        ]
        return self.version | {
            "api_version": API,
            "tunemark_version": VERSION,
            "licence": LICENCE,
            "endpoints": [
                {"path": path, "contents": contents, "rows": rows, "schema_id": schema_id(schema)}
                for path, contents, rows, schema in endpoints
            ],
            "downloads": [
                {
                    "relation": relation.name,
                    "contents": relation.contents,
                    "rows": counts[relation.name],
                    "parquet": relation.path("parquet"),
                    "csv": relation.path("csv") if relation.main else None,
                    "json": api_path(relation.name) if relation.main else None,
                }
                for relation in downloads.RELATIONS
            ],
            "duckdb": downloads.DUCKDB_FILE,
        }

    def list_of(self, relation: Relation) -> dict[str, Any]:
        """Return the file of a relation."""
        rows = self.result_rows if relation is MAIN[0] else self._rows(relation)
        return self.version | {"count": len(rows), "rows": rows}

    def results(self, results: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the id and the file of each of these results."""
        named = {row["result_id"]: row for row in self._catalogue.results}
        rows = {row["result_id"]: row for row in self.result_rows}
        for start in range(0, len(results), AT_ONCE):
            share = results[start : start + AT_ONCE]
            details = {key: self._details(relation, share) for key, relation in DETAILS.items()}
            for name in share:
                yield (
                    name,
                    {"result": rows[name], "links": _links(named[name])} | {key: found.get(name, []) for key, found in details.items()},
                )

    def _details(self, relation: Relation, results: Sequence[str]) -> dict[str, list[Row]]:
        owner = next(name for name in OWNERS if name in self._columns(relation))
        rows = self._database.rows(f"select * from ({relation.sql}) where {owner} in (select unnest($1::varchar[])) order by all", results)  # noqa: S608 - our own names
        return {
            owned: [{name: value for name, value in _plain(row).items() if name not in OWNERS} for row in members]
            for owned, members in grouped(rows, lambda row: cast("str", row[owner])).items()
        }

    def _columns(self, relation: Relation) -> list[str]:
        return [row["column_name"] for row in self._database.rows(f"describe {relation.sql}")]

    def write(self, site: Path) -> None:
        """Write all files of the API and all schemas below a folder."""
        folder, schemas = site / FOLDER, site / SCHEMA_FOLDER
        (folder / "results").mkdir(parents=True)
        (schemas / FOLDER).mkdir(parents=True)
        _write(folder / "index.json", self.index())
        for relation in MAIN:
            _write(folder / f"{relation.name}.json", self.list_of(relation))
        new = [row["result_id"] for row in self._catalogue.results]
        for result, content in self.results(new):
            _write(folder / "results" / f"{file_name(result)}.json", content)
        for name, schema in self.schemas.items():
            text = json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False)
            (schemas / FOLDER / f"{name}.schema.json").write_text(f"{text}\n", encoding="utf-8")
        for name, text in schema_files().items():
            (schemas / name).write_text(text, encoding="utf-8")


def schema_id(name: str) -> str:
    """Return the `$id` of a schema of the API."""
    return f"{ID_BASE}/{FOLDER}/{name}.schema.json"


def _schema(name: str, model: type[BaseModel]) -> dict[str, Any]:
    return {"$schema": DRAFT, "$id": schema_id(name), **model.model_json_schema(by_alias=True, mode="serialization")}


def _links(row: Row) -> dict[str, str | None]:
    files = reproduce.downloads(row)
    return {
        "page": f"{result_path(row['result_id'])}{ENDING}",
        "record": files.record,
        "steps": files.steps,
        "badge": badge_path(row),
    }


def _plain(row: Mapping[str, object]) -> Row:
    return {name: downloads.plain(value) if isinstance(value, date) else value for name, value in row.items()}


def _write(path: Path, content: object) -> None:
    path.write_text(compact_json(content), encoding="utf-8")
