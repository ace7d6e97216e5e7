"""Devices with a stream of work and events in it, as torch.cuda and torch.xpu offer them: no step is waited for inside the window."""

import time
from typing import Any

from tunemark.harness.devices.features import Feature
from tunemark.harness.devices.protocol import DeviceMemory, Stamp
from tunemark.schema.records.submission import MemoryReading

WHOLE_LAYERS: dict[Feature, str] = {
    Feature.TENSOR_PARALLEL: "on Neuron devices only in this version; use fsdp2 or zero3",
    Feature.PIPELINE_PARALLEL: "on Neuron devices only in this version; use fsdp2 or zero3",
}
"""What none of these families can, for the same reason."""


class EventDevice:
    """One device whose steps are timed by events. `api` is its module of torch, such as torch.cuda."""

    collectives = "nccl"

    def __init__(self, torch: Any, api: Any, family: str, local_rank: int = 0) -> None:  # noqa: ANN401 - modules, imported late
        self._torch = torch
        self._api = api
        self._family = family
        self._index = local_rank
        self.torch_name = f"{family}:{local_rank}"
        self._last: Any = None
        self._last_s = 0.0

    def now(self) -> float:
        """Return the host's clock."""
        return time.monotonic()

    def name(self) -> str | None:
        """Return the device's name as its driver gives it."""
        return str(self._api.get_device_name(self._index))

    def begin(self) -> None:
        """Wait for the device, tie the clock of events to the host's clock here, and forget the allocator's peaks."""
        self._api.synchronize()
        self._last = self._api.Event(enable_timing=True)
        self._last.record()
        self._last.synchronize()
        self._last_s = time.monotonic()
        self._api.reset_peak_memory_stats()

    def synchronise(self) -> None:
        """Wait for the device."""
        self._api.synchronize()

    def host_copy(self, scalar: Any) -> Any:  # noqa: ANN401 - a torch tensor
        """Return a copy in pinned memory, which is complete when a later event is reached: reading it waits for nothing."""
        copy = self._torch.empty(scalar.shape, dtype=self._torch.float32, pin_memory=True)
        copy.copy_(scalar, non_blocking=True)
        return copy

    def stamp(self) -> Stamp:
        """Record an event."""
        event = self._api.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, stamp: Stamp) -> float | None:
        """Return the event's time on the host's clock, or None while the device has not reached it. Asked in the order of the marks.

        Counted from the event before: `elapsed_time` is a 32-bit float of milliseconds and loses digits over hours.
        """
        if not stamp.query():
            return None
        self._last_s += self._last.elapsed_time(stamp) / 1e3
        self._last = stamp
        return float(self._last_s)

    def held_bytes(self) -> int | None:
        """Return what the allocator holds: a call into the driver's books, the device is not asked."""
        return int(self._api.memory_reserved())

    def memory(self) -> DeviceMemory:
        """Return the allocator's peaks."""
        return DeviceMemory(
            MemoryReading(peak_bytes=self._api.max_memory_allocated(), method=f"torch.{self._family}.max_memory_allocated"),
            MemoryReading(peak_bytes=self._api.max_memory_reserved(), method=f"torch.{self._family}.max_memory_reserved"),
        )
