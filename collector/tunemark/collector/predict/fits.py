"""On which accelerators a step fits, by how much, and with how many rows at most."""

from collections.abc import Iterable
from dataclasses import dataclass

from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.physics.memory import estimate_memory, largest_micro_batch
from tunemark.schema.physics.training_shape import TrainingShape

GIB = 2**30
TIGHT = 0.05
"""A margin below this share of the device is called tight: the model's own error is of that size."""


@dataclass(frozen=True, slots=True)
class Fit:
    """One accelerator and whether a step fits on it."""

    accelerator: str
    """The card's key."""
    name: str
    """Its name for readers."""
    memory: int
    """What it has, in bytes."""
    needed: int
    """What the step needs, in bytes."""
    largest_micro_batch: int
    """Most full rows that fit; 0 when none does."""

    @property
    def margin(self) -> int:
        """Bytes left over; negative when it does not fit."""
        return self.memory - self.needed

    @property
    def fits(self) -> bool:
        """Whether the step fits."""
        return self.margin >= 0

    @property
    def verdict(self) -> str:
        """`yes`, `tight` or `no`."""
        if not self.fits:
            return "no"
        return "tight" if self.margin < TIGHT * self.memory else "yes"


def fits(shape: TrainingShape, accelerators: Iterable[AcceleratorCard]) -> tuple[Fit, ...]:
    """Return a verdict per accelerator, the smallest first; accelerators of unknown memory are left out."""
    needed = estimate_memory(shape).needed
    found = [
        Fit(card.key, _name(card), int(card.memory_gib * GIB), needed, largest_micro_batch(shape, int(card.memory_gib * GIB)))
        for card in accelerators
        if card.memory_gib is not None
    ]
    return tuple(sorted(found, key=lambda fit: (fit.memory, fit.accelerator)))


def _name(card: AcceleratorCard) -> str:
    """Return the name of a card, and of how many cores its memory is where a process may get one of several."""
    cores = card.cores_per_unit or 1
    return f"{card.name}, all {cores} cores" if cores > 1 else card.name
