"""The fit of the throughput model (`tunemark.schema.throughput`) to accepted results.

The posterior is Laplace's approximation, found by Gauss-Newton steps (Gelman et al., Bayesian Data Analysis, chapters 4 and 15). Noise has
Student's t distribution, so that an outlier has little influence (Lange, Little and Taylor 1989). All rows of a training loop together
have at most the weight of `MOST_ROWS` rows, so that one benchmark with many entries does not dominate.

Standard deviations were chosen by leaving out whole sources, accelerators and models (`cross_validation`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunemark.schema.option_rates import KnownRate
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.work import TERMS, Missing, Term, work_seconds
from tunemark.schema.throughput import (
    FREEDOM,
    HOST_SD,
    NOISE,
    ROW_VARIANCE,
    SLOPES,
    SPREADS,
    TOGETHER,
    Combination,
    Effects,
    LogPrediction,
    architecture_of,
    effects_of,
    factors_of,
    generation_of,
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
        of_step = (architecture_of(shape.model), encoder, shape.method.value, shape.sequence_length)
        return KnownRate(
            *(self.id, *of_step, card.key, card.vendor, generation_of(card), config.devices, config.level),
            tokens_per_s=self.tokens_per_s,
            offload=shape.offload,
            experts=experts,
            vocabulary=shape.model.vocabulary,
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

    def factors(self, term: Term) -> tuple[str, ...]:
        """Return the parameters of a term; none if it is zero."""
        return factors_of(self.config, term) if self.terms[term] > 0 else ()

    @property
    def parameters(self) -> list[str]:
        """The names of all parameters that the rate depends on."""
        return [*(name for term in TERMS for name in self.factors(term)), *effects_of(self.config)]


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
            *(config.accelerator.key, config.devices, config.software, config.release, row.known.architecture, config.devices_per_row),
            *(shape.method, shape.sequence_length, shape.micro_batch, shape.checkpointing, f"{row.device_seconds_per_token:.4g}"),
        )
        first = first_rows.get(key)
        first_rows[key] = row if first is None else replace(first, same=(*first.same, row.id))
    return tuple(first_rows.values())


# The fit -------------------------------------------------------------------------------------------

Array = NDArray[np.floating[Any]]
STEPS = 60
CLOSE = 0.05
"""Steps end when one moves by less than this many standard deviations of the posterior."""
MOST_ROWS = 40
"""Rows of one training loop count at most as this many."""


@dataclass(frozen=True, slots=True)
class Design:
    """The parameters that rows depend on. The last column is for "no parameter", which is always 0."""

    seconds: Array
    effects: Array
    factors: NDArray[np.integer[Any]]
    issued: Array
    """Seconds per token in which hosts issue the operations; 0 where they do not."""

    @classmethod
    def of_rows(cls, rows: Sequence[Observed], names: Sequence[str]) -> "Design":
        """Return the design of rows with these parameters."""
        place = {name: number for number, name in enumerate(names)}
        seconds = np.array([[row.terms[term] for term in TERMS] for row in rows]).reshape(len(rows), len(TERMS))
        effects = np.zeros((len(rows), len(names) + 1))
        factors = np.full((len(rows), len(TERMS), len(SPREADS) + 1), len(names))
        for line, row in enumerate(rows):
            own = effects_of(row.config)
            effects[line, [place[name] for name in own]] = list(own.values())
            for number, term in enumerate(TERMS):
                used = [place[name] for name in row.factors(term)]
                factors[line, number, : len(used)] = used
        return cls(seconds, effects, factors, np.array([host_seconds(row.config) for row in rows]))

    def of(self, lines: Sequence[int]) -> "Design":
        """Return the design of some rows."""
        return replace(self, **{each.name: getattr(self, each.name)[lines] for each in fields(self)})

    def times(self, mean: Array) -> tuple[Array, Array, Array]:
        """Return log seconds of rows at these parameters, the share of each term in the time on the device, and the weight of that time."""
        padded = np.append(mean, 0.0)
        parts = self.seconds * np.exp(padded[self.factors].sum(axis=2))
        total = parts.sum(axis=1)
        device = np.log(total) + self.effects @ padded
        waiting = (self.issued / np.exp(device)) ** TOGETHER
        return device + np.log1p(waiting) / TOGETHER, parts / total[:, None], 1 / (1 + waiting)

    def slopes(self, shares: Array) -> Array:
        """Return the derivatives of the log seconds on devices, shape (rows, parameters)."""
        slopes, kinds = self.effects.copy(), self.factors.shape[2]
        slopes[np.arange(len(slopes))[:, None], self.factors.reshape(len(slopes), -1)] += np.repeat(shares, kinds, axis=1)
        return slopes[:, :-1]


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

    @cached_property
    def posterior(self) -> Posterior:
        """The posterior given all rows."""
        return self.without(())

    @cached_property
    def effects(self) -> Effects:
        """The fitted parameters as predictions use them."""
        places = {name: place for place, name in enumerate(self.names)}
        return Effects(places, tuple(self.posterior.mean.tolist()), tuple(map(tuple, self.posterior.covariance.tolist())))

    @cached_property
    def known(self) -> tuple[KnownRate, ...]:
        """The rows as evidence for rates of options."""
        return tuple(row.known for row in self.rows)

    def without(self, left_out: Iterable[int]) -> Posterior:
        """Return the posterior without some rows, by their numbers, by Gauss-Newton steps with the weights of Student's t distribution.

        The steps begin at the mean of the prior: rows that are left out have no influence at all. Parameters that change every row alike, such as
        the effects of a document and of its only accelerator, are fitted as their sum, of which each gets its share of the prior variance.
        """
        priors = [prior_of(name) for name in self.names]
        middle, variance = np.array([prior.mean for prior in priors]), np.array([prior.sd**2 for prior in priors])
        lines = sorted({*range(len(self.rows))} - {*left_out}, key=lambda line: (self.rows[line].config.software, line))
        if not lines:
            return Posterior(middle, np.diag(variance))
        rows, design = [self.rows[line] for line in lines], self.design.of(lines)
        observed, counts = np.array([row.log_seconds for row in rows]), Counter(row.config.stack for row in rows)
        capped = np.array([min(1.0, MOST_ROWS / counts[row.config.stack]) for row in rows])
        slopes = design.slopes(design.times(middle)[1])
        loop, used = np.unique([row.config.software for row in rows], return_inverse=True)[1], slopes != 0
        begin, end = loop[used.argmax(axis=0)], loop[::-1][used[::-1].argmax(axis=0)]
        columns = list(zip(np.where(begin == end, begin, len(rows)).tolist(), (column.tobytes() for column in slopes.T), strict=True))
        numbers = {column: number for number, column in enumerate(sorted(set(columns)))}
        group, owner = np.array([numbers[column] for column in columns]), [column[0] for column in numbers]
        first = np.unique(group, return_index=True)[1]
        loops = [(slice(*np.searchsorted(loop, each)), slice(*np.searchsorted(owner, each))) for each in pairwise(range(loop[-1] + 2))]
        place = np.full(len(middle) + 1, len(first))
        place[first] = np.arange(len(first))
        distinct = replace(design, effects=design.effects[:, [*first, -1]], factors=place[design.factors])
        sums = np.bincount(group, variance)
        share, precision = variance / sums[group], 1 / sums
        moved: Array = np.zeros(len(sums))
        step = moved
        lowest, stride = math.inf, 1.0
        for _ in range(STEPS):
            predicted, shares, busy = design.times(middle + share * (moved + step)[group])
            residuals = observed - predicted
            spread = FREEDOM + (residuals / NOISE) ** 2
            loss = (FREEDOM + 1) * float(capped @ np.log(spread)) + float(precision @ (moved + step) ** 2)
            if loss > lowest:
                # Too far along a direction in which the model bends: half of the step, and shorter ones for a while.
                step, stride = step / 2, 0.5
                continue
            moved, lowest = moved + step, loss
            weights = np.sqrt(capped * (FREEDOM + 1) / spread) / NOISE
            weighed = distinct.slopes(shares)
            weighed *= (weights * busy)[:, None]
            downhill = weighed.T @ (weights * residuals) - precision * moved
            step = _solved(loops, weighed, precision, downhill)
            if float(downhill @ step) < CLOSE**2:
                break
            step, stride = stride * step, min(1.0, 1.1 * stride)
        curvature = weighed.T @ weighed + np.diag(precision)
        apart = np.where(group[:, None] == group, np.outer(variance, share), 0.0)
        covariance = np.outer(share, share) * np.linalg.inv(curvature)[np.ix_(group, group)] + np.diag(variance) - apart
        return Posterior(middle + share * moved[group], covariance)

    def predict_rows(self, posterior: Posterior, lines: Sequence[int]) -> list[LogPrediction]:
        """Return predictions for some rows by another posterior of the same parameters."""
        design = self.design.of(lines)
        values, shares, busy = design.times(posterior.mean)
        slopes = design.slopes(shares) * busy[:, None]
        variances = ((slopes @ posterior.covariance) * slopes).sum(axis=1) + ((1 - busy) * HOST_SD) ** 2
        pairs = zip(values.tolist(), np.sqrt(variances + ROW_VARIANCE).tolist(), strict=True)
        return [LogPrediction(*pair) for pair in pairs]


def fit(rows: Iterable[Observed]) -> Fit:
    """Return the posterior given rows; without rows it is the prior."""
    rows = tuple(rows)
    names = tuple(sorted({name for row in rows for name in row.parameters}))
    return Fit(names, rows, Design.of_rows(rows, names))


def _solved(loops: Sequence[tuple[slice, slice]], weighed: Array, precision: Array, downhill: Array) -> Array:
    """Return x of (weighed' weighed + diag(precision)) x = downhill. `loops` are rows and columns of one training loop each; the last columns are of several.

    The columns of a loop never meet those of another, so they are eliminated loop by loop.
    """
    several = loops[-1][1].stop
    both = weighed[:, several:]
    rest = np.column_stack((both.T @ both + np.diag(precision[several:]), downhill[several:]))
    eliminated = []
    for rows, columns in loops:
        own = weighed[rows, columns]
        mixed = np.column_stack((own.T @ both[rows], downhill[columns]))
        eliminated.append(np.linalg.solve(own.T @ own + np.diag(precision[columns]), mixed))
        rest -= mixed[:, :-1].T @ eliminated[-1]
    last = np.linalg.solve(rest[:, :-1], rest[:, -1])
    return np.concatenate([*(each[:, -1] - each[:, :-1] @ last for each in eliminated), last])


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
