"""A prediction as it is shown: always with its interval, its label, and the results that it rests on; or the reason why there is none."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tunemark.collector.predict.fit import Fit
from tunemark.collector.predict.rows import Combination, Observed
from tunemark.collector.predict.work import Missing
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.vocabulary import Method

LABEL: Literal["predicted"] = "predicted"
LEVEL = 0.90
"""Probability that a measured rate lies within the interval."""
QUANTILE = 1.6449
"""Of the standard normal distribution, two-sided at that level."""
NEIGHBOURS = 3
SMALLEST_PART, LARGEST_TIMES = 0.5, 2
"""Rows may be so much shorter, and longer, than any that was learnt from."""


@dataclass(frozen=True, slots=True)
class Range:
    """A predicted figure. There is none without its ends."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse ends that do not enclose the value."""
        if not 0 < self.low < self.value < self.high < math.inf:
            msg = f"{self.low} .. {self.value} .. {self.high} is no interval about a positive value"
            raise ValueError(msg)

    def times(self, factor: float) -> "Range":
        """Return this times a positive number."""
        return Range(self.value * factor, self.low * factor, self.high * factor)

    def under(self, amount: float) -> "Range":
        """Return an amount divided by this: seconds from a rate."""
        return Range(amount / self.value, amount / self.high, amount / self.low)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Predicted tokens (slots) a second."""

    tokens_per_s: Range
    """All devices together; the interval is of 90%."""
    neighbours: tuple[Observed, ...]
    """The nearest results that it rests on, nearest first."""
    unseen: tuple[str, ...]
    """What of it no result has: the interval is wider for each."""
    label: Literal["predicted"] = LABEL


def predict(fitted: Fit, of: Combination) -> Throughput | Missing:
    """Return the throughput of a combination, or why there is no data for it."""
    none = no_data(fitted.rows, of)
    if none is not None:
        return none
    estimate = fitted.predict(of)
    if isinstance(estimate, Missing):
        return estimate
    wide = QUANTILE * estimate.sd
    rate = Range(*(of.devices * math.exp(-estimate.log_seconds + shift) for shift in (0, -wide, wide)))
    return Throughput(rate, tuple(sorted(fitted.rows, key=lambda row: distance(row, of))[:NEIGHBOURS]), _unseen(fitted.rows, of))


def no_data(rows: Sequence[Observed], of: Combination) -> Missing | None:
    """Return why nothing similar is known; None where something is.

    Similar are results of the same software and the same method. A vendor of whose devices no result tells, an encoder, and rows far
    shorter or longer than any that was learnt from, where other costs rule, are not predicted.
    """
    method, shape = of.shape.method, of.shape
    alike = [row for row in rows if row.of.stack == of.stack and row.of.shape.method is method]
    if not alike:
        return Missing(f"no accepted result of {method.value} with the software {of.stack!r}")
    if FAMILIES[shape.model.family].encoder and not any(FAMILIES[row.of.shape.model.family].encoder for row in alike):
        return Missing(f"{shape.model.name} is an encoder, and no accepted result of {of.stack!r} is of one")
    if not any(row.of.accelerator.vendor == of.accelerator.vendor for row in rows):
        return Missing(f"no accepted result on a device of {of.accelerator.vendor}")
    lengths = [row.of.shape.sequence_length for row in alike]
    if not SMALLEST_PART * min(lengths) <= shape.sequence_length <= LARGEST_TIMES * max(lengths):
        return Missing(f"rows of {shape.sequence_length:,} tokens; accepted results have {min(lengths):,} to {max(lengths):,}")
    slots = min(row.of.shape.slots for row in alike)
    if shape.slots < SMALLEST_PART * slots:
        return Missing(
            f"micro-batches of {shape.slots:,} tokens; accepted results have {slots:,} or more, and smaller ones wait for launches"
        )
    return None


def distance(row: Observed, of: Combination) -> tuple[int, float, str]:
    """Return how far a result is from a combination: properties that differ, weighed, then the difference in size."""
    one = row.of
    differs = (
        4 * (one.stack != of.stack)
        + 3 * (one.accelerator.key != of.accelerator.key)
        + 2 * (one.shape.method is not of.shape.method)
        + (one.generation != of.generation)
        + (one.architecture != of.architecture)
    )
    return differs, abs(math.log(_size(one) / _size(of))), row.id


def _size(of: Combination) -> float:
    return of.shape.model.layers * of.shape.model.hidden_size**2


def _unseen(rows: Sequence[Observed], of: Combination) -> tuple[str, ...]:
    """Return which of accelerator, generation, model and their pairing with the software no result has."""
    of_stack = [row.of for row in rows if row.of.stack == of.stack]
    checks = (
        ("generation", any(row.of.generation == of.generation for row in rows)),
        ("accelerator", any(row.of.accelerator.key == of.accelerator.key for row in rows)),
        ("accelerator with this software", any(one.accelerator.key == of.accelerator.key for one in of_stack)),
        ("model", any(row.of.architecture == of.architecture for row in rows)),
    )
    return tuple(name for name, seen in checks if not seen)


def default_stack(rows: Iterable[Observed], method: Method) -> str | None:
    """Return the software with results of a method on the most pairs of accelerator and model; None without any."""
    pairs: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        if row.of.shape.method is method:
            pairs.setdefault(row.of.stack, set()).add((row.of.accelerator.key, row.of.architecture))
    return max(sorted(pairs), key=lambda stack: len(pairs[stack]), default=None)
