"""Estimates before anything runs: the accelerators that a step fits on, its predicted speed, and the time and cost of a whole job.

A prediction always has an interval, a label and the results that it is based on, or a reason why there is none.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from tunemark.collector.predict.fit import Combination, Fit, LogPrediction, Missing, Observed, generation_of
from tunemark.schema import formats
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB, HOUR_S
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.physics.memory import estimate_memory, largest_micro_batch
from tunemark.schema.physics.memory_states import MemoryVerdict
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.recommendation_words import METHODS
from tunemark.schema.vocabulary import Method, SoftwareLevel

# Memory --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The memory of an accelerator compared with the memory that a step needs."""

    accelerator: str
    """Key of the card."""
    name: str
    """Name for readers."""
    memory_bytes: int
    """Memory of the device."""
    fit: MemoryVerdict
    """`fits`, `probably`, `tight` or `no`, by the interval of the estimate."""
    margin_bytes: int
    """Bytes left over by the estimate itself; negative if the step does not fit."""
    largest_micro_batch: int
    """Largest number of full rows that fit; 0 if none does."""


def memory_fits(shape: TrainingShape, accelerators: Iterable[AcceleratorCard]) -> tuple[MemoryFit, ...]:
    """Return the fit on each accelerator, smallest memory first; accelerators with unknown memory are left out."""
    ledger = estimate_memory(shape)
    fits = []
    for card in accelerators:
        if card.memory_gib is not None:
            # A process may use only one of several cores of a card; the name then states that all of them count.
            cores, memory = card.cores_per_unit or 1, int(card.memory_gib * GIB)
            name = f"{card.name}, all {cores} cores" if cores > 1 else card.name
            verdict, largest = ledger.fit_on(memory), largest_micro_batch(shape, memory)
            fits.append(MemoryFit(card.key, name, memory, verdict, memory - ledger.needed, largest))
    return tuple(sorted(fits, key=lambda fit: (fit.memory_bytes, fit.accelerator)))


# Throughput ----------------------------------------------------------------------------------------

LEVEL = 0.90
"""Probability that a measured rate is within the interval."""
QUANTILE = 1.6449
"""Quantile of the standard normal distribution, two-sided at that level."""
NEIGHBOURS = 3
NO_PRICE = "no list price for this number of devices; give --usd-per-hour"
SMALLEST_PART, LARGEST_TIMES = 0.5, 2
"""Rows may be shorter or longer than any calibration row by these factors."""


