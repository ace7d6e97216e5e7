"""What a generation of GPUs cannot that newer ones of its family can, told by what kernels are compiled for, or by its card.

NVIDIA: "Compute Capabilities" of the CUDA programming guide (tensor cores: fp16 since 7.0, bf16 and tf32 since 8.0). AMD:
LLVM's processor table for AMDGPU (matrix instructions on bf16: gfx908 and later of CDNA, gfx11 and later of RDNA). Where a
format has no matrix unit torch emulates it, many times slower than what the device does well.
"""

import re
from dataclasses import dataclass

from tunemark.harness.devices.features import HOPPER_ONLY, Feature
from tunemark.schema.vocabulary import Backend, Dtype

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
