"""The rules as a whole: unique ids, reasons, a stable order, data in every finding, and no rule about one source."""

import ast
import importlib
import itertools
import re
import sys
from pathlib import Path

import pytest
from audit_factories import claim, evidence, result

from tunemark.collector.audit import rules as rules_package
from tunemark.collector.audit.rule import (
    DOCUMENT_CONDITIONS,
    IMPOSSIBLE,
    SUSPICIOUS,
    WORST_FIRST,
    Finding,
    all_rules,
    audit,
    rule,
    select,
)
from tunemark.collector.audit.token_rates import token_rates
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.claims import Stated
from tunemark.schema.records.published import Conditions
from tunemark.schema.vocabulary import AuditVerdict

ROOT = Path(__file__).parents[3]
AUDIT = ROOT / "collector" / "tunemark" / "collector" / "audit"
RULES = all_rules()

NEW_RULE = '''
from tunemark.collector.audit.rule import SUSPICIOUS, Finding, rule


@rule(id="round-number", family="duplicates", verdicts=(SUSPICIOUS,))
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
    (finding,) = select(findings, rules=[new_rule])
    assert (finding.verdict, finding.records, finding.quantities) == (SUSPICIOUS, ("900-001",), ("tokens_per_s",))


def test_a_rule_that_is_gone_is_no_longer_listed():
    assert "round-number" not in {one.id for one in all_rules()}


def test_every_rule_has_a_unique_id_a_title_a_reason_and_a_verdict():
    assert len({one.id for one in RULES}) == len(RULES)
    for one in RULES:
        assert one.title
        assert len(one.why) > 20
        assert one.verdicts


def test_rules_are_listed_family_by_family():
    families = [one.family for one in RULES]
    assert len(list(itertools.groupby(families))) == len(set(families))


def test_a_rule_needs_a_title_and_a_reason_in_its_docstring():
    def check(_):
        """Only a title."""

    with pytest.raises(ValueError, match="rule lonely needs a docstring"):
        rule(id="lonely", family="memory", verdicts=(IMPOSSIBLE,))(check)


def declared(finding, verdicts=(IMPOSSIBLE,)):
    def check(_):
        """Title.

        A reason.
        """
        yield finding

    return rule(id="example", family="memory", verdicts=verdicts)(check)


def test_a_finding_needs_a_quantity_or_a_condition():
    with pytest.raises(ValueError, match="without quantities and conditions"):
        list(declared(Finding(IMPOSSIBLE, ("900-001",), "a claim", "1 > 0")).findings(evidence()))


def test_a_finding_needs_a_verdict_that_its_rule_declares():
    finding = Finding(IMPOSSIBLE, ("900-001",), "a claim", "1 > 0", quantities=("mfu",))
    with pytest.raises(ValueError, match="declare it in `verdicts`"):
        list(declared(finding, (SUSPICIOUS,)).findings(evidence()))


def test_the_engine_adds_the_rule_and_names_each_record_once():
    finding = Finding(IMPOSSIBLE, ("900-001", "900-001"), "a claim", "1 > 0", {"share": 1 / 3}, quantities=("mfu",))
    (made,) = declared(finding).findings(evidence())
    assert (made.rule, made.records, made.numbers) == ("example", ("900-001",), {"share": 0.333333333})


def test_findings_name_known_quantities_and_conditions(stored_evidence, findings):
    settings = {name for one in stored_evidence.results for name in one.conditions.settings}
    settings |= {stated.setting for _, stated in stored_evidence.assertions(Stated)}
    known = set(Conditions.model_fields) | settings | DOCUMENT_CONDITIONS
    assert not {name for finding in findings for name in finding.quantities} - set(QUANTITIES)
    assert not {name for finding in findings for name in finding.conditions} - known


def test_the_conditions_of_a_rate_are_known(stored_evidence):
    settings = {name for one in stored_evidence.results for name in one.conditions.settings}
    named = {name for one in stored_evidence.results for rate in token_rates(one) for name in rate.conditions}
    assert not named - set(Conditions.model_fields) - settings


def test_an_excluded_reading_is_named_by_its_words_without_figures():
    readings = claim(6.4, "6.4", **{"an_optimizer_step_(32_rows)": 6.4, "a_micro-step_(1_row)": 204.8})
    shape = {"model": "llama-3.1-8b", "accelerator": "nvidia-h100-80gb-sxm", "sequence_length": 8192}
    run = result(claims={"step_time_s": readings}, micro_batch=2, gradient_accumulation=32, **shape)
    (finding,) = select(audit(evidence(run)), rules=["utilisation"])
    assert finding.quantities == ("step_time_s",)
    assert finding.excluded == ("an optimizer step",)


def test_the_batch_of_a_disputed_step_is_a_condition_of_the_rate_that_follows_from_it(stored_evidence, findings):
    """The trainer counts 8 rows per step; micro-batch x accumulation x replicas are 32. The rate over 32 rows depends on that batch."""
    (finding,) = select(findings, rules=["identity"], records=["000-001"])
    (rate,) = [one for one in token_rates(stored_evidence.by_id["000-001"]) if one.quantity == "step_time_s"]
    assert finding.quantities == ("samples_per_s", "steps_per_s")
    assert set(finding.conditions) & set(rate.conditions) == {"micro_batch", "gradient_accumulation", "data_parallel"}


def test_the_same_evidence_gives_the_same_findings_in_the_same_order(stored_evidence, findings):
    assert audit(stored_evidence) == findings


def test_the_worst_finding_about_a_record_comes_first(findings):
    for one, following in itertools.pairwise(findings):
        assert (one.records[0], WORST_FIRST[one.verdict]) <= (following.records[0], WORST_FIRST[following.verdict])


def test_every_record_that_a_finding_names_exists(stored_evidence, findings):
    known = set(stored_evidence.by_id) | set(stored_evidence.statements)
    assert not {record for one in findings for record in one.records} - known


def test_every_finding_shows_a_calculation_with_its_subject(findings):
    for one in findings:
        assert one.calculation
        assert one.claim
        assert one.records


def test_no_rule_names_a_source_or_a_record():
    """A rule that does would be an exception and no rule."""
    for path in AUDIT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"\b00[0-4]\b|\b\d{3}-S?\d{2,3}\b", node.value), f"{path.name}: {node.value!r}"


def test_findings_are_selected_by_record_rule_and_verdict(findings):
    some = select(findings, records=["004-010"], verdicts=[AuditVerdict.IMPOSSIBLE])
    assert some
    assert all(one.verdict is AuditVerdict.IMPOSSIBLE and "004-010" in one.records for one in some)
    assert not select(findings, rules=["no-such-rule"])


def test_our_own_measurements_are_not_impossible(stored_evidence, findings):
    measured = {run.id for run in stored_evidence.results if run.measured}
    assert measured
    assert not [one for one in findings if set(one.records) & measured]
