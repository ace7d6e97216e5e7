"""What a monitor has seen of the devices over a run: raw samples, and nothing derived."""

from dataclasses import dataclass, field
from typing import NamedTuple

from tunemark.harness.telemetry.protocol import Reading


class Moment(NamedTuple):
    """All devices at one time."""

    at_s: float
    """Seconds since the worker was spawned, after the devices were asked."""
    readings: tuple[Reading, ...]


@dataclass
class DeviceSeries:
    """All samples of the devices, and how they were before the run."""

    indexes: tuple[int, ...] = ()
    """Number of each device, as its vendor counts."""
    reason: str = "no device was looked at"
    """Why there are no samples, or why none of them tells energy."""
    memory_method: str = "none"
    """What tells the memory in use."""
    interval_s: float = 0.0
    before: list[Moment] = field(default_factory=list)
    """Samples from before the worker was spawned."""
    during: list[Moment] = field(default_factory=list)
    foreign: dict[int, int] = field(default_factory=dict)
    """Device -> most processes on it that are none of the worker's; only devices that had any."""
    asking_s: float = 0.0
    """CPU seconds that this process spent on asking."""

    def between(self, start_s: float, end_s: float) -> list[Moment]:
        """Return the samples of a stretch of the run."""
        return [moment for moment in self.during if start_s <= moment.at_s <= end_s]
