"""The throughput model: how much longer than at the limits of an accelerator a step takes, and how certain that is.

    log(device-seconds per token) = log(sum over terms of factor x seconds at the limit) + effects + noise

On a GPU, a step takes no less time than its host needs to issue the operations (`host_seconds`), and a little more where both take about
as long (`TOGETHER`).

A *factor* is how many times longer than at the limit a class of work takes; it depends on how far the software is tuned, and on the
training loop itself. An *effect* is how much slower a software, a generation, an accelerator or a model is, or a model with one software. All have a normal
prior in log space (`FACTORS`, `EFFECTS`, `SLOPES`, `SPREADS`). A parameter without rows keeps its prior: an unseen chip gets
the mean of its generation, an unseen training loop the mean of its level, each with the uncertainty of an unseen one.

The collector fits the parameters to accepted results (`predict/fit.py`); the home page predicts with a translation of this module.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.names import product_of
from tunemark.schema.physics.architecture import special_mixers
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.physics.work import TERMS, Missing, Term, issue_seconds, limits_of, work_of_tokens, work_of_weights
from tunemark.schema.vocabulary import SoftwareLevel

LEVEL = 0.90
"""Probability that a measured rate is within the interval of its prediction."""
QUANTILE = 1.6449
"""Quantile of the standard normal distribution, two-sided at that level."""
ODDS = (1 + LEVEL) / (1 - LEVEL)
"""Odds of the upper end of an interval of that level: 95 to 5."""

# Combinations --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Combination:
    """A configuration: work of a shape, on an accelerator, with a software stack."""

    accelerator: AcceleratorCard
    """The card of one device."""
    devices: int
    """Number of devices that work together."""
    shape: TrainingShape
    """A micro-step of one device, or of the devices that share a row."""
    level: SoftwareLevel
    """How far the training loop is tuned."""
    stack: str = ""
    """Source of the training loop: a document, `mlperf`, or `measured`; empty for any loop of this level."""
    release: str = ""
    """Version of that software, such as a round of MLPerf."""
    devices_per_row: float = 1.0
    """Devices that share a row (tensor, context and pipeline parallel)."""

    @property
    def source(self) -> str:
        """The document or benchmark, without the part of it."""
        return self.stack.partition(" ")[0]

    @property
    def software(self) -> str:
        """The training loop with its level: a document may have results of several."""
        return f"{self.stack or 'any'} ({self.level})"


def line_of(card: AcceleratorCard) -> str:
    """Return the line of products, where it matters. GeForce cards sum products in fp32 at half the rate of their units, which is the listed peak."""
    return "GeForce" if card.name.startswith("GeForce") else ""


def generation_of(card: AcceleratorCard) -> str:
    """Return the vendor and the architecture of an accelerator."""
    architecture = card.architecture or card.key
    return architecture if architecture.startswith(f"{card.vendor} ") else f"{card.vendor} {architecture}"


@lru_cache(maxsize=256)
def architecture_of(model: ModelCard) -> str:
    """Return the numbers that determine the time per token, except the vocabulary; Llama 3 and 3.1 have the same."""
    experts = f", {model.experts} experts" if model.experts else ""
    heads = f"{model.attention_heads}/{model.key_value_heads} heads of {model.head_dim}"
    mixers = "".join(f", {mixer}" for mixer, _ in special_mixers(model)) + (", parallel" if FAMILIES[model.family].parallel else "")
    return f"{model.layers} blocks of {model.hidden_size}/{model.intermediate_size}, {heads}{experts}{mixers}"


# The priors ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prior:
    """A prior distribution, in log space."""

    mean: float
    sd: float
    why: str


TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("throughput.toml").read_text(encoding="utf-8"))
FACTORS = {term: Prior(math.log(row["factor"]), row["sd"], row["why"]) for term, row in TABLE["factors"].items()}
"""Term -> prior of its factor, how many times longer than at the limit it takes."""
PRODUCTS: tuple[Term, ...] = ("matmul", "narrow", "attention")
"""Terms that no software does faster than at the limit."""
ATTAINABLE = 0.85
"""Share of the dense peak that matrix products reach, as `attainable-utilisation` of the practices; a faster rate is no evidence."""
EFFECTS: dict[str, float] = TABLE["effects"]
"""Effect -> standard deviation among its levels, in log space; their mean is zero."""
OWN_EFFECTS = ("generation", "chip", "accelerator", "stack, chip", "slope")
"""Effects that rates of one model and method with the same software do not share."""
SLOPES = {slope: Prior(**row) for slope, row in TABLE["slopes"].items()}
SPREADS: dict[str, float] = TABLE["spreads"]
"""Kind of factor -> its standard deviation about the common one, in log space."""
LINK = 3
"""The spread of links is larger by this factor: they belong to the machine, which cards do not describe."""
ISSUING = ("NVIDIA", "AMD", "Apple")
"""Vendors whose devices are sent one operation after another; on others, whole graphs are compiled."""
HOST_SD = 0.35
"""Spread of the time of a host in log space: hosts differ by a factor of two or so, and cards do not describe them."""
TOGETHER = 6
"""Exponent of the norm of a step's time on the device and on its host: with 6, a step for which both take as long is 12% longer than each.
A plain maximum has a kink at which the fit stops."""
NOISE = 0.08
"""Scale of a row around the model, in log space."""
FREEDOM = 4
"""Degrees of freedom of the noise."""
ROW_VARIANCE = NOISE**2 * FREEDOM / (FREEDOM - 2)
"""Variance of a row: of Student's t distribution with that scale."""


