"""Tables in Markdown and CSV files: their cells as text, with headings and line numbers, and the extract that is kept of them."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunemark.schema.errors import Exit, TunemarkError

HEADING = re.compile(r"\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
BOLD_HEADING = re.compile(r"\s*\*\*([^|*]+)\*\*:?\s*$")
"""A line in bold type stands in for a heading in many documents."""
RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$")
FENCE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
SPLIT = re.compile(r"(?<!\\)\|")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|!?\[([^\]]+)\]\[[^\]]*\]")
TAG = re.compile(r"<br\s*/?>|</?(?:sup|sub|b|i|em|strong|code|span|a|p|center)\b[^>]*>", re.IGNORECASE)


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


def tables_in(text: str, file: str) -> list[TextTable]:
    """Return the tables of a Markdown file, or the one table of a file whose name ends in `.csv` or `.tsv`.

    Raises TunemarkError (exit code 3) for a row whose number of cells differs from its header.
    """
    if file.endswith((".csv", ".tsv")):
        return _of_csv(text, file, "\t" if file.endswith(".tsv") else ",")
    return _of_markdown(text.splitlines(), file)


def _of_csv(text: str, file: str, delimiter: str) -> list[TextTable]:
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")), delimiter=delimiter)
    numbered = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    filled = [(line, row) for line, row in numbered if any(row)]
    if not filled:
        return []
    line, header = filled[0]
    return [_table(file, (), line, header, filled[1:])]


def _of_markdown(lines: Sequence[str], file: str) -> list[TextTable]:
    tables: list[TextTable] = []
    headings: list[tuple[int, str]] = []
    fenced, number = "", 0
    while number < len(lines):
        line = lines[number]
        fenced = _fence(line, fenced)
        heading = None if fenced else HEADING.match(line)
        bold = None if fenced or heading else BOLD_HEADING.match(line)
        if heading:
            level = len(heading[1])
            headings = [*((above, words) for above, words in headings if above < level), (level, plain(heading[2]))]
        elif bold:
            headings = [*((above, words) for above, words in headings if above < 7), (7, plain(bold[1]))]  # noqa: PLR2004 - below h6
        elif not fenced and "|" in line and number + 1 < len(lines) and "|" in lines[number + 1] and RULE.match(lines[number + 1]):
            last = number + 2
            while last < len(lines) and "|" in lines[last] and lines[last].strip():
                last += 1
            rows = [(index + 1, _cells(lines[index])) for index in range(number + 2, last)]
            tables.append(_table(file, tuple(words for _, words in headings), number + 1, _cells(line), rows))
            number = last
            continue
        number += 1
    return tables


def _fence(line: str, opened: str) -> str:
    """Return the fence of the code block that a line is in, after the line; empty outside (CommonMark 4.5)."""
    match = FENCE.match(line)
    if match is None:
        return opened
    if not opened:
        return match["fence"]
    return "" if match["fence"].startswith(opened) and not match["info"].strip() else opened


def _cells(line: str) -> list[str]:
    parts = SPLIT.split(line.strip())
    if parts and not parts[0].strip():
        parts = parts[1:]
    if parts and not parts[-1].strip() and line.rstrip().endswith("|"):
        parts = parts[:-1]
    return [plain(part) for part in parts]


def plain(cell: str) -> str:
    """Return the text of a cell without markup: links, emphasis, code marks, line breaks and escapes."""
    text = LINK.sub(lambda match: match[1] or match[2] or "", cell)
    text = TAG.sub(" ", text).replace("\\|", "|").replace("&nbsp;", " ")
    text = re.sub(r"\*\*|__|`|(?<!\w)\*(?=\S)|(?<=\S)\*(?!\w)", "", text)
    return " ".join(re.sub(r"\\([\\$_*()\[\]#.%-])", r"\1", text).split())


def _table(file: str, headings: tuple[str, ...], line: int, header: Sequence[str], rows: Iterable[tuple[int, list[str]]]) -> TextTable:
    names: list[str] = []
    for name in header:
        same = sum(1 for known in names if known == name or known.rpartition("#")[0] == name)
        names.append(f"{name}#{same + 1}" if same else name)
    complete = []
    for number, row in rows:
        # Markdown renders a short row with empty cells at its end.
        cells = [*row, *[""] * (len(names) - len(row))] if file.endswith(".md") else row
        if len(cells) != len(names):
            fix = f"the header in line {line} has {len(names)} columns; correct the row or escape a `|` in it"
            raise TunemarkError(f"{file}:{number}", f"{len(row)} cells", fix, exit_code=Exit.INVALID)
        complete.append((number, tuple(cells)))
    return TextTable(file, headings, line, tuple(names), tuple(complete))


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
