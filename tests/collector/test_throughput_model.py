"""The model of throughput: it recovers the factors of made-up rows, held-out rows change nothing, and every figure has an interval."""

import math
from dataclasses import replace

import numpy as np
import pytest
from factories import summarise
from hypothesis import given, settings
from hypothesis import strategies as st

from tunemark.collector.predict.cross_validation import leave_out
from tunemark.collector.predict.estimate import LABEL, LEVEL, Like, Range, Throughput, no_data, predict, software_like
from tunemark.collector.predict.fit import (
    NOISE,
    TERMS,
    Combination,
    Missing,
    Observed,
    Parameters,
    fit,
    generation_of,
    observe,
    without_copies,
    work_seconds,
)
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

FACTS = FactBase.of_project()
CHIPS = ("nvidia-h100-80gb-sxm", "nvidia-a100-80gb-sxm", "nvidia-h200-141gb-sxm", "nvidia-b200", "amd-mi300x")
MODELS = ("llama-3.1-8b", "llama-2-13b", "phi-3-mini", "gemma-7b", "llama-3.1-70b")
TRUE = {
    "factor: matmul": math.log(1.7),
    "factor: attention": math.log(3.4),
    "factor: elementwise": math.log(1.2),
    "factor: adapters": math.log(2.5),
}


def shape_of(model: str = "llama-3.1-8b", method: Method = Method.LORA, **changed: object) -> TrainingShape:
    usual = {"sequence_length": 8192, "micro_batch": 2, "checkpointing": Checkpointing.FULL, "lora_dropout": 0.05}
    return TrainingShape(FACTS.models[model], method, **{**usual, **changed})  # type: ignore[arg-type]


def combination(model: str = "llama-3.1-8b", chip: str = CHIPS[0], method: Method = Method.LORA, **changed: object) -> Combination:
    given_of = {"devices": 1, "level": "plain", "stack": "a", "release": ""}
    return Combination(FACTS.accelerators[chip], shape=shape_of(model, method), **{**given_of, **changed})  # type: ignore[arg-type]


def row_of(of: Combination, name: str, slower: float = 1.0) -> Observed:
    """Return a row whose time is that of the true factors, times `slower`."""
    terms = work_seconds(of.shape, of.accelerator)
    assert not isinstance(terms, Missing)
    seconds = slower * sum(math.exp(TRUE.get(f"factor: {term}", 0.0)) * terms[term] for term in TERMS)
    made = observe(name, of, of.devices / seconds)
    assert isinstance(made, Observed)
    return made


def made_up(noise: float = 0.0) -> list[Observed]:
    random = np.random.default_rng(7)
    return [
        row_of(combination(model, chip, method), f"{model}/{chip}/{method.value}", math.exp(random.normal(0, noise)))
        for model in MODELS
        for chip in CHIPS
        for method in (Method.FULL, Method.LORA)
    ]


def test_rows_made_from_known_factors_are_predicted_again_when_their_accelerator_was_never_seen() -> None:
    rows = made_up()
    held = [one for way in ("accelerator", "model") for one in leave_out(fit(rows), way)]  # type: ignore[arg-type]
    errors = summarise(held)
    assert errors is not None
    assert errors.median < 0.03
    assert errors.worst < 0.2
    assert errors.coverage >= 0.95


def test_the_share_of_each_kind_of_work_is_recovered() -> None:
    rows = made_up()
    fitted = fit(rows)
    for row in rows:
        estimate = fitted.predict(row.config)
        assert not isinstance(estimate, Missing)
        assert estimate.log_seconds == pytest.approx(row.log_seconds, abs=0.02)
    where = dict(zip(fitted.names, fitted.posterior.mean, strict=True))
    # Factors and those of the one software cannot be told apart; their sum can, and the common pace is in `stack`.
    found = {
        term: where[f"factor: {term}"] + where[f"factor of level: {term}, plain"] + where[f"factor of stack: {term}, a (plain)"]
        for term in ("matmul", "attention")
    }
    assert found["attention"] - found["matmul"] == pytest.approx(TRUE["factor: attention"] - TRUE["factor: matmul"], abs=0.4)


