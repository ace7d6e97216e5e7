"""What follows from a measured result: headline figures, which are never stored, and warnings, the reasons to trust it less.

The harness shows both after a run and stores the warnings. The gate derives the warnings again, so that none can be left out, and the
collector loads the figures.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any

import numpy as np

from tunemark.schema.facts.workloads import GoldenLosses
from tunemark.schema.formats import GIB, counted
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import MeasurementWarning, MemoryReading, Submission
from tunemark.schema.records.trace import DeviceUse, Gate, Probe, StepTrace, compared
from tunemark.schema.statistics.intervals import Interval, Spread, ratio_interval, share_error, spread
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS, SteadyWindow, settled_after, steady_window
from tunemark.schema.vocabulary import EAGER_UPDATE, Phase, Status, WarningKind, Weights

LOSS_WINDOW = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """Headline figures. Null if the run did not get far enough."""

    window: SteadyWindow | None
    step_time: Spread | None = None
    """Step times of the steady window, seconds."""
    micro_steps: "MicroSteps | None"
    """Micro-step times; null without gradient accumulation or stored times."""
    tokens_per_s: Interval | None = None
    """Real tokens per second over all devices."""
    slot_tokens_per_s: float | None = None
    """Tensor elements per second over all devices, including padding."""
    samples_per_s: Interval | None = None
    """Documents per second over all devices."""
    padding_efficiency: float | None = None
    """Real tokens over slots in the steady window."""
    train_time_s: float | None
    """From the start of the first step to the end of the last."""
    phases: dict[str, float]
    """Seconds per phase; they sum to the wall time. Compile overhead is taken out of the first step and the warm-up."""
    loss_start: float | None
    """Mean loss of the first steps."""
    train_loss: float | None
    """Mean loss of the last steps."""
    accuracy_standard_error: float | None
    """Standard error of the share of evaluation rows classified correctly."""
    peak_memory: MemoryReading
    """The headline memory: of the device allocator if there is one, else of the host."""
    compile_overhead_s: float | None
    """Compile overhead in seconds; null without a steady window. See definitions#compile-overhead."""
    slowest_rank: "SlowestRank | None"
    usable: bool
    """True if the run completed, no gate failed, and its rate is that of enough steps."""

    @property
    def rankable(self) -> bool:
        """True if the result may share a ranking."""
        return self.usable and self.window is not None and self.window.stable


@dataclass(frozen=True, slots=True)
class SlowestRank:
    """The process with the longest own work, which no other process can delay."""

    rank: int
    own_work_s: float
    """Median over the steady window."""
    behind: float
    """How much longer this is than the median of all ranks, as a share."""


@dataclass(frozen=True, slots=True)
class MicroSteps:
    """Times of micro-steps: they show the speed of a run with too few optimizer steps for a steady window. They are never ranked."""

    time: Spread
    """Seconds of a micro-step, without the optimizer's update."""
    count: int
    steady: bool
    """True if they are those of the steady window. Otherwise they are those of all steps after the first."""


def derive(submission: Submission) -> Derived:
    """Return all headline figures of a submission."""
    trace = submission.trace
    settled = settled_after((event.step for event in submission.events), len(trace))
    window = steady_window(trace, submission.plan.measurement, settled) if len(trace) else None
    rates = rates_over(trace, window) if window is not None and window.steps else {}
    overhead = compile_overhead(submission, window, rates["step_time"].p50) if window is not None and rates else {}
    losses = [loss for loss in trace.loss if loss is not None]
    held_out, memory = submission.evaluation, submission.memory
    peaks = (memory.device_allocated, memory.device_used, memory.host_rss)
    return Derived(
        window=window,
        **rates,
        micro_steps=micro_steps(trace, window),
        train_time_s=trace.completed_at_s[-1] - trace.started_at_s if len(trace) else None,
        phases=phases(submission, window, overhead),
        loss_start=float(np.mean(losses[:LOSS_WINDOW])) if losses else None,
        train_loss=float(np.mean(losses[-LOSS_WINDOW:])) if losses else None,
        accuracy_standard_error=share_error(held_out.accuracy, held_out.rows) if held_out and held_out.accuracy is not None else None,
        peak_memory=next((each for each in peaks if each.peak_bytes is not None), peaks[0]),
        compile_overhead_s=sum(overhead.values()) if rates else None,
        slowest_rank=slowest_rank(submission, window) if window is not None else None,
        usable=submission.outcome.status is Status.OK
        and window is not None
        and window.steps >= RANKABLE_STEPS
        and all(gate.passed is not False for gate in submission.gates),
    )


def micro_steps(trace: StepTrace, window: SteadyWindow | None) -> MicroSteps | None:
    """Return the micro-step times of the steady window, or of all steps after the first where the window has none; None without any."""
    steady = window is not None and window.steps > 0
    first, stop = (window.first, window.stop) if window is not None and steady else (1, len(trace))
    times = trace.micro_step_times_s(first, stop)
    return MicroSteps(spread(np.asarray(times)), len(times), steady) if times else None


