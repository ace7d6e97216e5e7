"""Robust statistics and intervals of step times. Pure functions of numpy arrays with fixed seeds. See definitions#intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BOOTSTRAP_SEED = 20_261_120
BOOTSTRAP_DRAWS = 2_000
BOOTSTRAP_CELLS = 100_000
CONFIDENCE = 0.95
NORMAL_QUANTILE = 1.959963984540054
MAX_SLOPE_POINTS = 400
SIGNIFICANT_ERRORS = 2
"""Differences below this many standard errors are not significant."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A point estimate and its 95% interval."""

    value: float
    low: float
    high: float
    """Infinite if there are too few values for an interval."""

    @property
    def bounded(self) -> bool:
        """Return True if there were enough values for an interval."""
        return math.isfinite(self.high)

    @property
    def relative_half_width(self) -> float:
        """Half-width of the interval over the estimate."""
        return (self.high - self.low) / 2 / self.value if self.value else float("inf")


@dataclass(frozen=True, slots=True)
class ShareDifference:
    """The difference of two shares of rows, such as accuracies. See definitions#quality."""

    difference: float
    """Second minus first."""
    standard_error: float
    """Standard error of the difference, for randomly drawn rows."""

    @property
    def significant(self) -> bool:
        """Return True if they differ by more than two standard errors."""
        return abs(self.difference) > SIGNIFICANT_ERRORS * self.standard_error


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of a series of step times in seconds (the last three are ratios)."""

    n: int
    p5: float
    p50: float
    p90: float
    p95: float
    p99: float | None
    """Only with at least 100 values."""
    mad: float
    """Median absolute deviation."""
    cv: float
    """Standard deviation over mean."""
    stall_index: float
    """Maximum over median."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Theil-Sen slope per step with its 95% interval (Sen 1968)."""

    value: float
    low: float
    high: float


def spread(values: Floats) -> Spread:
    """Summarise values, shape (n,) with n >= 1."""
    p5, p50, p90, p95 = (float(q) for q in np.percentile(values, [5, 50, 90, 95]))
    many = 100
    return Spread(
        n=len(values),
        p5=p5,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=float(np.percentile(values, 99)) if len(values) >= many else None,
        mad=float(np.median(np.abs(values - p50))),
        cv=float(values.std() / values.mean()),
        stall_index=float(values.max() / p50),
    )


def theil_sen(values: Floats) -> Slope:
    """Return the median of all pairwise slopes of values, shape (n,), n >= 2, with Sen's interval.

    Longer series are first thinned to 400 evenly spaced points, which bounds the work at 80,000 pairs.
    """
    index = np.linspace(0, len(values) - 1, min(len(values), MAX_SLOPE_POINTS)).round().astype(int)
    x, y = index.astype(float), values[index]
    i, j = np.triu_indices(len(x), k=1)
    slopes = np.sort((y[j] - y[i]) / (x[j] - x[i]))
    n = len(x)
    # The variance of Kendall's S without ties gives the ranks of the interval's ends.
    half = NORMAL_QUANTILE * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = int(max(0, np.floor((len(slopes) - half) / 2)))
    high = int(min(len(slopes) - 1, np.ceil((len(slopes) + half) / 2)))
    return Slope(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def block_length(values: Floats) -> int:
    """Return a block length that covers the autocorrelation of values: the first lag below 2/sqrt(n), at most n/4."""
    n = len(values)
    centred = values - values.mean()
    variance = float(centred @ centred)
    if variance == 0:
        return 1
    for lag in range(1, max(2, n // 4)):
        if abs(float(centred[:-lag] @ centred[lag:]) / variance) < 2 / np.sqrt(n):
            return lag
    return max(1, n // 4)


def ratio_interval(work: Floats, times: Floats) -> Interval:
    """Return sum(work)/sum(times) with a circular block bootstrap interval (Politis & Romano 1992).

    Both have shape (n,): work and seconds per step. A ratio of sums, never a mean of rates.
    """
    n = len(times)
    estimate = float(work.sum() / times.sum())
    few = 4
    if n < few:
        return Interval(estimate, 0.0, float("inf"))
    length = block_length(times)
    blocks = -(-n // length)
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    # In portions, to bound the memory for 100,000 steps.
    portion = max(1, BOOTSTRAP_CELLS // (blocks * length))
    draws = np.concatenate(
        [
            _draw(work, times, rng.integers(0, n, size=(min(portion, BOOTSTRAP_DRAWS - done), blocks)), length)
            for done in range(0, BOOTSTRAP_DRAWS, portion)
        ]
    )
    low, high = np.percentile(draws, [50 * (1 - CONFIDENCE), 100 - 50 * (1 - CONFIDENCE)])
    return Interval(estimate, float(low), float(high))


def _draw(work: Floats, times: Floats, starts: NDArray[np.int64], length: int) -> Floats:
    """Return one resampled ratio per row of starts, shape (draws, blocks)."""
    n = len(times)
    index = ((starts[:, :, None] + np.arange(length)) % n).reshape(len(starts), -1)[:, :n]
    draws: Floats = work[index].sum(axis=1) / times[index].sum(axis=1)
    return draws


def share_error(share: float, n: int) -> float:
    """Return the standard error of a share of n rows, sqrt(p (1 - p) / n).

    For p = 0 or 1 the formula gives 0, which n rows cannot establish: p is then taken with one more row of each kind (Laplace).
    """
    p = share if 0 < share < 1 else (share * n + 1) / (n + 2)
    return math.sqrt(p * (1 - p) / n)


def share_difference(first: float, n_first: int, second: float, n_second: int) -> ShareDifference:
    """Return the difference of two shares of `n_first` and `n_second` rows."""
    return ShareDifference(second - first, math.hypot(share_error(first, n_first), share_error(second, n_second)))


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> tuple[float, float | None]:
    """Return the weighted mean of values, both of shape (n,), and its standard error from their spread; None below two values.

    Standard error of a ratio of sums (Cochran 1977, 6.3): sqrt(n / (n - 1) x sum of (weight x deviation from the mean)^2) / sum of weights.
    """
    x, w = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    mean = float((x * w).sum() / w.sum())
    if len(x) < 2:  # noqa: PLR2004 - one value has no spread
        return mean, None
    return mean, math.sqrt(len(x) / (len(x) - 1) * float(((w * (x - mean)) ** 2).sum())) / float(w.sum())
