"""Decide from the run log when a worker must end: out of time, no progress, or measured precisely enough."""

from itertools import pairwise
from typing import Literal

from tunemark.harness.run.run_log import RunLog
from tunemark.schema.derive import rates_over
from tunemark.schema.records.plan import Measurement
from tunemark.schema.statistics.steady_state import settled_after, steady_window
from tunemark.schema.vocabulary import Phase

SLOW_PHASES = 4
"""Loading, compiling, evaluating and saving may take this many times as long as a step."""
COMPILING_STEPS = 2
"""First steps, in which a graph compiler may still be running."""
SLOW_STEPS = 10
"""A step may take this many times as long as the longest recent one."""
RECENT_STEPS = 50
JUDGE_AGAIN_AFTER = 1.15
"""Check for a steady state when the number of steps has grown by this factor: the check costs CPU time during the run."""


class Watchdog:
    """Ends a worker that exceeds its total time, or that makes no progress."""

    def __init__(self, rules: Measurement, now_s: float) -> None:
        self._rules, self._started_s = rules, now_s
        self._progress, self._progress_s = (0, 0), now_s

    def expired(self, log: RunLog, now_s: float) -> Literal["timeout", "no step"] | None:
        """Return the limit that is exceeded, or None."""
        progress = (len(log.phases), len(log.steps))
        if progress != self._progress:
            self._progress, self._progress_s = progress, now_s
        if self._rules.timeout_s is not None and now_s - self._started_s > self._rules.timeout_s:
            return "timeout"
        if self._rules.no_step_s is None:
            return None
        # More time without progress is allowed outside training, for the first steps, and where steps are slow.
        training = bool(log.phases) and log.phases[-1]["phase"] == Phase.TRAIN.value and len(log.steps) >= COMPILING_STEPS
        # The first steps do not represent the others.
        ends = [step["completed_at_s"] for step in log.steps[COMPILING_STEPS - 1 :][-RECENT_STEPS:]]
        slowest = max((after - before for before, after in pairwise(ends)), default=0.0)
        allowed_s = max(self._rules.no_step_s * (1 if training else SLOW_PHASES), SLOW_STEPS * slowest)
        return "no step" if now_s - self._progress_s > allowed_s else None


class SteadinessJudge:
    """Decides if throughput is known precisely enough to stop (definitions#steady-window)."""

    def __init__(self, rules: Measurement) -> None:
        self._rules = rules
        self._next = rules.min_warmup_steps + 20

    def sure(self, log: RunLog) -> bool:
        """Return True if the interval of throughput over a steady window is narrow enough."""
        wanted = self._rules.until_relative_ci
        if wanted is None or len(log.steps) < self._next:
            return False
        self._next = int(len(log.steps) * JUDGE_AGAIN_AFTER) + 1
        trace = log.trace()
        window = steady_window(trace, self._rules, settled_after((event["step"] for event in log.events), len(trace)))
        return window.stable and rates_over(trace, window).tokens_per_s.relative_half_width <= wanted