def compile_overhead(submission: Submission, window: SteadyWindow, median_s: float) -> dict[int, float]:
    """Return the compile overhead of each step before the window, by step number from 1: max(0, t - median). See definitions#compile-overhead."""
    times = submission.trace.step_times_s
    compiled = {event.step for event in submission.events if event.kind == "compile" and event.step <= window.first}
    return {step: max(0.0, times[step - 1] - median_s) for step in sorted(compiled)}


def slowest_rank(submission: Submission, window: SteadyWindow) -> SlowestRank | None:
    """Return the slowest rank, or None for one process or without times per rank."""
    part = slice(window.first, window.stop)
    medians = {rank.rank: float(np.median(rank.own_work_s[part])) for rank in submission.ranks if len(rank.own_work_s[part])}
    if not medians:
        return None
    slowest = max(medians, key=lambda rank: medians[rank])
    typical = float(np.median(list(medians.values())))
    return SlowestRank(slowest, medians[slowest], medians[slowest] / typical - 1 if typical else 0.0)


def rates_over(trace: StepTrace, window: SteadyWindow) -> dict[str, Any]:
    """Return the rates of a window with at least one step, by the fields of `Derived`."""
    part = slice(window.first, window.stop)
    times = np.asarray(trace.step_times_s[part])
    real, slots, documents = (np.asarray(column[part], dtype=float) for column in (trace.real_tokens, trace.slot_tokens, trace.documents))
    return {
        "step_time": spread(times),
        "tokens_per_s": ratio_interval(real, times),
        "slot_tokens_per_s": float(slots.sum() / times.sum()),
        "samples_per_s": ratio_interval(documents, times),
        "padding_efficiency": float(real.sum() / slots.sum()) if slots.sum() else None,
    }


def phases(submission: Submission, window: SteadyWindow | None, overhead: dict[int, float]) -> dict[str, float]:
    """Return seconds per phase in order, summing to `process.wall_s`. `train` is divided by its steps, without the compile overhead of each."""
    starts = submission.timeline
    ends = [*(mark.at_s for mark in starts[1:]), submission.process.wall_s]
    seconds: dict[str, float] = {}
    for mark, end in zip(starts, ends, strict=True):
        if mark.phase is Phase.TRAIN and window is not None:
            for name, share in _train_phases(submission, window, (mark.at_s, end), overhead).items():
                seconds[name] = seconds.get(name, 0.0) + share
        else:
            # Without a completed step, all of `train` is the first step.
            name = "first_step" if mark.phase is Phase.TRAIN else mark.phase.value
            seconds[name] = seconds.get(name, 0.0) + end - mark.at_s
    return seconds


def _train_phases(
    submission: Submission, window: SteadyWindow, stretch: tuple[float, float], overhead: dict[int, float]
) -> dict[str, float]:
    completed, (start_s, end_s) = submission.trace.completed_at_s, stretch
    first = completed[0]
    steady_from = completed[window.first - 1] if window.first else first
    # If no later phase began, the run ended during an unfinished step: one that hung, failed or was stopped.
    ended_here = submission.timeline[-1].phase is Phase.TRAIN
    steady_to = completed[-1] if ended_here else end_s
    in_first, all_of_it = overhead.get(1, 0.0), sum(overhead.values())
    compiling = {"compile": all_of_it} if overhead else {}
    return {
        "first_step": first - start_s - in_first,
        **compiling,
        "warmup": steady_from - first - (all_of_it - in_first),
        "steady": steady_to - steady_from,
        **({"unfinished": end_s - steady_to} if ended_here else {}),
    }


# Reasons to trust a measurement less, each a typed warning that is stored with the result

BUSY_HOST_CORES = 0.25
WIDE_INTERVAL = 0.02
FALLEN_PEAK = 0.05
RISEN_PEAK = 0.2
SLOW_RANK = 0.05
LOSS_RISE = 1.0
"""Nats by which a diverging training ends above its beginning: a token is 2.7 times less likely. No committed result rose by more than 0.012."""
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
    of_run = chain(_steps(derived), _gates_and_settings(submission), _other_work(submission), probe_warnings(submission.probe))
    for kind, message in chain(of_run, _circumstances(submission, derived)):
        yield MeasurementWarning(kind=kind, message=message)


def warnings_now(s: Submission, derived: Derived) -> tuple[MeasurementWarning, ...]:
    """Return the warnings that follow from a record by today's rules, and those about circumstances that it does not hold."""
    stated = (warning for warning in s.warnings if s.plan.compiles_update or warning.kind is not WarningKind.FALLBACK)
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
    before, after = derived.loss_start, derived.train_loss
    if before is not None and after is not None and after - before > LOSS_RISE:
        yield WarningKind.LOSS_ROSE, f"the loss rose from {before:.2f} to {after:.2f}: the training diverges; lower the learning rate"


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
