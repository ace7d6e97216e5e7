"""Decide whether a plan can run on a machine, before any time is spent: one table of features, checked for each family.

Vendors list what their devices cannot do (`VENDOR.cannot`, `generations`, `needs`). This module knows which feature a plan
uses and which settings exclude each other. The support matrix of the site is generated from the same table:
`python -m tunemark.harness.plan.capabilities` writes data/support.json.
"""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tunemark.harness.plan.machine import Machine
from tunemark.harness.vendors.protocol import Feature, Generation, Need, all_vendors, vendor_of
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.files import project_root, write_atomically
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.effective import NEURON_ATTENTION
from tunemark.schema.records.plan import DeviceChoice, Plan
from tunemark.schema.vocabulary import Backend, Checkpointing, Dtype, Method, Padding, Strategy, Task

if TYPE_CHECKING:
    from tunemark.schema.facts.fact_base import SupportMatrix

USED: dict[Feature, Callable[[Plan], bool]] = {
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
"""Feature -> True if a plan uses it."""
PROCESSES_PER_CORE = 4
"""More processes on each core only measure waiting, and exhaust the machine's memory."""
LEARNED_POSITIONS = ("bert", "gpt2")
"""Model families with a position table, which has an end."""
LIGER_FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "phi3")
"""Model families that Liger has kernels for. It silently leaves other models unchanged."""
FUSED_EXPERTS = 5
"""First major release of transformers that keeps the experts of a layer in one parameter."""
NEURON_FAMILIES = ("llama", "granite", "qwen3")
"""Model families that optimum-neuron can train."""
NEURON_LOOP_NEEDS = dict.fromkeys(
    (Feature.FULL, Feature.LORA), Need("torch-xla", "install torch-neuronx of the Neuron SDK, as the README describes")
)
"""Packages that classifiers need on Neuron devices."""


def unsupported_reason(plan: Plan, model: ModelCard, machine: Machine, generation: Generation | None) -> str | None:
    """Return the first reason why a plan cannot run on this machine, or None. `generation` is what its devices lack."""
    checks = (
        _device_count_problems(plan.device, machine),
        _missing_features(plan, machine, generation),
        _conflicting_settings(plan),
        _neuron_problems(plan) if plan.device.backend is Backend.NEURON else (),
        _missing_packages(plan, machine),
        _model_problems(plan, model),
        _expert_problems(plan, model, machine),
    )
    return next((reason for check in checks for reason in check), None)


def generation_of(backend: Backend, target: str | None, architecture: str | None) -> Generation | None:
    """Return the generation of a device if it lacks something, else None. The card's architecture counts only without a target."""
    for generation in vendor_of(backend).generations:
        if re.fullmatch(generation.target, target) if target else architecture in generation.architectures:
            return generation
    return None


def _device_count_problems(device: DeviceChoice, machine: Machine) -> Iterator[str]:
    several = [strategy.value for strategy in Strategy if strategy is not Strategy.SINGLE]
    group = device.tensor_parallel * device.pipeline_parallel
    if device.count == 1 and device.strategy is not Strategy.SINGLE:
        yield f"{device.strategy.value} needs at least two devices; leave --strategy out, or give --devices 2"
    if device.count > 1 and device.strategy is Strategy.SINGLE:
        yield f"single: {device.count} devices need one of {', '.join(several)}"
    if device.count % group:
        yield f"{device.count} devices: tensor x pipeline parallel is {group}; give a multiple of it"
    on_host, here = vendor_of(machine.backend).on_host, len(machine.devices)
    most = PROCESSES_PER_CORE * machine.cpu_usable_cores if on_host else here
    if device.count // device.nodes > most:
        has = f"{machine.cpu_usable_cores} cores" if on_host else f"{here} {machine.backend.value} device{'s' * (here != 1)}"
        nodes = f" on {device.nodes} nodes" * (device.nodes > 1)
        limit = f", with at most {PROCESSES_PER_CORE} processes per core" if on_host else ""
        yield f"{device.count} devices{nodes}: this machine has {has}{limit}; give --devices {most * device.nodes} or less"


