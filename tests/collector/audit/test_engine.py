"""The rules as a whole: named once, told why, the same each time, and blind to who says something."""

import ast
import itertools
import re
from pathlib import Path

from tunemark.collector.audit.rule import WORST_FIRST, all_rules, audit, select
from tunemark.schema.vocabulary import AuditVerdict

RULES = all_rules()

ROOT = Path(__file__).parents[3]
AUDIT = ROOT / "collector" / "tunemark" / "collector" / "audit"


def test_every_rule_has_a_name_of_its_own_a_reason_and_a_verdict():
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert len(rule.why) > 20
        assert rule.verdicts


def test_findings_come_in_the_same_order_each_time(base, findings):
    assert audit(base) == findings


def test_the_worst_finding_about_a_record_comes_first(findings):
    for one, following in itertools.pairwise(findings):
        assert (one.records[0], WORST_FIRST[one.verdict]) <= (following.records[0], WORST_FIRST[following.verdict])


def test_every_record_that_a_finding_names_exists(base, findings):
    known = set(base.by_id) | set(base.statements)
    assert not {record for one in findings for record in one.records} - known


def test_every_finding_shows_a_calculation_with_its_subject(findings):
    for one in findings:
        assert one.calculation
        assert one.claim


def test_no_rule_names_a_source_or_a_record():
    """A rule that does would be an exception and no rule."""
    for path in AUDIT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"\b00[0-4]\b|\b\d{3}-S?\d{2,3}\b", node.value), f"{path.name}: {node.value!r}"


def test_findings_are_chosen_by_record_rule_and_verdict(findings):
    some = select(findings, records=["004-010"], verdicts=[AuditVerdict.IMPOSSIBLE])
    assert some
    assert all(one.verdict is AuditVerdict.IMPOSSIBLE and "004-010" in one.records for one in some)
    assert not select(findings, rules=["no-such-rule"])


def test_our_own_measurements_are_not_impossible(base, findings):
    measured = {run.id for run in base.results if run.measured}
    assert measured
    assert not [one for one in findings if set(one.records) & measured]
