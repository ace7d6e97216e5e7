"""What a generation of GPUs cannot that newer ones of its family can, told by what kernels are compiled for, or by its card.

NVIDIA: "Compute Capabilities" of the CUDA programming guide (tensor cores: fp16 since 7.0, bf16 and tf32 since 8.0). AMD:
LLVM's processor table for AMDGPU (matrix instructions on bf16: gfx908 and later of CDNA, gfx11 and later of RDNA). Where a
format has no matrix unit torch emulates it, many times slower than what the device does well.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from tunemark.harness.plan.machine import Machine
from tunemark.harness.plan.sections import sharing_problem, too_many_devices
from tunemark.harness.vendors.protocol import HOPPER_ONLY, Feature
from tunemark.schema.facts.fact_base import FILE, SupportMatrix
from tunemark.schema.files import project_root, write_atomically
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Backend, Checkpointing, Dtype, Method, Padding, Strategy, Task

FORMATS: dict[Backend, tuple[Dtype, ...]] = {
    Backend.CUDA: (Dtype.BF16, Dtype.FP16, Dtype.TF32, Dtype.FP32),
    Backend.ROCM: (Dtype.BF16, Dtype.FP16, Dtype.FP32),
    Backend.NEURON: (Dtype.BF16, Dtype.FP32),
    # Intel's tools tell no generation, and no card of ours lacks bf16. Metal has it since macOS 14, which torch asks for.
    Backend.XPU: (Dtype.BF16, Dtype.FP16, Dtype.FP32),
    Backend.MPS: (Dtype.BF16, Dtype.FP16, Dtype.FP32),
    Backend.CPU: (Dtype.FP32, Dtype.BF16),
}
"""Number formats of each family's matrix units, fastest first."""
FEATURE_OF: dict[Dtype, Feature] = {Dtype.BF16: Feature.BF16, Dtype.FP16: Feature.FP16, Dtype.TF32: Feature.TF32}


@dataclass(frozen=True, slots=True)
class Generation:
    """GPUs of one family that lack the same."""

    name: str
    """One of them, in words."""
    backend: Backend
    """Their family."""
    target: str
    """Pattern of what their kernels are compiled for: NVIDIA's compute capability, AMD's gfx name."""
    architectures: tuple[str, ...]
    """What accelerator cards call their architecture."""
    cannot: dict[Feature, str]
    """What they cannot, with the reason and what to do instead."""

    def formats(self, of_family: tuple[Dtype, ...]) -> tuple[Dtype, ...]:
        """Return which number formats of the family are left."""
        return tuple(dtype for dtype in of_family if FEATURE_OF.get(dtype) not in self.cannot)


SINCE_AMPERE = "NVIDIA's matrix units have it since compute capability 8.0 (Ampere); use compute=fp16 or fp32"
SINCE_VOLTA = "NVIDIA GPUs have matrix units since compute capability 7.0 (Volta); use compute=fp32"
NO_FLASH = "its kernels need compute capability 8.0 (Ampere) or newer; use attention=sdpa"
OLD_AMD = "AMD's matrix units have it since gfx908 (MI100) and gfx11 (RX 7000); use compute=fp16 or fp32"

GENERATIONS = (
    Generation(
        "a GPU before Volta",
        Backend.CUDA,
        r"[1-6]\.\d",
        ("Kepler", "Maxwell", "Pascal"),
        {
            Feature.BF16: SINCE_VOLTA,
            Feature.FP16: SINCE_VOLTA,
            Feature.TF32: SINCE_VOLTA,
            Feature.FLASH_ATTENTION: NO_FLASH,
            Feature.FLASH_ATTENTION_3: HOPPER_ONLY,
            Feature.COMPILE: "Triton needs compute capability 7.0 (Volta) or newer; use compile=none",
            Feature.LIGER: "Triton needs compute capability 7.0 (Volta) or newer; use fused_kernels=none",
        },
    ),
    Generation(
        "a Volta or Turing GPU",
        Backend.CUDA,
        r"7\.\d",
        ("Volta", "Turing"),
        {Feature.BF16: SINCE_AMPERE, Feature.TF32: SINCE_AMPERE, Feature.FLASH_ATTENTION: NO_FLASH, Feature.FLASH_ATTENTION_3: HOPPER_ONLY},
    ),
    Generation("an Ampere or Ada GPU", Backend.CUDA, r"8\.\d", ("Ampere", "Ada Lovelace"), {Feature.FLASH_ATTENTION_3: HOPPER_ONLY}),
    Generation("a Blackwell GPU", Backend.CUDA, r"1\d\.\d", ("Blackwell", "Blackwell Ultra"), {Feature.FLASH_ATTENTION_3: HOPPER_ONLY}),
    Generation(
        "an AMD GPU before CDNA and RDNA 3",
        Backend.ROCM,
        r"gfx(8\w+|90[0-79]|90c|10\w+)",
        ("GCN", "Vega", "RDNA", "RDNA 2"),
        {Feature.BF16: OLD_AMD},
    ),
)
"""Generations that lack something; the others can all that their family can."""


