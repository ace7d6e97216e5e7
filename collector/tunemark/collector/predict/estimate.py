"""Estimates before anything runs: the accelerators that a step fits on, its predicted speed, and the time and cost of a whole job.

A prediction always has an interval, a label and the results that it is based on, or a reason why there is none.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from tunemark.collector.predict.fit import Fit, Observed
from tunemark.schema import formats
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import HOUR_S
from tunemark.schema.option_rates import KnownRate, best_plan, combination_on, division_of, memory_of, unmeasured
from tunemark.schema.physics.memory import StackedMemory, largest_micro_batch
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
    memory_bytes: int
    """Memory of the device."""
    fit: MemoryVerdict
    """`fits`, `probably`, `tight` or `no`, by the interval of the estimate."""
    margin_bytes: int
    """Bytes left over by the estimate itself; negative if the step does not fit."""
    largest_micro_batch: int
    """Largest number of full rows that fit; 0 if none does."""
    with_stack: str | None = None
    """If the verdict is `tight`, the leanest other software stack with which the step fits."""


def memory_fits(memory: StackedMemory, accelerators: Iterable[AcceleratorCard]) -> tuple[MemoryFit, ...]:
    """Return the fit on each accelerator, smallest memory first; accelerators with unknown memory are left out."""
    fits = []
    for card in accelerators:
        if card.memory_gib is not None:
            # A process may use only one of several cores of a card; the name then states that all of them count.
            cores, size = card.cores_per_unit or 1, memory_of(card)
            name = f"{card.name}, all {cores} cores" if cores > 1 else card.name
            verdict, stack = memory.fit_on(size)
            largest = largest_micro_batch(memory.shape, size)
            fits.append(MemoryFit(card.key, name, size, verdict, size - memory.ledger.needed, largest, stack))
    return tuple(sorted(fits, key=lambda fit: (fit.memory_bytes, fit.accelerator)))


# Throughput ----------------------------------------------------------------------------------------

NEIGHBOURS = 3
NO_PRICE = "no list price for this number of devices; give --usd-per-hour"


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
    missing = no_data(fitted.known, config)
    estimate = missing or predicted(fitted.effects, config)
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
    """Key of the card."""
    name: str
    """Name for readers."""
    no_data: str | None = None
    """Why nothing is predicted."""
    tokens_per_s: Range | None = None
    """Predicted rate of all devices."""
    micro_batch: int | None = None
    """Rows of a micro-step of the plan that it is predicted for."""
    checkpointing: str | None = None
    sharding: str | None = None
    memory: MemoryVerdict | None = None
    """Whether this plan fits."""
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
    fixed: tuple[str, ...] = (),
    stack: str | None = None,
) -> Iterator[JobEstimate]:
    """Yield the estimate for each accelerator, of its speed alone without `tokens`; a step that does not fit has no prediction.

    It is that of the fastest plan of the step that fits with a software stack, as `recommend` chooses it; `fixed` are the fields of a plan
    that keep their value.
    `like` is the software to predict for; `usd_per_hour` is the price of all devices, by default the price book's.
    """
    if usd_per_hour is not None and not 0 < usd_per_hour < math.inf:
        raise TunemarkError("--usd-per-hour", usd_per_hour, "must be above 0, and not infinite")
    devices = shape.world_size * shape.tensor_parallel
    for card in accelerators:
        plan, verdict = best_plan(fitted.effects, card, shape, like.level, fixed, stack)
        config = replace(combination_on(card, plan.shape, like.level), stack=like.stack, release=like.release)
        fits = verdict != "no" or card.memory_gib is None
        predicted = predict(fitted, config) if fits else Missing(f"does not fit: {formats.gib(plan.needed_bytes - memory_of(card))} short")
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
            micro_batch=plan.shape.micro_batch,
            checkpointing=plan.shape.checkpointing.value,
            sharding=division_of(plan.shape),
            memory=verdict,
            tuned_tokens_per_s=None if isinstance(tuned, Missing) else tuned.tokens_per_s,
            rests_on=tuple(row.id for row in predicted.neighbours),
            unseen=predicted.unseen,
            seconds=seconds,
            usd=usd,
            price=price,
            no_price=NO_PRICE if seconds is not None and usd is None else None,
        )
