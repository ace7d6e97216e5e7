"""The loss-band gate: the losses of a run compared with the expected losses of its workload."""

import numpy as np

from tunemark.schema.facts.workloads import GoldenLosses
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.trace import Gate, StepTrace

SMOOTHED_STEPS = 5


def loss_band(golden: GoldenLosses | None, plan: Plan, trace: StepTrace, *, changed: bool) -> Gate:
    """Return the gate: passed if the losses are inside the band, null with a reason if there is nothing to compare with."""
    reason = _incomparable(golden, plan, changed=changed)
    if golden is None or reason:
        return Gate(name="loss_band", passed=None, detail=reason or "this workload has no reference losses")
    reached = {step: loss for step, loss in golden.losses.items() if step <= len(trace)}
    if not reached:
        return Gate(name="loss_band", passed=None, detail=f"the run ended before step {min(golden.losses)}, the first that is compared")
    off = {step: abs(smoothed_loss(trace, step) / loss - 1) for step, loss in reached.items()}
    worst = max(off, key=lambda step: off[step])
    detail = f"largest deviation from the reference losses: {off[worst]:.2%} at step {worst} (allowed: {golden.tolerance:.0%})"
    return Gate(name="loss_band", passed=off[worst] <= golden.tolerance, detail=detail)


def smoothed_loss(trace: StepTrace, step: int) -> float:
    """Return the mean loss of a step, counted from 1, and the four before."""
    losses = [loss if loss is not None else float("nan") for loss in trace.loss[max(0, step - SMOOTHED_STEPS) : step]]
    return float(np.mean(losses))


def _incomparable(golden: GoldenLosses | None, plan: Plan, *, changed: bool) -> str | None:
    if golden is None:
        return None
    if changed:
        return "not compared: the run changes settings of the card"
    if plan.measurement.seed != golden.seed:
        return f"not compared: the seed is {plan.measurement.seed}, and the reference losses were recorded with seed {golden.seed}"
    if plan.batch.global_batch != plan.batch.micro_batch * plan.batch.gradient_accumulation:
        return "not compared: the reference losses are for one device"
    return None
