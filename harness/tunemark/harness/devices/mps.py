"""Apple GPUs: no event times across the queue, so each step is waited for."""

from typing import Self

from tunemark.harness.devices.protocol import DeviceMemory, DeviceUnavailable, SynchronousDevice
from tunemark.schema.submission import MemoryReading


class Mps(SynchronousDevice):
    """Trains on an Apple GPU through Metal."""

    torch_name = "mps"

    @classmethod
    def open(cls, threads: int | None) -> Self:  # noqa: ARG003 - the CPU only feeds the GPU
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
