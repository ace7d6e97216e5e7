"""NVIDIA GPUs, and AMD GPUs under ROCm's torch: asynchronous, timed by events in the stream."""

import time
from typing import Any, Self

from tunemark.harness.devices.features import Feature
from tunemark.harness.devices.protocol import DeviceMemory, DeviceUnavailable, Stamp
from tunemark.schema.submission import MemoryReading

CANNOT: dict[Feature, str] = {
    Feature.TENSOR_PARALLEL: "on Neuron devices only in this version; use fsdp2 or zero3",
    Feature.PIPELINE_PARALLEL: "on Neuron devices only in this version; use fsdp2 or zero3",
}


class Cuda:
    """Trains on one GPU. Steps are timed by events, so that no step is waited for inside the window."""

    collectives = "nccl"

    def __init__(self, torch: Any, local_rank: int = 0) -> None:  # noqa: ANN401 - the module, imported late
        self._torch = torch
        self._index = local_rank
        self.torch_name = f"cuda:{local_rank}"
        self._last: Any = None
        self._last_s = 0.0

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the CPU only feeds the GPU
        """Check that torch sees the GPU."""
        import torch  # noqa: PLC0415

        if not torch.cuda.is_available():
            msg = f"torch {torch.__version__} sees no GPU; install a build for the driver of this machine"
            raise DeviceUnavailable(msg)
        torch.cuda.set_device(local_rank)
        return cls(torch, local_rank)

    def now(self) -> float:
        """Return the host's clock."""
        return time.monotonic()

    def name(self) -> str | None:
        """Return the GPU's name as its driver gives it."""
        return str(self._torch.cuda.get_device_name(self._index))

    def begin(self) -> None:
        """Wait for the GPU, tie the clock of events to the host's clock here, and forget the allocator's peaks."""
        self._torch.cuda.synchronize()
        self._last = self._torch.cuda.Event(enable_timing=True)
        self._last.record()
        self._last.synchronize()
        self._last_s = time.monotonic()
        self._torch.cuda.reset_peak_memory_stats()

    def synchronise(self) -> None:
        """Wait for the GPU."""
        self._torch.cuda.synchronize()

    def host_copy(self, scalar: Any) -> Any:  # noqa: ANN401 - a torch tensor
        """Return a copy in pinned memory, which is complete when a later event is reached: reading it waits for nothing."""
        copy = self._torch.empty((), dtype=self._torch.float32, pin_memory=True)
        copy.copy_(scalar, non_blocking=True)
        return copy

    def stamp(self) -> Stamp:
        """Record an event."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, stamp: Stamp) -> float | None:
        """Return the event's time on the host's clock, or None while the GPU has not reached it. Asked in the order of the marks.

        Counted from the event before: `elapsed_time` is a 32-bit float of milliseconds and loses digits over hours.
        """
        if not stamp.query():
            return None
        self._last_s += self._last.elapsed_time(stamp) / 1e3
        self._last = stamp
        return float(self._last_s)

    def held_bytes(self) -> int | None:
        """Return what the allocator holds: a call into the driver's books, the GPU is not asked."""
        return int(self._torch.cuda.memory_reserved())

    def memory(self) -> DeviceMemory:
        """Return the allocator's peaks."""
        return DeviceMemory(
            MemoryReading(peak_bytes=self._torch.cuda.max_memory_allocated(), method="torch.cuda.max_memory_allocated"),
            MemoryReading(peak_bytes=self._torch.cuda.max_memory_reserved(), method="torch.cuda.max_memory_reserved"),
        )
