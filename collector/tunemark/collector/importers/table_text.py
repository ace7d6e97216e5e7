"""Tables in Markdown and CSV files: their cells as text, with headings and line numbers.

The extract that is kept of a document is written here too, and the figures in cells and other printed words are read here.
"""

import csv
import html
import io
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tunemark.collector.audit.interval import duration
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.quantities import QUANTITIES

MARKDOWN = MarkdownIt("commonmark").enable("table")
BELOW_ALL = 7
"""Level of a heading in bold type."""
Rows = list[tuple[int, list[str]]]
"""(line, cells) of each row, the header first."""


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


def tables_in(text: str, file: str) -> list[TextTable]:
    """Return the tables of a file: one of CSV, those of any other file in Markdown.

    Raises TunemarkError (exit code 3) for a row whose number of cells differs from its header.
    """
    if file.endswith((".csv", ".tsv")):
        reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")), delimiter="\t" if file.endswith(".tsv") else ",")
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
        return [_table(file, (), rows)] if rows else []
    tokens = MARKDOWN.parse(text)
    headings = list(_headings(tokens))
    return [_table(file, _above(headings, rows[0][0]), rows) for rows in _markdown_tables(tokens)]


def _markdown_tables(tokens: Sequence[Token]) -> Iterator[Rows]:
    rows: Rows = []
    for token, following in pairwise([*tokens, *tokens[-1:]]):
        if token.type == "table_open":
            rows = []
        elif token.type == "tr_open" and token.map:
            rows.append((token.map[0] + 1, []))
        elif token.type in {"th_open", "td_open"}:
            rows[-1][1].append(_plain(following))
        elif token.type == "table_close":
            yield rows


def _headings(tokens: Sequence[Token]) -> Iterator[tuple[int, int, str]]:
    """Yield line, level and text of the headings. A paragraph in bold type is a heading below all others."""
    for token, following in pairwise([*tokens, *tokens[-1:]]):
        line, kinds = token.map[0] + 1 if token.map else 0, [child.type for child in following.children or ()]
        bold = kinds[:1] == ["strong_open"] and kinds.count("strong_open") == 1 and following.content.rstrip(": ").endswith("**")
        if token.type == "heading_open" or (token.type == "paragraph_open" and bold):
            level = int(token.tag[1]) if token.type == "heading_open" else BELOW_ALL
            yield line, level, _plain(following).rstrip(":") if bold else _plain(following)


def _above(headings: Sequence[tuple[int, int, str]], line: int) -> tuple[str, ...]:
    """Return the headings that hold at a line, nearest last."""
    held: list[tuple[int, str]] = []
    for at, level, words in headings:
        if at < line:
            held = [*((above, known) for above, known in held if above < level), (level, words)]
    return tuple(words for _, words in held)


def _plain(inline: Token) -> str:
    """Return text without markup: links, emphasis, code marks, line breaks and escapes."""
    parts = []
    for child in inline.children or ():
        parts.append(child.content if child.type in {"text", "text_special", "code_inline", "image"} else " " if child.tag == "br" else "")
        parts.append(" " if child.type in {"html_inline", "softbreak"} else "")
    return " ".join(html.unescape("".join(parts)).split())


def _table(file: str, headings: tuple[str, ...], rows: Rows) -> TextTable:
    (line, header), *others = rows
    names: list[str] = []
    for name in header:
        same = sum(1 for known in names if known == name or known.rpartition("#")[0] == name)
        names.append(f"{name}#{same + 1}" if same else name)
    for number, row in others:
        if len(row) != len(names):
            fix = f"the header in line {line} has {len(names)} columns; correct the row or escape a `|` in it"
            raise TunemarkError(f"{file}:{number}", f"{len(row)} cells", fix, exit_code=Exit.INVALID)
    return TextTable(file, headings, line, tuple(names), tuple((number, tuple(row)) for number, row in others))


def transposed(table: TextTable) -> TextTable:
    """Return the table with its columns as rows: the first cells name the columns, and the header becomes the column `result`."""
    names = ["result", *(cells[0] for _, cells in table.rows)]
    columns = [[name, *(cells[index] for _, cells in table.rows)] for index, name in enumerate(table.header) if index]
    return _table(table.file, table.headings, [(table.line, cells) for cells in (names, *columns)])


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
UNITS = tomllib.loads(Path(__file__).with_name("units.toml").read_text(encoding="utf-8"))
"""Units of columns, prefixes, and words that are no unit."""


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
        prefix = "g" if (unit, word) == ("1", "B") else word[0].lower() if word[0] in "kMGTPE" else ""
        return number * float(UNITS["words"]["prefixes"][prefix])
    return number if word.lower() in UNITS["words"]["no_unit"] else None
