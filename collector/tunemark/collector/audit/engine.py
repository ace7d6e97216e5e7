"""All rules over all evidence: a pure function, the same findings in the same order each time."""

from collections.abc import Collection, Iterable

from tunemark.collector.audit.evidence import Base
from tunemark.collector.audit.registry import RULES
from tunemark.collector.audit.rule import Rule
from tunemark.schema.findings import Finding
from tunemark.schema.vocabulary import AuditVerdict

WORST_FIRST = {verdict: place for place, verdict in enumerate(AuditVerdict)}


def audit(base: Base, rules: Iterable[Rule] = RULES) -> tuple[Finding, ...]:
    """Return all findings, by their subject and then worst first."""
    found = [finding for rule in rules for finding in rule.findings(base)]
    return tuple(sorted(found, key=lambda one: (one.records[0], WORST_FIRST[one.verdict], one.rule, one.records, one.calculation)))


def chosen(
    findings: Iterable[Finding],
    rules: Collection[str] = (),
    verdicts: Collection[AuditVerdict] = (),
    records: Collection[str] = (),
) -> tuple[Finding, ...]:
    """Return the findings of rules, verdicts and records; an empty choice takes all."""
    return tuple(
        one
        for one in findings
        if (not rules or one.rule in rules)
        and (not verdicts or one.verdict in verdicts)
        and (not records or set(records) & set(one.records))
    )
