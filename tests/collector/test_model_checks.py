"""Sizes of a model that do not follow from its weights and formats, each on a run in which they do."""

from typing import Any

import pytest
from changed_bases import changed
from factories import FACTS
from gate_mutations.bases import base

from tunemark.collector.gate.model_checks import model_problems
from tunemark.schema.physics.utilisation import executed_peak, executed_share
from tunemark.schema.records.submission import Submission


def refused(submission: Submission) -> list[str]:
    return [problem.field for problem in model_problems(submission, FACTS)]


@pytest.mark.parametrize("name", ["h100", "ddp", "lora", "fsdp", "qlora", "bert", "oom"])
def test_sizes_that_follow_from_the_plan_have_no_problem(name: str) -> None:
    assert refused(changed(name, {})) == []


SGD = {"plan.optimizer.name": "sgd", "effective.optimizer": "torch SGD"}
EIGHT_BIT = {"plan.optimizer.name": "adamw_8bit", "effective.optimizer": "bitsandbytes AdamW8bit"}


@pytest.mark.parametrize("name", ["h100", "ddp", "lora", "fsdp", "bert"])
@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"model.gradient_bytes": lambda size: size // 2}, "model.gradient_bytes"),
        ({"model.gradient_bytes": lambda size: int(size * 1.2)}, "model.gradient_bytes"),
        ({"model.optimizer_state_bytes": lambda size: size // 2}, "model.optimizer_state_bytes"),
        ({"model.optimizer_state_bytes": lambda size: int(size * 1.25)}, "model.optimizer_state_bytes"),
        (SGD, "model.optimizer_state_bytes"),
        (EIGHT_BIT, "model.optimizer_state_bytes"),
        ({"saved_bytes": lambda _: 10**11}, "saved_bytes"),
    ],
)
def test_states_of_another_size_than_their_format_and_optimizer_have_are_refused(name: str, values: dict[str, Any], field: str) -> None:
    assert field in refused(changed(name, values))


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("bert", {"plan.model.labels": 3}, "model.parameters"),
        ("bert", {"model.parameters": lambda count: count - 774, "model.trainable_parameters": lambda count: count - 774}, "model.parameters"),
        ("h100", {"model.adapter_bytes": lambda size: 2 * size}, "model.adapter_bytes"),
        ("qlora", {"model.parameter_bytes": lambda sizes: sizes | {"scales of 4-bit blocks": 4_940}}, "model.parameter_bytes.scales of 4-bit blocks"),
        ("qlora", {"plan.quantisation.double": False}, "model.parameter_bytes.scales of 4-bit blocks"),
        ("h100", {"probe.after_flop_per_s": base("h100")["probe"]["before_flop_per_s"]}, "probe.after_flop_per_s"),
    ],
)  # fmt: skip
def test_adapters_scales_and_probes_that_cannot_be_are_refused(name: str, values: dict[str, Any], field: str) -> None:
    assert field in refused(changed(name, values))


BLOCKS_OF_8B = 36 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 12288)
OUTPUTS_OF_8B = 36 * (2 * 4096 + 2 * 1024 + 2 * 12288 + 4096)
FP8 = {
    "plan.model.frozen_weights": "fp8",
    "model.parameter_bytes": lambda sizes: {
        "bf16": sizes["bf16"] - 2 * BLOCKS_OF_8B,
        "fp8": BLOCKS_OF_8B,
        "scales of fp8 weights": 4 * OUTPUTS_OF_8B,
    },
}
"""Qwen3 8B: 36 blocks of width 4096, with keys of 1024 and 12288 inner numbers."""


def test_frozen_weights_in_fp8_take_a_byte_each_and_have_a_scale_for_each_output() -> None:
    assert refused(changed("h100", FP8)) == []
    assert "model.parameter_bytes.fp8" in refused(changed("h100", {"plan.model.frozen_weights": "fp8"}))
    assert "model.parameter_bytes.fp8" in refused(changed("h100", FP8 | {"plan.model.frozen_weights": "plain"}))


def test_a_run_in_fp8_may_be_faster_than_the_probe_in_bf16_and_not_faster_than_its_own_peak() -> None:
    """Above 0.9 of the dense peak nothing is believed; in fp8 that is up to twice as fast."""

    def faster(times: list[float], factor: float) -> list[float]:
        return [times[0] + (at - times[0]) / factor for at in times]

    peaks = [executed_peak(changed("h100", one), FACTS.models["qwen3-8b"], FACTS.accelerators["nvidia-h100-80gb-sxm"]) for one in ({}, FP8)]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert 1.3 * peaks[0] < peaks[1] < 2 * peaks[0]
    share = executed_share(changed("h100", {}), FACTS.models["qwen3-8b"], FACTS.accelerators["nvidia-h100-80gb-sxm"])
    assert share is not None
    for above, problems in ((1.05, 0), (2.0, 1)):
        times = {"trace.completed_at_s": lambda at, factor=above / share: faster(at, factor), "trace.micro_completed_at_s": []}
        fields = refused(changed("h100", FP8 | times))
        assert fields.count("trace.completed_at_s") == problems, above
        assert "trace.completed_at_s" in refused(changed("h100", times))


def test_8_bit_states_and_no_states_of_sgd_are_accepted() -> None:
    trained = base("h100")["model"]["trainable_parameters"]
    assert refused(changed("h100", EIGHT_BIT | {"model.optimizer_state_bytes": int(2.05 * trained)})) == []
    assert refused(changed("h100", SGD | {"model.optimizer_state_bytes": 0})) == []


def test_a_sharded_run_that_ended_early_was_weighed_whole() -> None:
    whole = {"model.parameter_bytes": lambda sizes: {name: 2 * size for name, size in sizes.items()}}
    early = {"model.optimizer_state_bytes": None, "model.optimizer_state_bytes_reason": "the run ended before", "outcome.status": "crash"}
    assert "model.parameter_bytes" in refused(changed("fsdp", whole))
    assert "model.parameter_bytes" not in refused(changed("fsdp", whole | early | {"outcome.message": "SIGSEGV"}))
