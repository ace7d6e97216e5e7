"""Rows on their way to the database: one dictionary each, grouped by table."""

import json
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
Rows = dict[str, list[Row]]


def text(value: object) -> str | None:
    """Return a fact's value as text: words as they are, all else as JSON; None stays None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def flattened(node: Any, path: str = "") -> Iterable[tuple[str, Any]]:  # noqa: ANN401 - any JSON value
    """Yield (dotted path, value) for each leaf; lists of plain values are leaves."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from flattened(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list) and any(isinstance(value, dict) for value in node):
        for index, value in enumerate(node):
            yield from flattened(value, f"{path}.{index}")
    else:
        yield path, node


def merge(target: Rows, more: Rows) -> None:
    """Append rows to those of the same tables."""
    for table, rows in more.items():
        target.setdefault(table, []).extend(rows)
