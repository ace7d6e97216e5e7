"""Headline figures of a measured result, derived from its raw values and never stored.

The harness shows them after a run and the collector loads them: both use these functions.
"""

from dataclasses import dataclass

import numpy as np

from tunemark.schema.records.submission import MemoryReading, Submission
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics.intervals import Interval, Spread, ratio_interval, share_error, spread
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS, SteadyWindow, settled_after, steady_window
from tunemark.schema.vocabulary import Phase, Status, TrainPhase

LOSS_WINDOW = 5


@dataclass(frozen=True, slots=True)
class Derived:
    """Headline figures. Null if the run did not get far enough."""

    window: SteadyWindow | None
    step_time: Spread | None
    """Step times of the steady window, seconds."""
    micro_steps: "MicroSteps | None"
    """Micro-step times; null without gradient accumulation or stored times."""
    tokens_per_s: Interval | None
    """Real tokens per second over all devices."""
    slot_tokens_per_s: float | None
    """Tensor elements per second over all devices, including padding."""
    samples_per_s: Interval | None
    """Documents per second over all devices."""
    padding_efficiency: float | None
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


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a window of steps."""

    step_time: Spread
    tokens_per_s: Interval
    slot_tokens_per_s: float
    samples_per_s: Interval
    padding_efficiency: float | None


def derive(submission: Submission) -> Derived:
    """Return all headline figures of a submission."""
    trace = submission.trace
    window = (
        steady_window(trace, submission.plan.measurement, settled_after((event.step for event in submission.events), len(trace)))
        if len(trace)
        else None
    )
    rates = rates_over(trace, window) if window is not None and window.steps else None
    losses = [loss for loss in trace.loss if loss is not None]
    held_out = submission.evaluation
    return Derived(
        window=window,
        step_time=rates.step_time if rates else None,
        micro_steps=micro_steps(trace, window),
        tokens_per_s=rates.tokens_per_s if rates else None,
        slot_tokens_per_s=rates.slot_tokens_per_s if rates else None,
        samples_per_s=rates.samples_per_s if rates else None,
        padding_efficiency=rates.padding_efficiency if rates else None,
        train_time_s=trace.completed_at_s[-1] - trace.started_at_s if len(trace) else None,
        phases=phases(submission, window, rates.step_time.p50 if rates else None),
        loss_start=float(np.mean(losses[:LOSS_WINDOW])) if losses else None,
        train_loss=float(np.mean(losses[-LOSS_WINDOW:])) if losses else None,
        accuracy_standard_error=share_error(held_out.accuracy, held_out.rows) if held_out and held_out.accuracy is not None else None,
        peak_memory=headline_memory(submission),
        compile_overhead_s=sum(compile_overhead(submission, window, rates.step_time.p50).values()) if rates and window else None,
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


def rates_over(trace: StepTrace, window: SteadyWindow) -> Rates:
    """Return the rates of a window with at least one step."""
    part = slice(window.first, window.stop)
    times = np.asarray(trace.step_times_s[part])
    real, slots, documents = (np.asarray(column[part], dtype=float) for column in (trace.real_tokens, trace.slot_tokens, trace.documents))
    return Rates(
        step_time=spread(times),
        tokens_per_s=ratio_interval(real, times),
        slot_tokens_per_s=float(slots.sum() / times.sum()),
        samples_per_s=ratio_interval(documents, times),
        padding_efficiency=float(real.sum() / slots.sum()) if slots.sum() else None,
    )


def headline_memory(submission: Submission) -> MemoryReading:
    """Return the headline peak: of the device allocator, else of the device, else of the host."""
    memory = submission.memory
    for reading in (memory.device_allocated, memory.device_used, memory.host_rss):
        if reading.peak_bytes is not None:
            return reading
    return memory.device_allocated


def phases(submission: Submission, window: SteadyWindow | None, median_s: float | None = None) -> dict[str, float]:
    """Return seconds per phase in order, summing to `process.wall_s`. The phase `train` is divided by its steps.

    `median_s` is the median of the steady window. Without it, compile overhead cannot be separated.
    """
    starts = submission.timeline
    ends = [*(mark.at_s for mark in starts[1:]), submission.process.wall_s]
    overhead = compile_overhead(submission, window, median_s) if window is not None and median_s is not None else {}
    seconds: dict[str, float] = {}
    for mark, end in zip(starts, ends, strict=True):
        if mark.phase is Phase.TRAIN and window is not None:
            for name, share in _train_phases(submission, window, (mark.at_s, end), overhead).items():
                seconds[name] = seconds.get(name, 0.0) + share
        else:
            # Without a completed step, all of `train` is the first step.
            name = TrainPhase.FIRST_STEP.value if mark.phase is Phase.TRAIN else mark.phase.value
            seconds[name] = seconds.get(name, 0.0) + end - mark.at_s
    return seconds


def _train_phases(
    submission: Submission, window: SteadyWindow, stretch: tuple[float, float], overhead: dict[int, float]
) -> dict[str, float]:
    completed, (start_s, end_s) = submission.trace.completed_at_s, stretch
    first = completed[0]
    steady_from = completed[window.first - 1] if window.first else first
    # If no later phase began, the run ended during an unfinished step.
    ended_here = submission.timeline[-1].phase is Phase.TRAIN
    steady_to = completed[-1] if ended_here else end_s
    in_first, all_of_it = overhead.get(1, 0.0), sum(overhead.values())
    compiling = {TrainPhase.COMPILE.value: all_of_it} if overhead else {}
    return {
        TrainPhase.FIRST_STEP.value: first - start_s - in_first,
        **compiling,
        TrainPhase.WARMUP.value: steady_from - first - (all_of_it - in_first),
        TrainPhase.STEADY.value: steady_to - steady_from,
        **({TrainPhase.UNFINISHED.value: end_s - steady_to} if ended_here else {}),
    }


def step_labels(window: SteadyWindow, steps: int) -> list[str]:
    """Return `warmup` or `steady` for each step."""
    return [TrainPhase.STEADY.value if window.first <= step < window.stop else TrainPhase.WARMUP.value for step in range(steps)]
