"""Each rule flags a wrong example and accepts a right one."""

import pytest
from audit_factories import (
    A100,
    BERT,
    FULL,
    H100,
    OFF,
    ON,
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

from tunemark.collector.audit.rule import DOCUMENT_CONDITIONS, all_rules, audit
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.published import Conditions

RULES = all_rules()
SETTINGS = {"data_parallel", "gradient_checkpointing", "lora_r", "zero_stage"}

EXAMPLES = {
    "utilisation": (evidence(result(claims={"tokens_per_s": 14_000})), evidence(result(claims={"tokens_per_s": 5_000}))),
    "utilisation-and-memory": (
        evidence(result(claims={"tokens_per_s": 7_600, "peak_memory_bytes": gb(18)})),
        evidence(result(claims={"tokens_per_s": 6_000, "peak_memory_bytes": gb(60)})),
    ),
    "not-said: sample length": (
        evidence(result(claims={"samples_per_s": 2.0}, sequence_length=None)),
        evidence(result(claims={"samples_per_s": 2.0})),
    ),
    "identity: mfu above hfu": (
        *(evidence(result(claims={"mfu": claim(0.35, "35.0%"), "hfu": claim(share, f"{share:.1%}")})) for share in (0.3, 0.4)),
    ),
    "mfu-and-rate": (
        evidence(result(claims={"mfu": 0.4, "tokens_per_s": 1_000})),
        evidence(result(claims={"mfu": 0.4, "tokens_per_s": 4_450})),
    ),
    "memory-capacity": (evidence(result(claims={"peak_memory_bytes": gb(90)})), evidence(result(claims={"peak_memory_bytes": gb(80)}))),
    "memory-needs: memory floor": (
        evidence(result(claims={"peak_memory_bytes": gb(12)})),
        evidence(result(claims={"peak_memory_bytes": gb(18)})),
    ),
    "memory-needs: memory usual": (
        evidence(result(claims={"peak_memory_bytes": gb(60)}, precision="Mixed precision (bf16)", **FULL)),
        evidence(result(claims={"peak_memory_bytes": gb(60)}, precision="bf16", **FULL)),
    ),
    "model-memory": (
        evidence(result(claims={"model_memory_bytes": gb(13)}, **QLORA)),
        evidence(result(claims={"model_memory_bytes": gb(13.5)})),
    ),
    "model-memory: memory unit": (
        evidence(result(claims={"model_memory_bytes": claim(13.5 * 2**30, "13.5 GiB", as_printed=13.5 * 2**30, GB=13.5e9)})),
        evidence(result(claims={"model_memory_bytes": claim(12.6 * 2**30, "12.6 GiB", as_printed=12.6 * 2**30, GB=12.6e9)})),
    ),
    "same-work: model memory across devices": (
        evidence(
            *(result(n, accelerator=key, claims={"model_memory_bytes": gb(size)}) for n, key, size in ((1, A100, 13.5), (2, H100, 12.9)))
        ),
        evidence(*(result(n, accelerator=key, claims={"model_memory_bytes": gb(13.5)}) for n, key in ((1, A100), (2, H100)))),
    ),
    "identity: rate times time": (
        evidence(result(claims={"samples_per_s_reported": 100.0, "epochs": 3.0, "train_time_s": 160.0}, **BERT)),
        evidence(result(claims={"samples_per_s_reported": 300.0, "epochs": 3.0, "train_time_s": 160.0}, **BERT)),
    ),
    "identity: rows of a step": (
        evidence(result(claims={"samples_per_s": 8.0, "steps_per_s": 1.0})),
        evidence(result(claims={"samples_per_s": 4.0, "steps_per_s": 1.0})),
    ),
    "identity: steps times step": (
        evidence(result(claims={"steps": 300.0, "step_time_s": claim(2.0, "2.00 s"), "train_time_s": 500.0})),
        evidence(result(claims={"steps": 300.0, "step_time_s": claim(2.0, "2.00 s"), "train_time_s": 601.0})),
    ),
    "identity: wall covers training": (
        evidence(result(claims={"wall_s": 400.0, "train_time_s": 500.0})),
        evidence(result(claims={"wall_s": 520.0, "train_time_s": 500.0})),
    ),
    "identity: cpu time": (
        evidence(
            result(claims={"wall_s": 100.0, "user_s": 900.0, "system_s": 100.0}, instance="trn1.2xlarge", accelerator="aws-trainium1")
        ),
        evidence(result(claims={"wall_s": 100.0, "user_s": 700.0, "system_s": 50.0}, instance="trn1.2xlarge", accelerator="aws-trainium1")),
    ),
    "identity: evaluation rows": (
        evidence(result(claims={"eval_samples_per_s": 2_000.0, "eval_time_s": 3.0}, **BERT)),
        evidence(result(claims={"eval_samples_per_s": 1_000.0, "eval_time_s": 2.0}, **BERT)),
    ),
    "identity: epoch times": (
        evidence(result(claims={"epochs": 3.0, "epoch_time_s": 100.0, "train_time_s": 400.0})),
        evidence(result(claims={"epochs": 3.0, "epoch_time_s": 100.0, "train_time_s": 300.0})),
    ),
    "same-work: epoch work": (
        evidence(*(result(n, claims={"tokens_per_s": rate, "epoch_time_s": 100.0}) for n, rate in ((1, 5_000), (2, 4_000)))),
        evidence(
            *(result(n, claims={"tokens_per_s": rate, "epoch_time_s": time}) for n, rate, time in ((1, 5_000, 100.0), (2, 4_000, 125.0)))
        ),
    ),
    "metric": (
        evidence(result(claims={"peak_memory_bytes": gb(20)}), metric("held by the allocator at the end of a step", scope="rank")),
        evidence(result(claims={"peak_memory_bytes": gb(20)}), metric("peak of live tensors", scope="device", bytes_per_unit=1e9)),
    ),
    "metric: counted differently": (
        evidence(
            *several("tokens_per_s", 4_000, 3_000),
            metric("real tokens", "tokens_per_s"),
            metric("slots of tokens", "tokens_per_s", 2, ("900-002",)),
        ),
        evidence(
            *several("tokens_per_s", 4_000, 3_000),
            metric("real tokens", "tokens_per_s"),
            metric("real tokens", "tokens_per_s", 2, ("900-002",)),
        ),
    ),
    "formula: formula units": (
        evidence(formula(("peak", "FLOP/s"), ("work", "FLOP/token", -1), ("sequence_length", "token", -1))),
        evidence(formula(("peak", "FLOP/s"), ("work", "FLOP/token", -1))),
    ),
    "formula: formula values": (
        evidence(
            result(claims={"peak_memory_bytes": gb(18)}),
            formula(
                ("parameters", "parameter"),
                ("bytes", "byte/parameter", 1, 8.0),
                quantity="peak_memory_bytes",
                unit="byte",
                records=["900-001"],
            ),
        ),
        evidence(
            result(claims={"peak_memory_bytes": gb(18)}),
            formula(
                ("parameters", "parameter"),
                ("bytes", "byte/parameter", 1, 2.6),
                quantity="peak_memory_bytes",
                unit="byte",
                records=["900-001"],
            ),
        ),
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
    "offer-holds": (evidence(offer(30.0, instance="p4d")), evidence(offer(40.97))),
    "price-scope": (
        evidence(offer(32.77, instance="p4d", accelerator="nvidia-a100-40gb-sxm")),
        evidence(offer(4.1, instance="p4d", accelerator="nvidia-a100-40gb-sxm")),
    ),
    "copied-figures: equal figures": tuple(
        evidence(
            *(
                result(
                    n,
                    claims={"accuracy": claim(0.9415, "94.15%"), "eval_loss": claim(loss, f"{loss}")},
                    **(BERT | {"sequence_length": length}),
                )
                for n, length, loss in ((1, 64, 0.1247), (2, 128, other))
            )
        )
        for other in (0.1247, 0.1251)
    ),
    "wrong-order: memory of larger model": tuple(
        evidence(
            *(
                result(n, model=model, claims={"peak_memory_bytes": gb(size)})
                for n, model, size in ((1, "llama-2-7b", 28), (2, "mistral-7b", more))
            )
        )
        for more in (26, 30)
    ),
    "advice: not the least": tuple(
        evidence(
            result(1, accelerator=None, claims={"peak_memory_bytes": gb(14)}, **QLORA),
            result(2, accelerator=smaller),
            statement(
                {
                    "kind": "advice",
                    "accelerators": ["nvidia-rtx-4090"],
                    "models": ["llama-2-7b"],
                    "methods": ["qlora"],
                    "says": "possible",
                    "least": True,
                }
            ),
        )
        for smaller in ("nvidia-rtx-4080", "nvidia-rtx-3090")
    ),
    "identity: price times": tuple(
        evidence(statement(None, claims={"price_usd_per_hour": claim(1.29, "$1.29"), "price_usd_per_day": claim(day, f"${day:g}")}))
        for day in (41.0, 31.0)
    ),
    "identity: cost of a run": tuple(
        evidence(offer(4.0), bill(claims={"train_time_s": claim(36_000.0, "10h"), "cost_usd": claim(cost, f"${cost:g}")}))
        for cost in (80.0, 40.0)
    ),
    "identity: time of a bill": tuple(
        evidence(
            result(claims={"epoch_time_s": claim(7_200.0, "2h 00m")}),
            offer(4.0),
            bill(claims={"train_time_s": claim(hours * 3_600, f"{hours}h"), "epochs": claim(10.0, "10 epochs")}, result="900-001"),
        )
        for hours in (30, 20)
    ),
    "identity: cost of samples": tuple(
        evidence(
            result(claims={"tokens_per_s": 2_048}),
            offer(3.6),
            bill(claims={"cost_per_1m_samples_usd": claim(cost, f"${cost:g}")}, result="900-001"),
        )
        for cost in (300.0, 1_000.0)
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
    "dates: architecture in library": tuple(
        evidence(result(model=model, framework={"transformers": "4.49.0"})) for model in ("qwen3-8b", "gemma-2-9b")
    ),
    "not-said: checkpoint not said": tuple(
        evidence(result(model="phi-3-mini", labels={"model": "Phi3-mini"}, sequence_length=length)) for length in (8_192, 2_048)
    ),
    "not-said: memory of which device": (
        evidence(result(1), result(2, accelerator="nvidia-rtx-4090"), result(3, model="yi-34b", accelerator=None, status="oom")),
        evidence(result(1), result(2, accelerator="nvidia-rtx-4090"), result(3, model="yi-34b", accelerator=None, status="oom", **FULL)),
    ),
    "significance: best of many": tuple(
        evidence(
            *several("accuracy", 0.9465, other, **BERT),
            statement({"kind": "extreme", "quantity": "accuracy", "best": "900-001", "among": ["900-001", "900-002"], "where": "highest"}),
        )
        for other in (0.9440, 0.9290)
    ),
    "wrong-order: same run": tuple(
        evidence(
            result(1, claims={"epochs": 3.0, "train_time_s": 480.0}, **BERT),
            result(2, claims={"steps": 4_000.0, "total_steps": 12_000.0, "wall_s": wall}, **BERT),
        )
        for wall in (320.0, 170.0)
    ),
    "not-said: flop unit": tuple(
        evidence(result(claims={"total_flops": claim(value, "1470300 GF")})) for value in (1470300 * 2**30, 1470300e9)
    ),
    "owned-hardware: owned inputs": tuple(
        evidence(bill(claims={"train_time_s": claim(36_000.0, "10h"), "cost_local_usd": claim(8.0, "$8")}, owned_inputs=inputs))
        for inputs in ([], ["purchase price", "years"])
    ),
    "owned-hardware: break even": (
        evidence(
            bill(claims={"cost_usd": claim(28.0, "$28"), "cost_local_usd": claim(18.0, "$18")}),
            statement({"kind": "break_even", "runs_per_year": claim(100.0, ">100"), "bills": ["900-S02"]}, 3),
        ),
        evidence(
            bill(claims={"cost_usd": claim(28.0, "$28")}),
            statement({"kind": "break_even", "runs_per_year": claim(100.0, ">100"), "bills": ["900-S02"]}, 3),
        ),
    ),
    "wrong-order: scaling efficiency": tuple(
        evidence(*(result(n, accelerator_count=count, claims={"tokens_per_s": rate}) for n, count, rate in ((1, 1, 1_000), (2, 4, more))))
        for more in (5_400, 3_900)
    ),
    "wrong-order: memory with devices": tuple(
        evidence(
            *(result(n, accelerator_count=count, claims={"peak_memory_bytes": gb(size)}) for n, count, size in ((1, 1, 30), (2, 4, more)))
        )
        for more in (36, 28)
    ),
    "wrong-order: host memory with devices": tuple(
        evidence(
            *(
                result(n, accelerator_count=count, claims={"host_memory_peak_share": share, "host_memory_total_bytes": gb(100)})
                for n, count, share in ((1, 1, 0.05), (2, 4, more))
            )
        )
        for more in (0.9, 0.2)
    ),
    "memory-needs: host memory floor": tuple(
        evidence(result(claims={"host_memory_peak_share": share, "host_memory_total_bytes": gb(100)})) for share in (0.03, 0.2)
    ),
    "identity: relative column": tuple(
        evidence(
            result(1, claims={"tokens_per_s": 5_000, "relative_speed": claim(1.0, "1.00x")}),
            result(2, claims={"tokens_per_s": 4_000, "relative_speed": claim(share, f"{share:.2f}x")}),
        )
        for share in (0.9, 0.8)
    ),
    "identity: efficiency column": tuple(
        evidence(
            result(1, claims={"tokens_per_s": 1_000, "scaling_efficiency": claim(1.0, "1.00x")}),
            result(2, accelerator_count=2, claims={"tokens_per_s": 1_900, "scaling_efficiency": claim(share, f"{share:.2f}x")}),
        )
        for share in (0.9, 0.95)
    ),
    "identity: saving column": tuple(
        evidence(
            result(1, claims={"peak_memory_bytes": gb(28)}, **FULL),
            result(2, claims={"peak_memory_bytes": gb(8), "memory_reduction": claim(share, f"{share:.0%}")}, **QLORA),
        )
        for share in (0.6, 0.71)
    ),
    "identity: share of total": tuple(
        evidence(result(claims={"device_memory_peak_share": 0.5, "device_memory_total_bytes": gb(80), "peak_memory_bytes": gb(size)}))
        for size in (60, 40)
    ),
    "comparison: printed change": tuple(
        evidence(*several("train_time_s", 100.0, 450.0), pair("train_time_s", change=claim(ratio, f"{ratio:g}x"))) for ratio in (5.5, 4.5)
    ),
    "comparison: words against figures": tuple(
        evidence(*several("train_loss", 0.13, second), pair("train_loss", relation="about equal")) for second in (0.03, 0.12)
    ),
    "summary: headline range": tuple(
        evidence(
            *several("speedup", 3.7, 7.2),
            statement({"kind": "range", "quantity": "speedup", "records": ["900-001", "900-002"], "low": claim(low), "high": claim(7.3)}),
        )
        for low in (5.5, 3.7)
    ),
    "summary: superlative": tuple(
        evidence(
            *several("tokens_per_s", 4_000, 5_000),
            statement({"kind": "extreme", "quantity": "tokens_per_s", "best": best, "among": ["900-001", "900-002"], "where": "highest"}),
        )
        for best in ("900-001", "900-002")
    ),
    "comparability": tuple(
        evidence(
            result(1, claims={"train_time_s": 100.0}),
            result(2, accelerator=H100, sequence_length=length, claims={"train_time_s": 90.0}),
            pair("train_time_s"),
        )
        for length in (512, 2048)
    ),
    "cross-source": tuple(
        evidence(result(1, claims={"tokens_per_s": 4_000}), result(1, source="901", claims={"tokens_per_s": rate}))
        for rate in (1_000, 3_000)
    ),
    "wrong-order: qlora memory": tuple(
        evidence(
            result(1, claims={"peak_memory_bytes": gb(size)}, sequence_length=512, **QLORA),
            result(2, claims={"peak_memory_bytes": gb(36)}, sequence_length=512),
        )
        for size in (90, 30)
    ),
    "wrong-order: lora memory": tuple(
        evidence(result(1, claims={"peak_memory_bytes": gb(size)}), result(2, claims={"peak_memory_bytes": gb(60)}, **FULL))
        for size in (70, 36)
    ),
    "wrong-order: slower with less work": tuple(
        evidence(result(1, claims={"tokens_per_s": rate}), result(2, claims={"tokens_per_s": 3_000}, **FULL)) for rate in (2_000, 4_000)
    ),
    "same-work: memory across devices": tuple(
        evidence(result(1, claims={"peak_memory_bytes": gb(20)}), result(2, accelerator=H100, claims={"peak_memory_bytes": gb(size)}))
        for size in (32, 21)
    ),
    "copied-figures: copied rows": tuple(
        evidence(
            *(
                result(n, model=model, claims={"step_time_s": time, "peak_memory_bytes": gb(36)})
                for n, model, time in ((1, "llama-3-8b", 6.4), (2, "llama-3.1-8b", other))
            )
        )
        for other in (6.4, 6.5)
    ),
    "copied-figures: equal rates": tuple(
        evidence(result(1, claims={"tokens_per_s": 4_651}), result(2, claims={"tokens_per_s": rate}, **QLORA)) for rate in (4_651, 4_012)
    ),
    "copied-figures: equal quality": tuple(
        evidence(
            *(
                result(n, accelerator=key, claims={"accuracy": claim(share, f"{share:.2%}")}, **BERT)
                for n, key, share in ((1, A100, 0.9465), (2, H100, 0.9465), (3, T4, third))
            )
        )
        for third in (0.9465, 0.944)
    ),
    "instance-exists": tuple(evidence(result(labels={"instance": name})) for name in ("g5.13xlarge", "g5.12xlarge")),
    "instance-holds": tuple(evidence(result(labels={"instance": name})) for name in ("p4d.24xlarge", "p4de.24xlarge")),
    "context-length": tuple(evidence(result(sequence_length=length)) for length in (8_192, 4_096)),
    "device-data: precision on device": tuple(evidence(result(accelerator=key, claims={"tokens_per_s": 100.0})) for key in (T4, A100)),
    "device-data: device name": tuple(evidence(result(labels={"accelerator": name})) for name in ("Nvidia A100/P8", "Nvidia A100")),
    "dates: versions": tuple(evidence(result(framework={"bitsandbytes": "0.46.0"}), stated_on=day) for day in ("2024-10-30", "2025-10-30")),
    "dates: document date": tuple(
        evidence(statement(None, labels={"last_updated": day}), stated_on=day, committed_on="2025-10-30")
        for day in ("2024-10-30", "2025-10-30")
    ),
    "device-data: device memory": tuple(
        evidence(advice(accelerators=["nvidia-rtx-4070-ti"], printed_memory_gb=memory)) for memory in (16, 12)
    ),
    "device-data": tuple(
        evidence(statement({"kind": "device", "accelerator": A100, "tensor_core_generation": generation})) for generation in (2, 3)
    ),
    "advice: advice contradicts": tuple(
        evidence(advice(parameters_from_b=13, parameters_to_b=13), advice(2, parameters_from_b=size, says="not recommended"))
        for size in (13, 30)
    ),
    "advice: advice and tables": tuple(
        evidence(
            result(accelerator=None, accelerator_count=None, claims={"peak_memory_bytes": gb(size)}, **FULL),
            advice(parameters_to_b=7, methods=["full"]),
        )
        for size in (110, 60)
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
    "stated-twice: link": tuple(
        evidence(statement({"kind": "link", "target": "a page", "exists": there, "checked_in": "the repository"}))
        for there in (False, True)
    ),
    "not-said: method not said": tuple(evidence(result(assumed=assumed)) for assumed in (("method",), ())),
    "effect": tuple(
        evidence(
            result(1, claims={"peak_memory_bytes": gb(size)}, settings=ON),
            result(2, claims={"peak_memory_bytes": gb(40)}, settings=OFF),
            effect(low=0.3, high=0.4, records=["900-001", "900-002"]),
        )
        for size in (39, 26)
    ),
    "identity: trainer flops": tuple(
        evidence(
            result(
                claims={
                    "total_flops": claim(6 * 85_646_592 * 1_000 * tokens),
                    "samples_per_s": claim(10.0, "10.00"),
                    "train_time_s": 100.0,
                },
                **BERT,
            )
        )
        for tokens in (512, 128)
    ),
    "not-said: device not said": tuple(evidence(result(accelerator=H100, assumed=assumed)) for assumed in (("accelerator",), ())),
    "not-said: batch scope": tuple(evidence(result(accelerator_count=2, global_batch=rows)) for rows in (None, 8)),
    "effect: growth": tuple(evidence(result(), effect(grows=grows, over="sequence_length")) for grows in ("quadratic", "linear")),
    "far-from-siblings": tuple(
        evidence(*(result(n, claims={"tokens_per_s": one}, settings=ON) for n, one in enumerate((4_000, 3_900, 4_100, rate), start=1)))
        for rate in (900, 2_000)
    ),
    "unsupported: figure without row": tuple(
        evidence(
            *several("tokens_per_s", 3_000, 4_000, 5_000),
            statement(None, claims={"tokens_per_s": claim(rate)}, labels={"claim": f"up to {rate} tokens/s"}),
        )
        for rate in (6_500, 5_000)
    ),
    "offer-holds: bill for all devices": tuple(
        evidence(result(accelerator_count=8, instance="p4de.24xlarge", claims={"price_usd_per_hour": claim(price, f"${price}")}))
        for price in (5.12, 40.97)
    ),
    "effect: driver": tuple(
        evidence(
            result(1, claims={"tokens_per_s": rate}),
            result(2, accelerator=H100, claims={"tokens_per_s": 5_000}),
            statement(
                {"kind": "driver", "property": "memory_bandwidth_gb_s", "quantity": "tokens_per_s", "records": ["900-001", "900-002"]}
            ),
        )
        for rate in (6_000, 3_000)
    ),
}
"""Rule: (wrong evidence, right evidence)."""


def rule_of(example):
    return next(rule for rule in RULES if rule.id == example.partition(":")[0])


def test_every_rule_has_an_example():
    assert {example.partition(":")[0] for example in EXAMPLES} == {rule.id for rule in RULES}


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_rule_flags_wrong_evidence_and_names_what_its_verdict_applies_to(example):
    findings = list(rule_of(example).findings(EXAMPLES[example][0]))
    assert findings
    for finding in findings:
        assert set(finding.quantities) <= set(QUANTITIES)
        assert set(finding.conditions) <= set(Conditions.model_fields) | SETTINGS | DOCUMENT_CONDITIONS


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_rule_accepts_right_evidence(example):
    assert not list(rule_of(example).findings(EXAMPLES[example][1]))


def verdicts(rule, checked):
    declared = next(one for one in RULES if one.id == rule)
    return {one.verdict.value for one in declared.findings(checked)}


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


def test_rows_beyond_learned_positions_are_inconsistent_and_beyond_rotary_ones_suspicious():
    assert verdicts("context-length", evidence(result(model="gpt2", method="full", sequence_length=2048))) == {"inconsistent"}
    assert verdicts("context-length", evidence(result(sequence_length=8192))) == {"suspicious"}


def test_a_run_billed_for_another_machine_is_inconsistent_and_not_impossible():
    assert verdicts("offer-holds", evidence(offer(30.0, instance="p4d"))) == {"impossible"}
    assert "impossible" not in verdicts("offer-holds", evidence(result(), offer(30.0, instance="p4d", used_for=["900-001"])))


def test_a_price_that_equals_the_price_of_another_device_by_chance_is_accepted():
    same = offer(0.44, provider="runpod", accelerator="nvidia-rtx-4090", instance=None)
    assert not verdicts("price-scope", evidence(same))


def test_efficiency_above_a_limit_is_suspicious_and_above_two_inconsistent():
    def base(rate):
        return evidence(
            *(result(n, accelerator_count=count, claims={"tokens_per_s": one}) for n, count, one in ((1, 1, 1_000), (2, 2, rate)))
        )

    assert verdicts("wrong-order", base(1_960)) == set()
    assert verdicts("wrong-order", base(2_300)) == set()
    assert verdicts("wrong-order", base(2_700)) == {"suspicious"}
    assert verdicts("wrong-order", base(5_000)) == {"inconsistent"}


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


@given(st.floats(min_value=0.2, max_value=0.99))
def test_utilisation_below_the_peak_is_never_impossible(share):
    base = evidence(result(claims={"tokens_per_s": claim(share * 312e12 / 28.1e9, f"{share * 312e12 / 28.1e9:.6g}")}))
    assert "impossible" not in verdicts("utilisation", base)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_makes_no_finding_without_evidence(rule):
    assert not list(rule.findings(evidence()))
    assert not list(
        rule.findings(evidence(result(accelerator=None, accelerator_count=None, sequence_length=None, micro_batch=None, precision=None)))
    )


def test_an_unknown_size_of_a_known_instance_family_is_suspicious_and_an_unknown_family_is_accepted():
    def found(name):
        return [
            (one.rule, one.verdict.value) for one in audit(evidence(result(labels={"instance": name}))) if one.rule == "instance-exists"
        ]

    assert found("a2-highgpu-3g") == [("instance-exists", "suspicious")]
    assert found("Standard_ND97asr_v4") == [("instance-exists", "suspicious")]
    assert found("p4d.48xlarge") == [("instance-exists", "impossible")]
    # An unknown family may exist.
    assert found("q9x.36xlarge") == []
    assert found("a2-highgpu-4g") == []


def test_a_comparison_with_another_stack_needs_figures_of_that_stack():
    conclusion = {"kind": "conclusion", "about": "speed", "against": "torchtune", "records": ["900-001"], "basis": ["step_time_s"]}
    own, other = result(1, claims={"step_time_s": 2.0}), result(2, claims={"step_time_s": 2.5}, framework={"torchtune": "0.6.0"})
    assert [one.rule for one in audit(evidence(own, statement(conclusion))) if one.rule == "unsupported"] == ["unsupported"]
    assert not [one for one in audit(evidence(own, other, statement(conclusion))) if one.rule == "unsupported"]