def test_a_slow_accelerator_is_predicted_from_its_rows_not_its_card() -> None:
    slow = [row_of(row.config, row.id, 1.5) if row.config.accelerator.key == CHIPS[0] else row for row in made_up()]
    unlike = predict(fit(slow), combination("gemma-7b", CHIPS[0]))
    like = predict(fit(made_up()), combination("gemma-7b", CHIPS[0]))
    assert isinstance(unlike, Throughput)
    assert isinstance(like, Throughput)
    assert 0.6 < unlike.tokens_per_s.value / like.tokens_per_s.value < 0.8


@pytest.mark.parametrize("way", ["accelerator", "model"])
def test_what_is_held_out_changes_nothing_in_its_own_prediction(way: str) -> None:
    rows = made_up(NOISE)
    first = {one.row.id: one for one in leave_out(fit(rows), way)}  # type: ignore[arg-type]
    group = first[rows[0].id].group
    mutated = [row_of(row.config, row.id, 10.0) if first[row.id].group == group else row for row in rows]
    again = {one.row.id: one for one in leave_out(fit(mutated), way)}  # type: ignore[arg-type]
    for row in rows:
        if first[row.id].group == group:
            assert again[row.id].tokens_per_s == first[row.id].tokens_per_s, "the fit starts from the prior, not from all rows"
            assert again[row.id].error != first[row.id].error


def test_models_of_one_architecture_are_held_out_together() -> None:
    rows = [*made_up(), row_of(combination("llama-3-8b"), "a copy of the architecture")]
    groups = {one.row.config.shape.model.key: one.group for one in leave_out(fit(rows), "model")}
    assert groups["llama-3-8b"] == groups["llama-3.1-8b"]


def test_rows_with_equal_digits_at_the_same_combination_are_one_measurement() -> None:
    rows = [
        row_of(combination("llama-3.1-8b"), "one"),
        row_of(combination("llama-3-8b"), "two"),
        row_of(combination("phi-3-mini"), "three"),
    ]
    equal = [rows[0], replace(rows[1], device_seconds_per_token=rows[0].device_seconds_per_token), rows[2]]
    kept = without_copies(equal)
    assert [row.id for row in kept] == ["one", "three"]
    assert kept[0].same == ("two",)


def test_farther_away_is_less_certain() -> None:
    fitted = fit(made_up(NOISE))

    def width(of: Combination) -> float:
        found = predict(fitted, of)
        assert isinstance(found, Throughput)
        return found.tokens_per_s.high / found.tokens_per_s.low

    seen = width(combination())
    new_model = width(combination("qwen3-8b"))
    new_chip = width(combination(chip="nvidia-h100-80gb-pcie"))
    new_generation = width(combination(chip="nvidia-l40s"))
    assert seen < new_model
    assert seen < new_chip < new_generation


def test_a_prediction_has_a_label_an_interval_and_neighbours_of_its_software_first() -> None:
    found = predict(fit(made_up()), combination())
    assert isinstance(found, Throughput)
    assert found.label == LABEL == "predicted"
    assert found.tokens_per_s.low < found.tokens_per_s.value < found.tokens_per_s.high
    assert found.neighbours[0].config.accelerator.key == CHIPS[0]
    assert LEVEL == 0.9


@pytest.mark.parametrize("ends", [(1.0, 1.0, 2.0), (1.0, 0.5, 1.0), (1.0, -1.0, 2.0), (1.0, 0.5, math.inf), (1.0, math.nan, 2.0)])
def test_a_figure_needs_both_ends_of_its_interval(ends: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="not an interval"):
        Range(*ends)


