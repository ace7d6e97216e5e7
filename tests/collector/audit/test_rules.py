"""Each rule flags a wrong example and accepts a right one."""

from dataclasses import replace

import pytest
from audit_factories import (
    A100,
    BERT,
    FULL,
    H100,
    QLORA,
    T4,
    accuracies,
    advice,
    bill,
    claim,
    effect,
    evidence,
    formula,
    gb,
    metric,
    offer,
    pair,
    result,
    several,
    stated,
    statement,
)
from hypothesis import given
from hypothesis import strategies as st

from tunemark.collector.audit.evidence import ExpectedRate
from tunemark.collector.audit.rule import DOCUMENT_CONDITIONS, all_rules
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.published import Conditions
from tunemark.schema.throughput import Range

RULES = all_rules()
SETTINGS = {"data_parallel", "gradient_checkpointing", "lora_r", "zero_stage"}

EXAMPLES = {
    "utilisation": (evidence(result(claims={"tokens_per_s": 14_000})), evidence(result(claims={"tokens_per_s": 5_000}))),
    "attainable": tuple(evidence(result(claims={"tokens_per_s": rate})) for rate in (10_000, 9_000)),
    "utilisation-and-memory": (
        evidence(result(claims={"tokens_per_s": 7_600, "peak_memory_bytes": gb(18)})),
        evidence(result(claims={"tokens_per_s": 6_000, "peak_memory_bytes": gb(60)})),
    ),
    "identity": (*(evidence(result(claims={"mfu": claim(0.35, "35.0%"), "hfu": claim(share, f"{share:.1%}")})) for share in (0.3, 0.4)),),
    "mfu-and-rate": (
        evidence(result(claims={"mfu": 0.4, "tokens_per_s": 1_000})),
        evidence(result(claims={"mfu": 0.4, "tokens_per_s": 4_450})),
    ),
    "memory-capacity": (evidence(result(claims={"peak_memory_bytes": gb(90)})), evidence(result(claims={"peak_memory_bytes": gb(80)}))),
    "model-memory": (
        evidence(result(claims={"model_memory_bytes": gb(13)}, **QLORA)),
        evidence(result(claims={"model_memory_bytes": gb(13.5)})),
    ),
    "metric": (
        evidence(result(claims={"peak_memory_bytes": gb(20)}), metric("held by the allocator at the end of a step", scope="rank")),
        evidence(result(claims={"peak_memory_bytes": gb(20)}), metric("peak of live tensors", scope="device", bytes_per_unit=1e9)),
    ),
    "formula": (
        evidence(formula(("peak", "FLOP/s"), ("work", "FLOP/token", -1), ("sequence_length", "token", -1))),
        evidence(formula(("peak", "FLOP/s"), ("work", "FLOP/token", -1))),
    ),
    "roof": tuple(
        evidence(
            result(
                claims={
                    "hardware_flop": claim(1e12, "1.000 TFLOPS"),
                    "profile_step_time_s": claim(0.1, "100.0 ms"),
                    "hfu": claim(0.1, "10.00%"),
                }
            ),
            statement(
                {
                    "kind": "roof",
                    "accelerator": "aws-trainium1",
                    "peak_flop_per_s": claim(peak),
                    "bandwidth_bytes_per_s": claim(8.2e11),
                    "records": ["900-001"],
                }
            ),
        )
        for peak in (190e12, 100e12)
    ),
    "offer": (
        evidence(offer(32.77, instance="p4d", accelerator="nvidia-a100-40gb-sxm")),
        evidence(offer(4.1, instance="p4d", accelerator="nvidia-a100-40gb-sxm")),
    ),
    "implied-rate": tuple(
        evidence(
            result(claims={"tokens_per_s": 2_048}),
            offer(1.29),
            bill(claims={"cost_per_1m_samples_usd": claim(360.0, "$360")}, result="900-001"),
            bill(3, claims={"cost_per_1m_samples_usd": claim(cost, f"${cost:g}")}, model="llama-2-70b", method="qlora"),
        )
        for cost in (195.0, 1_950.0)
    ),
    "owned-hardware": tuple(
        evidence(bill(claims={"train_time_s": claim(36_000.0, "10h"), "cost_local_usd": claim(8.0, "$8")}, owned_inputs=inputs))
        for inputs in ([], ["purchase price", "years"])
    ),
    "memory-needs": tuple(evidence(result(claims={"peak_memory_bytes": gb(size)}, **FULL)) for size in (10, 80)),
    "comparison": tuple(
        evidence(*several("train_time_s", 100.0, 450.0), pair("train_time_s", change=claim(ratio, f"{ratio:g}x"))) for ratio in (5.5, 4.5)
    ),
    "summary": tuple(
        evidence(
            *several("speedup", 3.7, 7.2),
            statement({"kind": "range", "quantity": "speedup", "records": ["900-001", "900-002"], "low": claim(low), "high": claim(7.3)}),
        )
        for low in (5.5, 3.7)
    ),
    "comparability": tuple(
        evidence(
            result(1, claims={"train_time_s": 100.0}),
            result(2, accelerator=H100, sequence_length=length, claims={"train_time_s": 90.0}),
            pair("train_time_s"),
        )
        for length in (512, 2048)
    ),
    "predicted-rate": tuple(
        replace(evidence(result(claims={"tokens_per_s": rate})), expected={"900-001": ExpectedRate(rate, Range(2_000.0, 1_000.0, 4_000.0))})
        for rate in (4_100.0, 3_900.0)
    ),
    "wrong-order": tuple(
        evidence(result(1, claims={"tokens_per_s": rate}), result(2, claims={"tokens_per_s": 3_000}, **FULL)) for rate in (2_000, 4_000)
    ),
    "same-work": tuple(
        evidence(
            result(1, claims={"peak_memory_bytes": gb(20)}),
            result(2, accelerator=H100, claims={"peak_memory_bytes": gb(size)}),
            result(3, accelerator=H100, claims={"peak_memory_bytes": gb(40)}, settings={"loss": "fused"}),
            result(4, accelerator=H100, claims={"peak_memory_bytes": gb(40)}, framework={"torch": "2.9.0"}),
        )
        for size in (32, 21)
    ),
    "copied-figures": tuple(
        evidence(result(1, claims={"tokens_per_s": 4_651}), result(2, claims={"tokens_per_s": rate}, **QLORA)) for rate in (4_651, 4_012)
    ),
    "instance": tuple(evidence(result(labels={"instance": name})) for name in ("g5.13xlarge", "p4de.24xlarge")),
    "context-length": tuple(evidence(result(sequence_length=length)) for length in (8_192, 4_096)),
    "device-data": tuple(evidence(result(accelerator=key, claims={"tokens_per_s": 100.0})) for key in (T4, A100)),
    "dates": tuple(evidence(result(framework={"bitsandbytes": "0.46.0"}), stated_on=day) for day in ("2024-10-30", "2025-10-30")),
    "advice": tuple(
        evidence(advice(parameters_from_b=13, parameters_to_b=13), advice(2, parameters_from_b=size, says="not recommended"))
        for size in (13, 30)
    ),
    "memory-tables": tuple(
        evidence(
            *(
                result(n, section=f"Table {n}", accelerator=None, accelerator_count=None, claims={"peak_memory_bytes": gb(size)})
                for n, size in ((1, 28), (2, other))
            )
        )
        for other in (56, 29)
    ),
    "significance": (accuracies(0.9430, 0.9405), accuracies(0.9465, 0.9290)),
    "stated-twice": (evidence(result(gradient_accumulation=32), stated(1, 1)), evidence(result(gradient_accumulation=32), stated(32, 1))),
    "unsupported": tuple(
        evidence(
            result(claims={"train_loss": 0.03, **more}),
            statement({"kind": "conclusion", "about": "quality", "records": ["900-001"], "basis": ["train_loss", "eval_loss"]}),
        )
        for more in ({}, {"eval_loss": 0.4})
    ),
    "not-said": tuple(evidence(result(labels={"accelerator": name})) for name in ("A100", "A100-SXM4-80GB")),
    "effect": tuple(evidence(result(), effect(grows=grows, over="sequence_length")) for grows in ("quadratic", "linear")),
}
"""Rule: (wrong evidence, right evidence)."""


