"""The model, and what accepted results say about its few constants.

    log(device-seconds per token) = log(sum over terms of factor x seconds at the limit) + effects + noise

A *factor* says how many times longer than at the limit a class of work takes. An *effect* says how much slower a kind of
software, a generation, an accelerator, a method or a model is than that. All have a prior (`PRIORS`), a normal
distribution in log space: what no row speaks of keeps its prior, so an unseen accelerator takes the mean of its
generation and software and the uncertainty of an unseen one. The posterior is that of Laplace's approximation, found
by Gauss-Newton steps (Gelman et al., Bayesian Data Analysis, chapters 4 and 15).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tunemark.schema.throughput.rows import Combination, Observed
from tunemark.schema.throughput.work import TERMS, Missing, Term, work_seconds

Vector = NDArray[np.float64]
STEPS = 60
CLOSE = 1e-9


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed before any row is seen, in log space."""

    mean: float
    sd: float
    why: str


FACTORS: dict[Term, Prior] = {
    "matmul": Prior(math.log(1.4), 0.3, "large matrix products reach 50 to 90% of the dense peak"),
    "attention": Prior(math.log(3.0), 0.5, "attention kernels reach 20 to 60%"),
    "elementwise": Prior(math.log(1.5), 0.5, "bandwidth is reached to 60 to 90%, and kernels that are not fused move more"),
    "adapters": Prior(math.log(2.0), 0.7, "loops that are not fused cast, drop out and add each on its own"),
    "scores": Prior(math.log(1.5), 0.7, "several passes over the scores, not fused"),
    "exchange": Prior(math.log(1.5), 0.7, "partly behind computing, partly over a slower link than the card names"),
}
"""Term -> its factor, how many times longer than at the limit."""
EFFECTS: dict[str, float] = {
    "stack": 0.6,
    "stack, method": 0.2,
    "release": 0.1,
    "generation": 0.15,
    "stack, generation": 0.1,
    "accelerator": 0.1,
    "stack, accelerator": 0.1,
    "stack, accelerator, method": 0.08,
    "model": 0.08,
}
"""Effect -> standard deviation among its levels, in log space; their mean is zero."""
SLOPES: dict[str, Prior] = {
    "devices doubled": Prior(0.03, 0.03, "a few percent for each doubling of the devices"),
    "devices per row doubled": Prior(0.05, 0.05, "sharing a row costs more than having one each"),
}
SPREADS = {"factor of stack": 0.3, "factor of accelerator": 0.15}
NOISE = 0.06
"""Standard deviation of a row about the model, in log space."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The posterior: a mean for each parameter that rows speak of, and their covariance."""

    names: tuple[str, ...]
    mean: Vector
    covariance: NDArray[np.float64]
    rows: tuple[Observed, ...]
    index: dict[str, int] = field(repr=False)

    def predict(self, of: Combination) -> "Estimate | Missing":
        """Return log device-seconds per token with its standard deviation."""
        terms = work_seconds(of.shape, of.accelerator)
        if isinstance(terms, Missing):
            return terms
        return self.of_terms(of, terms)

    def of_terms(self, of: Combination, terms: dict[Term, float]) -> "Estimate":
        """Return the prediction for seconds that are computed already."""
        value, slopes = _log_seconds(of, terms, lambda name: self.mean[self.index[name]] if name in self.index else _prior(name).mean)
        known = [(self.index[name], slope) for name, slope in slopes.items() if name in self.index]
        row = np.zeros(len(self.names))
        for place, slope in known:
            row[place] = slope
        unseen = sum((slope * _prior(name).sd) ** 2 for name, slope in slopes.items() if name not in self.index)
        variance = float(row @ self.covariance @ row) + unseen
        return Estimate(value, math.sqrt(variance + NOISE**2), tuple(sorted(name for name in slopes if name not in self.index)))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A prediction in log space."""

    log_seconds: float
    sd: float
    """Of one further row: of the parameters, of levels that no row has, and the noise."""
    unseen: tuple[str, ...]
    """Parameters that no row spoke of."""


def fit(rows: Iterable[Observed]) -> Fit:
    """Return the posterior given rows; without rows it is the prior."""
    rows = tuple(rows)
    names = tuple(sorted({name for row in rows for name in _parameters(row.of, row.terms)}))
    index = {name: place for place, name in enumerate(names)}
    priors = [_prior(name) for name in names]
    middle, precision = np.array([one.mean for one in priors]), np.array([1 / one.sd**2 for one in priors])
    observed = np.array([row.log_seconds for row in rows])
    mean = middle.copy()
    for _ in range(STEPS):
        predicted, jacobian = _linear(rows, index, mean)
        gram = jacobian.T @ jacobian / NOISE**2 + np.diag(precision)
        step = np.linalg.solve(gram, jacobian.T @ (observed - predicted) / NOISE**2 - precision * (mean - middle)) if names else mean
        mean = mean + step
        if not names or float(np.abs(step).max()) < CLOSE:
            break
    _, jacobian = _linear(rows, index, mean)
    covariance = np.linalg.inv(jacobian.T @ jacobian / NOISE**2 + np.diag(precision)) if names else np.zeros((0, 0))
    return Fit(names, mean, covariance, rows, index)


def _linear(rows: Sequence[Observed], index: dict[str, int], mean: Vector) -> tuple[Vector, NDArray[np.float64]]:
    predicted, jacobian = np.zeros(len(rows)), np.zeros((len(rows), len(index)))
    for place, row in enumerate(rows):
        predicted[place], slopes = _log_seconds(row.of, row.terms, lambda name: mean[index[name]])
        for name, slope in slopes.items():
            jacobian[place, index[name]] = slope
    return predicted, jacobian


def _log_seconds(of: Combination, terms: dict[Term, float], value_of) -> tuple[float, dict[str, float]]:
    """Return log seconds and its derivative by each parameter."""
    factors = {term: _factors(of, term) for term in TERMS if terms[term] > 0}
    parts = {term: math.exp(sum(value_of(name) for name in names)) * terms[term] for term, names in factors.items()}
    total = sum(parts.values())
    effects = _effects(of)
    value = math.log(total) + sum(weight * value_of(name) for name, weight in effects.items())
    return value, {name: parts[term] / total for term, names in factors.items() for name in names} | effects


def _factors(of: Combination, term: Term) -> tuple[str, ...]:
    """Return the parameters whose sum is the logarithm of a term's factor."""
    return f"factor: {term}", f"factor of stack: {term}, {of.stack}", f"factor of accelerator: {term}, {of.stack}, {of.accelerator.key}"


