"""One hundred and thirty-five checked claims: the verdict that an auditor reaches must come from the rules over the stored facts.

`audit_cases.json` holds claim, calculation and verdict of sixty; `case_records.json` says which stored records a case is
about and which rules may answer it. The verdict itself comes from nowhere but the engine.

`further_cases.json` holds 75 that were written later, in two rounds (B and C), from the documents alone and without sight
of the rules, to learn how far these reach beyond the sixty: `reached_at_first` says which of them the rules of that day
judged as the case does. Most of the others became a rule of their kind. Five of the 80 are not here, since the audit does
not judge them so:

- That the sentence of 003 on 1,500 tokens contradicts the rows at 8,192 (in both rounds): it says nothing of rows beyond
  1,500, so the audit calls it unsupported, not inconsistent.
- "0th to 10th epoch" of 002, which may be ten epochs or eleven: counts in running text are not stored.
- The same step of 003 in 78 and 89 on devices of the same maker: within what the audit allows caches and workspaces.
- GPT-2 small of 004 in 4 GB: below what a plain loss needs, but a loss in pieces would fit.
"""

import json
from pathlib import Path

import pytest

from tunemark.collector.audit.rule import all_rules
from tunemark.schema.vocabulary import AuditVerdict

RULES = all_rules()

ROOT = Path(__file__).parents[3]
DATA = Path(__file__).parent / "data"
CASES = {
    case["id"]: case
    for name in ("audit_cases", "further_cases")
    for case in json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
}
ABOUT = {
    name: about
    for file in ("case_records", "further_case_records")
    for name, about in json.loads((DATA / f"{file}.json").read_text(encoding="utf-8")).items()
}
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
