"""What each device family cannot do, decided before a minute is spent.

The reasons stand with the devices (`CANNOT` in devices/*.py, generations.py), packages in needs.py; the support matrix of
the site is made from these.
"""

from collections.abc import Callable, Iterator
from importlib import import_module

from tunemark.harness import neuron_rules
from tunemark.harness.devices.features import Feature
from tunemark.harness.devices.generations import Generation
from tunemark.harness.machine import Machine
from tunemark.harness.needs import NEEDS
from tunemark.harness.sharing import ill_shared, too_many
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Backend, Checkpointing, Dtype, Method, Strategy, Task

ASKED: dict[Feature, Callable[[Plan], bool]] = {
    Feature.FULL: lambda plan: plan.method is Method.FULL,
    Feature.LORA: lambda plan: plan.method is Method.LORA,
    Feature.QLORA: lambda plan: plan.method is Method.QLORA,
    Feature.PACKING: lambda plan: plan.data.packing and plan.data.document_borders,
    Feature.FULL_CHECKPOINTING: lambda plan: plan.model.gradient_checkpointing is Checkpointing.FULL,
    Feature.SELECTIVE_CHECKPOINTING: lambda plan: plan.model.gradient_checkpointing is Checkpointing.SELECTIVE,
    Feature.FLASH_ATTENTION: lambda plan: plan.model.attention == "flash_attention_2",
    Feature.FLASH_ATTENTION_3: lambda plan: plan.model.attention == "flash_attention_3",
    Feature.FLEX_ATTENTION: lambda plan: plan.model.attention == "flex_attention",
    Feature.LIGER: lambda plan: plan.model.fused_kernels == "liger",
    Feature.COMPILE: lambda plan: plan.model.compile != "none",
    Feature.EIGHT_BIT_OPTIMIZER: lambda plan: plan.optimizer.name.endswith("8bit"),
    Feature.TF32: lambda plan: plan.precision.compute is Dtype.TF32,
    Feature.BF16: lambda plan: plan.precision.compute is Dtype.BF16,
    Feature.FP16: lambda plan: plan.precision.compute is Dtype.FP16,
    Feature.DDP: lambda plan: plan.device.strategy is Strategy.DDP,
    Feature.FSDP2: lambda plan: plan.device.strategy is Strategy.FSDP2,
    Feature.ZERO: lambda plan: plan.device.strategy.value.startswith("zero"),
    Feature.OFFLOAD: lambda plan: plan.device.offload != "none",
    Feature.TENSOR_PARALLEL: lambda plan: plan.device.tensor_parallel > 1,
    Feature.PIPELINE_PARALLEL: lambda plan: plan.device.pipeline_parallel > 1,
}
"""Feature -> whether a plan asks for it."""


def cannot(backend: Backend) -> dict[Feature, str]:
    """Return what a device family cannot do, with the reason of each."""
    reasons: dict[Feature, str] = import_module(f"tunemark.harness.devices.{backend.value}").CANNOT
    return reasons


def unsupported_reason(plan: Plan, machine: Machine, generation: Generation | None) -> str | None:
    """Return why a plan cannot be run on this machine, or None; `generation` is that of its devices where it lacks something."""
    return next(_reasons(plan, machine, generation), None)


def _reasons(plan: Plan, machine: Machine, generation: Generation | None) -> Iterator[str]:
    yield from filter(None, (ill_shared(plan.device), too_many(plan.device, machine)))
    missing = cannot(plan.device.backend)
    asked = [feature for feature, asks in ASKED.items() if asks(plan)]
    yield from (f"{feature.value} on {plan.device.backend.value}: {missing[feature]}" for feature in asked if feature in missing)
    if generation is not None:
        yield from (
            f"{feature.value} on {generation.name}: {generation.cannot[feature]}" for feature in asked if feature in generation.cannot
        )
    if plan.precision.compute not in machine.compute_dtypes:
        has = ", ".join(dtype.value for dtype in machine.compute_dtypes)
        yield f"compute format {plan.precision.compute.value} is not one of {has} that this device has"
    yield from _together(plan)
    needs = NEEDS[plan.device.backend]
    if plan.device.backend is Backend.NEURON:
        yield from neuron_rules.reasons(plan)
        needs = neuron_rules.needs(plan)
    for feature in asked:
        package, how = needs.get(feature, ("torch", ""))
        if package not in machine.packages:
            yield f"{feature.value} needs {package}, which is not installed: {how}"


def _together(plan: Plan) -> Iterator[str]:
    """Yield settings that no device can have together."""
    if plan.method is Method.QLORA:
        yield from _with_four_bits(plan)
    if plan.device.offload != "none" and plan.device.strategy in {Strategy.SINGLE, Strategy.DDP}:
        yield f"offload needs a strategy that shards: fsdp2 or zero1 to zero3, not {plan.device.strategy.value}"
    if plan.device.offload == "optimizer" and plan.device.strategy is Strategy.FSDP2:
        yield "fsdp2 keeps parameters and optimizer states together; use --offload all, or zero1 to zero3"
    if plan.device.offload == "all" and plan.device.strategy in {Strategy.ZERO1, Strategy.ZERO2}:
        yield "only zero3 and fsdp2 can keep parameters in host memory; use --offload optimizer"
    if plan.precision.compute is Dtype.FP16 and plan.device.strategy is Strategy.FSDP2:
        yield "fsdp2 multiplies in the format of the weights, which fp16 keeps in fp32; use ddp, zero1 to zero3, or compute=fp32"
    if plan.data.packing and plan.model.task.value != "causal_lm":
        yield "only a causal language model can be trained on packed documents; use data.packing=false"
    if plan.data.packing and plan.data.document_borders and plan.model.attention == "flex_attention":
        yield "packed documents are masked for eager, sdpa and flash attention; use one of these"
    if plan.model.compile != "none" and plan.lora is not None and plan.lora.dropout and plan.model.gradient_checkpointing.value != "none":
        yield "adapter dropout with checkpointing crashes under torch.compile; set lora.dropout=0 or compile=none"


def _with_four_bits(plan: Plan) -> Iterator[str]:
    if plan.device.strategy in {Strategy.FSDP2, Strategy.ZERO3}:
        yield f"four-bit weights are not sharded by {plan.device.strategy.value} in this version; use ddp, zero1 or zero2"
    if plan.model.compile != "none":
        yield "four-bit weights recompile without end under torch.compile; use compile=none"
    if plan.model.task is Task.SEQUENCE_CLASSIFICATION:
        yield "the head of a classifier is trained whole, and quantising the model would quantise it too; use method=lora"