def _parameters(of: Combination, terms: dict[Term, float]) -> list[str]:
    return [*(name for term in TERMS if terms[term] > 0 for name in _factors(of, term)), *_effects(of)]


def _effects(of: Combination) -> dict[str, float]:
    method, chip = of.shape.method.value, of.accelerator.key
    effects = {
        f"stack: {of.stack}": 1.0,
        f"stack, method: {of.stack}, {method}": 1.0,
        f"generation: {of.generation}": 1.0,
        f"stack, generation: {of.stack}, {of.generation}": 1.0,
        f"accelerator: {chip}": 1.0,
        f"stack, accelerator: {of.stack}, {chip}": 1.0,
        f"stack, accelerator, method: {of.stack}, {chip}, {method}": 1.0,
        f"model: {of.architecture}": 1.0,
        "slope: devices doubled": math.log2(of.devices),
        "slope: devices per row doubled": math.log2(of.devices_per_row),
    }
    if of.release:
        effects[f"release: {of.stack}, {of.release}"] = 1.0
    return {name: weight for name, weight in effects.items() if weight}


def _prior(name: str) -> Prior:
    kind, _, rest = name.partition(": ")
    if kind in SPREADS:
        return Prior(0.0, SPREADS[kind] * (3 if rest.startswith("exchange") else 1), "")
    if kind == "factor":
        return FACTORS[rest]  # type: ignore[index]
    return SLOPES[rest] if kind == "slope" else Prior(0.0, EFFECTS[kind], "")
