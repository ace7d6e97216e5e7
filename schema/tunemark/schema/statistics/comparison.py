"""A/B comparison: a verdict from pairs of interleaved runs, and the names of the runs. Pure, reproducible functions.

The two runs of a pair are close in time, so that slow drifts of the machine cancel in their ratio. The logarithm of the
ratio is taken as approximately normal: its mean has a t interval (Student 1908) with pairs - 1 degrees of freedom.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics.intervals import CONFIDENCE, Interval, t_quantile

ARMS = ("a", "b")
_POINT = re.compile(r"(?P<arm>[ab]): (?P<settings>.+?)(?:, pair (?P<pair>\d+))?")


class ArmRun(NamedTuple):
    """A run of an arm, as named by the harness and read by the site."""

    arm: str
    """One of `ARMS`."""
    settings: str
    """Settings of the arm, such as `compile=blocks`."""
    pair: int
    """Pair number from 1; 0 for the arm itself."""

    @property
    def point(self) -> str:
        """Name of the run in its study."""
        return f"{self.arm}: {self.settings}" + (f", pair {self.pair}" if self.pair else "")


def arm_run(point: str) -> ArmRun | None:
    """Return the arm and pair of a run by its name, or None for a run of another kind of study."""
    parts = _POINT.fullmatch(point)
    return ArmRun(parts["arm"], parts["settings"], int(parts["pair"] or 0)) if parts else None


FEWEST_PAIRS = 3
"""Minimum number of pairs: two have one degree of freedom, and their interval is useless."""
ROUNDING = 1e-9
"""Ratios closer to 1 than this are equal: they differ in the last digits only."""

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


def paired_change(a: Sequence[float], b: Sequence[float]) -> Change:
    """Compare pairs of positive values, both of shape (pairs,).

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


def loss_after(trace: StepTrace, real_tokens: int, steps: int = 5) -> float | None:
    """Return the mean loss of the last `steps` steps within the first `real_tokens` tokens, to compare runs after equal work.

    None if no step lies within them, or a loss among them is not finite.
    """
    within = int(np.searchsorted(np.cumsum(trace.real_tokens), real_tokens, side="right"))
    losses = [loss for loss in trace.loss[:within][-steps:] if loss is not None]
    return float(np.mean(losses)) if losses and len(losses) == min(steps, within) else None
