"""Estimates before anything runs: the accelerators that a step fits on, its predicted speed, and the time and cost of a whole job.

A prediction always has an interval, a label and the results that it is based on, or a reason why there is none.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tunemark.collector.predict.fit import Fit, Observed
from tunemark.schema import formats
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB, HOUR_S
from tunemark.schema.option_rates import KnownRate, unmeasured
from tunemark.schema.physics.memory import estimate_memory, largest_micro_batch
from tunemark.schema.physics.memory_states import MemoryVerdict
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.physics.work import Missing
from tunemark.schema.throughput import Combination, Range, interval_of
from tunemark.schema.throughput import predict as predicted
from tunemark.schema.vocabulary import SoftwareLevel

# Memory --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The memory of an accelerator compared with the memory that a step needs."""

    accelerator: str
    """Key of the card."""
    name: str
    """Name for readers."""
    memory: int
    """Memory of the device, in bytes."""
    needed: int
    """Memory that the step needs, in bytes."""
    verdict: MemoryVerdict
    """`fits`, `probably`, `tight` or `no`, by the interval of the estimate."""
    largest_micro_batch: int
    """Largest number of full rows that fit; 0 if none does."""

    @property
    def margin(self) -> int:
        """Bytes left over; negative if the step does not fit."""
        return self.memory - self.needed

    @property
    def fits(self) -> bool:
        """True if the step fits by the estimate itself."""
        return self.margin >= 0


def memory_fits(shape: TrainingShape, accelerators: Iterable[AcceleratorCard]) -> tuple[MemoryFit, ...]:
    """Return the fit on each accelerator, smallest memory first; accelerators with unknown memory are left out."""
    ledger = estimate_memory(shape)
    fits = []
    for card in accelerators:
        if card.memory_gib is not None:
            # A process may use only one of several cores of a card; the name then states that all of them count.
            cores, memory = card.cores_per_unit or 1, int(card.memory_gib * GIB)
            name = f"{card.name}, all {cores} cores" if cores > 1 else card.name
            fits.append(MemoryFit(card.key, name, memory, ledger.needed, ledger.fit_on(memory), largest_micro_batch(shape, memory)))
    return tuple(sorted(fits, key=lambda fit: (fit.memory, fit.accelerator)))


# Throughput ----------------------------------------------------------------------------------------

LABEL: Literal["predicted"] = "predicted"
NEIGHBOURS = 3


@dataclass(frozen=True, slots=True)
class Throughput:
    """Predicted tokens (slots) per second."""

    tokens_per_s: Range
    """All devices together, with a 90% interval."""
    neighbours: tuple[Observed, ...]
    """The nearest results that it is based on, nearest first."""
    unseen: tuple[str, ...]
    """Properties that no result has; each makes the interval wider."""
    label: Literal["predicted"] = LABEL


def predict(fitted: Fit, config: Combination) -> Throughput | Missing:
    """Return the predicted throughput of a combination, or the reason why there is none."""
    missing = no_data(fitted.known, config)
    estimate = missing or predicted(fitted.effects, config)
    if isinstance(estimate, Missing):
        return estimate
    rate = interval_of(estimate, config.devices)
    nearest = sorted(fitted.rows, key=lambda row: distance(row, config))
    configs = [row.config for row in fitted.rows]
    same_stack = [other for other in configs if other.stack == config.stack] if config.stack else configs
    seen = {
        "generation": any(other.generation == config.generation for other in configs),
        "accelerator": any(other.accelerator.key == config.accelerator.key for other in configs),
        "accelerator with this software": any(other.accelerator.key == config.accelerator.key for other in same_stack),
        "model": any(other.architecture == config.architecture for other in configs),
    }
    return Throughput(rate, tuple(nearest[:NEIGHBOURS]), tuple(name for name, known in seen.items() if not known))


def no_data(results: Sequence[KnownRate], config: Combination) -> Missing | None:
    """Return the reason why nothing similar to a combination is known, or None; see `unmeasured`."""
    shape = config.shape
    reason = unmeasured(results, shape.model, shape.method, config.accelerator, shape.sequence_length, shape.slots)
    return None if reason is None else Missing(reason)


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
    name: str
    throughput: Throughput | None = None
    reason: str | None = None
    """The reason why nothing is predicted."""
    seconds: Range | None = None
    """Time of the whole job; None without its size."""
    usd: Range | None = None
    """Cost of the whole job; None without a price or its size."""
    price: PriceRow | None = None
    """Row of the price book used for the cost; None if a price was given."""
    tuned: Range | None = None
    """Tokens/s of all devices with tuned software, for comparison."""


def tokens_of(shape: TrainingShape, samples: int | None, tokens: int | None, epochs: int) -> int | None:
    """Return the tokens of a job, with full rows; None without a size."""
    if samples is not None and tokens is not None:
        raise TunemarkError("--samples", samples, "give the size of the data once: --samples or --tokens")
    for option, value in (("--samples", samples), ("--tokens", tokens), ("--epochs", epochs)):
        if value is not None and value < 1:
            raise TunemarkError(option, value, "must be 1 or more")
    size = samples * shape.sequence_length if samples is not None else tokens
    return None if size is None else size * epochs


def job_estimates(
    facts: FactBase,
    fitted: Fit,
    shape: TrainingShape,
    accelerators: Iterable[str],
    *,
    like: Like,
    tokens: int | None,
    usd_per_hour: float | None,
) -> Iterator[JobEstimate]:
    """Yield the estimate for each accelerator, of its speed alone without `tokens`; a step that does not fit has no prediction.

    `like` is the software to predict for; `usd_per_hour` is the price of all devices, by default the price book's.
    """
    if usd_per_hour is not None and usd_per_hour <= 0:
        raise TunemarkError("--usd-per-hour", usd_per_hour, "must be above 0")
    devices = shape.world_size * shape.tensor_parallel
    for key in accelerators:
        card = facts.accelerators[key]
        memory = next(iter(memory_fits(shape, [card])), None)
        predicted: Throughput | Missing
        tuned: Throughput | Missing = Missing("")
        if memory is not None and not memory.fits:
            predicted = Missing(f"does not fit: {formats.gib(-memory.margin)} short")
        else:
            config = Combination(card, devices, shape, like.level, like.stack, like.release, float(shape.tensor_parallel))
            predicted = predict(fitted, config)
            tuned = predict(fitted, replace(config, level="tuned", stack="", release=""))
        if isinstance(predicted, Missing):
            yield JobEstimate(key, card.name, reason=predicted.reason)
            continue
        seconds = None if tokens is None else predicted.tokens_per_s.under(tokens)
        price = facts.price_basis.offer(facts.prices, key, devices) if usd_per_hour is None else None
        hourly = usd_per_hour if price is None else price.usd_per_hour
        usd = None if seconds is None or hourly is None else seconds.times(hourly / HOUR_S)
        other = None if isinstance(tuned, Missing) else tuned.tokens_per_s
        yield JobEstimate(key, card.name, predicted, None, seconds, usd, price, other)
