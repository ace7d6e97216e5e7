"""Robust statistics and intervals of step times. Pure functions of numpy arrays. See definitions#intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
FEWEST_STEPS = 4
"""Shorter series have no interval."""
FEWEST_PAIRS = 3
"""Minimum number of pairs: two have one degree of freedom, and their interval is useless."""
ROUNDING = 1e-9
"""Ratios closer to 1 than this are equal: they differ in the last digits only."""
MAX_CORRELATION = 0.95
QUANTILE_STEPS, FARTHEST_T = 4_096, 12
"""Steps of a sum over angles, and with many degrees of freedom the largest t that is summed."""
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


Verdict = Literal["higher", "lower", "no significant difference", "too few pairs"]


@dataclass(frozen=True, slots=True)
class Change:
    """The relative change of a quantity from A to B: 0.05 is 5% more."""

    change: Interval
    """Geometric mean of the pairs with its 95% interval."""
    pairs: int
    verdict: Verdict
    """From the interval: `higher` if it is entirely above 0."""

    @property
    def significant(self) -> bool:
        """Return True if A and B differ."""
        return self.verdict in {"higher", "lower"}


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
    cv: float
    """Standard deviation over mean."""
    stall_index: float
    """Maximum over median."""


def spread(values: Floats) -> Spread:
    """Summarise values, shape (n,) with n >= 1."""
    p5, p50, p90, p95, p99 = (float(q) for q in np.percentile(values, [5, 50, 90, 95, 99]))
    return Spread(
        n=len(values),
        p5=p5,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99 if len(values) >= 100 else None,  # noqa: PLR2004 - one value in a hundred
        mad=float(np.median(np.abs(values - p50))),
        cv=float(values.std() / values.mean()),
        stall_index=float(values.max() / p50),
    )


def theil_sen(values: Floats) -> Interval:
    """Return the median of all pairwise slopes per step of values, shape (n,), n >= 2, with Sen's 95% interval (1968).

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
    return Interval(float(np.median(slopes)), float(slopes[low]), float(slopes[high]))


def ratio_interval(work: Floats, times: Floats) -> Interval:
    """Return sum(work)/sum(times) with a 95% interval for this run; work and seconds per step both have shape (n,).

    A ratio of sums, never a mean of rates. The error of the ratio is that of the mean of `work - ratio x time` over the mean time
    (Cochran 1977, 6.3). Consecutive steps are correlated, so the interval is Student's t with an effective number of steps: the
    smaller of `ar1_steps` and `pairwise_steps`. `benchmarks/synthetic_steps.py` measures its coverage.
    """
    n = len(times)
    estimate = float(work.sum() / times.sum())
    if n < FEWEST_STEPS:
        return Interval(estimate, 0.0, math.inf)
    residuals = work - estimate * times
    steps = min(ar1_steps(residuals), pairwise_steps(residuals))
    error = math.sqrt(float(np.mean(residuals**2)) / (1 - 1 / steps) / steps)
    half = t_quantile((1 + CONFIDENCE) / 2, steps - 1) * error / float(times.mean())
    return Interval(estimate, max(0.0, estimate - half), estimate + half)


def lag_one(values: Floats) -> float:
    """Return the correlation of successive values, shape (n,), as an AR(1) coefficient from 0 to 0.95.

    The sample correlation r is too low by about (1 + 4 r) / n (Marriott & Pope 1954), which is added.
    """
    centred = values - values.mean()
    variance = float(centred @ centred)
    if variance == 0:
        return 0.0
    r = float(centred[:-1] @ centred[1:]) / variance
    return min(max(0.0, r + (1 + 4 * r) / len(values)), MAX_CORRELATION)


def ar1_steps(values: Floats) -> float:
    """Return the number of independent values that are worth as much as these, shape (n,), if they follow an AR(1) process."""
    r = lag_one(values)
    return max(2.0, len(values) * (1 - r) / (1 + r))


def pairwise_steps(values: Floats) -> float:
    """Return the number of independent values worth as much as these, shape (n,), from their autocovariances.

    These are summed in pairs of lags as long as the sum of a pair is positive, and never above the pair before
    (Geyer 1992, initial monotone sequence), up to a third of the series. It also covers slow changes under fast noise.
    """
    n = len(values)
    centred = values - values.mean()
    spectrum = np.fft.rfft(centred, 2 * n)
    covariances = np.fft.irfft(np.abs(spectrum) ** 2, 2 * n)[:n] / n
    if covariances[0] == 0:
        return float(n)
    pairs = covariances[0 : 2 * (n // 3) : 2] + covariances[1 : 2 * (n // 3) : 2]
    positive = pairs[: int(np.argmax(pairs <= 0))] if (pairs <= 0).any() else pairs
    long_run = 2 * float(np.minimum.accumulate(positive).sum()) - float(covariances[0])
    return max(2.0, n * min(1.0, float(covariances[0]) / long_run)) if long_run > 0 else float(n)


def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t for a probability above 0.5 and below 1, and at least one degree of freedom.

    With t = sqrt(degrees) tan(angle), the angle's density is proportional to cos(angle)^(degrees - 1); steps are shorter where tan is steep.
    """
    angles = min(math.pi / 2, FARTHEST_T / math.sqrt(degrees)) * (1 - np.linspace(1, 0, QUANTILE_STEPS + 1) ** 2)
    summed = np.concatenate([[0.0], np.cumsum(np.cos((angles[1:] + angles[:-1]) / 2) ** (degrees - 1) * np.diff(angles))])
    return math.sqrt(degrees) * math.tan(float(np.interp(2 * probability - 1, summed / summed[-1], angles)))


def one_more_run(values: Sequence[float]) -> Interval:
    """Return the geometric mean of a positive figure over two or more runs, with the 95% interval for one more run.

    The logarithms are taken as normal: the next one lies within t(k - 1) x s x sqrt(1 + 1 / k) of the mean of k runs, where s is
    their standard deviation. See definitions#intervals.
    """
    logs = np.log(values)
    k, middle = len(logs), float(logs.mean())
    half = t_quantile((1 + CONFIDENCE) / 2, k - 1) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / k)
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def paired_change(a: Sequence[float], b: Sequence[float]) -> Change:
    """Compare pairs of positive values, both of shape (pairs,), of interleaved runs: slow drifts of the machine cancel in their ratio.

    The logarithm of the ratio is taken as normal: its mean has a t interval (Student 1908) with pairs - 1 degrees of freedom.
    Raises ValueError if there is no pair, the lengths differ, or a value is not positive.
    """
    if len(a) != len(b) or not len(a):
        raise ValueError(f"a has {len(a)} values and b has {len(b)}; give the two values of each pair, one pair at least")
    if min(*a, *b) <= 0:
        raise ValueError(f"the lowest value is {min(*a, *b)}; ratios are of values above 0")
    logs = np.log(np.asarray(b, dtype=float)) - np.log(np.asarray(a, dtype=float))
    logs[np.abs(logs) < ROUNDING] = 0.0
    n, mean = len(logs), float(logs.mean())
    if n < FEWEST_PAIRS:
        return Change(Interval(math.expm1(mean), -1.0, math.inf), n, "too few pairs")
    half = t_quantile((1 + CONFIDENCE) / 2, n - 1) * float(logs.std(ddof=1)) / math.sqrt(n)
    low, high = math.expm1(mean - half), math.expm1(mean + half)
    verdict: Verdict = "higher" if low > 0 else "lower" if high < 0 else "no significant difference"
    return Change(Interval(math.expm1(mean), low, high), n, verdict)


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
