"""FLOPs, utilisation, energy and memory of a run: known by hand, or not known with a reason."""

import random

import pytest
from factories import FACTS, bare_submission
from hypothesis import given, settings
from hypothesis import strategies as st

from tunemark.collector.predict.predicted_vs_measured import compare_memory
from tunemark.schema.derive import derive
from tunemark.schema.physics.flops import flops_ledger
from tunemark.schema.physics.training_shape import shape_of_plan
from tunemark.schema.physics.utilisation import Physics, Work, part_of_card, physics, work_in
from tunemark.schema.records.submission import Submission
from tunemark.schema.samples import Counts
from tunemark.schema.vocabulary import Dtype

TINY = FACTS.models["tiny-llama"]
H100 = next(card for card in FACTS.accelerators.values() if card.key.startswith("nvidia-h100"))
PROBE = {"dtype": "fp32", "size": 64, "before_flop_per_s": 1e12, "after_flop_per_s": None}
UTILISATION = {"samples": 1, "interval_s": 0.2}


def found(submission: Submission, accelerator: object = None) -> Physics:
    return physics(submission, derive(submission), FACTS.models[submission.plan.model.key], accelerator)  # type: ignore[arg-type]


def on_h100(**overrides: object) -> Submission:
    return bare_submission(130, **{"plan.precision": {"parameters": "bf16", "compute": "bf16"}, **overrides})


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 140), st.lists(st.integers(1, 140), max_size=6), st.randoms(use_true_random=False))
def test_phases_sum_to_the_wall_time_whatever_was_compiled(steps: int, compiled: list[int], chance: random.Random) -> None:
    kinds = ("compile", "allocator_growth", "allocator_retry")
    events = [{"step": step, "kind": chance.choice(kinds), "amount": 1} for step in compiled if step <= steps]
    submission = bare_submission(steps, events=events)
    phases = derive(submission).phases
    assert sum(phases.values()) == pytest.approx(submission.process.wall_s)
    assert min(phases.values()) >= 0


def test_the_ledger_of_full_rows_is_that_of_the_plan() -> None:
    submission = bare_submission()
    work = work_in(submission.trace, derive(submission).window)
    planned = flops_ledger(shape_of_plan(submission.plan, TINY)).model_flops * submission.plan.batch.gradient_accumulation
    ledger = found(submission).flops
    assert ledger.model_flops == pytest.approx(planned)
    assert ledger.tokens * work.steps == work.counts.real_tokens


@pytest.mark.parametrize("kind", ["none", "full"])
def test_products_in_two_formats_are_each_measured_against_their_own_peak(kind: str) -> None:
    """At 100% each product runs at the peak of its format: the matrices of the blocks in fp8, all else in bf16."""
    settings = {"plan.model.frozen_weights": "fp8", "plan.model.gradient_checkpointing": kind, "probe": {**PROBE, "dtype": "bf16"}}
    submission = on_h100(**settings)
    derived, seen = derive(submission), found(submission, H100)
    work = work_in(submission.trace, derived.window)
    fp8, bf16 = H100.peak_tflops[Dtype.FP8] * 1e12, H100.peak_tflops[Dtype.BF16] * 1e12
    matrices = seen.flops.of("forward_matmul", "backward_input")
    once = matrices / fp8 + (seen.flops.model_flops - matrices) / bf16
    mfu, hfu, mafu = (seen.figures[name] for name in ("mfu", "hfu", "mafu"))
    assert mfu.value == pytest.approx(once / (work.seconds / work.steps))
    repeated = seen.flops.of("forward_matmul") if kind == "full" else 0
    twice = once + repeated / fp8 + (seen.flops.of("recompute") - repeated) / bf16
    assert hfu.value == pytest.approx(twice / (work.seconds / work.steps))
    plain = found(on_h100(**{"plan.model.gradient_checkpointing": kind}), H100).figures["mfu"]
    assert plain.value / 2 < mfu.value < plain.value
    assert "fp8" in mfu.reason
    assert "TFLOP/s bf16" in mfu.reason
    assert (mafu.value, "multiply in fp8" in mafu.reason) == (None, True)


def test_without_a_peak_of_fp8_utilisation_is_unknown_and_not_that_of_another_format() -> None:
    card = H100.model_copy(update={"peak_tflops": {Dtype.BF16: 989.0}})
    known = found(on_h100(**{"plan.model.frozen_weights": "fp8"}), card).figures["mfu"]
    assert (known.value, "no dense peak for fp8" in known.reason) == (None, True)


def test_mafu_is_against_the_better_of_both_probes() -> None:
    disturbed = {**PROBE, "before_flop_per_s": 5e11, "after_flop_per_s": 1e12}
    worse, better = (found(bare_submission(probe=probe)).figures["mafu"].value for probe in (disturbed, PROBE))
    assert worse == pytest.approx(better)


