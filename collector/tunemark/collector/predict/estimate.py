"""A prediction as it is shown: always with its interval, its label, and the results that it rests on; or the reason why there is none."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import typer

from tunemark.collector.commands.terminal import print_table
from tunemark.collector.predict.fit import Combination, Fit, Missing, Observed
from tunemark.schema import formats
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.physics.memory import estimate_memory, largest_micro_batch
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.statistics.job_prediction import HOUR_S, price_of
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


# MOVE: was tunemark.collector.predict.estimate: On which accelerators a step fits, by how much, and with how many rows at most.

GIB = 2**30
TIGHT = 0.05
"""A margin below this share of the device is called tight: the model's own error is of that size."""


@dataclass(frozen=True, slots=True)
class MemoryFit:
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


def memory_fits(shape: TrainingShape, accelerators: Iterable[AcceleratorCard]) -> tuple[MemoryFit, ...]:
    """Return a verdict per accelerator, the smallest first; accelerators of unknown memory are left out."""
    needed = estimate_memory(shape).needed
    found = [
        MemoryFit(card.key, _name(card), int(card.memory_gib * GIB), needed, largest_micro_batch(shape, int(card.memory_gib * GIB)))
        for card in accelerators
        if card.memory_gib is not None
    ]
    return tuple(sorted(found, key=lambda fit: (fit.memory, fit.accelerator)))


def _name(card: AcceleratorCard) -> str:
    """Return the name of a card, and of how many cores its memory is where a process may get one of several."""
    cores = card.cores_per_unit or 1
    return f"{card.name}, all {cores} cores" if cores > 1 else card.name


# MOVE: was tunemark.collector.predict.estimate: How fast, how long and for how much money, for `tunemark estimate`: predicted from accepted results, each with its interval.

HEAD = f"Predicted, with an interval of {LEVEL:.0%}: training alone, without start, evaluation and saving"


@dataclass(frozen=True, slots=True)
class JobEstimate:
    """What is predicted for an accelerator."""

    accelerator: str
    name: str
    throughput: Throughput | None
    reason: str | None
    """Why nothing is predicted."""
    seconds: Range | None
    """Of the whole job; None without its size."""
    usd: Range | None
    """Of the whole job; None without a price or its size."""
    price: PriceRow | None
    """The row of the price book that the cost follows from; None where a price was given."""


def tokens_of(shape: TrainingShape, samples: int | None, tokens: int | None, epochs: int) -> int | None:
    """Return the tokens of a job, at full rows; None without a size."""
    if samples is not None and tokens is not None:
        raise TunemarkError("--samples", samples, "say how much is trained once: --samples or --tokens")
    for option, value in (("--samples", samples), ("--tokens", tokens), ("--epochs", epochs)):
        if value is not None and value < 1:
            raise TunemarkError(option, value, "must be 1 or more")
    size = samples * shape.sequence_length if samples is not None else tokens
    return None if size is None else size * epochs


def stack_named(fitted: Fit, name: str | None, shape: TrainingShape) -> str:
    """Return the software to predict for: as named, else the one with the most combinations of this method."""
    known = sorted({row.of.stack for row in fitted.rows})
    if name is None:
        return default_stack(fitted.rows, shape.method) or "measured"
    if name not in known:
        raise TunemarkError("--like", name, did_you_mean(name, known))
    return name


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What is asked for beside the shape."""

    stack: str
    """Whose software."""
    tokens: int | None
    """Of the whole job; None for its speed alone."""
    usd_per_hour: float | None
    """Of all devices; None for the price book's."""

    def __post_init__(self) -> None:
        """Refuse a price that is none."""
        if self.usd_per_hour is not None and self.usd_per_hour <= 0:
            raise TunemarkError("--usd-per-hour", self.usd_per_hour, "must be above 0")


