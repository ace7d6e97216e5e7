"""What devices can do, and if a plan can run on a machine, before any time is spent: the harness refuses such a plan, and the gate its result.

Families list what their devices cannot do. The harness declares them per vendor and writes all of them to data/support.json, which the
gate plans with.
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field

from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.architecture import block_linears, blocks_of
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.records.base import Bytes, Frozen
from tunemark.schema.records.plan import DeviceChoice, Plan
from tunemark.schema.records.submission import Environment
from tunemark.schema.vocabulary import FP8_LAYER_MULTIPLE, VARLEN, Backend, Checkpointing, Dtype, Method, Strategy


class Feature(StrEnum):
    """A capability, as the support matrix names it, and if a plan uses it. A family lists what it cannot do; it supports the rest."""

    FULL = "full fine-tuning", lambda plan: plan.method is Method.FULL
    LORA = "LoRA", lambda plan: plan.method is Method.LORA
    QLORA = "QLoRA", lambda plan: plan.method is Method.QLORA
    FP8_FROZEN = "frozen weights in fp8", lambda plan: plan.model.frozen_weights == "fp8"
    FP8_TRAINING = "training in fp8", lambda plan: plan.model.fp8_training != "none"
    PACKING = "packed documents", lambda plan: plan.data.packing and plan.data.document_borders
    FULL_CHECKPOINTING = "full checkpointing", lambda plan: plan.model.gradient_checkpointing is Checkpointing.FULL
    SELECTIVE_CHECKPOINTING = "selective checkpointing", lambda plan: plan.model.gradient_checkpointing is Checkpointing.SELECTIVE
    FLASH_ATTENTION = "flash attention", lambda plan: plan.model.attention == "flash_attention_2"
    FLASH_ATTENTION_3 = "FlashAttention 3", lambda plan: plan.model.attention == "flash_attention_3"
    FLEX_ATTENTION = "flex attention", lambda plan: plan.model.attention == "flex_attention"
    VARLEN_ATTENTION = "variable-length attention", lambda plan: plan.model.attention == VARLEN
    CUDNN_ATTENTION = "cuDNN attention", lambda plan: plan.model.sdpa_kernel == "cudnn"
    CUDA_GRAPHS = "CUDA graphs", lambda plan: plan.model.compile_mode == "reduce-overhead"
    LIGER = "Liger fused kernels", lambda plan: plan.model.fused_kernels == "liger"
    COMPILE = "torch.compile", lambda plan: plan.model.compile != "none"
    EIGHT_BIT_OPTIMIZER = "8-bit optimizer states", lambda plan: plan.optimizer.name.endswith("8bit")
    TF32 = "tf32", lambda plan: plan.precision.compute is Dtype.TF32
    BF16 = "bf16", lambda plan: plan.precision.compute is Dtype.BF16
    FP16 = "fp16", lambda plan: plan.precision.compute is Dtype.FP16
    DDP = "DDP", lambda plan: plan.device.strategy is Strategy.DDP
    FSDP2 = "FSDP2", lambda plan: plan.device.strategy is Strategy.FSDP2
    ZERO = "DeepSpeed ZeRO", lambda plan: plan.device.strategy.value.startswith("zero")
    OFFLOAD = "offload to host memory", lambda plan: plan.device.offload != "none"
    TENSOR_PARALLEL = "tensor parallel", lambda plan: plan.device.tensor_parallel > 1
    PIPELINE_PARALLEL = "pipeline parallel", lambda plan: plan.device.pipeline_parallel > 1
    PEAK_MEMORY = "peak memory of the allocator"
    UTILISATION = "device utilisation"
    ENERGY = "energy counter"

    used_by: Callable[[Plan], bool]
    """Return True if a plan uses it; nothing that is only measured is used."""

    def __new__(cls, name: str, used_by: Callable[[Plan], bool] = lambda _plan: False) -> Self:
        """Return the feature of this name."""
        feature = str.__new__(cls, name)
        feature._value_, feature.used_by = name, used_by
        return feature


WITHOUT_FP8 = "use frozen_weights=plain and fp8_training=none"
FEATURE_OF_FORMAT: dict[Dtype, Feature] = {Dtype.BF16: Feature.BF16, Dtype.FP16: Feature.FP16, Dtype.TF32: Feature.TF32}


class Need(NamedTuple):
    """A package that a feature needs, by its distribution name, and how to install it."""

    package: str
    install: str
    oldest: str = "0"
    """First release that has the feature, such as 2.13."""


@dataclass(frozen=True, slots=True)
class Generation:
    """GPUs of one family that lack the same features."""

    name: str
    """One of these GPUs, in words."""
    target: str
    """Pattern of the compile target: NVIDIA's compute capability, AMD's gfx name."""
    architectures: tuple[str, ...]
    """Architecture names on accelerator cards."""
    cannot: dict[Feature, str]
    """Missing features, with the reason and what to use instead."""

    def formats(self, family_formats: tuple[Dtype, ...]) -> tuple[Dtype, ...]:
        """Return the number formats of the family that this generation has."""
        return tuple(dtype for dtype in family_formats if FEATURE_OF_FORMAT.get(dtype) not in self.cannot)


class Family(Frozen):
    """What the devices of a family can do. The harness declares it per vendor and writes all of them to data/support.json."""

    found_by: str
    """Reason that a plan gives when devices of the family are found."""
    formats: tuple[Dtype, ...]
    """Number formats of the matrix units, fastest first; a generation may lack some."""
    cannot: dict[Feature, str]
    """Features that no device of the family has, each with the reason and what to use instead."""
    needs: dict[Feature, Need] = Field(default_factory=dict)
    """Packages that features need."""
    generations: tuple[Generation, ...] = ()
    """Generations that lack more than the family does."""
    on_host: bool = False
    """True where all processes of a machine share the CPU."""
    cards: str | None = None
    """Pattern of maker and architecture on its accelerator cards, for plans of other machines."""

    def generation(self, target: str | None, architecture: str | None) -> Generation | None:
        """Return the generation of a device if it lacks something, else None. The card's architecture counts only without a target."""
        for generation in self.generations:
            if re.fullmatch(generation.target, target) if target else architecture in generation.architectures:
                return generation
        return None