def rule_of(example):
    return next(rule for rule in RULES if rule.id == example)


def test_every_rule_has_an_example():
    assert set(EXAMPLES) == {rule.id for rule in RULES}


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_rule_flags_wrong_evidence_and_names_what_its_verdict_applies_to(example):
    findings = list(rule_of(example).findings(EXAMPLES[example][0]))
    assert findings
    for finding in findings:
        assert finding.verdict in rule_of(example).verdicts
        assert set(finding.quantities) <= set(QUANTITIES)
        assert set(finding.conditions) <= set(Conditions.model_fields) | SETTINGS | DOCUMENT_CONDITIONS


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_rule_accepts_right_evidence(example):
    assert not list(rule_of(example).findings(EXAMPLES[example][1]))


def verdicts(rule, checked):
    declared = next(one for one in RULES if one.id == rule)
    return {one.verdict.value for one in declared.findings(checked)}


@pytest.mark.parametrize(("assumed", "doubted"), [(["accelerator"], ["900-001", "900-002"]), ([], ["900-001"])])
def test_a_rate_beyond_its_device_doubts_the_device_in_every_row_if_it_is_assumed(assumed, doubted):
    rows = [result(number, claims={"tokens_per_s": rate}, assumed=assumed) for number, rate in ((1, 10_000), (2, 6_000))]
    findings = list(rule_of("attainable").findings(evidence(*rows)))
    assert [finding.records for finding in findings] == [(each,) for each in doubted]
    assert all(finding.refutes({"tokens_per_s"}, ()) for finding in findings)


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
    (finding,) = next(rule for rule in RULES if rule.id == "utilisation").findings(base)
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