@dataclass(frozen=True, slots=True)
class Range:
    """A predicted figure with its interval."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse an interval that does not contain the value."""
        if not 0 < self.low < self.value < self.high < math.inf:
            raise ValueError(f"{self.low} .. {self.value} .. {self.high} is not an interval around a positive value")

    def times(self, factor: float) -> "Range":
        """Return this times a positive number."""
        return Range(self.value * factor, self.low * factor, self.high * factor)

    def under(self, amount: float) -> "Range":
        """Return an amount divided by this: seconds from a rate."""
        return Range(amount / self.value, amount / self.high, amount / self.low)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Predicted tokens (slots) per second."""

    tokens_per_s: Range
    """All devices together, with a 90% interval."""
    neighbours: tuple[Observed, ...]
    """The nearest results that it is based on, nearest first."""
    unseen: tuple[str, ...]
    """Properties that no result has; each makes the interval wider."""


def predict(fitted: Fit, config: Combination) -> Throughput | Missing:
    """Return the predicted throughput of a combination, or the reason why there is none."""
    missing = no_data(fitted.rows, config)
    estimate = missing or fitted.predict(config)
    if isinstance(estimate, Missing):
        return estimate
    nearest = sorted(fitted.rows, key=lambda row: distance(row, config))
    configs = [row.config for row in fitted.rows]
    same_stack = [other for other in configs if other.stack == config.stack] if config.stack else configs
    seen = {
        "generation": any(other.generation == config.generation for other in configs),
        "accelerator": any(other.accelerator.key == config.accelerator.key for other in configs),
        "accelerator with this software": any(other.accelerator.key == config.accelerator.key for other in same_stack),
        "model": any(other.architecture == config.architecture for other in configs),
    }
    return Throughput(
        interval_of(estimate, config.devices), tuple(nearest[:NEIGHBOURS]), tuple(name for name, known in seen.items() if not known)
    )


def interval_of(estimate: LogPrediction, devices: int) -> Range:
    """Return the rate of all devices with its interval."""
    width = QUANTILE * estimate.sd
    return Range(*(devices * math.exp(-estimate.log_seconds + shift) for shift in (0, -width, width)))


def no_data(rows: Sequence[Observed], config: Combination) -> Missing | None:
    """Return the reason why nothing similar to a combination is known, or None; see `unmeasured`."""
    shape = config.shape
    return unmeasured(rows, shape.model, shape.method, config.accelerator, length=shape.sequence_length, slots=shape.slots)


def unmeasured(
    rows: Sequence[Observed], model: ModelCard, method: Method, card: AcceleratorCard, *, length: int, slots: int
) -> Missing | None:
    """Return the reason why nothing similar is known, or None. `slots` is the tokens of a micro-batch.

    There is no prediction for a method or a vendor without results, for an encoder without results of encoders, for a decoder on a
    generation of which only encoders were measured, and for rows far shorter or longer than any calibration row of the method, where
    other costs dominate. QLoRA needs a QLoRA result on the vendor's devices, because 4-bit kernels are written for each vendor.
    """
    alike = [row for row in rows if row.config.shape.method is method]
    if not alike:
        return Missing(f"no accepted result of {METHODS[method]}")
    if FAMILIES[model.family].encoder and not any(FAMILIES[row.config.shape.model.family].encoder for row in alike):
        return Missing(f"this model is an encoder, and no accepted {METHODS[method]} result is for an encoder")
    if not any(row.config.accelerator.vendor == card.vendor for row in rows):
        return Missing(f"no accepted result on {card.vendor} devices")
    if method is Method.QLORA and not any(row.config.accelerator.vendor == card.vendor for row in alike):
        return Missing(f"no accepted QLoRA result on {card.vendor} devices; 4-bit kernels differ between vendors")
    generation = generation_of(card)
    of_generation = {FAMILIES[row.config.shape.model.family].encoder for row in rows if row.config.generation == generation}
    if not FAMILIES[model.family].encoder and of_generation == {True}:
        return Missing(f"no accepted result of a decoder on {generation} devices, only of encoders")
    lengths = [row.config.shape.sequence_length for row in alike]
    if not SMALLEST_PART * min(lengths) <= length <= LARGEST_TIMES * max(lengths):
        return Missing(f"rows of {length:,} tokens; accepted results have {min(lengths):,} to {max(lengths):,}")
    fewest = min(row.config.shape.slots for row in alike)
    if slots < SMALLEST_PART * fewest:
        return Missing(f"micro-batches of {slots:,} tokens; accepted results have {fewest:,} or more, and smaller ones wait for launches")
    return None


def distance(row: Observed, config: Combination) -> tuple[int, float, str]:
    """Return the distance of a result from a combination: weighted number of different properties, then the difference in size."""
    other = row.config
    differs = (
        4 * (other.level != config.level)
        + 2 * bool(config.stack and other.stack != config.stack)
        + 3 * (other.accelerator.key != config.accelerator.key)
        + 2 * (other.shape.method is not config.shape.method)
        + (other.generation != config.generation)
        + (other.architecture != config.architecture)
    )
    size, other_size = (model.layers * model.hidden_size**2 for model in (config.shape.model, other.shape.model))
    return differs, abs(math.log(other_size / size)), row.id


@dataclass(frozen=True, slots=True)
class Like:
    """The software to predict for."""

    level: SoftwareLevel
    stack: str = ""
    """A training loop; empty for any of this level."""
    release: str = ""
    """Its newest release; empty where it has none."""

    @property
    def name(self) -> str:
        """Name for readers."""
        return f"{self.stack} ({self.level})" if self.stack else f"{self.level} software"


def software_like(fitted: Fit, name: str) -> Like:
    """Return the software with a name: a level, or a training loop with results (of its most frequent level)."""
    levels = get_args(SoftwareLevel)
    if name in levels:
        return Like(name)  # type: ignore[arg-type]
    counts = Counter(row.config.level for row in fitted.rows if row.config.stack == name)
    if not counts:
        known = sorted({row.config.stack for row in fitted.rows} | set(levels))
        raise TunemarkError("--software", name, did_you_mean(name, known))
    release = max(row.config.release for row in fitted.rows if row.config.stack == name)
    return Like(counts.most_common(1)[0][0], name, release)


# A whole job ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobEstimate:
    """The prediction for one accelerator."""

    accelerator: str
    """Key of the card."""
    name: str
    """Name for readers."""
    no_data: str | None = None
    """Why nothing is predicted."""
    tokens_per_s: Range | None = None
    """Predicted rate of all devices."""
    tuned_tokens_per_s: Range | None = None
    """Predicted rate with tuned software, for comparison."""
    rests_on: tuple[str, ...] = ()
    """The nearest results that the prediction is based on, nearest first."""
    unseen: tuple[str, ...] = ()
    """Properties that no result has; each makes the interval wider."""
    seconds: Range | None = None
    """Time of the whole job; None without its size."""
    usd: Range | None = None
    """Cost of the whole job; None without a price or its size."""
    price: PriceRow | None = None
    """Row of the price book used for the cost; None if a price was given."""
    no_price: str | None = None
    """Why there is a time and no cost."""


def job_estimates(
    facts: FactBase,
    fitted: Fit,
    shape: TrainingShape,
    accelerators: Iterable[AcceleratorCard],
    *,
    like: Like,
    tokens: int | None,
    usd_per_hour: float | None,
) -> Iterator[JobEstimate]:
    """Yield the estimate for each accelerator, of its speed alone without `tokens`; a step that does not fit has no prediction.

    `like` is the software to predict for; `usd_per_hour` is the price of all devices, by default the price book's.
    """
    if usd_per_hour is not None and not 0 < usd_per_hour < math.inf:
        raise TunemarkError("--usd-per-hour", usd_per_hour, "must be above 0, and not infinite")
    devices = shape.world_size * shape.tensor_parallel
    for card in accelerators:
        config = Combination(card, devices, shape, like.level, like.stack, like.release, float(shape.tensor_parallel))
        short = next((-fit.margin_bytes for fit in memory_fits(shape, [card]) if fit.margin_bytes < 0), None)
        predicted = predict(fitted, config) if short is None else Missing(f"does not fit: {formats.gib(short)} short")
        if isinstance(predicted, Missing):
            yield JobEstimate(card.key, card.name, predicted.reason)
            continue
        tuned = predict(fitted, replace(config, level="tuned", stack="", release=""))
        seconds = None if tokens is None else predicted.tokens_per_s.under(tokens)
        price = facts.price_basis.offer(facts.prices, card.key, devices) if usd_per_hour is None else None
        hourly = usd_per_hour if price is None else price.usd_per_hour
        usd = None if seconds is None or hourly is None else seconds.times(hourly / HOUR_S)
        yield JobEstimate(
            card.key,
            card.name,
            tokens_per_s=predicted.tokens_per_s,
            tuned_tokens_per_s=None if isinstance(tuned, Missing) else tuned.tokens_per_s,
            rests_on=tuple(row.id for row in predicted.neighbours),
            unseen=predicted.unseen,
            seconds=seconds,
            usd=usd,
            price=price,
            no_price=NO_PRICE if seconds is not None and usd is None else None,
        )