def _missing_features(plan: Plan, machine: Machine, generation: Generation | None) -> Iterator[str]:
    backend = plan.device.backend
    used = [feature for feature, uses in USED.items() if uses(plan)]
    family = vendor_of(backend).cannot
    yield from (f"{feature.value} on {backend.value}: {family[feature]}" for feature in used if feature in family)
    if generation:
        yield from (
            f"{feature.value} on {generation.name}: {generation.cannot[feature]}" for feature in used if feature in generation.cannot
        )
    if plan.precision.compute not in machine.compute_dtypes:
        formats = ", ".join(dtype.value for dtype in machine.compute_dtypes)
        yield f"compute format {plan.precision.compute.value}: this device has {formats}"


def _conflicting_settings(plan: Plan) -> Iterator[str]:
    """Yield combinations of settings that no device can run."""
    strategy = plan.device.strategy
    yield from _adapter_conflicts(plan)
    if plan.device.offload != "none" and strategy in {Strategy.SINGLE, Strategy.DDP}:
        yield f"offload needs a strategy that shards: fsdp2 or zero1 to zero3, not {strategy.value}"
    if plan.device.offload == "optimizer" and strategy is Strategy.FSDP2:
        yield "fsdp2 keeps parameters and optimizer states together; use --offload all, or zero1 to zero3"
    if plan.device.offload == "all" and strategy in {Strategy.ZERO1, Strategy.ZERO2}:
        yield "only zero3 and fsdp2 can keep parameters in host memory; use --offload optimizer"
    if plan.precision.compute is Dtype.FP16 and strategy is Strategy.FSDP2:
        yield "fsdp2 multiplies in the format of the weights, which fp16 keeps in fp32; use ddp, zero1 to zero3, or compute=fp32"
    if plan.data.packing and plan.model.task is not Task.CAUSAL_LM:
        yield "only a causal language model can be trained on packed documents; use data.packing=false"
    if plan.data.packing and plan.data.document_borders and plan.model.attention == "flex_attention":
        yield "packed documents are masked for eager, sdpa and flash attention; use one of these"


def _adapter_conflicts(plan: Plan) -> Iterator[str]:
    model, strategy, quantised = plan.model, plan.device.strategy, plan.method is Method.QLORA
    if quantised and strategy in {Strategy.FSDP2, Strategy.ZERO3}:
        yield f"four-bit weights are not sharded by {strategy.value} in this version; use ddp, zero1 or zero2"
    if quantised and model.compile != "none":
        yield "four-bit weights recompile without end under torch.compile; use compile=none"
    if quantised and model.task is Task.SEQUENCE_CLASSIFICATION:
        yield "the head of a classifier is trained in full, and quantising the model would quantise it too; use method=lora"
    checkpointed = model.gradient_checkpointing is not Checkpointing.NONE
    if model.compile != "none" and plan.lora and plan.lora.dropout and checkpointed:
        yield "adapter dropout with checkpointing crashes under torch.compile; set lora.dropout=0 or compile=none"


def _missing_packages(plan: Plan, machine: Machine) -> Iterator[str]:
    on_neuron = plan.device.backend is Backend.NEURON
    needs = NEURON_LOOP_NEEDS if on_neuron and not by_trainer(plan) else vendor_of(plan.device.backend).needs
    if "torch" not in machine.packages:
        yield "training needs torch, which is not installed; the README describes how to install it"
    for feature, uses in USED.items():
        if uses(plan) and feature in needs and needs[feature].package not in machine.packages:
            yield f"{feature.value} needs {needs[feature].package}, which is not installed: {needs[feature].install}"


def _model_problems(plan: Plan, card: ModelCard) -> Iterator[str]:
    # A model with rotary positions can read rows longer than its context length.
    if card.family in LEARNED_POSITIONS and plan.data.sequence_length > card.context_length:
        yield f"{card.key} has positions for {card.context_length} tokens, data.sequence_length is {plan.data.sequence_length}"
    if card.family == "gemma2" and plan.model.attention == "sdpa":
        cause = "the model soft-caps attention scores, which torch's sdpa kernel does not support, and transformers refuses to load it"
        yield f"{card.key} with attention=sdpa: {cause}; use attention=eager"
    if plan.device.backend is Backend.NEURON and by_trainer(plan) and card.family not in NEURON_FAMILIES:
        yield f"{plan.model.key} is of family {card.family}, and optimum-neuron trains {', '.join(NEURON_FAMILIES)}"
    if plan.model.fused_kernels == "liger" and card.family not in LIGER_FAMILIES:
        yield f"Liger has kernels for {', '.join(LIGER_FAMILIES)}, not for {card.family}; use fused_kernels=none"