def host_seconds(config: Combination) -> float:
    """Return the device-seconds per token in which the host of each device issues the operations of a micro-step; 0 where it does not.

    Vendors' loops replay graphs. Loops with fused kernels issue as many operations as others: that of the fastest (050) is an exception.
    """
    issues = config.level != "vendor" and config.accelerator.vendor in ISSUING
    return issue_seconds(config.shape) * config.devices_per_row if issues else 0.0


def factors_of(config: Combination, term: Term) -> tuple[str, ...]:
    """Return the parameters that add up to the logarithm of a term's factor."""
    line = line_of(config.accelerator)
    of_line = (f"factor of line: {term}, {line}",) if line and term in PRODUCTS else ()
    return (f"factor: {term}", f"factor of level: {term}, {config.level}", f"factor of stack: {term}, {config.software}", *of_line)


def effects_of(config: Combination) -> dict[str, float]:
    """Return the effects on a combination with their weights."""
    accelerator, software, generation = product_of(config.accelerator), config.software, generation_of(config.accelerator)
    # The compute units and their clock: cards that differ in memory or power, such as A100 40GB and 80GB, or H100 and H200, share them.
    chip = f"{generation} of {max(config.accelerator.peak_tflops.values(), default=0):g} TFLOP/s"
    effects = {
        f"level: {config.level}": 1.0,
        f"stack: {software}": 1.0,
        f"generation: {generation}": 1.0,
        f"chip: {chip}": 1.0,
        f"accelerator: {accelerator}": 1.0,
        f"stack, chip: {software}, {chip}": 1.0,
        f"model: {architecture_of(config.shape.model)}": 1.0,
        f"stack, model: {software}, {architecture_of(config.shape.model)}": 1.0,
        "slope: devices doubled": math.log2(config.devices),
        "slope: devices per row doubled": math.log2(config.devices_per_row),
        f"release: {software}, {config.release}": 1.0 if config.release else 0.0,
    }
    effects |= {f"mixer: {mixer}": share for mixer, share in special_mixers(config.shape.model)}
    return {name: weight for name, weight in effects.items() if weight}


@lru_cache(maxsize=1024)
def prior_of(name: str) -> Prior:
    """Return the prior of a parameter by its name."""
    kind, _, rest = name.partition(": ")
    if kind in SPREADS:
        return Prior(0.0, SPREADS[kind] * (LINK if rest.startswith("exchange") else 1), "")
    if kind == "factor":
        return FACTORS[rest]
    own = f"{kind} (plain)"
    return SLOPES[rest] if kind == "slope" else Prior(0.0, EFFECTS[own if own in EFFECTS and "(plain)" in rest else kind], "")


# Predictions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effects:
    """The fitted parameters: their joint normal distribution in log space. All others keep their prior."""

    places: Mapping[str, int]
    """Parameter -> its place in the other fields."""
    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    def mean_of(self, name: str) -> float:
        """Return the mean of a parameter."""
        place = self.places.get(name)
        return prior_of(name).mean if place is None else self.mean[place]

    def variance(self, slopes: Iterable[tuple[str, float]]) -> float:
        """Return the variance of a sum of parameters, each times its slope."""
        variance = 0.0
        seen: list[tuple[int, float]] = []
        for name, slope in slopes:
            place = self.places.get(name)
            if place is None:
                variance += slope**2 * prior_of(name).sd ** 2
                continue
            row = self.covariance[place]
            variance += slope * (slope * row[place] + 2 * sum(other * row[column] for column, other in seen))
            seen.append((place, slope))
        return variance


