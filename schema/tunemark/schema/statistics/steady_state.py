"""The end of warm-up and the steady window, decided from the raw step log by one rule. See definitions#steady-window.

At least ten warm-up steps, then until the slope test passes; a window of at least 100 steps or 60 s; at least 20 steps
to be ranked. A window that never passes is kept with `stable = False`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tunemark.schema.records.plan import Measurement
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics.intervals import Floats, theil_sen

DRIFT_LIMIT = 0.01
RANKABLE_STEPS = 20
CANDIDATES = 8


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


def drift(times: Floats) -> float:
    """Return the drift of step times over the window relative to their median, or 0 if it may be due to chance.

    The test is |Theil-Sen slope| x window < 1% of the median. On a noisy host the estimate exceeds 1% by chance, so that
    a drift counts only if the 95% interval of the slope excludes zero.
    """
    slope = theil_sen(times)
    if slope.low <= 0 <= slope.high:
        return 0.0
    return slope.value * len(times) / float(np.median(times))


def long_enough(times: Floats, rules: Measurement) -> bool:
    """Return True if the window is long enough to be called steady."""
    return len(times) >= rules.min_steady_steps or float(times.sum()) >= rules.min_steady_s


def settled_after(disturbed: Iterable[int], steps: int) -> int:
    """Return the last step, counted from 1, with a compilation or allocator growth; 0 without one.

    A late event would leave no window: only those in the first half of all steps count, and the drift test covers the rest.
    """
    return max((step for step in disturbed if step <= steps // 2), default=0)


def steady_window(trace: StepTrace, rules: Measurement, settled_after: int = 0) -> SteadyWindow:
    """Return the earliest steady window that begins after step `settled_after`, counted from 1: the last compilation or growth.

    Warm-up is extended in equal stretches until the rest has no drift. The first rest that is long enough and without
    drift is the window.
    """
    times = np.asarray(trace.step_times_s)
    n = len(times)
    shortest = min(max(rules.min_warmup_steps, settled_after), n)
    rest = times[shortest:]
    if len(rest) < RANKABLE_STEPS or not long_enough(rest, rules):
        missing = f"{len(rest)} steps in {rest.sum():.1f} s after warm-up; steady needs {rules.min_steady_steps} steps or {rules.min_steady_s:g} s, and {RANKABLE_STEPS} steps"
        return SteadyWindow(shortest, n, stable=False, verdict=missing)
    worst = drift(rest)
    for first in np.linspace(shortest, n, CANDIDATES, endpoint=False).astype(int):
        window = times[first:]
        if len(window) < RANKABLE_STEPS or not long_enough(window, rules):
            break
        if abs(drift(window)) < DRIFT_LIMIT:
            return SteadyWindow(int(first), n, stable=True, verdict=f"no drift above {DRIFT_LIMIT:.0%} over {len(window)} steps")
    return SteadyWindow(shortest, n, stable=False, verdict=f"step time drifts by {worst:+.1%} over the window")
