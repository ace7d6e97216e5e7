"""The model of throughput: it recovers the factors of made-up rows, held-out rows change nothing, and every figure has an interval."""

import math
from dataclasses import replace

import numpy as np
import pytest
from factories import FACTS, calibration_of_checkout, rate_of, summarise
from hypothesis import given, settings
from hypothesis import strategies as st

from tunemark.collector.predict.cross_validation import leave_out
from tunemark.collector.predict.fit import Observed, fit, observe
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.physics.work import TERMS, Missing, work_of_tokens, work_of_weights, work_seconds
from tunemark.schema.throughput import ATTAINABLE, NOISE, Combination, LogPrediction, host_seconds, interval_of
from tunemark.schema.throughput import predict as predicted
from tunemark.schema.vocabulary import Checkpointing, Method

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
    seconds = slower * sum(math.exp(TRUE.get(f"factor: {term}", 0.0)) * terms[term] for term in TERMS)
    return observe(name, of, of.devices / seconds)


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
    assert errors.median < 0.03
    assert errors.worst < 0.2
    assert errors.coverage >= 0.95


def test_a_slow_accelerator_is_predicted_from_its_rows_not_its_card() -> None:
    slow = [row_of(row.config, row.id, 1.5) if row.config.accelerator.key == CHIPS[0] else row for row in made_up()]
    unlike = rate_of(fit(slow), combination("gemma-7b", CHIPS[0]))
    like = rate_of(fit(made_up()), combination("gemma-7b", CHIPS[0]))
    assert 0.6 < unlike.value / like.value < 0.8


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


