"""The table of relations: each row is fulfilled by honest records, refuses a record that breaks it, and says which field is wrong."""

import json
from enum import Enum
from functools import cache
from typing import Any

import pytest
from factories import FACTS
from gate_mutations import examination  # noqa: F401 - it registers the corruptions
from gate_mutations.bases import bases
from gate_mutations.corruptions import CORRUPTIONS
from gate_mutations.honest import honest

from tunemark.collector.gate.relations import QUANTITIES, Row, named, places, relation_problems, row_problems, rows
from tunemark.collector.gate.run_facts import Run
from tunemark.schema.derive import derive
from tunemark.schema.records.submission import Submission

OTHER = {str: "x", float: -1.0, int: -1, bool: True, dict: {"x": 1}, tuple: ("x",)}
"""A value of each type that no field of the table has."""


UNREADABLE = (ValueError, TypeError, AttributeError, ArithmeticError, IndexError)


def run_of(submission: Submission) -> Run | None:
    """Return a record with what follows from it, or None if nothing can be derived from a changed one."""
    try:
        return Run(submission, FACTS, derive(submission))
    except UNREADABLE:
        return None


@cache
def records() -> list[Submission]:
    """Return the bases, and honest records of all ends, devices and options."""
    contents = [*(base.content for base in bases()), *(variant.make() for variant in honest())]
    return [Submission.model_validate_json(json.dumps(content)) for content in contents]


def replaced(node: Any, path: list[str], value: Any) -> Any:
    """Return a record with the value at a path; nothing is validated."""
    if not path:
        return value
    name, *rest = path
    if isinstance(node, tuple):
        return tuple(replaced(each, rest, value) if str(place) == name else each for place, each in enumerate(node))
    if isinstance(node, dict):
        return {**node, name: replaced(node.get(name), rest, value)}
    return node.model_copy(update={name: replaced(getattr(node, name), rest, value)})


def breaking(row: Row, run: Run, entry: object, value: Any) -> Any:
    """Return a value that breaks a row, of the type of the field."""
    if row.is_ == "known":
        return None
    if isinstance(value, Enum):
        members = [member for member in type(value) if member.value not in (row.one_of or ()) and member is not value]
        return members[0]
    bounds = [(row.most, 1), (row.least, -1)]
    for stated, sign in bounds:
        bound = named(stated, run, entry) if isinstance(stated, str) else stated
        if isinstance(bound, int | float) and isinstance(value, int | float):
            bound = bound * row.times + row.plus
            return type(value)(bound + sign * (abs(bound) / 2 + 1))
    return OTHER.get(type(value), 1)


@cache
def refusing() -> frozenset[int]:
    """Return the places of the rows that refuse a record with one changed value, or a corruption of the examination."""
    found = set()
    for record in records():
        run = Run(record, FACTS, derive(record))
        for place, row in enumerate(rows()):
            if place in found or row.of or row.holds:
                continue
            for field, entry, value in places(row.field, run):
                changed = replaced(record, field.split("."), breaking(row, run, entry, value))
                found |= {place} if _refuses(row, run_of(changed)) else set()
    for corruption in CORRUPTIONS:
        for base in corruption.bases if corruption.family not in {"identity", "supersede"} else ():
            try:
                changed = Submission.model_validate_json(json.dumps(corruption.applied(base)[0]))
            except ValueError:
                continue
            run = run_of(changed)
            found |= {place for place, row in enumerate(rows()) if place not in found and _refuses(row, run)}
    return frozenset(found)


def _refuses(row: Row, run: Run | None) -> bool:
    try:
        return run is not None and any(True for _ in row_problems(row, run))
    except UNREADABLE:
        return False


def test_honest_records_of_all_kinds_fulfil_each_row() -> None:
    assert [str(problem) for record in records() for problem in relation_problems(Run(record, FACTS, derive(record)))] == []


@pytest.mark.parametrize("place", range(len(rows())), ids=lambda place: f"{rows()[place].field} {rows()[place].why[:40]}")
def test_each_row_refuses_a_record_that_breaks_it(place: int) -> None:
    assert place in refusing()


def test_each_problem_names_field_value_and_what_an_honest_person_can_do() -> None:
    changed = replaced(records()[0], ["process", "wall_s"], 1e-3)
    problems = list(relation_problems(Run(changed, FACTS, derive(changed))))
    assert {problem.field for problem in problems} >= {"process.wall_s"}
    assert all(problem.value and problem.fix.endswith("keep the original record; if this is it, open an issue") for problem in problems)


def test_each_quantity_is_used_by_a_row_or_another_quantity() -> None:
    text = json.dumps([row.model_dump() for row in rows()])
    own = [name for name in QUANTITIES if f'"{name}"' not in text and not any(name in row.when.replace("!", "").split() for row in rows())]
    helpers = {name for name in own if not QUANTITIES[name][0].__name__.startswith("<")}
    assert set(own) - helpers == set()
