"""Differences of quality that chance explains."""

import math
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, label, quoted
from tunemark.collector.audit.rule import SUSPICIOUS, Found, Rule
from tunemark.schema.records.claims import Comparison, Extreme

ACCURACIES = frozenset({"accuracy", "accuracy_baseline", "accuracy_stochastic_rounding", "accuracy_epoch1", "accuracy_epoch2"})
ERRORS = 2
"""Standard errors below which a difference is called not significant (definitions.md 16)."""


def standard_error(share: float, rows: int) -> float:
    """Return the standard error of a share over rows: sqrt(p (1 - p) / n)."""
    return math.sqrt(share * (1 - share) / rows)


def differences(base: Base) -> Iterator[Found]:
    """Yield differences of accuracy that are told as effects and lie within two standard errors."""
    for statement, said in base.assertions(Comparison):
        if said.quantity not in ACCURACIES or said.relation in {"beside", "about equal"}:
            continue
        runs = base.named((said.records[0], said.records[-1]))
        rows = runs[0].dataset.test_rows if runs and runs[0].dataset else None
        first = base.claims_of(said.records[0]).get(said.quantity)
        last = base.claims_of(said.records[-1]).get(said.base_quantity or said.quantity)
        if rows is None or first is None or last is None:
            continue
        difference = first.value - last.value
        error = _of_difference(first.value, last.value, rows)
        if abs(difference) < ERRORS * error:
            yield Found(
                SUSPICIOUS,
                (statement.id, *said.records),
                f"{label(said.quantity)} {said.relation}: {first.printed} against {last.printed}{quoted(statement)}",
                f"difference {difference * 100:+.2f} points; over {rows:,} rows the standard errors are {standard_error(first.value, rows) * 100:.2f} and "
                f"{standard_error(last.value, rows) * 100:.2f} points, of the difference {error * 100:.2f}: {abs(difference) / error:.1f} standard errors, not significant",
                {"difference": difference, "standard_error": error, "rows": rows},
            )


def best_of_many(base: Base) -> Iterator[Found]:
    """Yield a best accuracy of several that others come within two standard errors of."""
    for statement, said in base.assertions(Extreme):
        runs = base.named([said.best])
        rows = runs[0].dataset.test_rows if runs and runs[0].dataset else None
        best = base.claims_of(said.best).get(said.quantity)
        if said.quantity not in ACCURACIES or rows is None or best is None:
            continue
        others = {
            name: base.claims_of(name)[said.quantity] for name in said.among if name != said.best and said.quantity in base.claims_of(name)
        }
        near = {
            name: claim
            for name, claim in others.items()
            if abs(best.value - claim.value) < ERRORS * _of_difference(best.value, claim.value, rows)
        }
        if near:
            yield Found(
                SUSPICIOUS,
                (statement.id, said.best, *near),
                f"{label(said.quantity)} {best.printed} {said.where} of {len(others) + 1}{quoted(statement)}",
                f"over {rows:,} rows its standard error is {standard_error(best.value, rows) * 100:.2f} points; {len(near)} of the {len(others)} others lie within "
                f"{ERRORS} standard errors of the difference ({', '.join(claim.printed for claim in near.values())}): any of these may be the best",
                {"near": len(near), "others": len(others), "rows": rows},
            )


def _of_difference(one: float, other: float, rows: int) -> float:
    return math.hypot(standard_error(one, rows), standard_error(other, rows))


RULES = (
    Rule(
        "significance",
        "a difference of accuracy within two standard errors",
        "significance",
        "A share over n rows has the standard error sqrt(p (1 - p) / n); what lies within two of them is chance.",
        (SUSPICIOUS,),
        differences,
    ),
    Rule(
        "best-of-many",
        "a best accuracy that others come near within two standard errors",
        "significance",
        "The highest of several shares over n rows is high by chance too; those within two standard errors of the difference cannot be told from it.",
        (SUSPICIOUS,),
        best_of_many,
    ),
)
