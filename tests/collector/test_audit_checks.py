"""Rules of the audit run before a result is accepted."""

from dataclasses import replace

import pytest
from changed_bases import changed

from tunemark.collector.audit.evidence import Evidence
from tunemark.collector.audit.load import audited_submission
from tunemark.collector.audit.rule import Finding, all_rules
from tunemark.collector.gate.check import audit_findings, audit_problems, rules_of_one_result
from tunemark.schema.derive import derive
from tunemark.schema.formats import GIB
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import AuditVerdict

from factories import FACTS  # isort: skip

FASTER = {"trace.completed_at_s": lambda times: [times[0] + (at - times[0]) / 40 for at in times], "trace.micro_completed_at_s": []}
LARGER = {"memory.device_allocated.peak_bytes": 200 * GIB}
WRONG = {"faster than its peak": FASTER, "more than its device": LARGER}


def found(submission: Submission) -> list[Finding]:
    return audit_findings(submission, derive(submission), FACTS)


@pytest.mark.parametrize("name", ["h100", "ddp", "lora", "fsdp", "qlora", "bert", "oom"])
def test_the_audit_finds_nothing_in_an_honest_run(name: str) -> None:
    assert found(changed(name, {})) == []


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG)
def test_a_result_that_the_audit_calls_impossible_is_refused(values: dict[str, object]) -> None:
    findings = found(changed("h100", values))
    problems = list(audit_problems(findings, refuted=True))
    assert problems
    assert all("audit rule" in problem.fix for problem in problems)


def test_a_suspicious_finding_asks_for_a_second_run_and_refuses_nothing() -> None:
    finding = replace(found(changed("h100", LARGER))[0], verdict=AuditVerdict.SUSPICIOUS)
    assert list(audit_problems([finding], refuted=True)) == []
    assert [problem.field for problem in audit_problems([finding], refuted=False)] == ["memory.device_allocated.peak_bytes"]


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG)
def test_each_rule_that_fires_on_a_measured_result_alone_runs_in_the_gate(values: dict[str, object]) -> None:
    submission = changed("h100", values)
    evidence = Evidence((audited_submission(submission, "this run", FACTS, derive(submission)),), (), FACTS)
    fired = {rule.id for rule in all_rules() for _ in rule.findings(evidence)}
    assert fired
    assert fired <= {rule.id for rule in rules_of_one_result()}