def _expert_problems(plan: Plan, card: ModelCard, machine: Machine) -> Iterator[str]:
    """Yield a problem for 4-bit experts: in a test, transformers 5.23 with bitsandbytes 0.50 left them in 16 bits."""
    release = machine.packages.get("transformers", "").partition(".")[0]
    if plan.method is Method.QLORA and card.experts and not (release.isdecimal() and int(release) < FUSED_EXPERTS):
        cause = "transformers 5 keeps all experts of a layer in one parameter, which bitsandbytes does not quantise"
        yield f"qlora of {card.key}: {cause}, so they would stay in 16 bits; install transformers 4.57, or use method=lora"


def by_trainer(plan: Plan) -> bool:
    """Return True if optimum-neuron's trainer runs a plan on Neuron devices. Classifiers run in our own loop, with a replica per core."""
    return plan.model.task is Task.CAUSAL_LM


def _neuron_problems(plan: Plan) -> Iterator[str]:
    if plan.device.strategy in {Strategy.ZERO2, Strategy.ZERO3}:
        yield f"{plan.device.strategy.value}: optimum-neuron shards optimizer states only; use zero1"
    if plan.data.padding is Padding.DYNAMIC and not plan.data.packing:
        yield "dynamic padding: each new length is another graph, which takes minutes to compile; use data.padding=static"
    if by_trainer(plan):
        yield from _neuron_trainer_problems(plan)
        return
    if plan.device.strategy.value.startswith("zero") or plan.device.tensor_parallel * plan.device.pipeline_parallel > 1:
        yield "a classifier is not sharded over NeuronCores, since optimum-neuron has no such trainer; use --strategy ddp"
    if plan.model.attention.startswith("flash_attention"):
        yield "flash attention for classifiers; use attention=sdpa"


def _neuron_trainer_problems(plan: Plan) -> Iterator[str]:
    if plan.model.attention not in NEURON_ATTENTION:
        yield f"attention {plan.model.attention}: optimum-neuron has {', '.join(NEURON_ATTENTION)}"
    if plan.optimizer.name not in {"adamw", "sgd"}:
        yield f"optimizer {plan.optimizer.name}: optimum-neuron's trainer has adamw and sgd"
    if plan.optimizer.layer_decay is not None:
        yield "layer_decay: optimum-neuron's trainer gives all blocks the same learning rate"
    if plan.device.pipeline_parallel > 1 and plan.lora is not None:
        yield "LoRA with pipeline parallel is not supported in this version; use tensor parallel"
    if plan.measurement.save:
        yield "save: each core holds a part of the weights, and this version cannot gather them from optimum-neuron; remove --save"
    if plan.measurement.timing == "strict" and plan.device.pipeline_parallel > 1:
        yield "timing=strict with pipeline parallel: a single pipeline stage cannot be synchronised"


def support_matrix() -> "SupportMatrix":
    """Return the capabilities of each device family. The scripted one measures nothing and is left out."""
    from tunemark.schema.facts.fact_base import SupportMatrix  # noqa: PLC0415 - not needed to plan

    vendors = {vendor.backend: vendor for vendor in all_vendors() if vendor.backend is not Backend.FAKE}
    return SupportMatrix(
        features=tuple(feature.value for feature in Feature),
        cannot={backend: {feature.value: reason for feature, reason in vendor.cannot.items()} for backend, vendor in vendors.items()},
        needs={
            backend: {feature.value: need.package for feature, need in vendor.needs.items() if feature not in vendor.cannot}
            for backend, vendor in vendors.items()
        },
    )


if __name__ == "__main__":
    write_atomically(project_root() / "data" / "support.json", canonical_json(support_matrix()))
