"""Significance: differences in quality that chance can explain."""

import math
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Evidence, label, quoted
from tunemark.collector.audit.rule import SUSPICIOUS, Finding, rule
from tunemark.schema.records.claims import Comparison, Extreme
from tunemark.schema.statistics.intervals import SIGNIFICANT_ERRORS

ACCURACIES = frozenset({"accuracy", "accuracy_baseline", "accuracy_stochastic_rounding", "accuracy_epoch1", "accuracy_epoch2"})
"""Standard errors below which a difference is not significant (definitions#quality)."""


@rule(id="significance", family="significance", verdicts=(SUSPICIOUS,))
def differences(evidence: Evidence) -> Iterator[Finding]:
    """Difference in accuracy within two standard errors.

    A share over n rows has the standard error sqrt(p (1 - p) / n). A difference below two standard errors can be chance.
    """
    for statement, compared in evidence.assertions(Comparison):
        rows, claims = _test_rows(evidence, (compared.records[0], compared.records[-1])), evidence.compared_claims(compared)
        if compared.quantity not in ACCURACIES or compared.relation in {"beside", "about equal"} or rows is None or claims is None:
            continue
        first, last = claims
        errors = [_standard_error(claim.value, rows) for claim in claims]
        difference, error = first.value - last.value, math.hypot(*errors)
        if abs(difference) < SIGNIFICANT_ERRORS * error:
            claim = f"{label(compared.quantity)} {compared.relation}: {first.printed} compared with {last.printed}{quoted(statement)}"
            words = (
                f"difference {difference * 100:+.2f} points; over {rows:,} rows the standard errors are {errors[0] * 100:.2f} and "
                f"{errors[1] * 100:.2f} points, and {error * 100:.2f} for the difference: {abs(difference) / error:.1f} standard "
                "errors, not significant"
            )
            numbers = {"difference": difference, "standard_error": error, "rows": rows}
            yield Finding(SUSPICIOUS, (statement.id, *compared.records), claim, words, numbers, quantities=(compared.quantity,))


@rule(id="best-of-many", family="significance", verdicts=(SUSPICIOUS,))
def best_of_many(evidence: Evidence) -> Iterator[Finding]:
    """Best accuracy with others within two standard errors.

    The highest of several shares over n rows is high partly by chance. Others within two standard errors of the difference may be as
    good.
    """
    for statement, claimed in evidence.assertions(Extreme):
        rows, best = _test_rows(evidence, [claimed.best]), evidence.claims_of(claimed.best).get(claimed.quantity)
        if claimed.quantity not in ACCURACIES or rows is None or best is None:
            continue
        error, claims = _standard_error(best.value, rows), {record: evidence.claims_of(record) for record in claimed.among}
        others = {record: claim for record, known in claims.items() if record != claimed.best and (claim := known.get(claimed.quantity))}
        near = {
            record: claim.printed
            for record, claim in others.items()
            if abs(best.value - claim.value) < SIGNIFICANT_ERRORS * math.hypot(error, _standard_error(claim.value, rows))
        }
        if near:
            shown = f"{label(claimed.quantity)} {best.printed} is the {claimed.where} of {len(others) + 1}{quoted(statement)}"
            words = (
                f"over {rows:,} rows its standard error is {error * 100:.2f} points. {len(near)} of the {len(others)} others "
                f"({', '.join(near.values())}) lie within {SIGNIFICANT_ERRORS} standard errors of the difference, so any of these may be the best"
            )
            numbers = {"near": len(near), "others": len(others), "rows": rows}
            yield Finding(SUSPICIOUS, (statement.id, claimed.best, *near), shown, words, numbers, quantities=(claimed.quantity,))


def _test_rows(evidence: Evidence, records: list[str] | tuple[str, str]) -> int | None:
    results = evidence.with_ids(records)
    return results[0].dataset.test_rows if results and results[0].dataset else None


def _standard_error(share: float, rows: int) -> float:
    """Return sqrt(p (1 - p) / n). A figure that is not a share has none; another rule reports it."""
    return math.sqrt(max(0.0, share * (1 - share)) / rows)
