"""The formats of records: read one, list each problem with its field, value and fix, and generate the published JSON Schema and field reference."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic import BaseModel, ValidationError

from tunemark.schema.errors import did_you_mean, problems_of
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import PublishedResult, PublishedSet, SourceDocument
from tunemark.schema.records.submission import Submission
from tunemark.schema.safe_text import terminal

MOST_PROBLEMS = 100
"""Problems of the schema that are listed of one record."""

MODELS: dict[str, type[BaseModel]] = {
    record.model_fields["format"].default: record for record in (Submission, PublishedResult, PublishedSet, SourceDocument, ConvertedResult)
}
"""The format of each kind of record."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a record is invalid: field, value and fix."""

    field: str
    value: str
    fix: str

    @property
    def text(self) -> str:
        """Field, value and fix as one line; a stranger's text in it is unchanged."""
        return ": ".join(filter(None, (self.field, self.value, self.fix)))

    def __str__(self) -> str:
        """Return one line; text of a stranger in it is shown as escapes."""
        return terminal(self.text)


class InvalidRecord(ValueError):
    """A record with problems, all of which are listed."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(str(problem) for problem in problems))


def read_record(content: bytes) -> BaseModel:
    """Return the record in these bytes. Raises InvalidRecord with one problem per invalid field."""
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord([Problem("file", "", f"not valid JSON: {error}; write it with `tunemark run`")]) from error
    if not isinstance(raw, dict):
        raise InvalidRecord([Problem("file", "", "is no JSON object, as each record is")])
    name = raw.get("format")
    if not isinstance(name, str) or name not in MODELS:
        known = did_you_mean(str(name), MODELS)
        raise InvalidRecord([Problem("format", *(("", f"is missing; {known}") if name is None else (shown_value(name), known)))])
    model = MODELS[name]
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        listed = list[Problem]()
        for field, value, fix in islice(problems_of(error, model), MOST_PROBLEMS + 1):
            shown = "" if not field or value == "" else shown_value(value)
            listed.append(Problem(field or "record", shown if len(shown) <= 80 else f"{shown[:77]}...", fix))  # noqa: PLR2004 - one line of a terminal
        if len(listed) > MOST_PROBLEMS:
            listed[MOST_PROBLEMS:] = [Problem("record", "more problems", f"only the first {MOST_PROBLEMS} are listed")]
        raise InvalidRecord(listed) from error


def shown_value(value: object) -> str:
    """Return a value of a record as a message shows it: text in quotes, everything else as JSON."""
    return repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# The JSON Schema and the field reference

ID_BASE = "https://tunemark.dev/schema"
FILES = {f"{name.removeprefix('tunemark.').replace('/', '-')}.schema.json": name for name in MODELS if MODELS[name] is not PublishedSet}
"""File in schema/json, which the site publishes -> format. A test fails if a file differs from the generated schema."""


def schema_files() -> dict[str, str]:
    """Return the JSON Schema (draft 2020-12) of each format, with its permanent `$id`, by the name of its file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    found = {
        file: head | {"$id": f"{ID_BASE}/{file}"} | MODELS[name].model_json_schema(mode="serialization") for file, name in FILES.items()
    }
    return {file: json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n" for file, content in found.items()}


def field_reference(model: type[BaseModel]) -> list[tuple[str, str, str]]:
    """Return (dotted path, type, meaning) of each field of a record, including nested fields. Some are described by their name alone."""
    schema = model.model_json_schema(mode="serialization")
    return list(_fields(schema, schema.get("$defs", {}), ""))


def _fields(node: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in node.get("properties", {}).items():
        kind, record = _kind(field, definitions)
        meaning = field.get("description") or record.get("description") or f"{name.replace('_', ' ').capitalize()}."
        yield f"{prefix}{name}", kind, meaning
        yield from _fields(record, definitions, f"{prefix}{name}{'[]' if 'items' in field else ''}.")


def _kind(field: dict[str, Any], definitions: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of a value in words, and the definition that it or its entries have; empty without one."""
    if "anyOf" in field:
        kinds = [_kind(option, definitions) for option in field["anyOf"]]
        return " or ".join(kind for kind, _ in kinds), next((record for _, record in kinds if record), {})
    if "const" in field:
        return f"`{field['const']}`", {}
    record = definitions[field["$ref"].rsplit("/", 1)[-1]] if "$ref" in field else {}
    if words := (record or field).get("enum"):
        return " ".join(f"`{word}`" for word in words), record
    inner = field.get("items") or field.get("additionalProperties")
    kind, record = _kind(inner, definitions) if isinstance(inner, dict) else ("", record)
    name = "object" if "$ref" in field else str(field.get("type", "any"))
    return f"list of {kind}" if name == "array" and kind else name, record
