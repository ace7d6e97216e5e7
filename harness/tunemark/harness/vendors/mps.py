"""Apple GPUs: no event times across the queue, so each step is waited for."""

from typing import Self

from tunemark.harness.vendors.protocol import HOPPER_ONLY, DeviceMemory, DeviceUnavailable, Feature, SynchronousDevice
from tunemark.schema.records.submission import MemoryReading

CANNOT: dict[Feature, str] = {
    Feature.QLORA: "bitsandbytes has no kernels for Metal; use method lora",
    Feature.FLASH_ATTENTION: "its kernels are for CUDA and ROCm; use attention=sdpa",
    Feature.FLASH_ATTENTION_3: HOPPER_ONLY,
    Feature.FLEX_ATTENTION: "its kernels are for CUDA and ROCm; use attention=sdpa",
    Feature.LIGER: "its kernels are written in Triton, which has no Metal back end; use fused_kernels=none",
    Feature.EIGHT_BIT_OPTIMIZER: "bitsandbytes has no kernels for Metal; use optimizer.name=adamw",
    Feature.TF32: "a format of NVIDIA GPUs; use compute=fp32",
    Feature.DDP: "one GPU a machine, and no collectives for it",
    Feature.FSDP2: "one GPU a machine, and no collectives for it",
    Feature.ZERO: "one GPU a machine, and no collectives for it",
    Feature.OFFLOAD: "the GPU shares the host's memory",
    Feature.TENSOR_PARALLEL: "one GPU a machine",
    Feature.PIPELINE_PARALLEL: "one GPU a machine",
    Feature.PEAK_MEMORY: "torch.mps counts current memory only, no peak; what the Metal heap holds is taken instead",
    Feature.UTILISATION: "powermetrics needs root",
    Feature.ENERGY: "powermetrics needs root",
}


class Mps(SynchronousDevice):
    """Trains on an Apple GPU through Metal."""

    torch_name = "mps"

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the CPU only feeds the GPU
        """Check that torch sees the GPU."""
        import torch  # noqa: PLC0415

        if not torch.backends.mps.is_available():
            msg = "torch.backends.mps.is_available() is false; install a torch build with MPS on macOS 14 or newer"
            raise DeviceUnavailable(msg)
        return cls()

    def synchronise(self) -> None:
        """Wait for the GPU."""
        import torch  # noqa: PLC0415

        torch.mps.synchronize()

    def memory(self) -> DeviceMemory:
        """MPS counts what is allocated now, and no peak of tensors."""
        import torch  # noqa: PLC0415

        return DeviceMemory(
            MemoryReading(reason="torch.mps counts current memory only, no peak"),
            MemoryReading(
                peak_bytes=torch.mps.driver_allocated_memory(),
                method="torch.mps.driver_allocated_memory at the end: the Metal heap does not shrink by itself",
            ),
        )
