"""When the worker stops. It never judges its own steadiness: that would cost time inside of the window."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from tunemark.schema.records.plan import Plan

STOP_FILE = "stop"
"""The parent, which reads the log and judges, makes this file to end training."""


@dataclass(frozen=True, slots=True)
class StopRule:
    """Planned steps, the time limit, or the parent's word, whichever is first."""

    steps: int | None
    """Every process knows these by itself."""
    seconds: float | None
    told: Path
    at_least: int = 0
    """Steps before which time alone ends nothing."""

    def planned(self, done: int) -> bool:
        """Return whether all planned steps are done."""
        return self.steps is not None and done >= self.steps

    def wants(self, trained_s: float, done: int) -> bool:
        """Return whether this process wants to stop now: clocks and files are not the same to all, so several processes vote."""
        late = self.seconds is not None and trained_s >= self.seconds and done >= self.at_least
        return late or os.path.exists(self.told)  # noqa: PTH110 - each step asks, and this is the quicker way


def planned_steps(plan: Plan, training_rows: int | None) -> int | None:
    """Return the number of optimizer steps that a plan asks for; None when only time or steadiness end it."""
    limits = []
    if plan.measurement.max_steps is not None:
        limits.append(plan.measurement.max_steps)
    if plan.measurement.epochs is not None:
        if training_rows is None:
            msg = "epochs need a data set with an end; give data.training_rows, a file or a hub data set"
            raise ValueError(msg)
        limits.append(math.ceil(training_rows * plan.measurement.epochs / plan.batch.global_batch))
    return min(limits) if limits else None


def stop_rule(plan: Plan, training_rows: int | None, folder: Path) -> StopRule:
    """Return the rule of a plan."""
    rules = plan.measurement
    return StopRule(planned_steps(plan, training_rows), rules.max_train_s, folder / STOP_FILE, rules.min_steps)