def test_a_generation_names_its_vendor_once() -> None:
    assert [generation_of(FACTS.accelerators[key]) for key in ("apple-m3-max", "nvidia-t4")] == ["Apple G15", "NVIDIA Turing"]


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (combination(method=Method.QLORA), "no accepted result of QLoRA"),
        (combination(chip="google-tpu-v5p"), "no accepted result on Google devices"),
        (replace(combination(), shape=TrainingShape(FACTS.models["bert-base-uncased"], Method.FULL, 512, 32)), "is an encoder"),
        (replace(combination(), shape=replace(shape_of(), sequence_length=128)), "rows of 128 tokens"),
        (replace(combination(), shape=replace(shape_of(), sequence_length=5000, micro_batch=1)), "micro-batches of 5,000 tokens"),
    ],
)
def test_without_similar_results_there_is_a_reason_and_no_prediction(of: Combination, reason: str) -> None:
    found = predict(fit(made_up()), of)
    assert isinstance(found, Missing)
    assert reason in found.reason


def test_a_card_without_a_peak_does_not_get_the_peak_of_another() -> None:
    card: AcceleratorCard = FACTS.accelerators["nvidia-h100-80gb-sxm"].model_copy(update={"peak_tflops": {Dtype.FP32: 67.0}})
    found = work_seconds(shape_of(), card)
    assert isinstance(found, Missing)
    assert "no dense peak for bf16" in found.reason


def test_without_rows_there_is_no_prediction() -> None:
    assert isinstance(predict(fit([]), combination()), Missing)
    assert no_data(made_up(), combination()) is None


def test_software_is_named_by_its_level_or_by_its_source() -> None:
    fitted = fit(made_up())
    assert software_like(fitted, "tuned") == Like("tuned")
    assert software_like(fitted, "a") == Like("plain", "a")
    with pytest.raises(TunemarkError, match="did you mean 'vendor'"):
        software_like(fitted, "vendr")


def test_an_unseen_loop_is_less_certain_than_a_seen_one_and_an_unseen_level_still_less() -> None:
    fitted = fit(made_up(NOISE))

    def width(of: Combination) -> float:
        found = predict(fitted, of)
        assert isinstance(found, Throughput)
        return found.tokens_per_s.high / found.tokens_per_s.low

    assert width(combination()) < width(combination(stack="")) < width(combination(stack="", level="tuned"))


def test_faster_rows_of_tuned_software_raise_the_prediction_of_tuned_software_only() -> None:
    tuned = [row_of(replace(row.config, level="tuned", stack="b"), f"{row.id}, tuned", 0.5) for row in made_up()]
    fitted = fit([*made_up(), *tuned])
    plain, fast = (predict(fitted, combination("qwen3-8b", level=level, stack="")) for level in ("plain", "tuned"))
    assert isinstance(plain, Throughput)
    assert isinstance(fast, Throughput)
    assert fast.tokens_per_s.value > 1.3 * plain.tokens_per_s.value


def test_one_row_far_from_all_others_hardly_moves_them() -> None:
    wrong = [row_of(row.config, row.id, 20.0) if number == 0 else row for number, row in enumerate(made_up(NOISE))]
    right, moved = (predict(fit(rows), combination("gemma-7b", CHIPS[1])) for rows in (made_up(NOISE), wrong))
    assert isinstance(right, Throughput)
    assert isinstance(moved, Throughput)
    assert moved.tokens_per_s.value == pytest.approx(right.tokens_per_s.value, rel=0.05)


def test_a_source_with_many_rows_counts_as_a_limited_number() -> None:
    rows = made_up(NOISE)
    many = [row_of(replace(row.config, stack="b"), f"{row.id} {copy}", 3.0 + copy / 100) for row in rows[:4] for copy in range(50)]
    found = predict(fit([*rows, *many]), combination(stack=""))
    assert isinstance(found, Throughput)
    alone = predict(fit(rows), combination(stack=""))
    assert isinstance(alone, Throughput)
    assert found.tokens_per_s.value > 0.4 * alone.tokens_per_s.value


