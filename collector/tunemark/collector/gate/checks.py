"""All checks of one submission: against itself, against physics, and against the cards."""

from collections.abc import Iterator
from datetime import datetime

from tunemark.collector.gate.claim_checks import claim_problems
from tunemark.collector.gate.machine_checks import machine_problems
from tunemark.collector.gate.model_checks import model_problems
from tunemark.collector.gate.trace_checks import trace_problems
from tunemark.schema.derive import Derived
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.base import flattened
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem

LARGEST_EXACT = 2**53
"""Above this, JSON readers and doubles no longer represent whole numbers exactly."""
LARGEST_SETTING = 2**31
"""Settings are stored as 32-bit numbers."""
LONGEST_S = 10 * 365 * 24 * 3600.0
"""Ten years: no run is that long."""
UNPRINTABLE = 10**300


def record_problems(submission: Submission, derived: Derived | None, facts: FactBase, now: datetime) -> Iterator[Problem]:
    """Yield all problems of a submission that need no other record."""
    wrong = list(_sizes(submission))
    yield from wrong
    if wrong:
        # Arithmetic with such numbers would fail.
        return
    yield from trace_problems(submission, derived, now)
    yield from machine_problems(submission, derived, facts)
    yield from model_problems(submission, facts)
    yield from claim_problems(submission, derived, facts)


def _sizes(submission: Submission) -> Iterator[Problem]:
    for field, value in flattened(submission.model_dump(mode="json")):
        # Report one problem per column.
        values = value if isinstance(value, list) else [value]
        limit = LARGEST_SETTING if field.startswith("plan.") else LARGEST_EXACT
        largest = max((number for number in values if type(number) is int), key=abs, default=0)
        if abs(largest) >= limit:
            shown = f"{largest:.3g}" if abs(largest) < UNPRINTABLE else "a number of hundreds of digits"
            yield Problem(field, shown, f"larger than any plausible count; must be below {limit}")
        if (
            field.endswith("_s")
            and not field.endswith("_per_s")
            and max((number for number in values if isinstance(number, float)), default=0.0) > LONGEST_S
        ):
            yield Problem(field, "", "longer than ten years; check the unit")
    if submission.model is not None and sum(submission.model.parameter_bytes.values()) >= LARGEST_EXACT:
        yield Problem("model.parameter_bytes", "", f"sums to more than any plausible count; must be below {LARGEST_EXACT}")
