"""Reasons to trust a measurement less, each a typed warning that is stored with the result, and the gate that compares losses.

Most follow from the record itself: the harness stores them, and the gate derives them again, so that none can be left out.
"""

import re
from collections.abc import Iterator
from math import inf

import numpy as np

from tunemark.schema.derive import Derived
from tunemark.schema.facts.workloads import GoldenLosses
from tunemark.schema.formats import GIB, counted
from tunemark.schema.records.effective import compared
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import MeasurementWarning, Submission
from tunemark.schema.records.trace import DeviceUse, Gate, Probe, StepTrace
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import COMPILED_UPDATE, EAGER_UPDATE, WarningKind, Weights

BUSY_HOST_CORES = 0.25
WIDE_INTERVAL = 0.02
FALLEN_PEAK = 0.05
RISEN_PEAK = 0.2
SLOW_RANK = 0.05
BUSY_DEVICE_BYTES = GIB
THROTTLED_SHARE = 0.05
"""Share of the steady window from which a throttle reason causes a warning. A clock lowered by a fifth for this share of the time
changes the rate by 1%, which is what `stable` allows."""
POWER_LIMITS = {"sw_power_cap", "package_power"}
"""Reasons that are no fault: at full load an H100 or H200 is at its 700 W all of the time, with a clock of 1.6 to 1.8 of 1.98 GHz (all results
of 2026-11-26). The limit itself is recorded."""
DATA_WAIT_SHARE = 0.005
"""Share of training that may pass in waiting for samples: half of the overhead that the harness may have."""
RANDOM_WEIGHTS = "weights are random: speed and memory are representative, loss and accuracy are not"
Warnings = Iterator[tuple[WarningKind, str]]
OBSERVED = {
    # The harness warns below 2 GiB, which are printed with one digit.
    WarningKind.LOW_DISK: r"([01]\.\d|2\.0) GiB of disk were free",
    WarningKind.BUSY_DEVICE: r"\d+ other process(es)? used .+",
    WarningKind.TRUNCATED_LOG: "a line of the worker's log was cut off and left out",
    WarningKind.FALLBACK: f"{EAGER_UPDATE}:.+",
}
"""Warnings about circumstances that a record does not hold, and their words."""


def warnings_of_record(submission: Submission, derived: Derived) -> Iterator[MeasurementWarning]:
    """Yield the warnings that follow from a submission and its derived figures."""
    kinds = (
        _steps(derived),
        _gates_and_settings(submission),
        _other_work(submission),
        probe_warnings(submission.probe),
        _circumstances(submission, derived),
    )
    yield from (MeasurementWarning(kind=kind, message=message) for warnings in kinds for kind, message in warnings)


def warnings_now(s: Submission, derived: Derived) -> tuple[MeasurementWarning, ...]:
    """Return the warnings that follow from a record by today's rules, and those about circumstances that it does not hold."""
    compiled = s.plan.optimizer.stochastic_rounding and s.plan.device.backend in COMPILED_UPDATE
    stated = (warning for warning in s.warnings if compiled or warning.kind is not WarningKind.FALLBACK)
    observed = (warning for warning in stated if re.fullmatch(OBSERVED.get(warning.kind, "(?!)"), warning.message))
    return (*warnings_of_record(s, derived), *observed)


def _steps(derived: Derived) -> Warnings:
    window, rate = derived.window, derived.tokens_per_s
    if window is not None and window.steps < RANKABLE_STEPS:
        yield WarningKind.FEW_STEPS, window.verdict
    elif window is not None and not window.stable:
        yield WarningKind.NOT_STABLE, window.verdict
    if rate is not None and rate.bounded and rate.relative_half_width > WIDE_INTERVAL:
        yield WarningKind.WIDE_INTERVAL, f"the 95% interval of throughput is +-{rate.relative_half_width:.1%}"


def _gates_and_settings(submission: Submission) -> Warnings:
    for gate in submission.gates:
        if gate.passed is False:
            yield WarningKind.GATE_FAILED, f"{gate.name}: {gate.detail}"
    if submission.effective:
        for lever in compared(submission.plan, submission.effective, submission.trace):
            if lever.agrees is False:
                yield WarningKind.FALLBACK, f"{lever.setting}: {lever.requested} was requested, {lever.effective} was used"