def generation_of(backend: Backend, target: str | None, architecture: str | None) -> Generation | None:
    """Return the generation of a device that lacks something, or None. Its card is asked only where the device has not told."""
    for one in GENERATIONS:
        told = re.fullmatch(one.target, target) if target else architecture in one.architectures
        if one.backend is backend and told:
            return one
    return None


# MOVE: was tunemark.harness.plan.capabilities: Packages that features need, by device family: the same feature is another package's work on another family.

Need = tuple[str, str]
"""A package as it is installed, and how to get it."""

BITSANDBYTES: Need = ("bitsandbytes", "pip install 'tunemark[qlora]'")
TORCH_NEEDS: dict[Feature, Need] = {
    Feature.QLORA: BITSANDBYTES,
    Feature.EIGHT_BIT_OPTIMIZER: BITSANDBYTES,
    Feature.ZERO: ("deepspeed", "pip install 'tunemark[distributed]'"),
    Feature.LIGER: ("liger-kernel", "pip install liger-kernel"),
    Feature.FLASH_ATTENTION: ("flash-attn", "pip install flash-attn --no-build-isolation, or use attention=sdpa"),
    # Transformers looks for its module flash_attn_interface and for this very distribution. Without it transformers may fetch
    # a kernel from the hub, at run time and another one than was planned for.
    Feature.FLASH_ATTENTION_3: (
        "flash-attn-3",
        "build it in the folder hopper of github.com/Dao-AILab/flash-attention, or use attention=flash_attention_2 or sdpa",
    ),
}
"""Families that our own loop trains on."""
OPTIMUM_NEURON: Need = ("optimum-neuron", "pip install 'optimum-neuron[training]==0.4.5' on the Neuron stack")
NEURON_TRAINER_NEEDS: dict[Feature, Need] = dict.fromkeys(
    (
        Feature.FULL,
        Feature.LORA,
        # NKI's kernel and the sharing of states and layers are parts of it.
        Feature.FLASH_ATTENTION,
        Feature.ZERO,
        Feature.TENSOR_PARALLEL,
        Feature.PIPELINE_PARALLEL,
    ),
    OPTIMUM_NEURON,
)
"""Causal language models on Neuron devices."""
TORCH_XLA: Need = ("torch-xla", "install torch-neuronx of the Neuron SDK, as the README says")
NEURON_LOOP_NEEDS: dict[Feature, Need] = dict.fromkeys((Feature.FULL, Feature.LORA), TORCH_XLA)
"""Classifiers on Neuron devices."""

NEEDS: dict[Backend, dict[Feature, Need]] = {
    backend: NEURON_TRAINER_NEEDS if backend is Backend.NEURON else TORCH_NEEDS for backend in Backend
}
"""What each family needs for causal language models; what else a classifier needs on Neuron devices is in neuron_rules.py."""


# MOVE: was tunemark.harness.plan.capabilities: What holds on Neuron devices only: which of two ways a plan is trained in, what neither can do, and what the runtime is told. Causal language models are trained by optimum-neuron's trainer, classifiers by our own loop on one core.

NEURON_ATTENTION = {"eager": "eager", "sdpa": "flash_attention_2", "flash_attention_2": "flash_attention_2"}
"""Attention of a plan -> that of optimum-neuron, which calls its own kernel by that name and has no other fused one."""
NEURON_FAMILIES = ("llama", "granite", "qwen3")
"""Model families that optimum-neuron has written anew for training."""


def by_trainer(plan: Plan) -> bool:
    """Return whether optimum-neuron's trainer trains a plan."""
    return plan.model.task is Task.CAUSAL_LM


def neuron_needs(plan: Plan) -> dict[Feature, Need]:
    """Return the packages that features need."""
    return NEURON_TRAINER_NEEDS if by_trainer(plan) else NEURON_LOOP_NEEDS


def family_reason(plan: Plan, family: str) -> str | None:
    """Return why a model of a family cannot be trained on Neuron devices, or None."""
    if not by_trainer(plan) or family in NEURON_FAMILIES:
        return None
    return f"{plan.model.key} is of family {family}, and optimum-neuron trains {', '.join(NEURON_FAMILIES)}"


