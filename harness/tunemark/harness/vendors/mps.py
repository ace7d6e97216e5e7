"""Apple GPUs: torch has no event times across the queue, so each step is waited for."""

import platform
from typing import Any, Self

from tunemark.harness.vendors import cpu
from tunemark.harness.vendors.protocol import NO_FP8, NO_VARLEN, NVIDIA_ONLY, Device, DeviceMemory, DeviceUnavailable, FoundDevice, Vendor
from tunemark.schema.plan.capabilities import Feature
from tunemark.schema.records.submission import MemoryReading
from tunemark.schema.vocabulary import Backend, Dtype

ONE_GPU = "one GPU per machine, and no collectives for it"
NO_PEAK = "torch.mps counts current memory only, no peak"


class Mps(Device):
    """Trains on an Apple GPU through Metal."""

    torch_name = "mps"

    def __init__(self, mps: Any) -> None:  # noqa: ANN401 - torch.mps, imported late
        self._mps = mps

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the CPU only feeds the GPU
        """Return the GPU."""
        import torch  # noqa: PLC0415

        if not torch.backends.mps.is_available():
            msg = "torch.backends.mps.is_available() is false; install a torch build with MPS on macOS 14 or newer"
            raise DeviceUnavailable(msg)
        return cls(torch.mps)

    def synchronise(self) -> None:
        """Wait for the GPU."""
        self._mps.synchronize()

    def memory(self) -> DeviceMemory:
        """Return the size of the Metal heap; MPS counts no peak of tensors."""
        heap = MemoryReading(
            peak_bytes=self._mps.driver_allocated_memory(),
            method="torch.mps.driver_allocated_memory at the end: the Metal heap does not shrink by itself",
        )
        return DeviceMemory(MemoryReading(reason=NO_PEAK), heap)


def find() -> list[FoundDevice]:
    """Return the GPU of an Apple chip, which shares the host's memory."""
    return cpu.find() if (platform.system(), platform.machine()) == ("Darwin", "arm64") else []


VENDOR = Vendor(
    backend=Backend.MPS,
    device=Mps,
    formats=(Dtype.BF16, Dtype.FP16, Dtype.FP32),  # Metal has bf16 since macOS 14, which torch requires.
    find=find,
    found_by="an Apple GPU shares the memory of this machine",
    preference=10,
    probe_size=4096,
    cannot={
        Feature.QLORA: "bitsandbytes has no kernels for Metal; use method lora",
        Feature.FLASH_ATTENTION: "its kernels are for CUDA and ROCm; use attention=sdpa",
        Feature.FLEX_ATTENTION: "its kernels are for CUDA and ROCm; use attention=sdpa",
        **NVIDIA_ONLY,
        **NO_VARLEN,
        **NO_FP8,
        Feature.LIGER: "its kernels are written in Triton, which has no Metal back end; use fused_kernels=none",
        Feature.EIGHT_BIT_OPTIMIZER: "bitsandbytes has no kernels for Metal; use optimizer.name=adamw",
        Feature.TF32: "a format of NVIDIA GPUs; use compute=fp32",
        Feature.DDP: ONE_GPU,
        Feature.FSDP2: ONE_GPU,
        Feature.ZERO: ONE_GPU,
        Feature.OFFLOAD: "the GPU shares the host's memory",
        Feature.TENSOR_PARALLEL: "one GPU per machine",
        Feature.PIPELINE_PARALLEL: "one GPU per machine",
        Feature.PEAK_MEMORY: f"{NO_PEAK}; the size of the Metal heap is used instead",
        Feature.UTILISATION: "powermetrics needs root",
        Feature.ENERGY: "powermetrics needs root",
    },
)
