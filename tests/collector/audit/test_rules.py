"""Branches of rules that no checked case and no committed record reaches."""

import tomllib
from pathlib import Path

import pytest
from audit_factories import BERT, H100, claim, evidence, offer, result
from hypothesis import given
from hypothesis import strategies as st

from tunemark.collector.audit.rule import all_rules

RULES = all_rules()
ROWS = tomllib.loads(Path(__file__).with_name("rows.toml").read_text(encoding="utf-8"))


def findings(rule, checked):
    return list(next(one for one in RULES if one.id == rule).findings(checked))


def verdicts(rule, checked):
    return {finding.verdict.value for finding in findings(rule, checked)}


@pytest.mark.parametrize(("assumed", "doubted"), [(["accelerator"], ["900-001", "900-002"]), ([], ["900-001"])])
def test_a_rate_beyond_its_device_doubts_the_device_in_every_row_if_it_is_assumed(assumed, doubted):
    rows = [result(number, claims={"tokens_per_s": rate}, assumed=assumed) for number, rate in ((1, 10_000), (2, 6_000))]
    found = findings("attainable", evidence(*rows))
    assert [finding.records for finding in found] == [(each,) for each in doubted]
    assert all(finding.refutes({"tokens_per_s"}, ()) for finding in found)


def test_an_impossible_reading_is_excluded_and_the_figure_stays_ambiguous():
    readings = claim(6.4, "6.4", optimizer_step=6.4, micro_step=204.8)
    run = result(
        claims={"step_time_s": readings},
        model="llama-3.1-8b",
        accelerator=H100,
        micro_batch=2,
        gradient_accumulation=32,
        sequence_length=8192,
    )
    base = evidence(run)
    assert verdicts("utilisation", base) == {"ambiguous"}
    (finding,) = findings("utilisation", base)
    assert "only 'micro step' remains" in finding.calculation


def test_a_run_billed_for_another_machine_is_inconsistent_and_not_impossible():
    assert verdicts("offer", evidence(offer(30.0, instance="p4d"))) == {"impossible"}
    assert "impossible" not in verdicts("offer", evidence(result(), offer(30.0, instance="p4d", used_for=["900-001"])))


def test_several_machines_have_the_devices_of_all_of_them():
    rented = {"labels": {"instance": "trn1.32xlarge"}, "accelerator": "aws-trainium1", "accelerator_count": 256}
    assert [verdicts("instance", evidence(result(**rented, settings={"nodes": nodes}))) for nodes in (15, 16)] == [{"impossible"}, set()]


def test_efficiency_above_a_limit_is_suspicious_and_above_two_inconsistent():
    def base(rate, **more):
        return evidence(
            *(result(n, accelerator_count=count, claims={"tokens_per_s": one}, **more) for n, count, one in ((1, 1, 1_000), (2, 2, rate)))
        )

    assert verdicts("wrong-order", base(1_960)) == set()
    assert verdicts("wrong-order", base(2_300)) == set()
    assert verdicts("wrong-order", base(2_700)) == {"suspicious"}
    assert verdicts("wrong-order", base(5_000)) == {"inconsistent"}
    assert verdicts("wrong-order", base(5_000, accelerator=None)) == set()


@given(st.floats(min_value=0.01, max_value=100))
def test_a_rate_that_equals_work_over_time_is_never_flagged(hours):
    seconds = hours * 3_600
    rows = 16_000
    run = result(
        claims={
            "samples_per_s": claim(3 * rows / seconds, f"{3 * rows / seconds:.6g}"),
            "epochs": 3.0,
            "train_time_s": claim(seconds, f"{seconds:.6g}"),
        },
        **BERT,
    )
    assert not verdicts("identity", evidence(run))


def test_factors_of_one_record_must_multiply_to_its_product():
    def of(steps):
        return evidence(result(claims={"step_time_s": 3.0, "steps": steps, "train_time_s": 300.0}))

    assert verdicts("identity", of(100)) == set()
    assert verdicts("identity", of(150)) == {"inconsistent"}


@pytest.mark.parametrize("case", ROWS["rows"], ids=lambda case: f"{case['rule']}: {case['expected']}")
def test_the_figures_of_a_row_are_judged_by_the_work_and_the_memory_of_its_model(case):
    assert verdicts(case["rule"], evidence(result(**ROWS["common"] | case["run"]))) == set(case["expected"])
