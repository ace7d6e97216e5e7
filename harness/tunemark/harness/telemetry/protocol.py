"""What the harness asks of a monitor of devices. One family, one file; the vendor's library or tool does the looking."""

from dataclasses import dataclass
from typing import Protocol


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
