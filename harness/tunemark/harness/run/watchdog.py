"""How long a worker is waited for: not by the length of its work, but by how it gets on."""

import math
from itertools import pairwise
from typing import Literal

from tunemark.harness.run.run_log import RunLog
from tunemark.schema.records.plan import Measurement
from tunemark.schema.vocabulary import Phase

SLOW_PHASES = 4
"""Loading, compiling, evaluating and saving have so many times the patience with a step."""
COMPILING_STEPS = 2
"""Steps in which a graph compiler may still be at work."""
SLOW_STEPS = 10
"""A step may take so many times the longest of the recent ones."""
RECENT_STEPS = 50


class Watchdog:
    """Decides whether a worker has had its time: in all, or since it last got on."""

    def __init__(self, rules: Measurement, now_s: float) -> None:
        self._rules, self._started_s = rules, now_s
        self._got_on, self._got_on_s = (0, 0), now_s

    def spent(self, log: RunLog, now_s: float) -> Literal["timeout", "no step"] | None:
        """Return which of its times is over, or None."""
        got_on = (len(log.phases), len(log.steps))
        if got_on != self._got_on:
            self._got_on, self._got_on_s = got_on, now_s
        if self._rules.timeout_s is not None and now_s - self._started_s > self._rules.timeout_s:
            return "timeout"
        return "no step" if now_s - self._got_on_s > self._patience_s(log) else None

    def _patience_s(self, log: RunLog) -> float:
        """Return how long it may take to get on: longer for what is no step, for the first ones, which compile, and where steps are slow."""
        if self._rules.no_step_s is None:
            return math.inf
        training = bool(log.phases) and log.phases[-1]["phase"] == Phase.TRAIN.value and len(log.steps) >= COMPILING_STEPS
        # The first steps are no measure of the others.
        ends = [step["completed_at_s"] for step in log.steps[COMPILING_STEPS - 1 :][-RECENT_STEPS:]]
        slowest = max((after - before for before, after in pairwise(ends)), default=0.0)
        return max(self._rules.no_step_s * (1 if training else SLOW_PHASES), SLOW_STEPS * slowest)
