"""What all commands print: answers as tables, paragraphs or JSON on standard output, and messages on standard error."""

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer
from pydantic_core import to_jsonable_python

from tunemark.schema.formats import MISSING
from tunemark.schema.safe_text import shown_json, terminal

# rich is imported by the function that needs it, so that --help stays fast.
# ruff: noqa: PLC0415

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
LARGEST_PLAIN = 1e6
"""Numbers below this are shown with six digits, larger ones without decimals; exponents are avoided."""


def say(message: str) -> None:
    """Print a message on standard error, each line neutralised."""
    typer.echo(_neutral(message), err=True)


def tell(text: str) -> None:
    """Print a paragraph, neutralised, on a terminal broken between its words."""
    fitted = textwrap.TextWrapper(shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)
    typer.echo(fitted.fill(_neutral(text)) if sys.stdout.isatty() else _neutral(text))


def _neutral(text: str) -> str:
    return "\n".join(map(terminal, text.split("\n")))


def print_json(value: object) -> None:
    """Print JSON on standard output: ISO 8601 dates, numbers with full precision, null for NaN and infinities."""
    plain = to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="null", fallback=str)
    typer.echo(shown_json(json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)))


class Table(NamedTuple):
    """A table that is printed later."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table: with rich on a terminal, or as a block of lines for each row where it is too narrow; as plain aligned text in a pipe."""
    shown = [[cell(value) for value in row] for row in rows]
    values = [[row[index] for row in rows if row[index] is not None] for index in range(len(columns))]
    numeric = [bool(column) and all(type(value) in {int, float} for value in column) for column in values]
    if sys.stdout.isatty():
        _print_fitted(columns, shown, numeric, title)
        return
    # rich takes about 1 ms per row, which is too slow for the many rows of a query in a pipe.
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    if title:
        typer.echo(title)
    for cells in (columns, *shown):
        aligned = (text.rjust(width) if right else text.ljust(width) for text, width, right in zip(cells, widths, numeric, strict=True))
        typer.echo("  ".join(aligned).rstrip())


PROSE = 24
"""Characters from which a column may be broken between its words: a shorter one holds figures and names, which stay on one line."""


def _print_fitted(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], title: str | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, needed = Console(), -1
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name, right, *cells in zip(columns, numeric, *rows, strict=True):
        width = max(map(len, (name, *cells)))
        least = width if width <= PROSE else max(PROSE, *(len(word) for text in (name, *cells) for word in text.split()))
        needed += least + len(" | ")
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold", min_width=least)
    if needed <= console.width:
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    if title:
        console.print(Text(title, style="italic"))
    for first, *others in rows:
        # Pairs are filled into lines, and a short one is not broken between its words.
        pairs = [f"{name}: {text}" for name, text in zip(columns[1:], others, strict=True) if text not in {"", MISSING}]
        whole = "; ".join(pair if len(pair) > console.width // 2 else pair.replace(" ", "\xa0") for pair in pairs)
        lines = textwrap.wrap(whole, console.width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        console.print(Text("\n".join((f"{columns[0]}: {first or MISSING}", *lines)).replace("\xa0", " ")))


def cell(value: object) -> str:
    """Return a value as shown in a table, on one line; numbers have six significant digits."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < LARGEST_PLAIN else f"{value:.0f}"
    if isinstance(value, list):
        return ", ".join(cell(item) for item in value)
    return terminal(" ".join(str(value).split()))
