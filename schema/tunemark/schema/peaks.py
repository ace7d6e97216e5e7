"""Against what a rate is held: the dense peaks of the devices, or what these very devices reached in the probe."""

from collections.abc import Callable
from dataclasses import dataclass

from tunemark.schema import formats
from tunemark.schema.cards import AcceleratorCard
from tunemark.schema.submission import Submission
from tunemark.schema.vocabulary import Backend

TERA = 1e12
PARTS = (Backend.ROCM, Backend.NEURON)
"""Device families of which a device may be a part of what its card describes: a die of two, a core of several."""


@dataclass(frozen=True, slots=True)
class Known:
    """A figure with how it was computed, or why it is not known."""

    value: float | None
    reason: str
    """The formula in words; of a figure that is not known, what is missing."""


def known_times(one: Known, combine: Callable[[float], float], formula: str) -> Known:
    """Return what follows from a figure; what is not known stays so, with its reason."""
    return one if one.value is None else Known(combine(one.value), f"{formula}: {one.reason}")


def peak_flop_per_s(submission: Submission, card: AcceleratorCard | None) -> Known:
    """Return the sum of the devices' dense peaks in the compute format, FLOP/s."""
    device, compute = submission.plan.device, submission.plan.precision.compute
    if card is None:
        return Known(None, submission.plan.reasons.get("device.accelerator", "the device is not in the catalogue, so its peak is unknown"))
    peak = card.peak_tflops.get(compute)
    if peak is None:
        return Known(None, f"the card of {card.name} has no dense peak for {compute.value}")
    part = part_of_card(submission, card)
    if part is None:
        return Known(None, f"the peak of {card.name} is that of {card.cores_per_unit} cores, and how many of them a device is was not told")
    many = f"{device.count} x " if device.count > 1 else ""
    piece = "" if part == 1 else f" x {part:g} of a {card.unit}"
    return Known(device.count * part * peak * TERA, f"{many}{peak:g} TFLOP/s {compute.value}{piece}, {card.name}")


def part_of_card(submission: Submission, card: AcceleratorCard) -> float | None:
    """Return which part of what a card describes one device of a run is: 1, or where it is a die or core, by its memory; None when unknown."""
    cores = card.cores_per_unit
    if cores is None or cores == 1 or submission.plan.device.backend not in PARTS:
        return 1.0
    memory = submission.environment.devices[0].memory_bytes
    if memory is None or card.memory_gib is None:
        return None
    return min(cores, max(1, round(cores * memory / (card.memory_gib * 2**30)))) / cores


def probed_flop_per_s(submission: Submission) -> Known:
    """Return the sum of the matrix rates that the devices reached, FLOP/s: the better of before and after training.

    What a device reached once it can reach; a probe that other work disturbed would flatter the run. Each process probes its own.
    """
    probe, count = submission.probe, submission.plan.device.count
    if probe is None:
        return Known(None, "the device was not probed")
    many = f"{count} x " if count > 1 else ""
    reached = max(probe.before_flop_per_s, probe.after_flop_per_s or 0.0)
    said = f"of {many}{formats.flop_per_s(reached)} {probe.dtype.value} that products of {probe.size} x {probe.size} matrices reached"
    return Known(count * reached, said)
