"""Tables on pages: columns, rows and cells. Their HTML is in templates/macros.html.j2.

A column is declared once: its heading and the function that makes its cell from an item.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Row = dict[str, Any]
"""A row of the database, by column."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: its main text and the details around it."""

    text: str
    small: str = ""
    """Secondary text below the main text."""
    href: str | None = None
    """Path of a page of the site, or a web address."""
    sort: float | str | None = None
    """Sort value; None is sorted last in both directions."""
    badge: str | None = None
    """Kind of badge, if the text is shown as one."""
    explained: str = ""
    """One sentence about a badge, shown on hover and read by screen readers."""
    mark: str = ""
    """A warning shown next to the text, such as `ambiguous`."""
    mark_href: str | None = None
    """Path of the page that explains the warning."""


@dataclass(frozen=True)
class Column(Generic[Item]):
    """A column: its heading, and how its cell is made from an item."""

    head: str
    cell: Callable[[Item], Cell]
    numeric: bool = False
    """Right-align the digits."""
    explained: str = ""
    """One sentence, shown on hover and read by screen readers."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A rendered row."""

    cells: tuple[Cell, ...]
    last: bool = False
    """Keep the row below the others however the table is sorted, for example a failed run."""


@dataclass(frozen=True, slots=True)
class Table:
    """A rendered table. `name` is its accessible caption."""

    name: str
    columns: tuple[Column[Any], ...]
    rows: tuple[TableRow, ...]
    interactive: bool = False
    """Add sorting and a text filter with tables.js."""
    searchable: bool = True
    """Index the text for the site search. Off for large tables that repeat the pages they link to."""
    stacked: bool = False
    """On a phone, show each row as a list of cells, so that long text in late columns is visible."""
    left_out: int = 0
    """Rows beyond the most that a page shows."""
    all_rows: tuple[str, str] | None = None
    """Label and path of the place that has all rows."""


def table(
    name: str,
    columns: Sequence[Column[Item]],
    items: Iterable[Item],
    *,
    last: Callable[[Item], bool] = lambda _: False,
    interactive: bool = False,
    searchable: bool = True,
    stacked: bool = False,
    most: int | None = None,
    all_rows: tuple[str, str] | None = None,
) -> Table:
    """Return a table with one row per item, of at most the first `most` items; `all_rows` is where the others are."""
    listed = list(items)
    shown = listed[:most]
    rows = tuple(TableRow(tuple(column.cell(item) for column in columns), last=last(item)) for item in shown)
    return Table(name, tuple(columns), rows, interactive, searchable, stacked, len(listed) - len(shown), all_rows)
