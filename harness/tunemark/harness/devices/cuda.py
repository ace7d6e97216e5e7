"""NVIDIA GPUs, and AMD GPUs under ROCm's torch: asynchronous, timed by events in the stream."""

import time
from typing import Any, Self

from tunemark.harness.devices.protocol import DeviceMemory, DeviceUnavailable, Stamp
from tunemark.schema.submission import MemoryReading


class Cuda:
    """Trains on one GPU. Steps are timed by events, so that no step is waited for inside the window."""

    torch_name = "cuda:0"

    def __init__(self, torch: Any) -> None:  # noqa: ANN401 - the module, imported late
        self._torch = torch
        self._zero = torch.cuda.Event(enable_timing=True)
        self._zero_s = 0.0
        self.synchronise()

    @classmethod
    def open(cls, threads: int | None) -> Self:  # noqa: ARG003 - the CPU only feeds the GPU
        """Check that torch sees the GPU."""
        import torch  # noqa: PLC0415

        if not torch.cuda.is_available():
            msg = f"torch {torch.__version__} sees no GPU; install a build for the driver of this machine"
            raise DeviceUnavailable(msg)
        return cls(torch)

    def now(self) -> float:
        """Return the host's clock."""
        return time.monotonic()

    def synchronise(self) -> None:
        """Wait for the GPU and tie the event clock to the host's clock here."""
        self._torch.cuda.synchronize()
        self._zero = self._torch.cuda.Event(enable_timing=True)
        self._zero.record()
        self._zero.synchronize()
        self._zero_s = time.monotonic()

    def stamp(self) -> Stamp:
        """Record an event together with the tie that its time is read against."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event, self._zero, self._zero_s

    def reached(self, stamp: Stamp) -> float | None:
        """Return the event's time on the host's clock, or None while the GPU has not reached it."""
        event, zero, zero_s = stamp
        return float(zero_s + zero.elapsed_time(event) / 1e3) if event.query() else None

    def reset_peaks(self) -> None:
        """Forget the allocator's peaks."""
        self._torch.cuda.reset_peak_memory_stats()

    def memory(self) -> DeviceMemory:
        """Return the allocator's peaks."""
        return DeviceMemory(
            MemoryReading(peak_bytes=self._torch.cuda.max_memory_allocated(), method="torch.cuda.max_memory_allocated"),
            MemoryReading(peak_bytes=self._torch.cuda.max_memory_reserved(), method="torch.cuda.max_memory_reserved"),
        )
