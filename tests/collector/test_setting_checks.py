"""Settings in effect and reasons of a plan that contradict the plan, the card, the machine or the log."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from changed_bases import changed
from factories import FACTS

from tunemark.collector.gate.setting_checks import effective_problems, reason_problems
from tunemark.collector.gate.trace_checks import trace_problems
from tunemark.schema import plan_reasons
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import VARLEN


def refused(submission: Submission) -> list[str]:
    return [problem.field for problem in (*effective_problems(submission, FACTS), *reason_problems(submission, FACTS))]


@pytest.mark.parametrize("name", ["h100", "ddp", "lora", "fsdp", "qlora", "bert", "oom"])
def test_settings_and_reasons_that_follow_from_the_plan_have_no_problem(name: str) -> None:
    assert refused(changed(name, {})) == []


EAGER = {"plan.model.attention": "eager", "effective.attention": "eager"}
SDPA = {"plan.model.attention": "sdpa", "effective.attention": "sdpa"}
COMPILED = {"plan.model.compile": "blocks", "effective.compile": "blocks, inductor", "effective.attention_kernel": None}
VOLTA = {"plan.device.accelerator": "nvidia-v100-32gb", "effective.attention_kernel": "efficient"}


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("h100", {**EAGER, "effective.attention_kernel": "flash"}, "effective.attention_kernel"),
        ("h100", {"plan.device.accelerator": "nvidia-v100-32gb"}, "plan.model.attention"),
        ("h100", {"effective.attention_kernel": "overrideable"}, "effective.attention_kernel"),
        ("lora", {"effective.attention_kernel": "cudnn"}, "effective.attention_kernel"),
        ("ddp", {**SDPA, "plan.device.accelerator": "nvidia-v100-32gb", "effective.attention_kernel": "flash"}, "effective.attention_kernel"),
        ("ddp", {"effective.process_group": "mpi"}, "effective.process_group"),
        ("ddp", {"effective.process_group": "gloo"}, "effective.process_group"),
        ("fsdp", {"effective.process_group": "mpi"}, "effective.process_group"),
        ("ddp", {"environment.os": "Windows 11 AMD64"}, "effective.process_group"),
        ("lora", {"plan.model.attention": "flash_attention_2", "effective.attention": "flash_attention_2", "effective.attention_kernel": None}, "plan"),
        ("lora", {"plan.model.fused_kernels": "liger"}, "plan"),
        ("h100", VOLTA, "plan.precision.compute"),
        ("h100", {"plan.device.accelerator": "nvidia-a100-80gb-sxm", "plan.model.frozen_weights": "fp8", "effective.quantisation": "fp8"}, "plan.model.frozen_weights"),
        ("h100", {"plan.model.frozen_weights": "fp8"}, "effective.quantisation"),
        ("h100", {"effective.quantisation": "fp8"}, "effective.quantisation"),
        ("h100", {"effective.fp8_training": "rowwise"}, "effective.fp8_training"),
        ("h100", {"plan.model.fp8_training": "rowwise"}, "plan"),
        ("lora", COMPILED, "events"),
        ("h100", {"plan.optimizer.learning_rate": 2_000.0}, "plan.optimizer.learning_rate"),
    ],
)  # fmt: skip
def test_impossible_settings_in_effect_are_refused(name: str, values: dict[str, Any], field: str) -> None:
    assert field in refused(changed(name, values))


def test_an_optimizer_that_compiles_its_update_uses_the_compile_cache() -> None:
    def fields(name: str, state: str) -> set[str]:
        return {problem.field for problem in trace_problems(changed(name, {"process.compile_cache": state}), datetime.now(UTC))}

    for state in ("cold", "warm"):
        assert "process.compile_cache" not in fields("ddp", state)
        assert "process.compile_cache" in fields("lora", state)


@pytest.mark.parametrize(
    ("name", "values", "field"),
    [
        ("h100", {"effective.optimizer": "transformers AdamW"}, "effective.optimizer"),
        ("lora", {"effective.optimizer": "bitsandbytes AdamW8bit"}, "effective.optimizer"),
        ("h100", {"effective.optimizer": "torch SGD"}, "effective.optimizer"),
        ("h100", {"effective.stochastic_rounding": True}, "effective.stochastic_rounding"),
        ("ddp", {"effective.stochastic_rounding": False}, "effective.stochastic_rounding"),
        ("ddp", {"effective.stochastic_rounding": None}, "effective.stochastic_rounding"),
        ("ddp", {"effective.optimizer": "torch AdamW"}, "effective.optimizer"),
        ("ddp", {"effective.optimizer": "torch StochasticAdamW"}, "effective.optimizer"),
        ("h100", {"effective.optimizer_states_on": ["cpu"]}, "effective.optimizer_states_on"),
        ("lora", {"effective.quantisation": "nf4"}, "effective.quantisation"),
        ("qlora", {"effective.quantisation": "none"}, "effective.quantisation"),
        ("lora", {"effective.compute": "bf16"}, "effective.compute"),
    ],
)
def test_what_no_library_changes_is_refused_even_with_a_fallback(name: str, values: dict[str, Any], field: str) -> None:
    warned = {"warnings": [{"kind": "fallback", "message": f"{field.removeprefix('effective.')}: not as planned"}]}
    warned["warnings"].append({"kind": "fallback", "message": "compute_format: not as planned"})
    assert field in refused(changed(name, warned | values))


def test_frozen_weights_in_fp8_on_a_device_that_has_it_are_accepted() -> None:
    assert refused(changed("h100", {"plan.model.frozen_weights": "fp8", "effective.quantisation": "fp8"})) == []


@pytest.mark.parametrize(("name", "problems"), [("lora", ["a CPU has no allocator whose retries are counted"]), ("h100", [])])
def test_retries_of_an_allocator_are_refused_on_a_cpu_only(name: str, problems: list[str]) -> None:
    submission = changed(name, {"events": [{"step": 3, "kind": "allocator_retry", "amount": 1}]})
    found = trace_problems(submission, submission.started_at + timedelta(days=1))
    assert [problem.fix for problem in found if problem.field == "events"] == problems


@pytest.mark.parametrize(
    ("name", "field", "reason"),
    [
        ("lora", "device.backend", plan_reasons.FOUND_BY["cuda"]),
        ("h100", "device.backend", plan_reasons.FOUND_BY["cpu"]),
        ("h100", "device.backend", "it was there"),
        ("lora", "device.accelerator", plan_reasons.KNOWN_NAME),
        ("h100", "device.accelerator", plan_reasons.missing_card("NVIDIA H100 80GB HBM3", "cuda")),
        ("ddp", "device.count", plan_reasons.BY_CARD),
        ("ddp", "device.strategy", plan_reasons.NO_STRATEGY),
        ("h100", "device.strategy", plan_reasons.REPLICAS),
        ("lora", "device.threads", plan_reasons.threads(3)),
        ("lora", "precision.compute", plan_reasons.BY_CARD),
        ("h100", "precision.parameters", plan_reasons.WIDER_WEIGHTS),
        ("lora", "data.tokenizer", plan_reasons.TOKENIZERS["model"]),
        ("h100", "batch.global_batch", "micro_batch 2 + gradient_accumulation 8"),
        ("ddp", "batch.data_parallel", "2 devices / tensor x pipeline parallel 1"),
        ("lora", "data.padding", plan_reasons.PADDED_FOR_NEURON),
        ("lora", "measurement.seed", plan_reasons.paired_seed(2, 1)),
        ("h100", "lora.dropout", "it was best"),
    ],
)
def test_a_reason_that_is_not_true_or_that_the_harness_never_gives_is_refused(name: str, field: str, reason: str) -> None:
    assert f"plan.reasons.{field}" in refused(changed(name, {f"reason {field}": reason}))


def test_the_threads_are_those_that_their_reason_computes() -> None:
    assert "plan.reasons.device.threads" in refused(changed("lora", {"plan.device.threads": 1}))


def test_tools_that_are_missing_may_follow_the_reason_of_a_cpu() -> None:
    reason = f"{plan_reasons.FOUND_BY['cpu']}; CUDA_VISIBLE_DEVICES='' hides all devices"
    assert refused(changed("lora", {"reason device.backend": reason})) == []


def test_the_gate_knows_the_devices_that_lack_a_format_as_the_harness_does() -> None:
    from tunemark.harness.vendors.cuda import VENDOR
    from tunemark.schema.features import Feature
    from tunemark.schema.vocabulary import BEFORE_AMPERE

    lacking = {name for generation in VENDOR.generations if Feature.BF16 in generation.cannot for name in generation.architectures}
    assert lacking == BEFORE_AMPERE


def test_auto_attention_states_its_reason_and_is_one_of_its_choices() -> None:
    assert changed("h100", {}).plan.model.attention == VARLEN
    without = changed("h100", {"plan.reasons": lambda reasons: {name: why for name, why in reasons.items() if name != "model.attention"}})
    assert refused(without) == ["plan.reasons"]
    names = {"plan.model.attention": "flash_attention_2", "effective.attention": "flash_attention_2", "effective.attention_kernel": None}
    assert "plan.reasons.model.attention" in refused(changed("h100", names))
