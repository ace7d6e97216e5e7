"""The end of warm-up and the steady window, decided from the raw step log by one rule. See definitions#steady-window.

At least ten warm-up steps (`WARMUP_STEPS` of records/plan.py, unless a card says otherwise), then until no change of the step time is left;
a window of at least 100 steps, or micro-steps where they are timed, or 60 s; at least 20 steps to be ranked. A window with a change is kept with `stable = False`.
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
CHANGE_ERRORS = 6.0
"""A change of level counts from this many standard errors on. It is the largest over all parts of a series, hence above 2. Measured by
`benchmarks/synthetic_steps.py`: at 5, steady traces with correlated noise (phi 0.8) are refused twice as often, 22% against 9%."""
NOISE_BLOCKS = 20
"""What varies within a twentieth of the window is noise, what lasts longer is a change. At 12, waves of three periods are not seen."""
CHANGE_POINTS = 200
"""Places where a change may begin or end in a longer series, which bounds the work at 20,000 parts."""
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
    """The part of a series whose mean differs most from that of the rest."""

    first: int
    stop: int
    """The part is the values `first` to `stop - 1`: the end of the series, or a part between."""
    relative: float
    """Mean of the part over that of the rest, minus 1."""
    errors: float
    """Difference of the means in standard errors, which allow for correlated neighbours."""
    residuals: Floats
    """The series less the mean of its part or of the rest."""

    @property
    def matters(self) -> bool:
        """Return True if the change is significant and above 1%."""
        return self.errors > CHANGE_ERRORS and abs(self.relative) > CHANGE_LIMIT


def largest_change(times: Floats) -> LevelChange:
    """Return the part of times, shape (n,), n >= 6, with the largest standardised difference of means (Levin & Kline 1985).

    At the end of the series a part may have any length: a change of level. A part between must last for a block of noise: a slow spell,
    or half of a slow wave.
    """
    n = len(times)
    places = np.unique(np.linspace(1, n, min(n, CHANGE_POINTS)).round().astype(int))
    i, j = np.triu_indices(len(places), k=1)
    firsts, stops = places[i], places[j]
    shortest = max(n / NOISE_BLOCKS, RANKABLE_STEPS / 2)
    possible = (stops == n) | ((stops - firsts >= shortest) & (n - stops + firsts >= shortest))
    firsts, stops = firsts[possible], stops[possible]
    sums, steps = np.concatenate([[0.0], np.cumsum(times)]), stops - firsts
    inside = sums[stops] - sums[firsts]
    part, rest = inside / steps, (sums[-1] - inside) / (n - steps)
    scaled = np.abs(part - rest) * np.sqrt(steps * (n - steps) / n)
    k = int(np.argmax(scaled))
    first, stop = int(firsts[k]), int(stops[k])
    residuals = times - rest[k]
    residuals[first:stop] -= part[k] - rest[k]
    error = _noise(residuals)
    # Without any noise, each change is certain.
    return LevelChange(first, stop, float(part[k] / rest[k] - 1), float(scaled[k]) / error if error else math.inf, residuals)


def _noise(residuals: Floats) -> float:
    """Return the standard error of the mean of n residuals, shape (n,), times sqrt(n).

    From the second differences of block means, which a slow wave hardly changes: those of independent blocks have six times their variance.
    """
    n = len(residuals)
    blocks = min(NOISE_BLOCKS, n // 2)
    means = np.array([block.mean() for block in np.array_split(residuals, blocks)])
    between = float(np.mean(np.diff(means, 2) ** 2)) / 6 * n / blocks
    return math.sqrt(max(between, float(residuals.var(ddof=2))))


def drift(times: Floats) -> float:
    """Return the drift of step times over the window relative to their median, or 0 if it may be due to chance.

    The estimate is Theil-Sen slope x window. It counts only if the 95% interval of the slope, widened for correlated
    neighbours, excludes zero.
    """
    slope = theil_sen(times)
    # Correlated neighbours raise a standard error by this factor, as in an AR(1) process.
    correlation = lag_one(times - slope.value * np.arange(len(times)))
    wider = math.sqrt((1 + correlation) / (1 - correlation))
    if slope.value - (slope.value - slope.low) * wider <= 0 <= slope.value + (slope.high - slope.value) * wider:
        return 0.0
    return slope.value * len(times) / float(np.median(times))


def long_enough(trace: StepTrace, first: int, rules: Measurement) -> bool:
    """Return True if the steps from index `first` are long enough to be called steady. A micro-step that was timed counts like a step."""
    times, micro = trace.step_times_s[first:], sum(map(len, trace.micro_completed_at_s[first:]))
    return max(len(times), micro) >= rules.min_steady_steps or sum(times) >= rules.min_steady_s


def settled_after(disturbed: Iterable[int], steps: int) -> int:
    """Return the last step, counted from 1, with a compilation or allocator growth; 0 without one.

    A late event would leave no window: only those in the first half of all steps count, and the search for changes covers the rest.
    """
    return max((step for step in disturbed if step <= steps // 2), default=0)


def steady_window(trace: StepTrace, rules: Measurement, settled_after: int = 0) -> SteadyWindow:
    """Return the steady window that begins after step `settled_after`, counted from 1: the last compilation or growth.

    Warm-up is extended to each change of the step time in the first 40% of the run. The rest is stable if it is long enough and
    has no change of level, no slow spell or wave, and no drift above 1%.
    """
    times = np.asarray(trace.step_times_s)
    n = len(times)
    shortest = first = min(max(rules.min_warmup_steps, settled_after), n)
    rest = times[first:]
    while len(rest) >= RANKABLE_STEPS and long_enough(trace, first, rules):
        change, drifted = largest_change(rest), drift(rest)
        begins, ends = first + change.first, first + change.stop
        line = drifted * np.median(rest) * np.arange(len(rest)) / len(rest)
        if abs(drifted) >= CHANGE_LIMIT and (not change.matters or (rest - line).std() < change.residuals.std()):
            return SteadyWindow(shortest, n, stable=False, verdict=f"step time drifts by {drifted:+.1%} over the window")
        if not change.matters:
            return SteadyWindow(first, n, stable=True, verdict=f"no change above {CHANGE_LIMIT:.0%} over {len(rest)} steps")
        if begins > LATEST_START * n or ends < n:
            where = f"from step {begins + 1} to {ends}" if ends < n else f"at step {begins + 1}"
            return SteadyWindow(shortest, n, stable=False, verdict=f"step time changes by {change.relative:+.1%} {where}")
        first, rest = begins, times[begins:]
    missing = (
        f"only {len(rest)} steps in {rest.sum():.1f} s after warm-up; a steady window needs {rules.min_steady_steps} steps or "
        f"micro-steps, or {rules.min_steady_s:g} s, and at least {RANKABLE_STEPS} steps"
    )
    return SteadyWindow(shortest, n, stable=False, verdict=missing)
