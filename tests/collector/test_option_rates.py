"""Rates of options: the best evidence counts, doubted results do not, and there is never a rate without any."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from test_throughput_model import CHIPS, FACTS, combination, made_up, row_of

from tunemark.collector.commands.database import run_query
from tunemark.collector.predict.estimate import estimates, memory_on
from tunemark.collector.predict.fit import fit
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.option_rates import Evidence, consistent, option_rates
from tunemark.schema.physics.stacks import on_stack
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.plan_search import Asked, best_plan, combination_on, division_of, plans_of, step_on, with_software
from tunemark.schema.recommendation import Rate
from tunemark.schema.throughput import Combination, generation_of, interval_of, predict
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

MODEL, LARGE = FACTS.models["llama-3.1-8b"], FACTS.models["llama-3.1-70b"]
H100, A100 = CHIPS[:2]
RESULT = f"llama-3.1-8b/{H100}/lora"
SHORT = combination("phi-3-mini", CHIPS[3])
ROWS = [
    *made_up(),
    *(
        row_of(replace(SHORT, shape=replace(SHORT.shape, method=method, sequence_length=2048, micro_batch=1)), f"short {method}")
        for method in (Method.FULL, Method.LORA)
    ),
]
FITTED = fit(ROWS)


def evidence(**changed: object) -> Evidence:
    """Return the evidence of the made-up rows, with changes of one result."""
    return Evidence(FITTED.effects, tuple(replace(row, **changed) if row.result_id == RESULT else row for row in FITTED.known))


def rates(known: Evidence, length: int, *places: tuple[str, int], model: str = MODEL.key) -> dict[tuple[str, str, str, int], Rate]:
    found = option_rates(FACTS.models[model], length, [(FACTS.accelerators[key], devices) for key, devices in places], known)
    return {(rate.method, rate.software, rate.accelerator, rate.devices): rate for rate in found}


def seconds(card: AcceleratorCard, devices: int, shape: TrainingShape) -> float:
    """Return the predicted device-seconds per token."""
    predicted = predict(FITTED.effects, Combination(card, devices, shape, "plain"))
    return math.exp(predicted.log_seconds)


def test_plain_software_on_a_device_that_compiles_graphs_is_that_of_its_results() -> None:
    card = FACTS.accelerators["google-tpu-v6e"]
    known = evidence(accelerator=card.key, vendor=card.vendor, generation=generation_of(card), level="tuned")
    found = option_rates(MODEL, 8192, [(card, 1)], known, ("plain", "tuned"), Asked(named=(card.key,)))
    plain, tuned = (each for each in found if each.method == "lora")
    assert tuned.tokens_per_s
    assert plain == replace(tuned, software="plain", usual_software="tuned")
    assert rates(known, 8192, (card.key, 1))["lora", "plain", card.key, 1].usual_software == "", "the device is not named"


def test_a_rate_is_the_prediction_for_the_plan_that_is_shown_and_cites_the_results_of_its_step() -> None:
    rate = rates(evidence(trust="measured"), 8192, (H100, 1))["lora", "plain", H100, 1]
    assert (rate.evidence, rate.trust, rate.result_ids, rate.results) == ("direct", "measured", (RESULT,), 1)
    card = FACTS.accelerators[H100]
    plan = best_plan(FITTED.effects, card, step_on(card, MODEL, Method.LORA, 8192, 1), "plain")[0].shape
    assert (rate.micro_batch, rate.checkpointing) == (plan.micro_batch, plan.checkpointing.value)
    lora = predict(FITTED.effects, Combination(card, 1, plan, "plain"))
    assert rate.merged is None
    assert rate.tokens_per_s == pytest.approx(interval_of(lora, 1).value)
    assert rate.tokens_per_s_low < rate.tokens_per_s < rate.tokens_per_s_high


def test_another_length_is_near_and_another_accelerator_is_predicted() -> None:
    near = rates(evidence(), 4096, (H100, 1))["lora", "plain", H100, 1]
    predicted = rates(evidence(), 8192, ("nvidia-l40s", 1))["lora", "plain", "nvidia-l40s", 1]
    assert (near.evidence, near.result_ids) == ("near", (RESULT,))
    assert (predicted.evidence, predicted.result_ids, predicted.trust) == ("predicted", (), None)
    assert predicted.tokens_per_s < near.tokens_per_s


def test_without_evidence_there_is_a_reason_and_no_rate() -> None:
    found = rates(
        evidence(), 8192, (H100, 1), ("nvidia-t4", 1), ("google-tpu-v5p", 1), (A100, 4), ("apple-m3-max", 2), ("aws-inferentia2", 1)
    )
    for rate in found.values():
        assert (rate.evidence == "none") == (rate.tokens_per_s is None) == (rate.reason is not None)
    assert found["lora", "plain", "google-tpu-v5p", 1].reason == "no accepted result on Google devices"
    assert found["lora", "plain", "google-tpu-v5p", 1].memory == "fits"
    assert found["lora", "plain", A100, 4].reason == "no accepted result of several devices of this vendor, except with its own software"
    assert found["lora", "plain", "aws-inferentia2", 1].reason.startswith("AWS supports training on other accelerators")
    assert found["qlora", "plain", H100, 1].reason == "no accepted result of QLoRA"
    assert found["full", "plain", "nvidia-t4", 1].reason.startswith("does not fit: ")
    assert found["full", "plain", "nvidia-t4", 1].memory == "no"
    assert found["lora", "plain", "apple-m3-max", 2].reason == "one Apple device trains alone"
    assert found["lora", "vendor", H100, 1].reason.startswith("no accepted result with vendor software on these devices")
    assert "is an encoder" in rates(evidence(), 512, (H100, 1), model="bert-base-uncased")["full", "plain", H100, 1].reason
    assert rates(evidence(), 32_768, (H100, 1))["lora", "plain", H100, 1].reason.startswith("sequence length 32,768")


def test_a_result_that_the_audit_doubts_is_no_evidence_of_its_own() -> None:
    doubted = evidence(suspicious=True)
    same, trusted = (rates(doubted, 8192, place)["lora", "plain", place[0], 1] for place in ((H100, 1), (A100, 1)))
    assert (same.evidence, trusted.evidence) == ("predicted", "direct")


def test_a_prediction_for_lora_is_never_below_that_for_full_fine_tuning() -> None:
    def rate(method: str, speed: float) -> Rate:
        return Rate(method, 512, "plain", "a", 1, "predicted", speed, speed / 2, speed * 2)

    full, lora = consistent([rate("full", 400.0), rate("lora", 100.0)])
    assert full.tokens_per_s == lora.tokens_per_s == 100.0
    assert [(each.tokens_per_s_low, each.tokens_per_s_high) for each in (full, lora)] == [(50.0, 800.0), (50.0, 200.0)]
    for kept in ([rate("full", 100.0), rate("lora", 400.0)], [rate("qlora", 400.0), rate("lora", 100.0)]):
        assert consistent(kept) == kept


@pytest.mark.parametrize(("accelerator", "model", "method", "devices"), [
    (H100, MODEL, Method.LORA, 1), ("nvidia-rtx-4090", MODEL, Method.LORA, 1), ("nvidia-rtx-4090", MODEL, Method.QLORA, 2),
    ("nvidia-a100-40gb-pcie", LARGE, Method.LORA, 8), ("nvidia-rtx-a6000", MODEL, Method.FULL, 4),
])  # fmt: skip
def test_no_other_plan_that_fits_is_predicted_to_be_more_than_a_percent_faster(
    accelerator: str, model: ModelCard, method: Method, devices: int
) -> None:
    card = FACTS.accelerators[accelerator]
    step = step_on(card, model, method, 512, devices)
    best, verdict = best_plan(FITTED.effects, card, step, "plain")
    assert verdict in {"fits", "probably"}
    for sharding, kept, rows in product(("single",) if devices == 1 else ("ddp", "fsdp1"), Checkpointing, (1, 2, 4, 8, 16, 32)):
        other = replace(step, micro_batch=rows, checkpointing=kept, sharding=sharding)
        if kept is not Checkpointing.SELECTIVE and not (sharding == "ddp" and method is Method.FULL):
            slower = seconds(card, devices, other) > 0.99 * seconds(card, devices, best.shape)
            assert slower or memory_on(other, "hf").ledger.fit_on(card.usable_bytes) in {"unsure", "no"}


def test_without_a_plan_that_fits_the_one_that_is_tight_is_shown_or_what_the_smallest_lacks() -> None:
    large, small = FACTS.accelerators[H100], FACTS.accelerators["nvidia-rtx-4090"]
    plan, verdict = best_plan(FITTED.effects, large, step_on(large, LARGE, Method.FULL, 4096, 16), "plain")
    assert (plan.shape.sharding, verdict) == ("fsdp1", "unsure")
    assert best_plan(FITTED.effects, small, step_on(small, LARGE, Method.FULL, 2048, 8), "plain")[1] == "no"


def test_full_fine_tuning_under_fsdp_needs_the_memory_of_fp32_states_as_published() -> None:
    """With bf16 mixed precision, peaks of 80.3 GB on two devices and 40.2 GB on four were published for an 8B model with rows of 4,096 tokens."""
    card = FACTS.accelerators["nvidia-rtx-a6000"]
    # torch's own AdamW, whose update needs a copy more than the Trainer's.
    asked = Asked({"optimizer": "adamw"})
    plans = [best_plan(FITTED.effects, card, step_on(card, MODEL, Method.FULL, 4096, devices, asked), "tuned", asked) for devices in (2, 4)]
    # With weights in bf16 alone, two devices of 48 GB have room. On four, the allocator has to give up a part of its cache.
    assert ([verdict for _, verdict in plans], "hf-pure-bf16" in plans[0][0].other_stacks(card)) == (["no", "probably"], True)
    assert best_plan(FITTED.effects, card, step_on(card, MODEL, Method.FULL, 4096, 2), "tuned", Asked(stack="hf"))[1] == "no"
    assert [plan.needed_bytes / 1e9 for plan, _ in plans] == [pytest.approx(80.3, rel=0.05), pytest.approx(40.2, rel=0.05)]


def test_a_plan_keeps_what_is_asked_for_and_a_vendors_software_may_share_matrices() -> None:
    card = FACTS.accelerators[H100]
    step = replace(step_on(card, MODEL, Method.LORA, 2048, 1), micro_batch=3, checkpointing=Checkpointing.FULL)
    plan, _ = best_plan(FITTED.effects, card, step, "plain", Asked({"micro_batch": 3, "checkpointing": Checkpointing.FULL}))
    assert (plan.shape.micro_batch, plan.shape.checkpointing) == (3, Checkpointing.FULL)
    several = step_on(card, LARGE, Method.LORA, 8192, 8)
    shared, apart = (best_plan(FITTED.effects, card, several, level)[0].shape for level in ("vendor", "plain"))
    assert (shared.tensor_parallel, shared.world_size, shared.block_format, division_of(shared)) == (4, 2, Dtype.FP8, "tp4")
    assert (apart.tensor_parallel, apart.block_format, division_of(apart)) == (1, None, "fsdp1")


@pytest.mark.parametrize(
    ("change", "devices", "divisions"),
    [
        ({"tensor_parallel": 2}, 4, {"tp2"}),
        ({"offload": True}, 4, {"fsdp1"}),
        ({"optimizer_in_backward": True, "method": Method.FULL}, 4, {"fsdp1"}),
        ({"activation_offload": True, "checkpointing": Checkpointing.FULL}, 1, {"single"}),
        ({"model": FACTS.models["qwen2.5-7b"]}, 8, {"ddp", "fsdp1", "tp2", "tp4"}),
    ],
)
def test_plans_keep_the_devices_and_what_belongs_to_a_sharding(change: dict[str, Any], devices: int, divisions: set[str]) -> None:
    step = replace(step_on(FACTS.accelerators[H100], MODEL, Method.LORA, 2048, devices), **change)
    plans = list(plans_of(combination_on(FACTS.accelerators[H100], step, "vendor"), tuple(change)))
    assert {division_of(plan) for plan in plans} == divisions
    assert {plan.world_size * plan.tensor_parallel for plan in plans} == {devices * step.tensor_parallel}


@pytest.mark.parametrize(
    ("method", "divisions"), [(Method.FULL, {"ddp", "zero1", "tp2", "tp4", "tp8"}), (Method.LORA, {"ddp", "tp2", "tp4", "tp8"})]
)
def test_trainium_1_shards_states_and_matrices_but_no_weights(method: Method, divisions: set[str]) -> None:
    card = FACTS.accelerators["aws-trainium1"]
    step = step_on(card, FACTS.models["llama-3.1-8b"], method, 2048, 16)
    assert {division_of(plan) for plan in plans_of(combination_on(card, step, "plain"), ())} == divisions


@pytest.mark.parametrize(("model", "length"), [("qwen3-30b-a3b", 8192), ("llama-3.1-8b", 200_000)])
def test_an_estimate_has_the_figure_or_the_reason_that_a_recommendation_has(whole_database: Path, model: str, length: int) -> None:
    """Of every accelerator that is offered, with each method and level of software."""
    known, card = Evidence.of_database(lambda query: run_query(query, whole_database).records()), FACTS.models[model]
    offered = [card for card in FACTS.accelerators.values() if card.unit != "cpu"]
    recommended = {count: option_rates(card, length, [(each, count) for each in offered], known) for count in (1, 8)}
    for (level, devices), method in product((("plain", 1), ("tuned", 8), ("vendor", 8)), (Method.FULL, Method.LORA, Method.QLORA)):
        rates_of = {rate.accelerator: rate for rate in recommended[devices] if (rate.method, rate.software) == (method.value, level)}
        asked = {"model": card, "method": method, "length": length, "asked": Asked(), "level": level}
        found = {each.accelerator: each for each in estimates(FACTS, known, [(card, devices) for card in offered], **asked)}
        assert set(found) == set(rates_of) == {each.key for each in offered}
        for key, rate in rates_of.items():
            each = found[key]
            assert each.rate == rate
            assert (each.tokens_per_s is None) == (rate.reason is not None) == (rate.evidence == "none")
            shown, shape = (rate.micro_batch, rate.checkpointing, rate.sharding, rate.needed_bytes, rate.memory), each.memory.shape
            plan = (shape.micro_batch, shape.checkpointing.value, division_of(shape), each.memory.ledger.needed, each.fit)
            assert rate.memory is None or plan == shown, "the memory is that of the plan whose speed is shown"


def test_a_chip_with_several_devices_of_torch_has_a_worker_on_each_with_its_part_of_the_memory() -> None:
    chip = FACTS.accelerators["aws-trainium1"]
    step = step_on(chip, MODEL, Method.LORA, 2048, 2)
    assert (step.world_size, step.sharding, chip.usable_bytes) == (4, "fsdp1", 16 * 2**30)
    assert combination_on(chip, step, "plain").devices == 2


def test_short_rows_are_computed_many_at_a_time_and_a_smaller_micro_batch_is_tried_before_one_row() -> None:
    known = evidence(sequence_length=512)
    rate = rates(known, 100, (H100, 1))["lora", "plain", H100, 1]
    assert (rate.reason, rate.micro_batch) == (None, 40)
    assert 1 < rates(known, 128, ("nvidia-rtx-4090", 1))["lora", "plain", "nvidia-rtx-4090", 1].micro_batch < 32


def test_no_software_has_a_kernel_for_relative_positions() -> None:
    card = FACTS.accelerators[H100]
    step = step_on(card, FACTS.models["deberta-v3-base"], Method.FULL, 512, 1)
    shapes = [with_software(step, card, "tuned", Asked(stack=stack)) for stack in (None, "tunemark", "unsloth")]
    assert {shape.attention for shape in (*shapes, on_stack(step, "tunemark"))} == {"eager"}