class SupportMatrix(Frozen):
    """What each device family can do, which the harness writes from its code. A family supports every feature that `cannot` does not list."""

    format: Literal["tunemark.support/3"] = "tunemark.support/3"
    features: tuple[Feature, ...]
    """All features, in order."""
    families: dict[Backend, Family]
    """Each implemented family."""


class Machine(Environment):
    """The device family that is used, and the host around it: what a record's environment holds, and what only planning needs."""

    family: Family
    """What the devices can do."""
    backend_reason: str
    """How the devices were found. There is one for the CPU."""
    memory_bytes: Bytes | None  # type: ignore[assignment] # of a machine that is planned for, the host is unknown
    free_disk_bytes: int = 0
    """Free disk space of this machine; no record has it."""
    indexes: tuple[int, ...] = ()
    """Number of each device in its vendor's tools, which no record has; empty for the CPU."""


# Can a plan run on a machine?

HEAD_MULTIPLE = 8
"""FlashAttention's heads have a width that is a multiple of this."""
WIDEST_HEAD = 256
"""And at most this one."""
PROCESSES_PER_CORE = 4
"""More processes on each core only measure waiting, and exhaust the machine's memory."""


def unsupported_reason(plan: Plan, model: ModelCard, machine: Machine, generation: Generation | None) -> str | None:
    """Return the first reason why a plan cannot run on this machine, or None. `generation` is what its devices lack."""
    facts = {"plan": plan, "card": model, "traits": FAMILIES[model.family]}
    checks = (
        _numbers_of_devices(plan.device, machine),
        _missing_features(plan, machine, generation),
        (row.why.format(packages=machine.packages, **facts) for row in CONFLICTS if row.excludes(facts, machine.packages)),
        _missing_packages(plan, machine),
        conflicts_with_model(plan, model),
    )
    return next((reason for check in checks for reason in check), None)


def _numbers_of_devices(device: DeviceChoice, machine: Machine) -> Iterator[str]:
    if device.count % (group := device.tensor_parallel * device.pipeline_parallel):
        yield f"{device.count} devices: tensor x pipeline parallel is {group}; give a multiple of it"
    if (missing := missing_devices(device.count, device.nodes, machine)) is not None:
        yield f"{device.count} devices{f' on {device.nodes} nodes' * (device.nodes > 1)}: {missing}"


def missing_devices(count: int, nodes: int, machine: Machine) -> str | None:
    """Return the number of devices that a machine has, with the option to give, if it has fewer than its part of all; else None."""
    on_host, here = machine.family.on_host, len(machine.devices)
    most = PROCESSES_PER_CORE * machine.cpu_usable_cores if on_host else here
    if count // nodes <= most:
        return None
    has = f"{machine.cpu_usable_cores} cores" if on_host else f"{here} {machine.backend.value} device{'s' * (here != 1)}"
    limit = f", with at most {PROCESSES_PER_CORE} processes per core" if on_host else ""
    return f"this machine has {has}{limit}; give --devices {most * nodes} or less"


def shared_cores(device: DeviceChoice, machine: Machine) -> str | None:
    """Return a warning if the processes of a machine share its cores, which then run one after the other; None if they do not."""
    processes, cores = device.count // device.nodes, machine.cpu_usable_cores
    if not machine.family.on_host or processes <= cores:
        return None
    most = cores * device.nodes
    return f"{processes} processes share {cores} cores and wait for each other, so they do not measure {processes} devices; give --devices {most} or less"


