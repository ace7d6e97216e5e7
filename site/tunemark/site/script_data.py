"""The data that scripts of pages read: `script_data/<name>.sql` is a query of one row, which becomes the object in `data/<name>.json`."""

from importlib import resources
from typing import Any

from tunemark.site.database import Database
from tunemark.site.recommend_data import columnar
from tunemark.site.render import compact_json
from tunemark.site.text import one_line

DIGITS = 7
"""Significant digits of a figure. Pages show at most five."""
BY_COLUMN = "_columns"
"""Ending of a column of the row whose list of rows is written as columns with codes for text."""


def script_data(database: Database) -> dict[str, str]:
    """Return the files by their path in the site."""
    queries = sorted(resources.files("tunemark.site").joinpath("script_data").iterdir(), key=lambda file: file.name)
    return {f"data/{query.name.removesuffix('.sql')}.json": _json(database, query.read_text(encoding="utf-8")) for query in queries}


def _json(database: Database, query: str) -> str:
    (row,) = database.rows(query)
    columns = {name.removesuffix(BY_COLUMN): columnar(rows or []) for name, rows in row.items() if name.endswith(BY_COLUMN)}
    return compact_json(_compact({name: value for name, value in row.items() if not name.endswith(BY_COLUMN)} | columns))


def _compact(value: Any) -> Any:  # noqa: ANN401 - of any column
    """Return a value with text on one line and rounded figures. An unknown value of an object is left out."""
    if isinstance(value, dict):
        return {key: _compact(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_compact(each) for each in value]
    if isinstance(value, float):
        rounded = float(f"{value:.{DIGITS}g}")
        return int(rounded) if rounded.is_integer() else rounded
    return one_line(value) if isinstance(value, str) else value
