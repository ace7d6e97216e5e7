"""The end of warm-up and the steady window, decided from the raw step log by one rule. See definitions#steady-window.

At least ten warm-up steps (`WARMUP_STEPS` of records/plan.py, unless a card says otherwise), then until no change of the step time is left;
a window of at least 100 steps or 60 s; at least 20 steps to be ranked. A window with a change is kept with `stable = False`.
`benchmarks/synthetic_steps.py` measures how often `stable` is right.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tunemark.schema.records.plan import Measurement
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics.intervals import Floats, lag_one, theil_sen

CHANGE_LIMIT = 0.01
"""Smaller relative changes of the step time do not matter."""
CHANGE_ERRORS = 5.0
"""A change of level counts from this many standard errors on. It is the largest over all places, hence above 2."""
RANKABLE_STEPS = 20
LATEST_START = 0.4
"""Share of the steps of a run in which warm-up may end. A change after it belongs to the work itself."""


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """Steps `first` to `stop - 1` (counted from 0) are steady. The steps before are warm-up."""

    first: int
    stop: int
    stable: bool
    verdict: str
    """Why it is stable, or what is missing."""

    @property
    def steps(self) -> int:
        """Number of steady steps."""
        return self.stop - self.first


@dataclass(frozen=True, slots=True)
class LevelChange:
    """The place in a series where the mean changes most."""

    index: int
    """First value of the second part."""
    relative: float
    """Mean of the second part over that of the first, minus 1."""
    errors: float
    """Difference of the means in standard errors, which allow for correlated neighbours."""

    @property
    def matters(self) -> bool:
        """Return True if the change is significant and above 1%."""
        return self.errors > CHANGE_ERRORS and abs(self.relative) > CHANGE_LIMIT


def largest_change(times: Floats) -> LevelChange:
    """Return the split of times, shape (n,), n >= 3, with the largest standardised difference of means (Hawkins 1977)."""
    n = len(times)
    left_steps = np.arange(1, n)
    sums = np.cumsum(times)
    left, right = sums[:-1] / left_steps, (sums[-1] - sums[:-1]) / (n - left_steps)
    scaled = np.abs(right - left) * np.sqrt(left_steps * (n - left_steps) / n)
    at = int(np.argmax(scaled))
    residuals = np.concatenate([times[: at + 1] - left[at], times[at + 1 :] - right[at]])
    error = float(residuals.std(ddof=2)) * _correlation_factor(residuals)
    # Without any noise, each change is certain.
    return LevelChange(at + 1, float(right[at] / left[at] - 1), float(scaled[at]) / error if error else math.inf)


def _correlation_factor(residuals: Floats) -> float:
    """Return the factor by which correlated neighbours raise a standard error, as in an AR(1) process."""
    correlation = lag_one(residuals)
    return math.sqrt((1 + correlation) / (1 - correlation))


def drift(times: Floats) -> float:
    """Return the drift of step times over the window relative to their median, or 0 if it may be due to chance.

    The estimate is Theil-Sen slope x window. It counts only if the 95% interval of the slope, widened for correlated
    neighbours, excludes zero.
    """
    slope = theil_sen(times)
    wider = _correlation_factor(times - slope.value * np.arange(len(times)))
    if slope.value - (slope.value - slope.low) * wider <= 0 <= slope.value + (slope.high - slope.value) * wider:
        return 0.0
    return slope.value * len(times) / float(np.median(times))


def long_enough(times: Floats, rules: Measurement) -> bool:
    """Return True if the window is long enough to be called steady."""
    return len(times) >= rules.min_steady_steps or float(times.sum()) >= rules.min_steady_s


def settled_after(disturbed: Iterable[int], steps: int) -> int:
    """Return the last step, counted from 1, with a compilation or allocator growth; 0 without one.

    A late event would leave no window: only those in the first half of all steps count, and the search for changes covers the rest.
    """
    return max((step for step in disturbed if step <= steps // 2), default=0)


def steady_window(trace: StepTrace, rules: Measurement, settled_after: int = 0) -> SteadyWindow:
    """Return the steady window that begins after step `settled_after`, counted from 1: the last compilation or growth.

    Warm-up is extended to each change of the step time in the first 40% of the run. The rest is stable if it is long enough and
    has neither a change of level nor a drift above 1%.
    """
    times = np.asarray(trace.step_times_s)
    n = len(times)
    shortest = first = min(max(rules.min_warmup_steps, settled_after), n)
    rest = times[first:]
    while len(rest) >= RANKABLE_STEPS and long_enough(rest, rules):
        change = largest_change(rest)
        if not change.matters:
            drifted = drift(rest)
            if abs(drifted) < CHANGE_LIMIT:
                return SteadyWindow(first, n, stable=True, verdict=f"no change above {CHANGE_LIMIT:.0%} over {len(rest)} steps")
            return SteadyWindow(shortest, n, stable=False, verdict=f"step time drifts by {drifted:+.1%} over the window")
        if first + change.index > LATEST_START * n:
            return SteadyWindow(
                shortest, n, stable=False, verdict=f"step time changes by {change.relative:+.1%} at step {first + change.index + 1}"
            )
        first += change.index
        rest = times[first:]
    missing = (
        f"only {len(rest)} steps in {rest.sum():.1f} s after warm-up; a steady window needs {rules.min_steady_steps} steps or "
        f"{rules.min_steady_s:g} s, and at least {RANKABLE_STEPS} steps"
    )
    return SteadyWindow(shortest, n, stable=False, verdict=missing)