def neuron_reasons(plan: Plan) -> Iterator[str]:
    """Yield why a plan cannot be trained on Neuron devices."""
    if plan.device.strategy in {Strategy.ZERO2, Strategy.ZERO3}:
        yield f"{plan.device.strategy.value}: optimum-neuron shares optimizer states only; use zero1"
    if plan.data.padding is Padding.DYNAMIC and not plan.data.packing:
        yield "dynamic padding: each new length is another graph, which is compiled for minutes; use data.padding=static"
    yield from _trainer_reasons(plan) if by_trainer(plan) else _loop_reasons(plan)


def _trainer_reasons(plan: Plan) -> Iterator[str]:
    if plan.model.attention not in NEURON_ATTENTION:
        yield f"attention {plan.model.attention}: optimum-neuron has {', '.join(NEURON_ATTENTION)}"
    if plan.optimizer.name not in {"adamw", "sgd"}:
        yield f"optimizer {plan.optimizer.name}: optimum-neuron's trainer has adamw and sgd"
    if plan.optimizer.layer_decay is not None:
        yield "layer_decay: optimum-neuron's trainer gives all blocks the same learning rate"
    if plan.device.pipeline_parallel > 1 and plan.lora is not None:
        yield "LoRA with pipeline parallel is not done in this version; use tensor parallel"
    if plan.measurement.save:
        yield "save: each core holds a part of the weights, and gathering them from optimum-neuron is not done in this version; leave --save out"
    if plan.measurement.timing == "strict" and plan.device.pipeline_parallel > 1:
        yield "timing=strict with pipeline parallel: a stage cannot be waited for alone"


def _loop_reasons(plan: Plan) -> Iterator[str]:
    if plan.device.count > 1:
        yield "a classifier is trained on one NeuronCore in this version, which exchanges no gradients over XLA; use --devices 1"
    if plan.model.attention.startswith("flash_attention"):
        yield "flash attention for classifiers; use attention=sdpa"


def neuron_environment(plan: Plan, already: Mapping[str, str]) -> dict[str, str]:
    """Return what compiler and runtime are told, beside the flags that the person running it has set already."""
    settings = plan.neuron
    flags = [already.get("NEURON_CC_FLAGS", ""), "--model-type transformer"]
    if plan.precision.compute is Dtype.FP32 and "--auto-cast" not in flags[0]:
        # Whatever the compiler's default is: fp32 is fp32.
        flags.append("--auto-cast none")
    if settings and settings.optimisation_level is not None:
        flags.append(f"-O{settings.optimisation_level}")
    stochastic = bool(settings and settings.stochastic_rounding)
    return {"NEURON_CC_FLAGS": " ".join(filter(None, flags)), "NEURON_RT_STOCHASTIC_ROUNDING_EN": str(int(stochastic))}


# MOVE: was tunemark.harness.plan.capabilities: What each device family cannot do, decided before a minute is spent. The reasons stand with the devices (`CANNOT` in devices/*.py, generations.py), packages in needs.py; the support matrix of the site is made from these.

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


def cannot_do(backend: Backend) -> dict[Feature, str]:
    """Return what a device family cannot do, with the reason of each."""
    reasons: dict[Feature, str] = import_module(f"tunemark.harness.vendors.{backend.value}").CANNOT
    return reasons


def unsupported_reason(plan: Plan, machine: Machine, generation: Generation | None) -> str | None:
    """Return why a plan cannot be run on this machine, or None; `generation` is that of its devices where it lacks something."""
    return next(_unsupported_reasons(plan, machine, generation), None)


def _unsupported_reasons(plan: Plan, machine: Machine, generation: Generation | None) -> Iterator[str]:
    yield from filter(None, (sharing_problem(plan.device), too_many_devices(plan.device, machine)))
    missing = cannot_do(plan.device.backend)
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
        yield from neuron_reasons(plan)
        needs = neuron_needs(plan)
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


# MOVE: was tunemark.harness.plan.capabilities: The support matrix as data: `make support` writes it to data/support.json, and a test fails when that differs from the code.


def support_matrix() -> SupportMatrix:
    """Return what each device family that there is code for can do; the scripted one measures nothing and is left out."""
    families = [backend for backend in Backend if backend is not Backend.FAKE and find_spec(f"tunemark.harness.vendors.{backend.value}")]
    return SupportMatrix(
        features=tuple(feature.value for feature in Feature),
        cannot={backend: {feature.value: reason for feature, reason in cannot_do(backend).items()} for backend in families},
        needs={backend: _matrix_needs(backend) for backend in families},
    )


def _matrix_needs(backend: Backend) -> dict[str, str]:
    return {feature.value: package for feature, (package, _) in NEEDS[backend].items() if feature not in cannot_do(backend)}


if __name__ == "__main__":
    write_atomically(project_root() / "data" / FILE, canonical_json(support_matrix()))
