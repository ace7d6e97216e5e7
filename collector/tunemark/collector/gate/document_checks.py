"""Checks of a document with its rows: references, columns, copies, and rows that the others or the day of the document contradict.

A row is read as it is in its file, since an invalid one has a problem of its own.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from tunemark.collector.gate.fact_checks import Neighbours
from tunemark.schema.errors import did_you_mean
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.upgrade import Problem

DAY = re.compile(r"\d{4}(?:-\d{2}(?:-\d{2})?)?")
BEFORE_RELEASE = timedelta(days=31)
"""Candidates of a release, which documents call by its number, come out up to a month earlier."""
FEW_ALIKE = 3
MOST_ALIKE = 5
"""Fewest rows of a document with which one is compared."""
REFERENCE = re.compile(r"\{([^{}/]+)/([^{}/]+)\}")
RECORD_ID = re.compile(r"\d{3}-(?:\d{3}|S\d{2,3})")


@dataclass(frozen=True)
class DocumentRows:
    """The rows of a document as they are in its files: statements and cells of tables refer to them."""

    names: dict[str, set[str]] = field(default_factory=dict)
    """Row or statement -> its claims and labels."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Contents of the rows."""

    @classmethod
    def of_folder(cls, folder: Path) -> "DocumentRows":
        """Read the rows of a document. Files that cannot be read are left out: they have their own problem."""
        rows = cls()
        for path in sorted(folder.glob("*.json")):
            try:
                content = json.loads(path.read_bytes())
                for row in (
                    *content.get("statements", ()),
                    *(content["results"] if isinstance(content.get("results"), list) else [content]),
                ):
                    rows._add(row)
            except (ValueError, KeyError, TypeError, AttributeError, OSError):
                continue
        return rows

    def _add(self, row: dict[str, Any]) -> None:
        self.names[row["id"]] = {*row.get("claims", ()), *row.get("labels", ())}
        if "conditions" in row:
            self.rows.append(row)


