"""Rows on their way to the database: one dictionary per row, grouped by table."""

import json
from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]
Rows = dict[str, list[Row]]


def as_text(value: object) -> str | None:
    """Return a value as text: strings unchanged, None as None, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def flattened(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any JSON value
    """Yield (dotted path, value) for each leaf; a list of plain values is a leaf."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from flattened(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list) and any(isinstance(value, dict) for value in node):
        for index, value in enumerate(node):
            yield from flattened(value, f"{path}.{index}")
    else:
        yield path, node


def merge(target: Rows, added: Rows) -> None:
    """Append rows to those of the same table."""
    for table, rows in added.items():
        target.setdefault(table, []).extend(rows)
