"""What an estimate is made of: lines of bytes, the moments of a step at which they are alive, and the peaks that follow."""

from dataclasses import dataclass
from typing import Literal

Moment = Literal["loss", "backward begins", "backward ends", "optimizer"]
MOMENTS: tuple[Moment, ...] = ("loss", "backward begins", "backward ends", "optimizer")
"""Where a step can have its peak: the logits exist; the last block's gradients; the first block's; the update."""

Group = Literal["model", "training", "activations", "framework"]


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """Bytes of one kind on one device."""

    key: str
    """What it is, in few words."""
    group: Group
    """Model, training state, activations or framework."""
    bytes: int
    """Bytes on one device."""
    formula: str
    """How they were computed."""
    moments: tuple[Moment, ...] = MOMENTS
    """When they are there."""


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """The predicted memory of one training step on one device, in bytes."""

    lines: tuple[MemoryLine, ...]
    """All lines, those without bytes left out."""
    cached: int
    """Freed blocks of a forward pass that are too small for the logits, so that the allocator asks the device for more."""
    outside: int
    """What the device holds outside of the allocator: its context and the buffers of collectives."""

    def allocated_at(self, moment: Moment) -> int:
        """Return the bytes of live tensors at a moment."""
        return sum(line.bytes for line in self.lines if moment in line.moments)

    @property
    def peak_moment(self) -> Moment:
        """When the peak of live tensors is."""
        return max(MOMENTS, key=self.allocated_at)

    @property
    def peak_allocated(self) -> int:
        """Peak of live tensors (`max_memory_allocated`)."""
        return self.allocated_at(self.peak_moment)

    @property
    def peak_reserved(self) -> int:
        """Peak of what a caching allocator holds when memory is not short (`max_memory_reserved`)."""
        return max(self.peak_allocated, self.allocated_at("loss") + self.cached)

    @property
    def needed(self) -> int:
        """Least memory of a device on which the step runs: under pressure the allocator gives its cache back."""
        return self.peak_allocated + self.outside

    @property
    def model_memory(self) -> int:
        """Bytes of weights, quantisation constants and adapters."""
        return sum(line.bytes for line in self.lines if line.group == "model")


def kept(*lines: MemoryLine) -> tuple[MemoryLine, ...]:
    """Return the lines that hold any bytes."""
    return tuple(line for line in lines if line.bytes)
