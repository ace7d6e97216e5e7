"""Rules of the audit that concern a result by itself, run before it is accepted.

What they call impossible or inconsistent is refused, and what they call suspicious is accepted and needs a second run.

Rules of the other families compare results, documents and prices with each other. They run on the whole database (`tunemark audit`).
"""

from collections.abc import Iterator
from functools import cache

from tunemark.collector.audit.evidence import Evidence
from tunemark.collector.audit.load import audited_submission
from tunemark.collector.audit.rule import REFUTED, Finding, Rule, all_rules
from tunemark.schema.derive import Derived
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem

ALONE = frozenset({"utilisation", "memory", "arithmetic", "catalogue"})
"""Families of rules that can fire on a measured result without any other record."""
FIELDS = {"peak_memory_bytes": "memory.device_allocated.peak_bytes", "wall_s": "process.wall_s", "accelerator": "plan.device.accelerator"}
FIELDS |= {"precision": "plan.precision.compute", "sequence_length": "plan.data.sequence_length", "framework": "environment.packages"}
RATES = "trace.completed_at_s"
"""Field from which rates, times of steps and utilisation are derived."""


@cache
def rules_of_one_result() -> tuple[Rule, ...]:
    """Return the rules that concern a result by itself."""
    return tuple(rule for rule in all_rules() if rule.family in ALONE)


def audit_findings(submission: Submission, derived: Derived, facts: FactBase) -> list[Finding]:
    """Return the findings of the audit about a submission by itself."""
    evidence = Evidence((audited_submission(submission, "this run", facts, derived),), (), facts)
    return [finding for rule in rules_of_one_result() for finding in rule.findings(evidence)]


def audit_problems(findings: list[Finding], *, refuted: bool) -> Iterator[Problem]:
    """Yield the findings that refute a result, or the others, as problems of its fields."""
    for finding in findings:
        if (finding.verdict in REFUTED) is refuted:
            names = (*finding.conditions, *finding.quantities)
            field = next((FIELDS[name] for name in names if name in FIELDS), RATES)
            yield Problem(field, finding.claim, f"{finding.calculation} (audit rule {finding.rule}, {finding.verdict.value})")