def test_the_fit_of_all_results_comes_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole steps would turn in a circle above the best fit."""
    rows = calibration_of_checkout().rows
    found = fit(rows).posterior
    monkeypatch.setattr("tunemark.collector.predict.fit.CLOSE", 1e-4)
    moved = (fit(rows).posterior.mean - found.mean) / np.sqrt(np.diag(found.covariance))
    assert np.abs(moved).max() < 0.1


@pytest.mark.parametrize("seconds", [1e-2, 1e-3, 0.5e-3])
def test_no_interval_passes_the_peak_of_the_matrix_products(seconds: float) -> None:
    uncertain = LogPrediction(math.log(seconds), 1.0, least=0.8e-3)
    free, below = interval_of(replace(uncertain, least=0.0), 2), interval_of(uncertain, 2)
    assert (free.value, free.high) == pytest.approx((2 / seconds, free.value**2 / free.low))
    assert below.low < below.value < below.high < 2 / 0.8e-3
    assert (below.low <= free.low, below.value <= free.value, below.high <= free.high) == (True, True, True)


def test_a_small_step_takes_as_long_as_its_host_needs_and_says_nothing_about_the_device() -> None:
    rows = made_up(NOISE)
    small = replace(combination(), shape=shape_of("smollm2-360m", sequence_length=128, micro_batch=1))
    row = replace(row_of(small, "small"), device_seconds_per_token=1.2 * host_seconds(small))
    fitted, others = fit([*rows, row]), fit(rows)
    large, small_step = (predicted(fitted.effects, of) for of in (combination(), small))
    without = predicted(others.effects, combination())
    assert (large.log_seconds, large.sd) == pytest.approx((without.log_seconds, without.sd), rel=1e-3)
    assert math.exp(small_step.log_seconds) == pytest.approx(host_seconds(small))
    (held,) = fitted.predict_rows(fitted.posterior, [len(rows)])
    assert (held.log_seconds, held.sd) == pytest.approx((small_step.log_seconds, small_step.sd))
    # Graphs are compiled, or replayed by vendors' loops.
    assert (
        host_seconds(replace(small, level="vendor")) == host_seconds(replace(small, accelerator=FACTS.accelerators["google-tpu-v6e"])) == 0
    )


def test_farther_away_is_less_certain() -> None:
    fitted = fit(made_up(NOISE))

    def width(model: str = "llama-3.1-8b", chip: str = CHIPS[0]) -> float:
        found = rate_of(fitted, combination(model, chip))
        return found.high / found.low

    assert width() < width("qwen3-8b")
    assert width() < width(chip="nvidia-h100-80gb-pcie") < width(chip="nvidia-l40s")


def test_four_bit_weights_are_expanded_once_per_micro_step_however_many_rows_it_has() -> None:
    """Of 6.98e9 weights in the blocks of Llama 3.1 8B, half a byte is read and two are written: forward, recomputed and backward."""
    card = FACTS.accelerators[CHIPS[0]]
    one, eight, lora = (
        work_seconds(shape_of(method=method, sequence_length=2048, micro_batch=rows), card)
        for method, rows in ((Method.QLORA, 1), (Method.QLORA, 8), (Method.LORA, 1))
    )
    assert one["dequantisation"] * 2048 == pytest.approx(6.98e9 * 2.5 * 3 / 3.35e12, rel=0.01)
    assert one["dequantisation"] == pytest.approx(8 * eight["dequantisation"])
    assert lora["dequantisation"] == 0.0
    assert one["matmul"] == pytest.approx(lora["matmul"])


def test_a_bridge_between_pairs_of_cards_joins_no_more_of_them() -> None:
    cards = FACTS.accelerator("RTX 3090"), FACTS.accelerator("RTX 4090")
    pair, four = ([work_seconds(shape_of(world_size=count, sharding="fsdp1"), card)["exchange"] for card in cards] for count in (2, 4))
    assert pair[0] < pair[1]
    assert four[0] == four[1]


def test_offload_crosses_the_link_of_the_host_also_on_one_device() -> None:
    terms = (work_seconds(shape_of(sharding="zero3", offload=offload), FACTS.accelerator("RTX 4090")) for offload in (False, True))
    alone, offloaded = (each["exchange"] for each in terms)
    assert alone == 0 < offloaded


def test_each_expert_that_computes_a_token_copies_it_and_only_transformers_runs_those_of_llama_4_that_it_did_not_choose() -> None:
    llama_4 = shape_of("llama-4-scout", Method.FULL)
    every, chosen = (work_of_tokens(replace(llama_4, grouped_experts=grouped)) for grouped in (False, True))
    assert every["matmul"] > 4 * chosen["matmul"]
    one, two = (
        work_of_tokens(replace(shape_of("mixtral-8x7b", Method.FULL, grouped_experts=True), model=model))["elementwise"]
        for mixtral in [FACTS.models["mixtral-8x7b"]]
        for model in (mixtral.model_copy(update={"active_experts": 1}), mixtral)
    )
    # Per block and pass: two reads and two writes of the residual stream, and four of the feed-forward layer, in 2 bytes.
    assert two - one == 4 * 32 * (4 * 4096 + 4 * 14336) * 2


def test_weights_are_read_by_each_product_and_updated_by_the_optimizer_of_full_fine_tuning_on_its_own_shard() -> None:
    shape = combination("llama-2-7b", CHIPS[0]).shape
    full = replace(shape, method=Method.FULL, checkpointing=Checkpointing.NONE)
    steps = (replace(full, method=Method.LORA), full, replace(full, gradient_accumulation=7), replace(full, sharding="fsdp2", world_size=7))
    lora, alone, accumulated, sharded = (round(work_of_weights(each)["weights"] * each.tokens) for each in steps)
    assert lora == 2 * 2 * 6_476_005_376
    assert alone - lora == (2 + 7) * 2 * 6_476_005_376
    assert accumulated == sharded == lora + (2 + 1) * 2 * 6_476_005_376


def test_sharding_exchanges_experts_that_qlora_does_not_quantise_in_16_bits() -> None:
    lora, qlora = (shape_of("mixtral-8x7b", method, sharding="fsdp2", world_size=4) for method in (Method.LORA, Method.QLORA))
    whole, packed, kept = (work_of_weights(each)["exchange"] for each in (lora, qlora, replace(qlora, fused_experts=True)))
    assert packed < 0.3 * whole < 0.95 * whole < kept < whole


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
    found = rate_of(FITTED, Combination(FACTS.accelerators[chip], devices, shape, "plain", "a"))
    if isinstance(found, Missing):
        assert found.reason
    else:
        assert 0 < found.low < found.value < found.high < math.inf


FITTED = fit(made_up(NOISE))


def test_no_interval_passes_the_rate_above_which_the_audit_takes_none_as_evidence() -> None:
    assert FACTS.known.practice("attainable-utilisation") == ATTAINABLE