def _other_work(submission: Submission) -> Warnings:
    use = submission.utilisation
    busy_cores = use.foreign_cpu_busy_mean if use else None
    if busy_cores is not None and busy_cores > BUSY_HOST_CORES:
        cores = submission.environment.cpu_logical_cores
        yield WarningKind.BUSY_HOST, f"other processes kept {busy_cores:.1f} of {cores} cores busy; repeat on an idle machine"
    machines = len({device.node for device in use.devices}) if use else 0
    for device in use.devices if use else ():
        held = device.memory_used_before_bytes or 0
        if held > BUSY_DEVICE_BYTES:
            message = f"{held / GIB:.1f} GiB of {_name(device, machines)} were in use before the run; free it and repeat"
            yield WarningKind.BUSY_DEVICE, message
        lasting = {name: share for name, share in device.throttle_shares.items() if share >= THROTTLED_SHARE and name not in POWER_LIMITS}
        if lasting:
            reasons = ", ".join(f"{name} for {share:.0%} of the time" for name, share in lasting.items())
            yield WarningKind.THROTTLED, f"{_name(device, machines)} lowered its clocks: {reasons}"


def _name(device: DeviceUse, machines: int) -> str:
    return f"device {device.index}{f' of node {device.node}' if machines > 1 else ''}"


def probe_warnings(probe: Probe | None) -> Warnings:
    """Yield a warning when the matrix rate changed over the run."""
    change = probe.after_flop_per_s / probe.before_flop_per_s - 1 if probe and probe.after_flop_per_s else 0.0
    if change < -FALLEN_PEAK:
        yield WarningKind.PEAK_FELL, f"the matrix rate was {-change:.0%} lower after training than before: heat, or other work"
    elif change > RISEN_PEAK:
        cause = "other work, which may have slowed the run too"
        yield WarningKind.PEAK_ROSE, f"the matrix rate was {change:.0%} higher after training than before: {cause}"


def _circumstances(submission: Submission, derived: Derived) -> Warnings:
    rank = derived.slowest_rank
    if rank and rank.behind > SLOW_RANK:
        yield WarningKind.STRAGGLER, f"rank {rank.rank} needs {rank.behind:.0%} longer for its own work than the median of all ranks"
    if submission.plan.device.accelerator is None:
        unknown = "the device has no card in data/accelerators; peaks and prices are unknown"
        yield WarningKind.UNKNOWN_ACCELERATOR, submission.plan.reasons.get("device.accelerator", unknown)
    if submission.plan.model.weights is Weights.RANDOM:
        yield WarningKind.RANDOM_WEIGHTS, RANDOM_WEIGHTS
    waited = submission.trace.data_wait_share
    if waited is not None and waited > DATA_WAIT_SHARE:
        yield WarningKind.DATA_WAIT, f"training waited for samples in {waited:.1%} of its time; use a shorter preparation or a faster host"
    steady = derived.window.first if derived.window else inf
    retries = sum(event.amount for event in submission.events if event.kind == "allocator_retry" and event.step > steady)
    if retries:
        message = f"the allocator found no memory {counted(retries, 'time')} in the steady window and emptied its cache"
        yield WarningKind.ALLOCATOR_RETRIES, f"{message}, which waits for the device; lower batch.micro_batch"
    use = submission.utilisation
    if use is not None and not use.samples and use.energy is not None:
        yield WarningKind.PARTIAL_TELEMETRY, use.energy.reason or "not every machine was sampled"
    if submission.harness.dirty:
        yield WarningKind.DIRTY_SOURCE, "the checkout had uncommitted changes"


# Losses against the reference losses of the workload

SMOOTHED_STEPS = 5


def loss_band(golden: GoldenLosses | None, plan: Plan, trace: StepTrace, *, changed: bool) -> Gate:
    """Return the gate: passed if the losses are inside the band, null with a reason if there is nothing to compare with."""
    if golden is None:
        reason = "this workload has no reference losses"
    elif changed:
        reason = "not compared: the run changes settings of the card"
    elif plan.measurement.seed != golden.seed:
        reason = f"not compared: the seed is {plan.measurement.seed}, and the reference losses were recorded with seed {golden.seed}"
    elif plan.batch.global_batch != plan.batch.micro_batch * plan.batch.gradient_accumulation:
        reason = "not compared: the reference losses are for one device"
    elif len(trace) < min(golden.losses):
        reason = f"the run ended before step {min(golden.losses)}, the first that is compared"
    else:
        off = {step: abs(smoothed_loss(trace, step) / loss - 1) for step, loss in golden.losses.items() if step <= len(trace)}
        worst = max(off, key=lambda step: off[step])
        detail = f"largest deviation from the reference losses: {off[worst]:.2%} at step {worst} (allowed: {golden.tolerance:.1%})"
        return Gate(name="loss_band", passed=off[worst] <= golden.tolerance, detail=detail)
    return Gate(name="loss_band", passed=None, detail=reason)


def smoothed_loss(trace: StepTrace, step: int) -> float:
    """Return the mean loss of a step, counted from 1, and the four before."""
    losses = [loss if loss is not None else float("nan") for loss in trace.loss[max(0, step - SMOOTHED_STEPS) : step]]
    return float(np.mean(losses))
