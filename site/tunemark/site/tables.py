"""What a table on a page is: columns, rows and cells. How it looks is in templates/macros.html.j2."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tunemark.schema.formats import MISSING
from tunemark.schema.quantities import QUANTITIES

Show = Callable[[float], str]
"""Formats a value for readers."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column head."""

    head: str
    numeric: bool = False
    """Digits are right-aligned."""
    tight: bool = False
    """Its text stays on one line."""
    explained: str = ""
    """One sentence, shown on hover and told to screen readers."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its text, and what stands small below it."""

    text: str
    small: str = ""
    href: str | None = None
    """Path of a page in the site, or a web address."""
    sort: float | str | None = None
    """What the column is sorted by; None sorts last in both directions."""
    badge: str | None = None
    """Kind of badge, when the text is one."""
    explained: str = ""
    """One sentence to a badge, shown on hover and read aloud."""
    mark: str = ""
    """A word of doubt shown with the text, such as `ambiguous`."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table."""

    cells: tuple[Cell, ...]
    last: bool = False
    """Stays below the others however the table is sorted, as failures do."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a name for readers who do not see it."""

    name: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    interactive: bool = False
    """Sorting and a text filter are added by tables.js."""
    searchable: bool = True
    """Its text goes to the site's search; large tables only repeat what the linked pages say."""
    stacked: bool = False
    """On a phone each row becomes a list of its cells, so that long text in late columns is seen."""


def table(
    name: str,
    columns: Sequence[Column],
    lines: Iterable[Line],
    *,
    interactive: bool = False,
    searchable: bool = True,
    stacked: bool = False,
) -> Table:
    """Return a table; raises ValueError when a line does not fit the columns."""
    made = Table(name, tuple(columns), tuple(lines), interactive, searchable, stacked)
    for line in made.lines:
        if len(line.cells) != len(made.columns):
            msg = f"{len(line.cells)} cells for {len(made.columns)} columns in table {name!r}"
            raise ValueError(msg)
    return made


def text(value: object, *, href: str | None = None, small: str = "") -> Cell:
    """Return a cell with words; a dash when unknown."""
    shown = MISSING if value is None or value == "" else str(value)
    return Cell(shown, small=small, href=href, sort=None if shown == MISSING else shown.lower())


def quantity(key: str, value: float | None, *, small: str = "", mark: str = "") -> Cell:
    """Return a cell with a quantity of the registry; a dash when unknown, never 0."""
    return Cell(QUANTITIES[key].text(value), small=small if value is not None else "", sort=value, mark=mark if value is not None else "")


def head(key: str) -> Column:
    """Return the column head of a quantity of the registry."""
    row = QUANTITIES[key]
    return Column(row.label, numeric=True, explained=row.meaning)
