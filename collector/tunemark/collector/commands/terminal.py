"""How answers reach people: tables on a terminal, plain aligned text in a pipe, JSON and CSV for programs."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import project_root
from tunemark.schema.formats import MISSING


class Advance(Protocol):
    """Tells that one more piece of work is done."""

    def __call__(self) -> None:
        """Count one."""


def say(message: str) -> None:
    """Print a message for people, on standard error."""
    typer.echo(message, err=True)


def print_json(value: object) -> None:
    """Print JSON on standard output; dates as ISO 8601, numbers with full precision, null for what is no finite number."""
    typer.echo(json.dumps(_finite(value), indent=1, ensure_ascii=False, default=_as_text, allow_nan=False))


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print CSV on standard output; NULL is empty, lists are JSON."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        [
            ["" if value is None else json.dumps(value, default=_as_text) if isinstance(value, list | dict) else value for value in row]
            for row in rows
        ]
    )
    typer.echo(buffer.getvalue(), nl=False)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table: ruled and coloured on a terminal, plain aligned text in a pipe."""
    numeric = [
        any(_is_number(row[index]) for row in rows) and all(_is_number(row[index]) or row[index] is None for row in rows)
        for index in range(len(columns))
    ]
    shown = [[cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, shown, numeric, title)
        return
    if title:
        typer.echo(title)
    widths = [max(len(line[index]) for line in [list(columns), *shown]) for index in range(len(columns))]
    for line in [list(columns), *shown]:
        typer.echo(
            "  ".join(
                text.rjust(width) if right else text.ljust(width) for text, width, right in zip(line, widths, numeric, strict=True)
            ).rstrip()
        )


def cell(value: object) -> str:
    """Return a value as it stands in a table; numbers to six significant digits."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"  # noqa: PLR2004 - no exponents for everyday sizes
    if isinstance(value, list):
        return ", ".join(cell(one) for one in value)
    return " ".join(str(value).split())


@contextmanager
def progress(what: str, total: int) -> Iterator[Advance]:
    """Yield a function that counts one piece of work: a bar on a terminal, a line every 1,000 otherwise, nothing for few."""
    few = 200
    if total <= few:
        yield lambda: None
    elif sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415 - only where a bar is drawn
        from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn  # noqa: PLC0415 - as above

        with Progress(
            *Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)
        ) as bar:
            task = bar.add_task(what, total=total)
            yield lambda: bar.advance(task)
    else:
        yield _Lines(what, total)


class _Lines:
    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0

    def __call__(self) -> None:
        self.done += 1
        if self.done % 1_000 == 0 or self.done == self.total:
            say(f"{self.what}: {self.done:,} of {self.total:,}")


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], title: str | None) -> None:
    from rich import box  # noqa: PLC0415 - only on a terminal
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, 1))
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    Console().print(table)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: Any) -> Any:  # noqa: ANN401 - any value of an answer
    """Return a value with NaN and infinities, which JSON has not, as None."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, date | datetime) else str(value)


# MOVE: was tunemark.collector.commands.terminal: Days as people type them on the command line.


def parse_date(option: str, text: str | None) -> date:
    """Return the day that an option names, today when it is left out; raises TunemarkError for what is no day."""
    if text is None:
        return datetime.now(tz=UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise TunemarkError(option, text, "not a day; write it as YYYY-MM-DD") from error


# MOVE: was tunemark.collector.commands.terminal: Options that several commands have.

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Database = Annotated[
    Path | None, typer.Option("--db", help="The DuckDB file; `build/tunemark.duckdb` of the checkout when left out.", show_default=False)
]


def database_of(path: Path | None) -> Path:
    """Return the database that is named, or that of the checkout."""
    return project_root() / "build" / "tunemark.duckdb" if path is None else path