def job_estimates(
    facts: FactBase, fitted: Fit, shape: TrainingShape, accelerators: Iterable[str], wanted: JobRequest
) -> Iterator[JobEstimate]:
    """Yield an answer for each accelerator. What does not fit is not predicted."""
    stack, release = wanted.stack, newest_release(fitted, wanted.stack)
    devices = shape.world_size * shape.tensor_parallel
    for key in accelerators:
        card = facts.accelerators[key]
        fit = next(iter(memory_fits(shape, [card])), None)
        found: Throughput | Missing
        if fit is not None and not fit.fits:
            found = Missing(f"does not fit: {formats.gib(-fit.margin)} short")
        else:
            found = predict(fitted, Combination(card, devices, shape, stack, release, float(shape.tensor_parallel)))
        if isinstance(found, Missing):
            yield JobEstimate(key, card.name, None, found.reason, None, None, None)
            continue
        seconds = None if wanted.tokens is None else found.tokens_per_s.under(wanted.tokens)
        price = price_of(facts.prices, key, devices) if wanted.usd_per_hour is None else None
        hourly = wanted.usd_per_hour if price is None else price.usd_per_hour
        usd = None if seconds is None or hourly is None else seconds.times(hourly / HOUR_S)
        yield JobEstimate(key, card.name, found, None, seconds, usd, price)


def newest_release(fitted: Fit, stack: str) -> str:
    """Return the newest release of a software that results tell of; empty where it has none."""
    return max((row.of.release for row in fitted.rows if row.of.stack == stack), default="")


def show(found: Sequence[JobEstimate], stack: str) -> None:
    """Print answers as a table for people."""
    said = [one for one in found if one.throughput is not None]
    typer.echo("")
    columns = ["accelerator", "predicted tokens/s", "90% interval", "time", "90% interval", "usd", "90% interval", "at"]
    if said:
        print_table(columns, [_line(one) for one in sorted(said, key=_fastest)], title=f"{HEAD}; software as in {stack}")
        typer.echo("")
        print_table(["accelerator", "nearest results", "no result has its"], [_rests(one) for one in sorted(said, key=_fastest)])
    silent = [one for one in found if one.throughput is None]
    if silent:
        typer.echo("")
        print_table(["accelerator", "no data"], [(one.name, one.reason) for one in silent])


def as_json(found: Iterable[JobEstimate], stack: str) -> dict[str, Any]:
    """Return answers as plain data."""
    return {"label": "predicted", "level": LEVEL, "like": stack, "accelerators": [_plain(one) for one in found]}


def _fastest(one: JobEstimate) -> float:
    return -one.throughput.tokens_per_s.value if one.throughput else 0.0


def _line(one: JobEstimate) -> tuple[object, ...]:
    assert one.throughput is not None  # noqa: S101 - only those are asked for
    rate = one.throughput.tokens_per_s
    at = "" if one.price is None else f"{one.price.usd_per_hour:g}/h {one.price.provider} {one.price.instance}"
    return (one.name, *_shown(rate, formats.significant), *_shown(one.seconds, formats.duration), *_shown(one.usd, formats.usd), at)


def _shown(figure: Range | None, show_as: Any) -> tuple[str, str]:  # noqa: ANN401 - a formatter of one number
    if figure is None:
        return "", ""
    return show_as(figure.value), f"{show_as(figure.low)} to {show_as(figure.high)}"


def _rests(one: JobEstimate) -> tuple[object, ...]:
    assert one.throughput is not None  # noqa: S101 - only those are asked for
    return one.name, ", ".join(row.id for row in one.throughput.neighbours), ", ".join(one.throughput.unseen) or "(all seen)"


def _plain(one: JobEstimate) -> dict[str, Any]:
    found = one.throughput
    return {
        "accelerator": one.accelerator,
        "tokens_per_s": None if found is None else _interval(found.tokens_per_s),
        "seconds": _interval(one.seconds),
        "usd": _interval(one.usd),
        "price": None if one.price is None else one.price.model_dump(mode="json"),
        "rests_on": [] if found is None else [row.id for row in found.neighbours],
        "unseen": [] if found is None else list(found.unseen),
        "no_data": one.reason,
    }


def _interval(figure: Range | None) -> dict[str, float] | None:
    return None if figure is None else {"value": figure.value, "low": figure.low, "high": figure.high}
