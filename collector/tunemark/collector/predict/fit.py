"""The fit of the throughput model (`tunemark.schema.throughput`) to accepted results.

The posterior is Laplace's approximation, found by Gauss-Newton steps (Gelman et al., Bayesian Data Analysis, chapters 4 and 15). Noise has
Student's t distribution, so that an outlier has little influence (Lange, Little and Taylor 1989). All rows of a training loop together
have at most the weight of `MOST_ROWS` rows, so that one benchmark with many entries does not dominate.

Standard deviations were chosen by leaving out whole sources, levels, accelerators and models (`cross_validation`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunemark.schema.option_rates import KnownRate, unmeasured
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.work import TERMS, Missing, Term, work_seconds
from tunemark.schema.throughput import (
    FREEDOM,
    HOST_SD,
    NOISE,
    ROW_VARIANCE,
    SLOPES,
    SPREADS,
    Combination,
    Effects,
    LogPrediction,
    effects_of,
    factors_of,
    host_seconds,
    prior_of,
)

MEANING: dict[Term, str] = {
    "matmul": "matrix products, recomputed ones included, over the dense peak of the format that multiplies",
    "narrow": "matrix products of the blocks in fp8 or fp4, over the dense peak of that format",
    "attention": "attention as s^2 pairs, heads filled up to a power of two, over the dense peak of the format of the activations",
    "elementwise": "norms, activations, residuals and rotations: bytes over memory bandwidth",
    "weights": "weights read by products, gradients written, weights and states read and written by the optimizer: bytes over memory bandwidth",
    "adapters": "work of adapters, with inputs cast to their format, dropped out and kept: bytes over memory bandwidth",
    "scores": "attention scores, if the kernel writes them (eager): bytes over memory bandwidth",
    "dequantisation": "4-bit weights expanded before each product, once per micro-step and pass: bytes over memory bandwidth",
    "exchange": "weights that sharding gathers and gradients that it scatters: bytes over the link between devices or to the host",
}


@dataclass(frozen=True, slots=True)
class Observed:
    """A calibration row: a result with its combination and rate."""

    id: str
    """Id of the result, or of the first of several equal ones."""
    config: Combination
    device_seconds_per_token: float
    """Devices x seconds / computed tokens (slots); the inverse is tokens/s per device."""
    terms: dict[Term, float]
    """Seconds per token of each class of work at the limits of the card."""
    basis: str = ""
    """The calculation of the rate."""
    same: tuple[str, ...] = ()
    """Results with the same combination and the same digits, which add no evidence."""

    @property
    def known(self) -> KnownRate:
        """The row as evidence for rates of options."""
        config, shape = self.config, self.config.shape
        card = config.accelerator
        encoder, experts = FAMILIES[shape.model.family].encoder, shape.model.experts or 0
        of_step = (config.architecture, encoder, shape.method.value, shape.sequence_length)
        return KnownRate(
            *(self.id, *of_step, card.key, card.vendor, config.generation, config.devices, config.level),
            tokens_per_s=self.tokens_per_s,
            offload=shape.offload,
            experts=experts,
            block_format=shape.block_format or "",
        )

    @property
    def tokens_per_s(self) -> float:
        """Computed tokens per second of all devices together."""
        return self.config.devices / self.device_seconds_per_token

    @property
    def log_seconds(self) -> float:
        """The modelled quantity."""
        return math.log(self.device_seconds_per_token)


def observe(result_id: str, config: Combination, tokens_per_s: float, basis: str = "") -> Observed | Missing:
    """Return a calibration row from tokens/s of all devices together, or the reason why it cannot be one."""
    terms = work_seconds(config.shape, config.accelerator)
    if isinstance(terms, Missing):
        return terms
    if not (math.isfinite(tokens_per_s) and tokens_per_s > 0):
        return Missing(f"{tokens_per_s:g} tokens/s is not a valid rate")
    return Observed(result_id, config, config.devices / tokens_per_s, terms, basis)


def without_copies(rows: Iterable[Observed]) -> tuple[Observed, ...]:
    """Return rows without those that repeat another row's digits at the same combination: a copy is not a second measurement."""
    first_rows: dict[tuple[object, ...], Observed] = {}
    for row in rows:
        config, shape = row.config, row.config.shape
        key = (
            *(config.accelerator.key, config.devices, config.software, config.release, config.architecture, config.devices_per_row),
            *(shape.method, shape.sequence_length, shape.micro_batch, shape.checkpointing, f"{row.device_seconds_per_token:.4g}"),
        )
        first = first_rows.get(key)
        first_rows[key] = row if first is None else replace(first, same=(*first.same, row.id))
    return tuple(first_rows.values())