def _missing_features(plan: Plan, machine: Machine, generation: Generation | None) -> Iterator[str]:
    backend = plan.device.backend
    used = [feature for feature in Feature if feature.used_by(plan)]
    lacking = {backend.value: machine.family.cannot} | ({generation.name: generation.cannot} if generation else {})
    for name, cannot in lacking.items():
        yield from (f"{feature.value} on {name}: {cannot[feature]}" for feature in used if feature in cannot)
    if plan.precision.compute not in machine.family.formats:
        formats = ", ".join(dtype.value for dtype in machine.family.formats)
        yield f"compute format {plan.precision.compute.value}: this device has {formats}"


def _missing_packages(plan: Plan, machine: Machine) -> Iterator[str]:
    if "torch" not in machine.packages:
        yield "training needs torch, which is not installed: pip install 'tunemark[run]'"
    for feature, need in machine.family.needs.items():
        found = machine.packages.get(need.package) if feature.used_by(plan) else need.oldest
        if found is None:
            yield f"{feature.value} needs {need.package}, which is not installed: {need.install}"
        elif _release(found) < _release(need.oldest):
            yield f"{feature.value} needs {need.package} {need.oldest} or newer, and this is {found}: {need.install}"


# Settings that exclude each other on any machine, or with a model


class Conflict(NamedTuple):
    """Settings that exclude each other, one row of conflicts.toml."""

    why: str
    when: list[dict[str, Any]]
    """Alternatives, each with fields of a plan, its model's card and the traits of its family, and their values."""
    before: Mapping[str, str] = {}
    """Packages, and the first release of each without the conflict."""
    since: Mapping[str, str] = {}
    """Packages, and the first release of each with the conflict."""

    def excludes(self, facts: Mapping[str, Any], packages: Mapping[str, str]) -> bool:
        """Return True for settings of `facts`, a plan, its model's card and the traits of its family, on a machine with such packages."""
        return (
            any(all(_has(facts, *setting) for setting in each.items()) for each in self.when)
            and all(_release(packages.get(name, "")) < _release(first) for name, first in self.before.items())
            and all(_release(packages.get(name, "")) >= _release(first) for name, first in self.since.items())
        )


CONFLICTS = [Conflict(**row) for row in tomllib.loads(Path(__file__).with_name("conflicts.toml").read_text(encoding="utf-8"))["conflict"]]


def _has(facts: Mapping[str, Any], name: str, wanted: Any) -> bool:  # noqa: ANN401 - values of settings
    """Return True if a field has a wanted value, as conflicts.toml writes it. A field of settings that the plan does not have has none."""
    first, *rest = name.removeprefix("!").split(".")
    value = facts[first] if first in facts else getattr(facts["plan"], first, None)
    for part in rest:
        value = getattr(value, part, None)
    if isinstance(wanted, bool):
        return bool(value) is wanted
    accepted = wanted if isinstance(wanted, list) else (wanted,)
    found = any(each in accepted for each in value) if isinstance(value, tuple) else value in accepted
    return found != name.startswith("!")


def _release(version: str) -> tuple[float, float]:
    """Return major and minor release of a version; that of a package that is still to be installed is the newest."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?", version)
    return (int(numbers[1]), int(numbers[2] or 0)) if numbers else (math.inf, math.inf)


def conflicts_with_model(plan: Plan, card: ModelCard) -> Iterator[str]:
    """Yield settings that the shape of a model does not allow."""
    # A model with rotary positions can read rows longer than its context length.
    if FAMILIES[card.family].learned_positions and plan.data.sequence_length > card.context_length:
        yield f"{card.key} has positions for {card.context_length} tokens, data.sequence_length is {plan.data.sequence_length}"
    yield from _attention_conflicts(plan, card)
    sides = {side for linear in block_linears(card) for side in (linear.inputs, linear.outputs)} if plan.model.fp8_products else set()
    if odd := next((side for side in sorted(sides) if side % FP8_LAYER_MULTIPLE), None):
        yield f"{card.key} has a matrix with a side of {odd}, but fp8 products need multiples of {FP8_LAYER_MULTIPLE}; {WITHOUT_FP8}"


def _attention_conflicts(plan: Plan, card: ModelCard) -> Iterator[str]:
    """Yield what the heads and the kinds of attention of a model do not allow."""
    heads = blocks_of(card)[-1]
    if plan.model.attention == VARLEN and heads.value_width != heads.width:
        widths = f"keys of width {heads.width} and values of {heads.value_width}"
        yield f"{card.key} has {widths}, and varlen attention takes one width; use attention=sdpa"
    elif plan.model.attention == VARLEN and (heads.width % HEAD_MULTIPLE or heads.width > WIDEST_HEAD):
        limits = f"multiples of {HEAD_MULTIPLE} up to {WIDEST_HEAD}"
        yield f"{card.key} has heads of width {heads.width}, and varlen attention takes {limits}; use attention=sdpa"
    if FAMILIES[card.family].chunked and plan.data.packing and plan.data.sequence_length > (card.sliding_window or 0):
        chunk = f"{card.key} attends within chunks of {card.sliding_window} tokens, and data.sequence_length is {plan.data.sequence_length}"
        yield f"{chunk}: packing has no mask for chunks yet; use data.packing=false, or rows of at most one chunk"
