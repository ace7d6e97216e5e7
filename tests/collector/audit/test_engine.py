"""The rules as a whole: unique ids, reasons, a stable order, data in every finding, and no rule about one source."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest
from audit_factories import evidence, result

from tunemark.collector.audit import rules as rules_package
from tunemark.collector.audit.rule import AMBIGUOUS, SUSPICIOUS, all_rules, audit
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.published import Conditions, Stated

ROOT = Path(__file__).parents[3]
AUDIT = ROOT / "collector" / "tunemark" / "collector" / "audit"
RULES = all_rules()

NEW_RULE = '''
from tunemark.collector.audit.rule import SUSPICIOUS, Finding, rule


@rule(id="round-number", family="comparison", verdicts=(SUSPICIOUS,))
def round_numbers(evidence):
    """Round number of tokens per second.

    A measured rate is rarely a whole thousand.
    """
    for result in evidence.results:
        rate = result.interval("tokens_per_s")
        if rate and rate.value % 1_000 == 0:
            yield Finding(SUSPICIOUS, (result.id,), result.printed("tokens_per_s"), "0 remainder", quantities=("tokens_per_s",))
'''


@pytest.fixture
def new_rule(tmp_path, monkeypatch):
    """A folder with one more rule module, on the path of the package of rules."""
    (tmp_path / "round_numbers.py").write_text(NEW_RULE)
    monkeypatch.setattr(rules_package, "__path__", [*rules_package.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    yield "round-number"
    sys.modules.pop(f"{rules_package.__name__}.round_numbers", None)


def test_a_new_rule_is_one_function_in_one_file(new_rule, tunemark):
    assert new_rule in {one.id for one in all_rules()}
    assert new_rule in tunemark("audit", "--rules").out
    findings = audit(evidence(result(claims={"tokens_per_s": 3_000}), result(2, claims={"tokens_per_s": 3_141})))
    (finding,) = (each for each in findings if each.rule == new_rule)
    assert (finding.verdict, finding.records, finding.quantities) == (SUSPICIOUS, ("900-001",), ("tokens_per_s",))


def test_every_rule_has_an_id_of_its_own():
    assert len({one.id for one in RULES}) == len(RULES)


def test_findings_have_a_declared_verdict_and_name_known_quantities_or_conditions(stored_evidence, findings):
    settings = {name for one in stored_evidence.results for name in one.conditions.settings}
    settings |= {stated.setting for _, stated in stored_evidence.assertions(Stated)}
    known = set(Conditions.model_fields) | settings | {"date", "link"}
    verdicts = {one.id: one.verdicts for one in RULES}
    assert all(finding.verdict in verdicts[finding.rule] and (finding.quantities or finding.conditions) for finding in findings)
    assert not {name for finding in findings for name in finding.quantities} - set(QUANTITIES)
    assert not {name for finding in findings for name in finding.conditions} - known


def test_every_rule_finds_something_in_the_committed_records(findings):
    assert {finding.rule for finding in findings} == {one.id for one in RULES}


def test_no_rule_names_a_source_or_a_record():
    """A rule that does would be an exception and no rule."""
    for path in AUDIT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"\b00[0-4]\b|\b\d{3}-S?\d{2,3}\b", node.value), f"{path.name}: {node.value!r}"


def test_our_own_measurements_are_not_impossible(stored_evidence, findings):
    measured = {run.id for run in stored_evidence.results if run.measured}
    assert measured
    assert not [one for one in findings if set(one.records) & measured and one.verdict is not AMBIGUOUS]
