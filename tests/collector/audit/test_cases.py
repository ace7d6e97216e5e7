"""Sixty checked claims: the verdict that an auditor reaches must come from the rules over the stored facts.

`audit_cases.json` holds claim, calculation and verdict; `case_records.json` says which stored records a case is about
and which rules may answer it. The verdict itself comes from nowhere but the engine.
"""

import json
from pathlib import Path

import pytest

from tunemark.collector.audit.registry import RULES
from tunemark.schema.vocabulary import AuditVerdict

ROOT = Path(__file__).parents[3]
DATA = Path(__file__).parent / "data"
CASES = {case["id"]: case for case in json.loads((DATA / "audit_cases.json").read_text(encoding="utf-8"))}
ABOUT = json.loads((DATA / "case_records.json").read_text(encoding="utf-8"))
BAD = sorted(name for name, case in CASES.items() if case["verdict"] != "ok")
CONTROLS = sorted(name for name, case in CASES.items() if case["verdict"] == "ok")


def test_every_case_is_about_stored_records_and_known_rules(base):
    assert set(ABOUT) == set(CASES)
    known, rules = set(base.by_id) | set(base.statements), {rule.id for rule in RULES}
    for name, about in ABOUT.items():
        assert not set(about["records"]) - known, name
        assert not set(about["rules"]) - rules, name


@pytest.mark.parametrize("name", BAD)
def test_a_bad_claim_gets_the_verdict_of_the_case(name, findings):
    about, verdict = ABOUT[name], CASES[name]["verdict"]
    answering = [one for one in findings if one.rule in about["rules"] and one.verdict.value == verdict]
    reached = {record for one in answering for record in one.records} & set(about["records"])
    assert reached == set(about["records"]) if about.get("all") else reached


@pytest.mark.parametrize("name", CONTROLS)
def test_a_right_claim_is_not_called_wrong_for_that_reason(name, findings):
    about = ABOUT[name]
    wrong = [
        one
        for one in findings
        if one.rule in about["rules"] and one.verdict is not AuditVerdict.AMBIGUOUS and set(one.records) & set(about["records"])
    ]
    assert not wrong
