"""Rows on their way to the database: one dictionary per row, grouped by table."""

import json
from typing import Any

Row = dict[str, Any]
Rows = dict[str, list[Row]]


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
