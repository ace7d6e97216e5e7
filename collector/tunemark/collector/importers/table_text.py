"""Tables in Markdown, HTML, CSV and JSON files: their cells as text, with headings and line numbers.

An HTML table is read wherever it stands in a Markdown file. The extract that is kept of a document is written here too, and the
figures in cells and other printed words are read here.
"""

import csv
import html
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tunemark.collector.audit.interval import duration
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.quantities import QUANTITIES

MARKDOWN = MarkdownIt("commonmark").enable("table")
BELOW_ALL = 7
"""Level of a heading in bold type."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """One table as text. All rows are as long as the header."""

    file: str
    headings: tuple[str, ...]
    """Headings above the table, nearest last; empty for CSV."""
    line: int
    """Line of the header, from 1."""
    header: tuple[str, ...]
    """Column names; a repeated name gets `#2`, `#3`."""
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    """(line, cells) of each row."""

    @property
    def place(self) -> str:
        """Return `file:line`."""
        return f"{self.file}:{self.line}"


def tables_in(text: str, file: str, levels: Sequence[str] = ()) -> list[TextTable]:
    """Return the tables of a file: one of CSV and of JSON, pipe and HTML tables of any other file.

    `levels` names the levels of nested JSON objects. Raises TunemarkError (exit code 3) for a row whose number of cells differs
    from its header.
    """
    if file.endswith((".csv", ".tsv")):
        return _of_csv(text, file, "\t" if file.endswith(".tsv") else ",")
    if file.endswith(".json"):
        return _of_json(text, file, levels)
    tokens = MARKDOWN.parse(text)
    found = [*_of_markdown(tokens, file), *_of_html(text, file, _headings(tokens))]
    return sorted(found, key=lambda table: table.line)


def _of_csv(text: str, file: str, delimiter: str) -> list[TextTable]:
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")), delimiter=delimiter)
    numbered = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    filled = [(line, row) for line, row in numbered if any(row)]
    if not filled:
        return []
    line, header = filled[0]
    return [_table(file, (), line, header, filled[1:])]


def _of_json(text: str, file: str, levels: Sequence[str]) -> list[TextTable]:
    """Return the innermost objects as rows; the keys on the way and the plain values of outer objects are columns too."""
    try:
        content = json.loads(text, parse_float=str, parse_int=str)
    except ValueError as error:
        raise TunemarkError(file, "", f"is not valid JSON: {error}", exit_code=Exit.INVALID) from error
    rows: list[dict[str, str]] = []
    _innermost(content, list(levels), {}, rows)
    header = list(dict.fromkeys(name for row in rows for name in row))
    lines = text.splitlines()
    numbered = []
    for row in rows:
        outer = json.dumps(row[levels[0]], ensure_ascii=False) if levels and levels[0] in row else ""
        line = next((number for number, words in enumerate(lines, start=1) if outer and outer in words), 1)
        numbered.append((line, [row.get(name, "") for name in header]))
    return [_table(file, (), 1, header, numbered)] if rows else []


def _innermost(node: Any, levels: list[str], known: dict[str, str], rows: list[dict[str, str]]) -> None:  # noqa: ANN401 - any JSON value
    if isinstance(node, list):
        for entry in node:
            _innermost(entry, levels, known, rows)
        return
    if not isinstance(node, dict):
        return
    plain_values = {key: _json_cell(value) for key, value in node.items() if not isinstance(value, dict)}
    nested = {key: value for key, value in node.items() if isinstance(value, dict)}
    if not nested or not levels:
        rows.append(known | plain_values)
        return
    for key, value in nested.items():
        _innermost(value, levels[1:], known | plain_values | {levels[0]: key}, rows)


def _json_cell(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


@dataclass(slots=True)
class _HtmlTable:
    line: int
    rows: list[tuple[int, list[tuple[str, int, int]]]] = field(default_factory=list)
    """(line, cells as (text, columns, rows))."""


class _HtmlTables(HTMLParser):
    """Collects the cells of all tables of a text, with their spans."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[_HtmlTable] = []
        self.open = False
        self.cell: list[str] | None = None
        self.span = (1, 1)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open a table, row or cell."""
        named = dict(attrs)
        if tag == "table":
            self.tables.append(_HtmlTable(self.getpos()[0]))
            self.open = True
        elif tag == "tr" and self.open:
            self._close_cell()
            self.tables[-1].rows.append((self.getpos()[0], []))
        elif tag in {"td", "th"} and self.open and self.tables[-1].rows:
            self._close_cell()
            self.cell, self.span = [], (int(named.get("colspan") or 1), int(named.get("rowspan") or 1))
        elif tag == "br" and self.cell is not None:
            self.cell.append(" ")

    def handle_endtag(self, tag: str) -> None:
        """Close a cell or table."""
        if tag in {"td", "th", "tr"}:
            self._close_cell()
        if tag == "table":
            self._close_cell()
            self.open = False

    def handle_data(self, data: str) -> None:
        """Add to the cell."""
        if self.cell is not None:
            self.cell.append(data)

    def _close_cell(self) -> None:
        if self.cell is not None:
            self.tables[-1].rows[-1][1].append((_cell_text("".join(self.cell)), *self.span))
            self.cell = None


def _of_html(text: str, file: str, headings: Sequence[tuple[int, int, str]]) -> list[TextTable]:
    """Return the HTML tables; spanned cells are repeated, and rows of the header that are joined by a span become one."""
    if "<table" not in text.lower():
        return []
    parser = _HtmlTables()
    parser.feed(text)
    tables = []
    for found in parser.tables:
        rows = _unspanned(found)
        if len(rows) > 1:
            deep = max((span for _, _, span in found.rows[0][1]), default=1)
            header = [
                " / ".join(dict.fromkeys(part for part in parts if part)) for parts in zip(*(row for _, row in rows[:deep]), strict=True)
            ]
            tables.append(_table(file, _above(headings, found.line), found.line, header, rows[deep:]))
    return tables


def _unspanned(table: _HtmlTable) -> list[tuple[int, list[str]]]:
    """Return rows of equal length with each spanned cell in all of its places."""
    grid: dict[tuple[int, int], str] = {}
    for number, (_, cells) in enumerate(table.rows):
        column = 0
        for text, columns, rows in cells:
            while (number, column) in grid:
                column += 1
            grid |= {(number + down, column + right): text for down in range(rows) for right in range(columns)}
            column += columns
    width = max((column for _, column in grid), default=-1) + 1
    return [(line, [grid.get((number, column), "") for column in range(width)]) for number, (line, _) in enumerate(table.rows)]


def _of_markdown(tokens: Sequence[Token], file: str) -> list[TextTable]:
    """Return the pipe tables."""
    tables: list[TextTable] = []
    headings = _headings(tokens)
    rows: list[tuple[int, list[str]]] = []
    for token, following in pairwise([*tokens, *tokens[-1:]]):
        if token.type == "table_open":
            rows = []
        elif token.type == "tr_open" and token.map:
            rows.append((token.map[0] + 1, []))
        elif token.type in {"th_open", "td_open"}:
            rows[-1][1].append(_plain(following))
        elif token.type == "table_close":
            tables.append(_table(file, _above(headings, rows[0][0]), rows[0][0], rows[0][1], rows[1:]))
    return tables


def _headings(tokens: Sequence[Token]) -> list[tuple[int, int, str]]:
    """Return line, level and text of the headings. A paragraph in bold type is a heading below all others."""
    headings = []
    for token, following in pairwise([*tokens, *tokens[-1:]]):
        line, kinds = token.map[0] + 1 if token.map else 0, [child.type for child in following.children or ()]
        bold = kinds[:1] == ["strong_open"] and kinds.count("strong_open") == 1 and following.content.rstrip(": ").endswith("**")
        if token.type == "heading_open" or (token.type == "paragraph_open" and bold):
            level = int(token.tag[1]) if token.type == "heading_open" else BELOW_ALL
            headings.append((line, level, _plain(following).rstrip(":") if bold else _plain(following)))
    return headings


def _above(headings: Sequence[tuple[int, int, str]], line: int) -> tuple[str, ...]:
    """Return the headings that hold at a line, nearest last."""
    held: list[tuple[int, str]] = []
    for at, level, words in headings:
        if at < line:
            held = [*((above, known) for above, known in held if above < level), (level, words)]
    return tuple(words for _, words in held)


def _cell_text(cell: str) -> str:
    """Return the text of a cell without markup: links, emphasis, code marks, line breaks and escapes."""
    return _plain(MARKDOWN.parseInline(cell)[0])


def _plain(inline: Token) -> str:
    parts = []
    for child in inline.children or ():
        parts.append(child.content if child.type in {"text", "text_special", "code_inline", "image"} else " " if child.tag == "br" else "")
        parts.append(" " if child.type in {"html_inline", "softbreak"} else "")
    return " ".join(html.unescape("".join(parts)).split())


def _table(file: str, headings: tuple[str, ...], line: int, header: Sequence[str], rows: Iterable[tuple[int, list[str]]]) -> TextTable:
    names: list[str] = []
    for name in header:
        same = sum(1 for known in names if known == name or known.rpartition("#")[0] == name)
        names.append(f"{name}#{same + 1}" if same else name)
    complete = []
    for number, row in rows:
        if len(row) != len(names):
            fix = f"the header in line {line} has {len(names)} columns; correct the row or escape a `|` in it"
            raise TunemarkError(f"{file}:{number}", f"{len(row)} cells", fix, exit_code=Exit.INVALID)
        complete.append((number, tuple(row)))
    return TextTable(file, headings, line, tuple(names), tuple(complete))


def transposed(table: TextTable) -> TextTable:
    """Return the table with its columns as rows: the first cells name the columns, and the header becomes the column `result`."""
    names = ("result", *(cells[0] for _, cells in table.rows))
    columns = [[name, *(cells[index] for _, cells in table.rows)] for index, name in enumerate(table.header) if index]
    return _table(table.file, table.headings, table.line, names, [(table.line, cells) for cells in columns])


def extract(tables: Iterable[tuple[str, TextTable, Sequence[str]]]) -> str:
    """Return a Markdown file with the given columns of each table under its key: the facts of a document without its text."""
    parts = []
    for key, table, kept in tables:
        indices = [table.header.index(name) for name in kept]
        rows = [[row[index] for index in indices] for _, row in table.rows]
        parts.append("\n".join([f"# {key}", "", _line(kept), _line(["---"] * len(kept)), *map(_line, rows)]) + "\n")
    return "\n".join(parts)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("\\", "\\\\").replace("|", "\\|") for cell in cells) + " |"


# Figures in words -----------------------------------------------------------------------------------

PER_DEVICE = "printed per device, times the devices"
"""Note of a claim whose printed figure is that of one device."""
FIGURE = re.compile(r"[~≈>]?\s*\$?(?P<number>\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+)\s*(?P<unit>%|[A-Za-z]+)?(?P<rest>.*)", re.DOTALL)
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
"""Decimal prefixes of printed units."""
_WORDS = frozenset({"epochs", "epoch", "th", "seq", "sequences", "sentences", "tok", "toks", "gen", "average", "bytes", "flops", "if"})
"""Words after a number that are no unit."""


def printed_value(quantity: str, printed: str) -> float | None:
    """Return the figure in printed words, in the unit of its quantity, or None if there is none."""
    unit, bare = QUANTITIES[quantity].unit, printed.strip().replace("+", "")
    match = FIGURE.fullmatch(bare)
    if match is None:
        return None
    number, word = float(match["number"].replace(",", "")), match["unit"] or ""
    if unit == "s":
        in_time = duration(bare) if word.lower() != "ms" else number / 1000
        return in_time if in_time is not None else number if word in {"", "s", "Sec"} else None
    if word == "%":
        return number / 100
    if word in {"", "x", "W"} or unit.startswith(word.lower()[:3]):
        return number
    if unit == "bytes" and re.fullmatch("[kKMGT]iB", word):
        return number * 1024.0 ** (1 + "kmgt".index(word[0].lower()))
    if word == "GF":
        # The transformers trainer prints floating-point operations in units of 2^30.
        return number * 2.0**30
    if re.fullmatch(r"[kMGTPE]?(?:B|FLOP|FLOPS|F)?|B", word):
        return number * (1e9 if (unit, word) == ("1", "B") else PREFIXES[word[:1].lower() if word[:1] in "kMGTPE" else ""])
    return number if word.lower() in _WORDS else None
