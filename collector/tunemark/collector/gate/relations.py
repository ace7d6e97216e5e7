"""Judge the relations of `relations.toml`: look up the value and the bound of each row, and compare them.

A name in the table is a field of the record, a field of an entry (`.name`), or a quantity: an attribute of `Run`, or a function of
`run_quantities` or `physics`, which takes the run, and the entry too where it is about one.
"""

import inspect
import operator
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tunemark.collector.gate import physics, run_quantities
from tunemark.collector.gate.derive import ORIGINAL
from tunemark.collector.gate.run_facts import Run
from tunemark.collector.store.database import field_at
from tunemark.schema.records.reading import Problem

Bound = bool | float | str
BREAKS: dict[str, Callable[[Any, Any], bool]] = {"at most": operator.gt, "at least": operator.lt, "equal to": operator.ne}
SECOND_RUN = "second_run"
"""The section of rows that refuse no record."""
Name = Annotated[str, Field(pattern=r"^[a-z][a-z_]*$")]


class Row(BaseModel):
    """A row of the table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    field: str
    of: Name | None = None
    most: Bound | None = None
    least: Bound | None = None
    equals: Bound | None = None
    times: float = 1.0
    plus: float = 0.0
    within: Name | None = None
    one_of: tuple[str, ...] | None = None
    matches: str | None = None
    is_: Literal["known", "null"] | None = Field(default=None, alias="is")
    holds: Name | None = None
    when: str = ""
    why: str


@cache
def rows() -> dict[str, tuple[Row, ...]]:
    """Return the rows of the table by section."""
    sections = tomllib.loads(Path(__file__).with_name("relations.toml").read_text(encoding="utf-8"))
    return {name: tuple(map(Row.model_validate, section)) for name, section in sections.items()}


def relation_problems(run: Run) -> Iterator[Problem]:
    """Yield a problem for each row that a record does not fulfil."""
    for section in (name for name in rows() if name != SECOND_RUN):
        for problem in section_problems(section, run):
            yield replace(problem, fix=f"{problem.fix}; {ORIGINAL}")


def doubts(run: Run) -> Iterator[Problem]:
    """Yield what is possible, but unlike known runs: each asks for a second run, and none refuses a record."""
    yield from section_problems(SECOND_RUN, run)
    yield from (Problem(*found) for found in run_quantities.unlike_versions(run))


def section_problems(section: str, run: Run) -> Iterator[Problem]:
    """Yield a problem for each place at which a record does not fulfil a row of a section."""
    verb = "is usually" if section == SECOND_RUN else "must be"
    for row in rows()[section]:
        entries = row.field.rpartition(".*")[0]
        for field, entry, node in places(row.field, run):
            if not all(_applies(word.lstrip("!"), run, entry) != word.startswith("!") for word in row.when.split()):
                continue
            value = named(row.of, run, entry) if row.of else node
            broken = _broken(row, run, entry, value, verb)
            if broken is not None:
                yield Problem(field if entries or not row.of else row.field, shown(value), f"{broken}{row.why}")


def _applies(condition: str, run: Run, entry: object) -> bool:
    """Return True if a field or quantity is true, or has the value that the condition states."""
    name, states, wanted = condition.partition("=")
    value = named(name, run, entry)
    return str(value) == wanted if states else bool(value)


def _broken(row: Row, run: Run, entry: object, value: Any, verb: str) -> str | None:  # noqa: ANN401 - any value of a record
    """Return the words of the bound that a value breaks, or None."""
    if row.is_ is not None:
        return f"is {row.is_} in such a record: " if (value is None) != (row.is_ == "null") else None
    if row.holds is not None:
        return "" if value is not None and named(row.holds, run, entry) is False else None
    plain: Any = value.value if isinstance(value, Enum) else len(value) if isinstance(value, tuple) else value
    if plain is None:
        return None
    if row.one_of is not None:
        return f"is {' or '.join(row.one_of)} in such a record: " if plain not in row.one_of else None
    if row.matches is not None:
        return "" if re.fullmatch(row.matches, plain) is None else None
    least, most = (named(row.within, run, entry) or (None, None)) if row.within else (row.least, row.most)
    for words, stated in (("at most", most), ("at least", least), ("equal to", row.equals)):
        bound = named(stated, run, entry) if isinstance(stated, str) and stated else stated
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            bound = bound * row.times + row.plus
        if bound is not None and BREAKS[words](plain, bound):
            return f"{verb} {words} {shown(bound)}: " if bound != "" else ""
    return None


def places(field: str, run: Run) -> list[tuple[str, object, Any]]:
    """Return (path, entry of `*`, value) of each place that a field names; null where it is inside of a null."""
    found: list[tuple[str, object, Any]] = [("", None, run.s)]
    for part in field.split("."):
        if part == "*":
            found = [(f"{path}.{index}", entry, entry) for path, _, node in found for index, entry in enumerate(node or ())]
        else:
            found = [(f"{path}.{part}".lstrip("."), entry, field_at(node, part)) for path, entry, node in found if node is not None]
    return found


def named(name: str, run: Run, entry: object) -> Any:  # noqa: ANN401 - any value
    """Return the quantity, the field of the entry, or the field of the card of the accelerator, of the weights by the model card or of the record (`s.NAME` in no section) of this name."""
    if name.startswith("."):
        return getattr(entry, name[1:])
    if "." in name:
        return field_at(run if name.startswith(("card.", "s.", "weights.")) else run.s, name)
    if name in QUANTITIES:
        function, takes_entry = QUANTITIES[name]
        return function(run, entry) if takes_entry else function(run)
    return getattr(run, name)


QUANTITIES: dict[str, tuple[Callable[..., Any], bool]] = {
    name: (function, len(inspect.signature(function).parameters) > 1)
    for module in (run_quantities, physics)
    for name, function in [*module.QUANTITIES.items(), *inspect.getmembers(module, inspect.isfunction)]
}
"""Name -> function, and whether it takes an entry too."""


def shown(value: object) -> str:
    """Return a value as a message shows it."""
    if isinstance(value, Enum):
        return repr(value.value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BaseModel):
        return "a value"
    if isinstance(value, list | tuple):
        return f"{len(value)} entries"
    text = f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else "null" if value is None else repr(value)
    return text[:80]
