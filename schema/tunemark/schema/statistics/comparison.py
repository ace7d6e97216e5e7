"""How the runs of an A/B comparison are named: the arm, what it sets, and the pair. Written by the harness, read by the site."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics.intervals import CONFIDENCE, Floats, Interval

ARMS = ("a", "b")
_POINT = re.compile(r"(?P<arm>[ab]): (?P<settings>.+?)(?:, pair (?P<pair>\d+))?")


class ArmRun(NamedTuple):
    """A run of an arm."""

    arm: str
    """One of `ARMS`."""
    settings: str
    """What the arm sets, such as `compile=blocks`."""
    pair: int
    """From 1; 0 for the arm as such."""

    @property
    def point(self) -> str:
        """The name of this run in its series."""
        return f"{self.arm}: {self.settings}" + (f", pair {self.pair}" if self.pair else "")


def arm_run(point: str) -> ArmRun | None:
    """Return which run a name is, or None for the name of another kind of series."""
    found = _POINT.fullmatch(point)
    return ArmRun(found["arm"], found["settings"], int(found["pair"] or 0)) if found else None


# MOVE: was tunemark.schema.statistics.comparison: Whether B is faster than A: a verdict from pairs of runs that were made in turn. Pure functions, results reproducible. A pair shares its moment, so what disturbs a machine for minutes falls out of the ratio of its two runs. The ratio's logarithm is taken as about normal: its mean gets a t interval (Student 1908) with pairs - 1 degrees of freedom. Beside it stands a test that assumes only symmetry: all ways in which the signs of the log ratios could have fallen.

FEWEST_PAIRS = 3
"""Two pairs have one degree of freedom: their interval says nothing."""
SIGN_TEST_PAIRS = 6
"""With fewer pairs even equal signs of all of them have a chance above 5%."""
MOST_ENUMERATED = 14
SIGN_DRAWS = 20_000
SIGN_SEED = 20_261_120
ROUNDING = 1e-9
"""Ratios nearer to 1 than this are equal: they differ in the last digits only."""

Verdict = Literal["higher", "lower", "no significant difference", "too few pairs"]


@dataclass(frozen=True, slots=True)
class Change:
    """How much a quantity of B is above that of A, as a share of A's: 0.05 is 5% more."""

    change: Interval
    """Geometric mean of the pairs with its 95% interval."""
    pairs: int
    sign_p: float
    """Chance that the signs of the log ratios alone give so large a mean, were A and B equal."""
    verdict: Verdict
    """From the interval: `higher` when all of it is above 0."""

    @property
    def significant(self) -> bool:
        """Return whether A and B differ."""
        return self.verdict in {"higher", "lower"}


def paired_change(a: Sequence[float], b: Sequence[float]) -> Change:
    """Compare pairs of positive values, both of shape (pairs,).

    Raises
    ------
    ValueError
        When there is no pair, the lengths differ, or a value is not above 0.

    """
    if len(a) != len(b) or not len(a):
        raise ValueError(f"a has {len(a)} values and b has {len(b)}; give the two values of each pair, one pair at least")
    if min(*a, *b) <= 0:
        raise ValueError(f"the lowest value is {min(*a, *b)}; ratios are of values above 0")
    logs = np.log(np.asarray(b, dtype=float)) - np.log(np.asarray(a, dtype=float))
    logs[np.abs(logs) < ROUNDING] = 0.0
    mean, half = float(logs.mean()), _half_width(logs)
    interval = Interval(math.expm1(mean), math.expm1(mean - half), math.expm1(mean + half) if math.isfinite(half) else math.inf)
    return Change(interval, len(logs), sign_flip_p(logs), _verdict(interval, len(logs)))


def _half_width(logs: Floats) -> float:
    n = len(logs)
    if n < FEWEST_PAIRS:
        return math.inf
    return t_quantile((1 + CONFIDENCE) / 2, n - 1) * float(logs.std(ddof=1)) / math.sqrt(n)


def _verdict(interval: Interval, pairs: int) -> Verdict:
    if pairs < FEWEST_PAIRS:
        return "too few pairs"
    if interval.low > 0:
        return "higher"
    return "lower" if interval.high < 0 else "no significant difference"


def sign_flip_p(differences: Floats) -> float:
    """Return the two-sided chance of a mean as far from 0 when each difference, shape (n,), may have either sign (Fisher 1935).

    Exact up to 14 differences; above that from 20,000 draws with a fixed seed.
    """
    n = len(differences)
    if n <= MOST_ENUMERATED:
        signs = np.array(list(product((-1.0, 1.0), repeat=n)))
    else:
        signs = np.random.default_rng(SIGN_SEED).choice([-1.0, 1.0], size=(SIGN_DRAWS, n))
    seen = abs(float(differences.sum()))
    as_far = int((np.abs(signs @ differences) >= seen * (1 - ROUNDING)).sum())
    return as_far / len(signs) if n <= MOST_ENUMERATED else (as_far + 1) / (len(signs) + 1)


def t_cdf(value: float, degrees: int) -> float:
    """Return the distribution function of Student's t for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(value / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine, cosine) if degrees % 2 else (1.0, 1.0)
    if degrees == 1:
        return 0.5 + angle / math.pi
    for k in range(3 if degrees % 2 else 2, degrees - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    inside = 2 / math.pi * (angle + sine * total) if degrees % 2 else sine * total
    return 0.5 + inside / 2


def t_quantile(probability: float, degrees: int) -> float:
    """Return the value below which Student's t lies with a probability from 0.5 to below 1, by bisection."""
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return high


def break_even_steps(overhead_s: float, gain_s: float) -> float | None:
    """Return after how many steps what was paid once is earned back (definitions.md, 14).

    Parameters
    ----------
    overhead_s
        Seconds that B pays once more than A, such as for compiling; 0 or less is earned back at once.
    gain_s
        Seconds that a steady step of B is faster; None is returned when it is not.

    """
    if gain_s <= 0:
        return None
    return max(0.0, overhead_s) / gain_s


def loss_after(trace: StepTrace, real_tokens: int, steps: int = 5) -> float | None:
    """Return the mean loss of the last `steps` steps within the first `real_tokens` tokens: runs are compared after equal work.

    None when no step lies within them, or a loss among them is not finite.
    """
    within = int(np.searchsorted(np.cumsum(trace.real_tokens), real_tokens, side="right"))
    losses = [loss for loss in trace.loss[:within][-steps:] if loss is not None]
    return float(np.mean(losses)) if losses and len(losses) == min(steps, within) else None