def no_data(results: Sequence[KnownRate], config: Combination) -> Missing | None:
    """Return the reason why nothing similar to a combination is known, or None; see `unmeasured`."""
    shape = config.shape
    reason = unmeasured(results, shape.model, shape.method, config.accelerator, shape.sequence_length)
    return None if reason is None else Missing(reason)


# The fit -------------------------------------------------------------------------------------------

Array = NDArray[np.floating[Any]]
STEPS = 60
CLOSE = 0.03
"""Steps end when one moves by less than this many standard deviations of the posterior."""
MOST_ROWS = 40
"""Rows of one training loop count at most as this many."""


class Design:
    """The parameters that rows depend on. All arrays have a last column for "no parameter", which is always 0."""

    def __init__(self, rows: Sequence["Parameters"], names: Sequence[str]) -> None:
        place = {name: number for number, name in enumerate(names)}
        none = len(names)
        self.seconds = np.array([[row.terms[term] for term in TERMS] for row in rows]).reshape(len(rows), len(TERMS))
        self.effects = np.zeros((len(rows), none + 1))
        self.factors = np.full((len(rows), len(TERMS), len(SPREADS) + 1), none)
        for line, row in enumerate(rows):
            for name, weight in row.effects.items():
                self.effects[line, place.get(name, none)] = weight
            for number, term in enumerate(TERMS):
                if term in row.factors:
                    self.factors[line, number, : len(row.factors[term])] = [place.get(name, none) for name in row.factors[term]]
        self.effects[:, none] = 0
        self.issued = np.array([row.issued for row in rows])

    def linear(self, mean: Array, lines: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Array, Array]:
        """Return log seconds of rows at these parameters, shape (rows,), and their derivatives, shape (rows, parameters).

        A row that waits for its host says nothing about the device: its derivatives are zero.
        """
        predicted, slopes = self.device(mean, lines)
        waits = predicted < self.issued[lines]
        slopes[waits] = 0
        return np.where(waits, self.issued[lines], predicted), slopes

    def device(self, mean: Array, lines: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Array, Array]:
        """Return the same of devices that wait for no host."""
        padded, factors, slopes = np.append(mean, 0.0), self.factors[lines], self.effects[lines]
        parts = self.seconds[lines] * np.exp(padded[factors].sum(axis=2))
        total = parts.sum(axis=1)
        predicted, every = np.log(total) + slopes @ padded, np.arange(len(total))
        for term in range(len(TERMS)):
            for kind in range(factors.shape[2]):
                slopes[every, factors[:, term, kind]] += parts[:, term] / total
        return predicted, slopes[:, :-1]


@dataclass(frozen=True, slots=True)
class Posterior:
    """The posterior: a mean for each parameter, and their covariance."""

    mean: Array
    covariance: Array


@dataclass(frozen=True)
class Fit:
    """The posterior of the parameters that any of the rows depends on."""

    names: tuple[str, ...]
    rows: tuple[Observed, ...]
    design: Design
    posterior: Posterior

    @cached_property
    def effects(self) -> Effects:
        """The fitted parameters as predictions use them."""
        places = {name: place for place, name in enumerate(self.names)}
        return Effects(places, tuple(self.posterior.mean.tolist()), tuple(map(tuple, self.posterior.covariance.tolist())))

    @cached_property
    def known(self) -> tuple[KnownRate, ...]:
        """The rows as evidence for rates of options."""
        return tuple(row.known for row in self.rows)

    def without(self, lines: Sequence[int]) -> Posterior:
        """Return the posterior without some rows, by their numbers."""
        return posterior_of(self, np.delete(np.arange(len(self.rows)), lines))

    def predict_rows(self, posterior: Posterior, lines: Sequence[int]) -> list[LogPrediction]:
        """Return predictions for some rows by another posterior of the same parameters."""
        values, slopes = self.design.linear(posterior.mean, list(lines))
        variances = ((slopes @ posterior.covariance) * slopes).sum(axis=1)
        return _predictions(values, np.where(slopes.any(axis=1), variances, HOST_SD**2))


def _predictions(values: Array, variances: Array) -> list[LogPrediction]:
    """Return predictions of one further row each, from its mean and the variance of the parameters."""
    return [LogPrediction(*pair) for pair in zip(values.tolist(), np.sqrt(variances + ROW_VARIANCE).tolist(), strict=True)]