@pytest.mark.parametrize(
    ("overrides", "figure", "reason"),
    [
        ({"plan.reasons": {}}, "mfu", "not in the catalogue"),
        ({}, "mafu", "the matrix rate was not probed"),
        ({"probe": {**PROBE, "before_flop_per_s": 1.0, "after_flop_per_s": 1.0}}, "mafu", "training was faster than the probe"),
        ({}, "energy_per_step_j", "energy was not measured"),
        ({"utilisation": {**UTILISATION, "energy": {"source": "none", "reason": "the driver tells no power"}}}, "energy_per_step_j", "tells no power"),
        ({"plan.data.tokenizer": "word-level"}, "model_flop_per_s", "vocabulary"),
        ({"plan.lora.target_modules": ["no_such_layer"]}, "model_flop_per_s", "no_such_layer"),
    ],
)  # fmt: skip
def test_what_is_not_known_says_why(overrides: dict[str, object], figure: str, reason: str) -> None:
    known = found(bare_submission(130, **overrides)).figures[figure]
    assert known.value is None
    assert reason in known.reason


def test_a_run_without_a_steady_step_has_no_ledger_and_a_reason() -> None:
    seen = found(bare_submission(0, **{"outcome.status": "crash", "outcome.message": "boom"}))
    assert (seen.flops, seen.reason) == (None, "no steady step was measured")


@pytest.mark.parametrize(("memory", "part"), [(None, None), (64 * 2**30, 0.5), (128 * 2**30, 1.0)])
def test_a_die_has_its_part_of_the_peak_by_its_memory(memory: int | None, part: float | None) -> None:
    submission = bare_submission(
        130, **{"plan.device.backend": "rocm", "environment.devices": [{"name": "MI250X", "memory_bytes": memory}]}
    )
    assert part_of_card(submission, FACTS.accelerators["amd-mi250x"]) == part


def test_energy_is_mean_power_times_the_time_of_the_work() -> None:
    energy = {"source": "counter", "joules": 1_000.0, "window_s": 10.0}
    submission = bare_submission(130, utilisation={**UTILISATION, "energy": energy})
    derived, seen = derive(submission), found(submission)
    assert seen.figures["energy_per_sample_j"].value == pytest.approx(100 / derived.samples_per_s.value)
    assert seen.figures["energy_per_1k_tokens_j"].value == pytest.approx(1_000 * 100 / derived.tokens_per_s.value)


def test_packed_documents_are_as_many_as_were_counted_and_at_most_one_more_a_row() -> None:
    work = Work(1, 1, Counts(slot_tokens=512, real_tokens=512, supervised_tokens=502, documents=8, rows=4))
    assert work.pieces(packed=True) == 10
    assert work.pieces(packed=False) == 8
    masked = Work(1, 1, Counts(slot_tokens=512, real_tokens=512, supervised_tokens=100, documents=8, rows=4))
    assert masked.pieces(packed=True) == 12


WEIGHED = {
    "parameters": 4_525_312,
    "trainable_parameters": 312_320,
    "parameter_bytes": {"fp32": 18_101_248},
    "adapter_bytes": 1_249_280,
    "optimizer_state_bytes": 2_498_784,
}


def test_predicted_memory_stands_beside_what_was_weighed() -> None:
    lines, reason = compare_memory(bare_submission(model=WEIGHED | {"gradient_bytes": 1_249_280}), TINY)
    assert reason is None
    errors = {line["line"]: line["predicted_bytes"] / line["measured_bytes"] - 1 for line in lines if line["kind"] == "state"}
    assert set(errors) == {"base weights", "adapters", "gradients", "optimizer states"}
    assert all(error == pytest.approx(0, abs=1e-3) for error in errors.values()), errors
    peaks = [line for line in lines if line["kind"] == "peak"]
    assert all(line["measured_bytes"] is None and "CPU" in line["note"] for line in peaks)


def test_gradients_that_were_not_seen_are_predicted_and_not_measured_as_0() -> None:
    unseen = {"gradient_bytes": None, "gradient_bytes_reason": "kept elsewhere"}
    lines, _ = compare_memory(bare_submission(model=WEIGHED | unseen), TINY)
    (line,) = [line for line in lines if line["line"] == "gradients"]
    assert line["measured_bytes"] is None
    assert line["predicted_bytes"]
    assert "kept elsewhere" in line["note"]


def test_memory_that_the_model_does_not_know_is_not_predicted() -> None:
    submission = bare_submission(130, **{"plan.device.pipeline_parallel": 2})
    assert compare_memory(submission, TINY) == ([], "the memory model does not cover pipeline stages")
    assert compare_memory(submission, None)[1] == "there is no card for the model tiny-llama"
