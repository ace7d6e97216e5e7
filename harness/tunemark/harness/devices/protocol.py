"""What the harness asks of a device: a clock that knows when work is done, and memory peaks."""

import time
from dataclasses import dataclass
from typing import Any, Protocol, Self

from tunemark.schema.records.submission import MemoryReading

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
