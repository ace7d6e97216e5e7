"""The published JSON Schema and the field reference, both generated from the records."""

import json
from typing import Any

from pydantic import BaseModel

from tunemark.schema.records import converted, published, submission
from tunemark.schema.records.reading import MODELS

ID_BASE = "https://tunemark.dev/schema"
FILES = {
    "submission-1.schema.json": submission.FORMAT,
    "published-1.schema.json": published.FORMAT,
    "source-1.schema.json": published.SOURCE_FORMAT,
    "converted-1.schema.json": converted.FORMAT,
}
"""Committed in schema/json. A test fails if a file differs from the generated schema."""


def json_schema(record_format: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a format, with its permanent `$id`."""
    name = next(file for file, known in FILES.items() if known == record_format)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{ID_BASE}/{name}",
        **MODELS[record_format].model_json_schema(mode="serialization"),
    }


def schema_files() -> dict[str, str]:
    """Return the content of each committed schema file by its name."""
    return {
        name: json.dumps(json_schema(record_format), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        for name, record_format in FILES.items()
    }


def field_reference(model: type[BaseModel]) -> list[tuple[str, str, str]]:
    """Return (dotted path, type, meaning) of each field of a record, including nested fields. Some are described by their name alone."""
    schema = model.model_json_schema(mode="serialization")
    return list(_fields(schema, schema.get("$defs", {}), ""))


def _fields(node: dict[str, Any], definitions: dict[str, Any], prefix: str) -> list[tuple[str, str, str]]:
    rows = []
    for name, field in node.get("properties", {}).items():
        path = f"{prefix}{name}"
        target = _reference(field)
        definition = definitions.get(target or "", {})
        meaning = field.get("description") or definition.get("description") or f"{name.replace('_', ' ').capitalize()}."
        rows.append((path, _type(field, definitions), meaning))
        if "properties" in definition:
            many = "[]" if "items" in field else ""
            rows.extend(_fields(definition, definitions, f"{path}{many}."))
    return rows


def _reference(field: dict[str, Any]) -> str | None:
    for candidate in (
        field,
        field.get("items", {}),
        field.get("additionalProperties") or {},
        *field.get("anyOf", ()),
        *field.get("allOf", ()),
    ):
        if isinstance(candidate, dict) and "$ref" in candidate:
            return str(candidate["$ref"]).rsplit("/", 1)[-1]
    return None


def _type(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(option, definitions) for option in field["anyOf"])
    if "const" in field:
        return f"`{field['const']}`"
    if "$ref" in field:
        definition = definitions[field["$ref"].rsplit("/", 1)[-1]]
        return " ".join(f"`{word}`" for word in definition["enum"]) if "enum" in definition else "object"
    if "enum" in field:
        return " ".join(f"`{word}`" for word in field["enum"])
    kind = str(field.get("type", "any"))
    return f"list of {_type(field['items'], definitions)}" if kind == "array" and isinstance(field.get("items"), dict) else kind
