"""What devices can do, what a plan uses, and the machine of a plan.

Families list what their devices cannot do. The harness declares them per vendor and writes all of them to data/support.json, which the
gate plans with.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from tunemark.schema.records.base import Bytes, Frozen
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import Environment
from tunemark.schema.vocabulary import VARLEN, Backend, Checkpointing, Dtype, Method, Strategy


class Feature(StrEnum):
    """A capability, as the support matrix names it. A family lists what it cannot do; it supports the rest."""

    FULL = "full fine-tuning"
    LORA = "LoRA"
    QLORA = "QLoRA"
    FP8_FROZEN = "frozen weights in fp8"
    FP8_TRAINING = "training in fp8"
    PACKING = "packed documents"
    FULL_CHECKPOINTING = "full checkpointing"
    SELECTIVE_CHECKPOINTING = "selective checkpointing"
    FLASH_ATTENTION = "flash attention"
    FLASH_ATTENTION_3 = "FlashAttention 3"
    FLEX_ATTENTION = "flex attention"
    VARLEN_ATTENTION = "variable-length attention"
    CUDNN_ATTENTION = "cuDNN attention"
    CUDA_GRAPHS = "CUDA graphs"
    LIGER = "Liger fused kernels"
    COMPILE = "torch.compile"
    EIGHT_BIT_OPTIMIZER = "8-bit optimizer states"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    DDP = "DDP"
    FSDP2 = "FSDP2"
    ZERO = "DeepSpeed ZeRO"
    OFFLOAD = "offload to host memory"
    TENSOR_PARALLEL = "tensor parallel"
    PIPELINE_PARALLEL = "pipeline parallel"
    PEAK_MEMORY = "peak memory of the allocator"
    UTILISATION = "device utilisation"
    ENERGY = "energy counter"


USED: dict[Feature, Callable[[Plan], bool]] = {
    Feature.FULL: lambda plan: plan.method is Method.FULL,
    Feature.LORA: lambda plan: plan.method is Method.LORA,
    Feature.QLORA: lambda plan: plan.method is Method.QLORA,
    Feature.FP8_FROZEN: lambda plan: plan.model.frozen_weights == "fp8",
    Feature.FP8_TRAINING: lambda plan: plan.model.fp8_training != "none",
    Feature.PACKING: lambda plan: plan.data.packing and plan.data.document_borders,
    Feature.FULL_CHECKPOINTING: lambda plan: plan.model.gradient_checkpointing is Checkpointing.FULL,
    Feature.SELECTIVE_CHECKPOINTING: lambda plan: plan.model.gradient_checkpointing is Checkpointing.SELECTIVE,
    Feature.FLASH_ATTENTION: lambda plan: plan.model.attention == "flash_attention_2",
    Feature.FLASH_ATTENTION_3: lambda plan: plan.model.attention == "flash_attention_3",
    Feature.FLEX_ATTENTION: lambda plan: plan.model.attention == "flex_attention",
    Feature.VARLEN_ATTENTION: lambda plan: plan.model.attention == VARLEN,
    Feature.CUDNN_ATTENTION: lambda plan: plan.model.sdpa_kernel == "cudnn",
    Feature.CUDA_GRAPHS: lambda plan: plan.model.compile_mode == "reduce-overhead",
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


@dataclass(frozen=True, slots=True)
class Family:
    """What the devices of a family can do. The harness declares it per vendor and writes all of them to data/support.json."""

    found_by: str
    """Reason that a plan gives when devices of the family are found."""
    formats: tuple[Dtype, ...]
    """Number formats of the matrix units, fastest first; a generation may lack some."""
    cannot: dict[Feature, str]
    """Features that no device of the family has, each with the reason and what to use instead."""
    needs: dict[Feature, Need] = field(default_factory=dict)
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

    @property
    def target(self) -> str | None:
        """Compile target of the first device; None where unknown."""
        return self.devices[0].target