@dataclass(frozen=True, slots=True)
class LogPrediction:
    """A prediction in log space."""

    log_seconds: float
    """Logarithm of device-seconds per token."""
    sd: float
    """Standard deviation of one further row: parameters, unseen levels, and noise."""
    least: float = 0.0
    """Device-seconds per token of the matrix products alone at the attainable share of the dense peak: what is faster is no evidence."""
    own_spread: float = 1.0
    """Factor from the middle to an end of the interval without what it shares with predictions for other devices and the same software."""


@dataclass(frozen=True, slots=True)
class Range:
    """A predicted figure with its interval."""

    value: float
    low: float
    high: float


def interval_of(estimate: LogPrediction, devices: int) -> Range:
    """Return the rate of all devices with its interval: the median and the ends of the part of the distribution below what is attainable.

    The distribution is logistic in log space, whose quantiles are known; its 90% interval is that of the normal one.
    """
    width = QUANTILE * estimate.sd
    room = (-math.log(estimate.least) + estimate.log_seconds) / width if estimate.least else math.inf
    below = 1 / (1 + ODDS**-room)
    value, low, high = (
        devices * math.exp(-estimate.log_seconds + width * math.log(share * below / (1 - share * below)) / math.log(ODDS))
        for share in (0.5, (1 - LEVEL) / 2, (1 + LEVEL) / 2)
    )
    return Range(value, low, high)


def factor_of(effects: Effects, config: Combination, term: Term) -> float:
    """Return the factor by which a class of work takes longer than at the limit."""
    return math.exp(sum(effects.mean_of(name) for name in factors_of(config, term)))


def predict(effects: Effects, config: Combination, work: Iterable[float] | None = None) -> LogPrediction | Missing:
    """Return the prediction for a combination, or the reason why there is none.

    `work` is its FLOPs or bytes per token by class of work, each times its factor, if they are known already.
    """
    parts = _seconds(effects, config, work)
    if isinstance(parts, Missing):
        return parts
    weights = effects_of(config)
    device = math.log(sum(parts.values())) + sum(weight * effects.mean_of(name) for name, weight in weights.items())
    least = sum(part / factor_of(effects, config, term) for term, part in parts.items() if term in PRODUCTS) / ATTAINABLE
    waiting = (host_seconds(config) / math.exp(device)) ** TOGETHER
    busy = 1 / (1 + waiting)
    rest = ((1 - busy) * HOST_SD) ** 2 + ROW_VARIANCE
    own = effects.variance((name, weight) for name, weight in weights.items() if name.partition(": ")[0] in OWN_EFFECTS)
    every = effects.variance([*weights.items(), *_shares(config, parts)])
    log_seconds, sd = device + math.log(1 + waiting) / TOGETHER, math.sqrt(busy**2 * every + rest)
    return LogPrediction(log_seconds, sd, least, math.exp(QUANTILE * math.sqrt(busy**2 * own + rest)))


def _seconds(effects: Effects, config: Combination, work: Iterable[float] | None = None) -> dict[Term, float] | Missing:
    """Return the seconds per token of each class of work, without the effects, or the reason why they are not known; see `predict`."""
    limits = limits_of(config.shape, config.accelerator)
    if isinstance(limits, Missing):
        return limits
    if work is None:
        amounts = work_of_tokens(config.shape) | work_of_weights(config.shape)
        work = [factor_of(effects, config, term) * amounts[term] for term in TERMS]
    return {term: amount / limit for term, amount, limit in zip(TERMS, work, limits, strict=True) if amount}


def _shares(config: Combination, parts: Mapping[Term, float]) -> list[tuple[str, float]]:
    """Return the share of the time that each factor multiplies."""
    total = sum(parts.values())
    return [(name, part / total) for term, part in parts.items() for name in factors_of(config, term)]


def spread_of_ratio(effects: Effects, first: Combination, second: Combination) -> float:
    """Return the factor from the ratio of two rates to an end of its 90% interval: effects that both have cancel."""
    apart = dict[str, float]()
    for sign, config in ((1, first), (-1, second)):
        parts = _seconds(effects, config)
        for name, weight in [*effects_of(config).items(), *([] if isinstance(parts, Missing) else _shares(config, parts))]:
            apart[name] = apart.get(name, 0.0) + sign * weight
    return math.exp(QUANTILE * math.sqrt(effects.variance((name, weight) for name, weight in apart.items() if weight) + 2 * ROW_VARIANCE))