def rows_problems(document: Path, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of a document with its rows.

    These are references to rows or figures that are not there, a figure in the wrong column, and rows that contradict the others or the
    day of the document.
    """
    try:
        content = json.loads(document.read_bytes())
        statements, tables = content.get("statements", ()), content.get("tables", ())
        said = {statement["id"]: _ids_in(statement.get("assertion")) for statement in statements}
        cells = {table["id"]: REFERENCE.findall("".join(cell for row in table["rows"] for cell in row)) for table in tables}
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        # A missing or invalid document is reported where the file itself is checked.
        return
    folders = {document.parent.name: DocumentRows.of_folder(document.parent)}

    def names(row: str) -> set[str] | None:
        folder = document.parents[1] / row[:3]
        if row[:3] not in folders:
            folders[row[:3]] = DocumentRows.of_folder(folder)
        # A document that is not in this checkout is not judged.
        return folders[row[:3]].names.get(row) if folder.is_dir() else set()

    for statement, rows in said.items():
        for row in rows:
            if names(row) is None:
                yield Problem(f"statements.{statement}", repr(row), "there is no such row or statement; correct the reference")
    for table, references in cells.items():
        for row, part in dict.fromkeys(references):
            found = names(row)
            if found is None or (found and part not in found):
                what = "row" if found is None else "claim or label of this row"
                yield Problem(f"tables.{table}", repr(f"{row}/{part}"), f"there is no such {what}; correct the reference")
    read = folders[document.parent.name]
    yield from _assertions(statements, beside)
    yield from _copies(read.rows)
    yield from _unlike_others(read.rows)
    yield from _later(read.rows, _last_day(content), beside)


def _ids_in(assertion: object) -> list[str]:
    """Return the ids of rows and statements anywhere in an assertion."""
    if isinstance(assertion, dict):
        return [row for value in assertion.values() for row in _ids_in(value)]
    if isinstance(assertion, list):
        return [row for value in assertion for row in _ids_in(value)]
    return [assertion] if isinstance(assertion, str) and RECORD_ID.fullmatch(assertion) else []


def _assertions(statements: Iterable[Mapping[str, Any]], beside: Neighbours) -> Iterator[Problem]:
    """Yield a statement about a device or a quantity that does not exist, or that compares a row with itself."""
    for statement in statements:
        said, place = statement.get("assertion") or {}, f"statements.{statement['id']}"
        named = [said.get("accelerator"), *_names(said.get("accelerators"))]
        for key in (key for key in named if isinstance(key, str) and key not in beside.accelerators):
            yield Problem(place, repr(key), f"no such card in data/accelerators; {did_you_mean(key, beside.accelerators)}")
        measured = [said.get("quantity"), said.get("base_quantity"), *_names(said.get("basis"))]
        for name in (name for name in measured if isinstance(name, str) and name not in QUANTITIES):
            yield Problem(place, repr(name), f"is not a quantity; {did_you_mean(name, QUANTITIES)}")
        rows = _names(said.get("records"))
        if len(rows) > 1 and len(set(rows)) == 1 and said.get("base_quantity") in {None, said.get("quantity")}:
            yield Problem(place, repr(rows[0]), "is compared with itself; name the other row")


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _copies(rows: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield a row that is another one under another id."""
    known: dict[str, str] = {}
    for row in rows:
        said = json.dumps({name: value for name, value in row.items() if name not in {"id", "origin"}}, sort_keys=True)
        if row.get("claims") and known.setdefault(said, row["id"]) != row["id"]:
            yield Problem(f"{row['id']}: id", repr(row["id"]), f"is {known[said]} again, under another id; keep one of them")


def _unlike_others(rows: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield a length of rows that is ten times, or a tenth of, all others; and a method that the other rows of a section do not have.

    Only sections are judged whose name says the method.
    """
    lengths = Counter(row["conditions"].get("sequence_length") for row in rows) - Counter([None])
    for row in rows:
        length = row["conditions"].get("sequence_length")
        others = set(lengths) - {length}
        if (
            length
            and lengths[length] == 1
            and lengths.total() >= MOST_ALIKE
            and len(others) == 1
            and max(others) in {10 * length, length / 10}
        ):
            fix = f"all other rows of the document have {max(others)}; check the zeros"
            yield Problem(f"{row['id']}: conditions.sequence_length", str(length), fix)
    sections = defaultdict[str, list[Mapping[str, Any]]](list)
    for row in rows:
        sections[row["section"]].append(row)
    for section, same in sections.items():
        methods = Counter(row["conditions"].get("method") for row in same)
        named = {word.lower() for word in re.findall(r"(?i)\b(q?lora)\b", section)}
        for row in same if len(named) == 1 and len(same) >= FEW_ALIKE and max(methods.values()) == len(same) - 1 else ():
            if methods[row["conditions"].get("method")] == 1 and {*methods} - {row["conditions"].get("method")} == named:
                fix = f"the other rows of {section!r} have {named.pop()!r}; correct the method or the section"
                yield Problem(f"{row['id']}: conditions.method", repr(row["conditions"].get("method")), fix)
                break


def _last_day(document: Mapping[str, Any]) -> str | None:
    """Return the last day on which a document can have changed, as YYYY-MM-DD or the beginning of it; None if it is not known."""
    days = [match[0] for match in DAY.finditer(document.get("published_on") or "")]
    days += [str(document[name]) for name in ("stated_on", "committed_on") if document.get(name)]
    return max(days, default=None)


def _later(rows: Sequence[Mapping[str, Any]], last: str | None, beside: Neighbours) -> Iterator[Problem]:
    """Yield devices and releases that came after the document."""
    if last is None:
        return
    released = {library.library: library.released_on for library in beside.known.libraries}
    for row in rows:
        conditions = row["conditions"]
        card = beside.accelerators.get(conditions.get("accelerator") or "")
        if card is not None and card.launch_year is not None and str(card.launch_year) > last[:4]:
            fix = f"came in {card.launch_year}, and the document is of {last}; correct the device"
            yield Problem(f"{row['id']}: conditions.accelerator", repr(card.key), fix)
        for library, version in (conditions.get("framework") or {}).items():
            day = released.get(library, {}).get(version)
            if day is not None and str(day - BEFORE_RELEASE)[: len(last)] > last:
                fix = f"came out on {day}, and the document is of {last}; copy the version from the document"
                yield Problem(f"{row['id']}: conditions.framework.{library}", repr(version), fix)