def fit(rows: Iterable[Observed]) -> Fit:
    """Return the posterior given rows; without rows it is the prior."""
    rows = tuple(rows)
    parameters = [Parameters.of(row.config, row.terms) for row in rows]
    names = tuple(sorted({name for each in parameters for name in each.names}))
    design = Design(parameters, names)
    unfitted = Fit(names, rows, design, Posterior(np.zeros(len(names)), np.zeros((len(names), len(names)))))
    return replace(unfitted, posterior=posterior_of(unfitted, np.arange(len(rows)))) if rows else unfitted


def posterior_of(fitted: Fit, lines: NDArray[np.integer[Any]]) -> Posterior:
    """Return the posterior given some of the rows, by Gauss-Newton steps with the weights of Student's t distribution.

    The steps begin at the mean of the prior: rows that are left out have no influence at all. Parameters that change every row alike, such as
    the effects of a document and of its only accelerator, are fitted as their sum, of which each gets its share of the prior variance.
    """
    priors = [prior_of(name) for name in fitted.names]
    middle, variance = np.array([prior.mean for prior in priors]), np.array([prior.sd**2 for prior in priors])
    observed = np.array([fitted.rows[line].log_seconds for line in lines])
    counts = Counter(fitted.rows[line].config.stack for line in lines)
    capped = np.array([min(1.0, MOST_ROWS / counts[fitted.rows[line].config.stack]) for line in lines])
    columns: dict[bytes, int] = {}
    group = np.array([columns.setdefault(column.tobytes(), len(columns)) for column in fitted.design.device(middle, lines)[1].T])
    first = np.unique(group, return_index=True)[1]
    sums = np.bincount(group, variance)
    share, precision = variance / sums[group], 1 / sums
    moved = step = np.zeros(len(sums))
    lowest = math.inf
    for _ in range(STEPS):
        predicted, slopes = fitted.design.linear(middle + share * (moved + step)[group], lines)
        residuals = observed - predicted
        spread = FREEDOM + (residuals / NOISE) ** 2
        loss = (FREEDOM + 1) * float(capped @ np.log(spread)) + float(precision @ (moved + step) ** 2)
        if loss > lowest:
            # Too far along a direction in which the model bends: half of the step.
            step = step / 2
            continue
        moved, lowest = moved + step, loss
        weights, slopes = capped * (FREEDOM + 1) / spread / NOISE**2, slopes[:, first]
        # A product of a matrix with its own transpose takes half of the time.
        weighed = slopes * np.sqrt(weights)[:, None]
        curvature = weighed.T @ weighed + np.diag(precision)
        downhill = slopes.T @ (weights * residuals) - precision * moved
        step = np.linalg.solve(curvature, downhill)
        if float(downhill @ step) < CLOSE**2:
            break
    apart = np.where(group[:, None] == group, np.outer(variance, share), 0.0)
    covariance = np.outer(share, share) * np.linalg.inv(curvature)[np.ix_(group, group)] + np.diag(variance) - apart
    return Posterior(middle + share * moved[group], covariance)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters that a combination depends on."""

    terms: Mapping[Term, float]
    """Seconds per token of each class of work at the limits of the card."""
    factors: dict[Term, tuple[str, ...]]
    """The parameters of each term that is not zero."""
    effects: dict[str, float]
    """The effects with their weights."""
    issued: float
    """Logarithm of the seconds per token in which hosts issue its operations, or minus infinity."""

    @classmethod
    def of(cls, config: Combination, terms: Mapping[Term, float]) -> "Parameters":
        """Return the parameters of a combination with these terms."""
        host = host_seconds(config)
        factors = {term: factors_of(config, term) for term in TERMS if terms[term] > 0}
        return cls(terms, factors, effects_of(config), math.log(host) if host else -math.inf)

    @property
    def names(self) -> list[str]:
        """The names of all parameters."""
        return [*(name for names in self.factors.values() for name in names), *self.effects]


def meaning_of_parameter(name: str) -> str:
    """Return the meaning of a parameter in words."""
    kind, _, level = name.partition(": ")
    if kind == "factor":
        return f"times longer than at the limit: {MEANING[level]}"  # type: ignore[index]
    if kind in SPREADS:
        return f"how much longer that term takes than with all software: {level.split(', ')[0]}"
    if kind == "slope":
        return f"times longer for each doubling: {SLOPES[level].why}"
    return f"times longer than the mean of every {kind}"
