"""What a run may ask of a device family. A family names what it cannot do, with the reason; the rest it can."""

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, Self

from tunemark.schema.records.submission import DeviceFacts, MemoryReading


class Feature(StrEnum):
    """A capability, in the words of the support matrix."""

    FULL = "full fine-tuning"
    LORA = "LoRA"
    QLORA = "QLoRA"
    PACKING = "packed documents"
    FULL_CHECKPOINTING = "full checkpointing"
    SELECTIVE_CHECKPOINTING = "selective checkpointing"
    FLASH_ATTENTION = "flash attention"
    FLASH_ATTENTION_3 = "FlashAttention 3"
    FLEX_ATTENTION = "flex attention"
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


HOPPER_ONLY = "its kernels are for NVIDIA's Hopper GPUs; use attention=sdpa"
"""Why no other device has FlashAttention 3."""


# MOVE: was tunemark.harness.vendors.protocol: What the harness asks of a device: a clock that knows when work is done, and memory peaks.

Stamp = Any
"""A mark in the device's queue of work; what it is belongs to the device."""


class DeviceUnavailable(RuntimeError):
    """The plan asks for a device that torch cannot use here."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Peaks since `begin`, of this process's allocator."""

    allocated: MemoryReading
    reserved: MemoryReading


class Device(Protocol):
    """One device of one rank. Times are seconds on the host's monotonic clock."""

    torch_name: str
    """What torch calls it: `cpu`, `cuda:0`, `mps`."""

    collectives: str
    """Back end of torch.distributed that joins such devices: `gloo`, `nccl`."""

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:
        """Prepare the device of a process; `threads` limits the CPU's threads, `local_rank` counts the processes of this machine."""
        ...

    def now(self) -> float:
        """Return the host's clock."""
        ...

    def name(self) -> str | None:
        """Return the name that torch reports of the device; None where it reports none."""
        ...

    def begin(self) -> None:
        """Wait for all work so far, set the clock of marks, and forget memory peaks: measuring begins here."""
        ...

    def synchronise(self) -> None:
        """Wait until all work handed to the device is done."""
        ...

    def host_copy(self, scalar: Any) -> Any:  # noqa: ANN401 - a torch tensor
        """Return a copy of a scalar that may be read once a later mark is reached, without waiting for more."""
        ...

    def stamp(self) -> Stamp:
        """Mark this point in the device's queue of work, without waiting."""
        ...

    def reached(self, stamp: Stamp) -> float | None:
        """Return when the device reached the mark, or None while it has not."""
        ...

    def held_bytes(self) -> int | None:
        """Return what the allocator holds of the device now, without waiting; None where it does not tell."""
        ...

    def memory(self) -> DeviceMemory:
        """Return memory peaks since `begin`, or the reason why there are none."""
        ...


class SynchronousDevice:
    """A device whose work is done when torch returns, or that is waited for at each mark."""

    torch_name = "cpu"
    collectives = "gloo"

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the protocol's signature
        """Prepare the device."""
        return cls()

    def now(self) -> float:
        """Return the host's clock."""
        return time.monotonic()

    def name(self) -> str | None:
        """Return None: torch has no name for it."""
        return None

    def begin(self) -> None:
        """Wait for all work so far."""
        self.synchronise()

    def synchronise(self) -> None:
        """Nothing is ever left to wait for."""

    def host_copy(self, scalar: Any) -> Any:  # noqa: ANN401 - a torch tensor
        """Return the scalar itself: at the next mark it is there."""
        return scalar

    def stamp(self) -> Stamp:
        """Wait for the work so far and return the time."""
        self.synchronise()
        return self.now()

    def reached(self, stamp: Stamp) -> float | None:
        """Return the time of the mark."""
        return float(stamp)

    def held_bytes(self) -> int | None:
        """Return None: nothing is held apart from the host's memory."""
        return None

    def memory(self) -> DeviceMemory:
        """Return why there are no peaks."""
        missing = MemoryReading(reason=f"{self.torch_name} has no allocator that counts peaks")
        return DeviceMemory(missing, missing)


# MOVE: was tunemark.harness.vendors.protocol: Devices with a stream of work and events in it, as torch.cuda and torch.xpu offer them: no step is waited for inside the window.

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


# MOVE: was tunemark.harness.vendors.protocol: A device as a vendor's tool lists it.


@dataclass(frozen=True, slots=True)
class Found:
    """Facts of a device, and the number by which the same vendor's monitor knows it."""

    index: int
    facts: DeviceFacts
    target: str | None = None
    """What its kernels are compiled for, such as compute capability 9.0 or gfx942; None where the tool does not tell."""


# MOVE: was tunemark.harness.vendors.protocol: What the harness asks of a monitor of devices. One family, one file; the vendor's library or tool does the looking.


@dataclass(frozen=True, slots=True)
class Reading:
    """One device at one moment. None where the vendor does not tell."""

    busy: float | None = None
    """Share of the moment before in which something ran, 0 to 1."""
    power_w: float | None = None
    clock_mhz: float | None = None
    """Of the arithmetic units."""
    temperature_c: float | None = None
    memory_used_bytes: int | None = None
    """Of all processes."""
    energy_j: float | None = None
    """The hardware's counter, which begins anywhere."""
    throttle_reasons: frozenset[str] = frozenset()
    """Why the clocks are lowered, as the driver calls it; idle is none."""


class MonitorUnavailable(RuntimeError):
    """The vendor's library or tool cannot be asked here; the message is the reason that a record gives."""


class DeviceMonitor(Protocol):
    """Looks at some devices from a process that does not use them."""

    interval_s: float
    """How often there is something new to read."""
    memory_method: str
    """What tells the memory in use."""
    energy_reason: str
    """Why there is no energy, where neither counter nor power is told."""

    def read(self) -> tuple[Reading, ...]:
        """Return one reading for each device, in the order in which they were asked for. Never raises for a value that is not told."""
        ...

    def processes(self) -> tuple[frozenset[int], ...] | None:
        """Return the processes that compute on each device; None where the vendor does not tell."""
        ...

    def close(self) -> None:
        """Let go of the vendor's library or tool."""
        ...