@pytest.mark.parametrize("way", ["source", "level"])
def test_whole_sources_and_levels_are_left_out(way: str) -> None:
    tuned = [row_of(replace(row.config, level="tuned", stack="b part"), f"{row.id}, tuned", 0.5) for row in made_up()]
    held = list(leave_out(fit([*made_up(), *tuned]), way))  # type: ignore[arg-type]
    assert {one.group for one in held} == ({"a", "b"} if way == "source" else {"plain", "tuned"})
    assert all(one.error is not None for one in held)


def test_devices_without_bf16_compute_in_fp16() -> None:
    seconds = work_seconds(shape_of(), FACTS.accelerators["nvidia-t4"])
    assert not isinstance(seconds, Missing)


def test_four_bit_weights_are_expanded_once_per_micro_step_however_many_rows_it_has() -> None:
    """Of 6.98e9 weights in the blocks of Llama 3.1 8B, half a byte is read and two are written: forward, recomputed and backward."""
    card = FACTS.accelerators[CHIPS[0]]
    one, eight, lora = (
        work_seconds(shape_of(method=method, sequence_length=2048, micro_batch=rows), card)
        for method, rows in ((Method.QLORA, 1), (Method.QLORA, 8), (Method.LORA, 1))
    )
    assert not isinstance(one, Missing)
    assert not isinstance(eight, Missing)
    assert not isinstance(lora, Missing)
    assert one["dequantisation"] * 2048 == pytest.approx(6.98e9 * 2.5 * 3 / 3.35e12, rel=0.01)
    assert one["dequantisation"] == pytest.approx(8 * eight["dequantisation"])
    assert lora["dequantisation"] == 0.0
    assert one["matmul"] == pytest.approx(lora["matmul"])


def test_qlora_is_predicted_only_for_vendors_with_a_qlora_result() -> None:
    rows = [*made_up(), row_of(combination(method=Method.QLORA), "four bits")]
    reasons = [no_data(rows, combination(chip=chip, method=Method.QLORA)) for chip in (CHIPS[1], "amd-mi300x")]
    assert reasons[0] is None
    assert reasons[1] is not None
    assert "no accepted QLoRA result on AMD devices" in reasons[1].reason
    assert no_data(rows, combination(chip="amd-mi300x")) is None


def test_sharded_four_bit_weights_are_exchanged_packed() -> None:
    sharded = {"sharding": "fsdp2", "world_size": 2}
    lora, qlora = (work_seconds(shape_of(method=method, **sharded), FACTS.accelerators[CHIPS[0]]) for method in (Method.LORA, Method.QLORA))
    assert not isinstance(lora, Missing)
    assert not isinstance(qlora, Missing)
    assert lora["exchange"] == pytest.approx(4 * qlora["exchange"])


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(TunemarkError, match="devices"):
        combination(devices=0)


@settings(max_examples=60, deadline=None)
@given(
    chip=st.sampled_from(sorted(FACTS.accelerators)),
    model=st.sampled_from(sorted(FACTS.models)),
    method=st.sampled_from((Method.FULL, Method.LORA, Method.QLORA)),
    length=st.integers(1, 70_000),
    micro_batch=st.integers(1, 64),
    devices=st.integers(1, 4096),
)
def test_every_request_gets_an_interval_or_a_reason(
    chip: str, model: str, method: Method, length: int, micro_batch: int, devices: int
) -> None:
    shape = TrainingShape(FACTS.models[model], method, length, micro_batch)
    found = predict(FITTED, Combination(FACTS.accelerators[chip], devices, shape, "plain", "a"))
    if isinstance(found, Missing):
        assert found.reason
    else:
        assert 0 < found.tokens_per_s.low < found.tokens_per_s.value < found.tokens_per_s.high < math.inf


@settings(max_examples=25, deadline=None)
@given(slower=st.floats(1e-3, 1e3))
def test_a_single_row_never_breaks_the_fit(slower: float) -> None:
    row = row_of(combination(), "alone", slower)
    fitted = fit([row])
    assert np.isfinite(fitted.posterior.mean).all()
    assert set(Parameters.of(row.config, row.terms).names) == set(fitted.names)


FITTED = fit(made_up(NOISE))
