"""Rules of the audit: the decorator that declares a rule, the finding that a rule yields, and the engine that runs all rules.

A rule is one function in a module of `audit/rules/`. It takes the evidence and yields findings; it depends on nothing else.
Its docstring is what readers see: the title of the rule, and the reason why such a claim is wrong. Every module in that folder
is imported, so a new rule needs no registration.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.schema.vocabulary import AuditVerdict

IMPOSSIBLE, INCONSISTENT = AuditVerdict.IMPOSSIBLE, AuditVerdict.INCONSISTENT
SUSPICIOUS, AMBIGUOUS = AuditVerdict.SUSPICIOUS, AuditVerdict.AMBIGUOUS
REFUTED = (IMPOSSIBLE, INCONSISTENT)
"""Verdicts on figures that nothing else may rest on."""
WORST_FIRST = {verdict: place for place, verdict in enumerate(AuditVerdict)}
NO_EVIDENCE = frozenset({"attainable"})
"""Rules whose findings bar a figure from evidence, although it is possible."""
RULES_PACKAGE = "tunemark.collector.audit.rules"

Family = Literal[
    "utilisation", "memory", "arithmetic", "definitions", "prices", "comparison", "catalogue", "significance", "statements"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of one rule about one or more records."""

    verdict: AuditVerdict
    records: tuple[str, ...]
    """Results and statements concerned; the first is the subject."""
    claim: str
    """The claim of these records, with the figures as printed."""
    calculation: str
    """The calculation, written out with its numbers."""
    quantities: tuple[str, ...] = ()
    """Quantities of the records that the verdict applies to: keys of `tunemark.schema.quantities.QUANTITIES`."""
    conditions: tuple[str, ...] = ()
    """Conditions that the verdict applies to: fields of `Conditions`, settings of results or statements, or the `date` or a `link` of a document."""
    excluded: tuple[str, ...] = ()
    """Meanings of an ambiguous figure that are impossible: their words without figures."""
    rule: str = ""
    """The rule that yielded it; set by the engine."""

    def refutes(self, quantities: Collection[str], conditions: Collection[str]) -> bool:
        """Return True if nothing may rest on one of these quantities, or on a condition that they rest on."""
        concerned = not set(self.quantities).isdisjoint(quantities) or not set(self.conditions).isdisjoint(conditions)
        return (self.verdict in REFUTED or self.rule in NO_EVIDENCE) and concerned


def refutation(findings: Iterable[Finding], quantities: Collection[str], conditions: Collection[str]) -> str | None:
    """Return the first finding for which nothing may rest on these quantities and conditions, as a reason, or None."""
    found = next((finding for finding in findings if finding.refutes(quantities, conditions)), None)
    return f"the audit calls it {found.verdict.value}: {found.rule}" if found else None


def about_figures(verdict: AuditVerdict, result: AuditedResult, quantities: tuple[str, ...], calculation: str) -> Finding:
    """Return a finding about figures of one result. Its claim consists of these figures as printed."""
    return Finding(verdict, (result.id,), result.printed(*quantities), calculation, quantities)


Check = Callable[[Evidence], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A check with its declaration."""

    id: str
    title: str
    """The error that the rule looks for, in a few words."""
    family: Family
    why: str
    """The reason why such a claim is wrong, from first principles, with the source of the formula."""
    verdicts: tuple[AuditVerdict, ...]
    """Verdicts that the rule can give."""
    check: Check

    def findings(self, evidence: Evidence) -> Iterator[Finding]:
        """Yield the findings of this rule."""
        for finding in self.check(evidence):
            yield replace(finding, rule=self.id, records=tuple(dict.fromkeys(finding.records)))


def rule(*, id: str, family: Family, verdicts: tuple[AuditVerdict, ...]) -> Callable[[Check], Rule]:  # noqa: A002 - its name in every table
    """Declare a check as a rule. The first line of its docstring is the title of the rule, and the rest is the reason.

    Raises ValueError if the docstring lacks a title or a reason.
    """

    def declare(check: Check) -> Rule:
        title, _, why = (inspect.getdoc(check) or "").partition("\n\n")
        if not title or not why:
            raise ValueError(f"rule {id} needs a docstring with a title and, after an empty line, a reason")
        return Rule(id, title.removesuffix("."), family, " ".join(why.split()), verdicts, check)

    return declare


def all_rules() -> tuple[Rule, ...]:
    """Return the rules of all modules in `audit/rules/`: by family, then by module, then as written."""
    package = importlib.import_module(RULES_PACKAGE)
    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__, f"{RULES_PACKAGE}."))
    members = [(name, member) for name in names for member in vars(importlib.import_module(name)).values()]
    declared = [member for name, member in members if isinstance(member, Rule) and member.check.__module__ == name]
    return tuple(sorted(declared, key=lambda each: get_args(Family).index(each.family)))


def audit(evidence: Evidence, rules: Iterable[Rule] | None = None) -> tuple[Finding, ...]:
    """Return the findings of all rules, ordered by subject and then worst first. The same evidence gives the same findings."""
    return in_order(finding for each in (all_rules() if rules is None else rules) for finding in each.findings(evidence))


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings ordered by subject and then worst first."""
    return tuple(sorted(findings, key=lambda each: (each.records[0], WORST_FIRST[each.verdict], each.rule, each.records, each.calculation)))
