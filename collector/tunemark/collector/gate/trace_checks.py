"""Checks of the step log against the plan, the time line, the CPU time and the processes of the same run.

Each function yields one kind of problem. The tolerances are for clock ticks and rounding only: every run of the harness is exact.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import MOST_MICRO_STEPS
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import COMPILED_UPDATE, Backend, DataSource, Phase, Status, Weights

CLOCK_TOLERANCE = timedelta(days=1)
"""Clocks are often wrong by hours but seldom by days."""
FIRST_RUN = datetime(2026, 11, 20, tzinfo=UTC)
"""The day of the first commit: no harness existed before."""
TIME_TOLERANCE = 1.05
"""Tolerance for clock ticks, processes that end late, and separate clocks of ranks."""
RANK_SLACK_S, MOST_STEPS_APART = 5.0, 2
"""Difference of the clocks of two processes, and of the steps that they are in."""
TICK_S, LONGEST_GAP_S, GAP_SHARE = 0.01, 0.25, 0.01
"""Training starts and ends with its phase. In every run here the difference was below 1 ms."""
ORDER = (Phase.IMPORT, Phase.DATA, Phase.LOAD, Phase.CHECK, Phase.PROBE)
"""Phases before training. A sharded model is loaded a second time, after its checks."""
BEFORE_TRAINING = set(ORDER)
AFTER_TRAINING = {Phase.PROBE, Phase.EVAL, Phase.SAVE, Phase.TEARDOWN}
SHORTEST_IMPORT_S = 0.25
"""Importing torch and transformers takes seconds; no machine does it faster than this."""
PART_OF_A_STEP = 0.2
"""Time of a forward and backward pass of a check, and of a micro-step, over that of other micro-steps, at least."""
PART_OF_TRAINING = 0.001
"""Time of a row in evaluation over its time in training, at least."""
BUSY_TRAINING = 0.02
"""Share of one core that training keeps busy at least: the host submits all work, and computes it on a CPU."""
SAME_WORK, LEAST_WORK = 0.7, 0.25
"""CPU time over that of training at the sampled busy cores, and busy cores over the mean of the whole run, at least, on a CPU."""
SMOOTH, DISTINCT = 0.05, 0.6
REPEATED_BLOCK, DIFFERENT_OF_BLOCK = 16, 12
"""Losses of a block that never occurs twice, and different values among them: losses in bf16 have few, and can repeat by chance."""
FEWEST_STEPS = 20
"""Steps from which regularity is not chance."""
LEAST_OWN_WORK = 0.3
"""Own work of a process in a step over that of its other steps, at least, where all steps have as many tokens."""
FEWEST_TURNS, MOST_REPEATED = 0.3, 0.3
"""Share of steps that are longer or shorter than both neighbours, two thirds in noise; share of steps that repeat others in order."""
MOST_REPEATED_CHANGE = 1e-3
"""Difference of two ratios of losses below which a lag is looked at."""
REPEATED_S, REPEATED, COMPARED_STEPS = 2e-9, 1e-3, 600
"""Difference below which two times are one, in seconds and over the range of the middle half of the times; steps that are compared."""
SHORT_STEP, SHORT_STEPS, LATE = 0.35, 0.02, 1.5
FAR_LONGER, SAME_TIME = 2.0, 1.02
"""Ratio of long to short steps in tokens, and in seconds, that a CPU cannot have."""
HALF, EQUAL_HALVES, HALVED_STEPS = (0.4, 0.7), 0.02, 0.04
"""Pace of half a step, difference of two halves of one step, and share of such pairs that chance does not make."""
SAME_S = 1e-6
SHORTEST_UPDATE = 0.3
"""Time of the last micro-step over that of its step: the update takes less than the rest."""
SHORTEST_PROBE_S = 0.3
"""A probe multiplies matrices for half a second, and did for 0.38 s in the first versions."""
LONGEST_TEARDOWN_S, SHORTEST_END_S = 120.0, 1e-3
SHORTEST_COMPILATION_S = 0.2
"""Compiling the graphs of a model takes seconds; nothing does it faster than this."""
RAM_BYTES_PER_S, BUS_BYTES_PER_S = 2e11, 64e9
"""Weights are drawn in the memory of host or device at this rate at most. Those that are read from files reach a device over a bus, of which
PCI Express 5.0 x16 is the fastest of x86 hosts, 63 GB/s."""
COPIED, COPIED_RANK = 1e-5, 3e-4
"""Relative spread of a ratio of times below which one series is a copy of the other; `COPIED_RANK` for the own work of two ranks. Committed
runs: at least 1%."""
MOST_LAG, LONG_MICRO_STEP, COARSE_S = 10, 4.0, 0.01


def trace_problems(submission: Submission, now: datetime) -> Iterator[Problem]:
    """Yield each contradiction between the step log and the rest of the record."""
    yield from _clock(submission, now)
    yield from _phases(submission)
    yield from _events(submission)
    yield from _processes(submission)
    yield from _cpu_time(submission)
    yield from _regular(submission)
    yield from _micro_steps(submission)
    yield from _limits(submission)


def _clock(s: Submission, now: datetime) -> Iterator[Problem]:
    if s.started_at > now + CLOCK_TOLERANCE:
        yield Problem("started_at", s.started_at.isoformat(), "is in the future; set the clock of the machine and run it again")
    if s.started_at < FIRST_RUN - CLOCK_TOLERANCE:
        fix = f"is before {FIRST_RUN:%Y-%m-%d}, when the first version of the harness was written; set the clock of the machine"
        yield Problem("started_at", s.started_at.isoformat(), fix)


def _phases(s: Submission) -> Iterator[Problem]:
    """Yield phases out of order, an outcome in another phase, and training that does not fill its phase."""
    phases = [mark.phase for mark in s.timeline]
    if s.outcome.phase is not phases[-1]:
        yield Problem("outcome.phase", repr(s.outcome.phase.value), f"the last phase of timeline is {phases[-1].value!r}; write that one")
    if phases[0] is not Phase.IMPORT or phases.count(Phase.TRAIN) > 1 or phases.count(Phase.TEARDOWN) > 1:
        yield Problem("timeline", repr([phase.value for phase in phases]), "begins with import, and has training and teardown once")
        return
    if Phase.TRAIN not in phases:
        if len(s.trace):
            yield Problem("timeline", "", f"has no phase train, and trace has {len(s.trace)} steps; keep the original record")
        return
    start = phases.index(Phase.TRAIN)
    wrong = [*(set(phases[:start]) - BEFORE_TRAINING), *(set(phases[start + 1 :]) - AFTER_TRAINING)]
    if wrong or (Phase.TEARDOWN in phases and phases[-1] is not Phase.TEARDOWN):
        yield Problem("timeline", repr([phase.value for phase in phases]), "its phases are not in the order in which a run has them")
    if s.outcome.status is Status.OK and phases[-1] is not Phase.TEARDOWN:
        yield Problem("timeline", repr(phases[-1].value), "a successful run ends with the phase teardown")
    yield from _expected_phases(s, phases)
    if s.timeline[1].at_s < SHORTEST_IMPORT_S and not s.process.warm_worker:
        fix = f"importing the libraries takes longer than {SHORTEST_IMPORT_S} s; times count from the spawn of the worker"
        yield Problem("timeline.1.at_s", f"{s.timeline[1].at_s:g} s", fix)
    yield from _training_fills_its_phase(s, start)


def _expected_phases(s: Submission, phases: Sequence[Phase]) -> Iterator[Problem]:
    """Yield phases of a run that trained which its plan does not have, and missing ones."""
    rules, ended = s.plan.measurement, s.outcome.status is Status.OK
    begun, done = phases[: phases.index(Phase.TRAIN)], phases[phases.index(Phase.TRAIN) :]
    if s.plan.device.backend is Backend.NEURON:
        return
    first = [phase for phase in ORDER if phase in begun]
    if [*dict.fromkeys(begun)] != first:
        fix = f"before training the phases are {', '.join(phase.value for phase in first)}, in this order"
        yield Problem("timeline", repr([phase.value for phase in begun]), fix)
    wanted = {Phase.DATA: True, Phase.LOAD: True, Phase.CHECK: rules.gates, Phase.PROBE: rules.probe}
    for phase, planned in wanted.items():
        if planned is not (phase in begun):
            yield Problem(
                "timeline", f"{'no' if planned else 'a'} {phase.value}", "the phases before training are those that the plan asks for"
            )
    for phase, planned in {Phase.PROBE: rules.probe, Phase.EVAL: rules.evaluate, Phase.SAVE: rules.save}.items():
        if (ended and planned and phase not in done) or (not planned and phase in done):
            yield Problem(
                "timeline", f"{'no' if planned else 'a'} {phase.value}", "the phases after training are those that the plan asks for"
            )
    lasted = dict.fromkeys(Phase, 0.0)
    for mark, after in zip(s.timeline, s.timeline[1:], strict=False):
        lasted[mark.phase] += after.at_s - mark.at_s
    first_s = s.trace.step_times_s[0] if len(s.trace) else 0.0
    if any(gate.passed is not None for gate in s.gates) and lasted[Phase.CHECK] < PART_OF_A_STEP * _median_micro_step_s(s):
        fix = f"a check trains on a micro-batch, which takes about {_median_micro_step_s(s):.3g} s"
        yield Problem("timeline", f"{lasted[Phase.CHECK]:g} s of check", fix)
    if s.evaluation is not None and len(s.trace):
        row_s = (sum(s.trace.step_times_s) - first_s) / max(1, sum(s.trace.rows[1:]))
        if lasted[Phase.EVAL] < PART_OF_TRAINING * row_s * s.evaluation.rows:
            fix = f"evaluating {s.evaluation.rows} rows takes longer, as a row takes {row_s:.3g} s in training"
            yield Problem("timeline", f"{lasted[Phase.EVAL]:g} s of eval", fix)
    probing = [after.at_s - mark.at_s for mark, after in zip(s.timeline, s.timeline[1:], strict=False) if mark.phase is Phase.PROBE]
    if s.probe is not None and probing and min(probing) < SHORTEST_PROBE_S:
        yield Problem("timeline", f"{min(probing):g} s of probe", "a probe multiplies matrices for half a second")
    weights = sum(s.model.parameter_bytes.values()) if s.model else 0
    from_host = s.plan.device.backend in {Backend.CUDA, Backend.ROCM} and not re.search("aarch64|ARM64", s.environment.os)
    from_host &= s.plan.model.weights is Weights.PRETRAINED or s.plan.quantisation is not None
    # Each device is copied to over a bus of its own.
    if lasted[Phase.LOAD] < weights / (BUS_BYTES_PER_S if from_host else RAM_BYTES_PER_S):
        yield Problem("timeline", f"{lasted[Phase.LOAD]:g} s of load", f"{weights:,} bytes of weights are not made in this time")


def _median_micro_step_s(s: Submission) -> float:
    times = s.trace.step_times_s
    return float(np.median(times)) / s.plan.batch.gradient_accumulation if len(times) else 0.0


def _training_fills_its_phase(s: Submission, start: int) -> Iterator[Problem]:
    begun_s, first_s = s.timeline[start].at_s, s.trace.started_at_s
    if not len(s.trace):
        return
    train_s = s.trace.completed_at_s[-1] - first_s
    allowed_s = LONGEST_GAP_S + GAP_SHARE * train_s
    # The trainer of optimum-neuron prepares and compiles between the mark of the phase and the first step.
    if s.plan.device.backend is not Backend.NEURON and first_s > begun_s + allowed_s:
        fix = f"{first_s - begun_s:.2f} s after the phase train began; the first step starts with its phase"
        yield Problem("trace.started_at_s", f"{first_s:g} s", fix)
    if first_s < begun_s - TICK_S:
        fix = f"the phase train begins at {begun_s:g} s; no step starts before its phase"
        yield Problem("trace.started_at_s", f"{first_s:g} s", fix)
    if start + 1 == len(s.timeline):
        return
    ended_s, last_s = s.timeline[start + 1].at_s, s.trace.completed_at_s[-1]
    if last_s > ended_s + TICK_S:
        yield Problem("trace.completed_at_s", f"{last_s:g} s", f"the phase train ends at {ended_s:g} s; no step completes after its phase")
    elif s.plan.device.backend is not Backend.NEURON and ended_s > last_s + allowed_s:
        fix = f"the phase train ends {ended_s - last_s:.2f} s later, at {ended_s:g} s; it ends with its last step"
        yield Problem("trace.completed_at_s", f"{last_s:g} s", fix)


def _events(s: Submission) -> Iterator[Problem]:
    """Yield compilations in a run that compiled nothing, and growth of an allocator that the device does not have."""
    plan, kinds = s.plan, {event.kind for event in s.events}
    if "compile" in kinds and not _compiles(s):
        yield Problem("events", "compile", "plan.model.compile is 'none'; nothing is compiled in such a run")
    if "allocator_retry" in kinds and plan.device.backend is Backend.CPU:
        yield Problem("events", "allocator_retry", "a CPU has no allocator whose retries are counted")
    if "allocator_growth" not in kinds:
        return
    reserved, amounts = s.memory.device_reserved.peak_bytes, [event.amount for event in s.events if event.kind == "allocator_growth"]
    grown = sum(amounts)
    if plan.device.backend is Backend.CPU:
        yield Problem("events", "allocator_growth", "a CPU has no allocator whose growth is observed")
    elif reserved is not None and (grown > reserved * plan.device.count or max(amounts) > reserved):
        yield Problem("events", f"{grown} bytes", f"the allocator reserved {reserved} bytes at most; growth cannot exceed that")


def compile_steps(s: Submission) -> set[int]:
    """Return the steps in which graphs were compiled, from 1."""
    return {event.step for event in s.events if event.kind == "compile"}


def compiled_cold(s: Submission) -> bool:
    """Return True if the first step compiled graphs for a cold cache."""
    return s.process.compile_cache == "cold" and 1 in compile_steps(s)


def _compiles(s: Submission) -> bool:
    model = s.plan.model
    return model.compile != "none" or model.attention == "flex_attention" or s.plan.device.backend is Backend.NEURON


def _processes(s: Submission) -> Iterator[Problem]:
    """Yield missing processes, ranks with more own work than the steps that contain it, and ranks that copy each other."""
    count, effective, times = s.plan.device.count, s.effective, s.trace.step_times_s
    succeeded = s.outcome.status is Status.OK
    if effective is not None and effective.processes != count:
        fix = f"plan.device.count is {count}; a run with a missing process measures other work; run it again"
        yield Problem("effective.processes", str(effective.processes), fix)
    # XLA has no mark between a process's own work and the exchange of gradients.
    measured = s.plan.device.backend is not Backend.NEURON
    if effective is not None and succeeded and count > 1 and measured and not s.ranks:
        yield Problem("ranks", "[]", f"a successful run must list all {count} processes")
    if s.ranks and count == 1:
        yield Problem("ranks", f"{len(s.ranks)} ranks", "a run of one process lists none")
    for index, rank in enumerate(s.ranks):
        field = f"ranks.{index}.own_work_s"
        if succeeded and len(rank.own_work_s) != len(times):
            yield Problem(field, f"{len(rank.own_work_s)} values", f"trace has {len(times)} steps; a rank has one value for each")
        own_s, steps_s = sum(rank.own_work_s), sum(times)
        if own_s > steps_s * TIME_TOLERANCE + min(RANK_SLACK_S, MOST_STEPS_APART * max(times, default=0.0)):
            yield Problem(field, f"{own_s:.1f} s", f"more than the {steps_s:.1f} s of all steps; own work is part of a step")
        longer = [
            step for step, (own, whole) in enumerate(zip(rank.own_work_s, times, strict=False), 1) if own > whole * 1.5 + RANK_SLACK_S
        ]
        if longer:
            yield Problem(field, f"step {longer[0]}", "longer than the step that contains it")
        usual_s = median(rank.own_work_s) if rank.own_work_s else 0.0
        if rank.own_work_s and not usual_s:
            yield Problem(field, "0 s", "each process computes its part of every step, which takes time")
        short = [step for step, own in enumerate(rank.own_work_s, 1) if own < LEAST_OWN_WORK * usual_s]
        if len(rank.own_work_s) >= FEWEST_STEPS and max(rank.own_work_s) - min(rank.own_work_s) < SAME_S * usual_s:
            yield Problem(field, f"{usual_s:.6g} s", "the same in every step; measured times differ from one to the next")
        if short and s.plan.data.packing:
            fix = f"usually {usual_s:.3g} s for the same number of tokens; no step is that much faster"
            yield Problem(field, f"{rank.own_work_s[short[0] - 1]:.3g} s in step {short[0]}", fix)
    yield from _own_work_before_micro_steps(s)
    yield from _copied_ranks([rank.own_work_s for rank in s.ranks], times)
    for index, rank in enumerate(s.ranks):
        whole = s.memory.host_rss.peak_bytes
        if (
            whole is not None
            and rank.host_rss_bytes is not None
            and s.plan.device.nodes == 1
            and rank.host_rss_bytes > whole * TIME_TOLERANCE
        ):
            yield Problem(f"ranks.{index}.host_rss_bytes", str(rank.host_rss_bytes), f"all processes together peaked at {whole} bytes")


def _own_work_before_micro_steps(s: Submission) -> Iterator[Problem]:
    """Yield own work of the logging process that is shorter than its micro-steps before the last. Own work includes all micro-steps."""
    own = s.ranks[0].own_work_s if s.ranks and s.ranks[0].rank == 0 else ()
    starts = (s.trace.started_at_s, *s.trace.completed_at_s)
    early = [
        step
        for step, (own_s, start_s, inside) in enumerate(zip(own, starts, s.trace.micro_completed_at_s, strict=False), 1)
        if len(inside) > 1 and own_s < (inside[-2] - start_s) / TIME_TOLERANCE - TICK_S
    ]
    if len(early) > len(own) / 2:
        fix = f"in step {early[0]} the micro-steps before the last took longer; own work lasts until gradients are exchanged, in the last micro-step"
        yield Problem("ranks.0.own_work_s", f"{own[early[0] - 1]:.3g} s", fix)


def _copied_ranks(own: Sequence[Sequence[float]], whole: Sequence[float]) -> Iterator[Problem]:
    """Yield a process whose own work is that of another one, or what another one leaves of each step."""
    for later in range(1, len(own)):
        # As they are, in reverse, or some steps late.
        moved = [np.roll(turned, lag) for turned in (own[later], own[later][::-1]) for lag in range(-MOST_LAG, MOST_LAG + 1)]
        for earlier in range(later):
            a, b = np.asarray(own[earlier]), np.asarray(own[later])
            if len(a) != len(b) or len(a) < 3 or not (a > 0).all() or not (b > 0).all():  # noqa: PLR2004 - a ratio needs some steps
                continue
            shared = len(set(own[earlier]) & set(own[later])) > MOST_REPEATED * len(a)
            rest = np.asarray(whole[: len(b)]) - b
            ratios = np.array([*moved, *([rest] if (rest > 0).all() else [])]) / a
            copied = (ratios.std(axis=1) < COPIED_RANK * ratios.mean(axis=1)).any() and a.std() > COPIED_RANK * a.mean()
            if shared or copied:
                fix = f"the same times as rank {earlier}; each process is measured by itself"
                yield Problem(f"ranks.{later}.own_work_s", "", fix)
                return


def _cpu_time(s: Submission) -> Iterator[Problem]:
    """Yield CPU seconds that the cores do not have, or without which the run could not have happened."""
    process, environment = s.process, s.environment
    cores, used_s = environment.cpu_logical_cores * s.plan.device.nodes, (process.user_s or 0) + (process.system_s or 0)
    if used_s > (process.wall_s * cores + 1) * TIME_TOLERANCE:
        fix = f"{used_s:.1f} CPU seconds do not fit into {process.wall_s} s on {cores} cores; check the units"
        yield Problem("process.user_s", str(process.user_s), fix)
    if (process.user_s is None) != (process.system_s is None):
        yield Problem("process.user_s", str(process.user_s), f"process.system_s is {process.system_s}; the system reports both or neither")
    if process.user_s is None or not len(s.trace):
        return
    if process.user_s and process.system_s == 0:
        fix = "a run that trained uses some kernel time; keep the original record"
        yield Problem("process.system_s", "0", fix)
    trained_s = s.trace.completed_at_s[-1] - s.trace.started_at_s
    use = s.utilisation
    busy_s = BUSY_TRAINING * trained_s + (0.0 if process.warm_worker else SHORTEST_IMPORT_S)
    if use is not None and use.cpu_busy_mean is not None and s.plan.device.nodes == 1:
        window_s = use.samples * use.interval_s
        busy_s = max(busy_s, use.cpu_busy_mean * min(window_s, trained_s) * 0.7)
        free_s = max(0.0, process.wall_s - window_s) * environment.cpu_usable_cores
        if use.samples >= FEWEST_STEPS and used_s > (use.cpu_busy_mean * window_s + free_s) * 1.1 + 1:
            fix = f"{use.cpu_busy_mean:.2f} busy cores for {window_s:.0f} s were sampled, and {environment.cpu_usable_cores} cores were usable for the rest; more CPU time is not possible"
            yield Problem("process.user_s", f"{used_s:.1f} s", fix)
        most = environment.cpu_usable_cores * TIME_TOLERANCE + 0.1
        if use.cpu_busy_mean > most:
            fix = f"the process could use {environment.cpu_usable_cores} cores; check how it was sampled"
            yield Problem("utilisation.cpu_busy_mean", f"{use.cpu_busy_mean:g}", fix)
        if s.plan.device.backend is Backend.CPU and use.samples >= FEWEST_STEPS // 2 and s.outcome.status is Status.OK:
            # The steps outside of the window do the same work as those inside.
            if used_s < SAME_WORK * use.cpu_busy_mean * trained_s:
                fix = f"{use.cpu_busy_mean:.2f} busy cores were sampled in {trained_s:.0f} s of training; that takes more CPU time"
                yield Problem("process.user_s", f"{used_s:.1f} s", fix)
            if use.cpu_busy_mean < LEAST_WORK * used_s / process.wall_s:
                fix = f"the run used {used_s:.0f} CPU seconds in {process.wall_s:.0f} s; training on a CPU keeps as many cores busy"
                yield Problem("utilisation.cpu_busy_mean", f"{use.cpu_busy_mean:g}", fix)
    if s.plan.device.backend is Backend.CPU and process.user_s < BUSY_TRAINING * trained_s and s.outcome.status is not Status.CRASH:
        fix = f"a CPU computes in the program itself, and this one trained for {trained_s:.1f} s"
        yield Problem("process.user_s", f"{process.user_s:g} s", fix)
    # A run that was recovered after its parent was killed has no CPU time.
    if used_s < busy_s and s.outcome.status is not Status.CRASH:
        fix = f"{used_s:g} CPU seconds are too few for {trained_s:.1f} s of training after importing the libraries; check the units"
        yield Problem("process.user_s", str(process.user_s), fix)


def _regular(s: Submission) -> Iterator[Problem]:
    """Yield step times and losses that are too regular for a clock and for training."""
    times, losses = np.asarray(s.trace.step_times_s), np.asarray([loss for loss in s.trace.loss if loss is not None])
    if len(times) >= FEWEST_STEPS:
        distinct = len(np.unique(np.round(times / SAME_S)))
        changes = np.unique(np.round(np.diff(times[1:]) / SAME_S))
        if distinct < len(times) / 4 or len(changes) < len(times) / 4:
            fix = (
                f"only {min(distinct, len(changes))} different times or changes in {len(times)} steps; a clock never measures such a series"
            )
            yield Problem("trace.completed_at_s", "", fix)
        hundredths = np.abs(times / COARSE_S - np.round(times / COARSE_S)) < SAME_S
        if hundredths.mean() > 0.5 and np.median(times) > COARSE_S:  # noqa: PLR2004 - half of them
            yield Problem("trace.completed_at_s", "whole hundredths of a second", "clocks count microseconds; keep the original record")
        yield from _patterns(times[1:])
        slots = np.asarray(s.trace.slot_tokens, dtype=float)
        yield from _short_steps(times, slots)
        if s.plan.device.backend is Backend.CPU:
            yield from _same_times(times, slots)
    if len(losses) >= FEWEST_STEPS:
        # Losses of real batches jump from step to step by more than they fall.
        lag = _repeated_after(losses)
        if lag is not None:
            fix = "repeat those from the first step on, but for a factor; training goes on"
            yield Problem("trace.loss", f"the losses from step {lag + 1} on", fix)
        twice = _repeated_block(losses) if lag is None and s.plan.optimizer.learning_rate else None
        if twice is not None:
            fix = f"the same {REPEATED_BLOCK} losses as from step {twice[0] + 1} on; training goes on, so one part was logged twice"
            yield Problem("trace.loss", f"the losses from step {twice[1] + 1} on", fix)
        smooth = np.median(np.abs(np.diff(losses, 2))) < SMOOTH * np.median(np.abs(np.diff(losses)))
        if smooth or len(np.unique(losses)) < DISTINCT * len(losses) or (losses == np.round(losses)).mean() > 0.5:  # noqa: PLR2004 - half are whole
            yield Problem(
                "trace.loss", f"{len(np.unique(losses))} different values in {len(losses)} steps", "too regular for losses of training"
            )


def _repeated_after(losses: NDArray[np.float64]) -> int | None:
    """Return the number of steps after which losses repeat those from the first step on, but for a factor; None if they never do."""
    # A few losses that rise and fall together are chance. The first two tell most lags apart.
    first = np.where(losses[:2] == 0, 1, losses[:2])
    alike = np.abs(losses[:-1] / first[0] - losses[1:] / first[1]) < MOST_REPEATED_CHANGE * np.abs(losses[:-1] / first[0])
    for lag in np.flatnonzero(alike[: len(losses) - FEWEST_STEPS // 2 + 1]).tolist():
        if lag < FEWEST_STEPS // 2:
            continue
        earlier, later = losses[: len(losses) - lag], losses[lag:]
        ratios = later / np.where(earlier == 0, 1, earlier)
        if ratios.std() < COPIED * abs(ratios.mean()) and later.std() > COPIED * abs(later.mean()):
            return lag
    return None


def _repeated_block(losses: NDArray[np.float64]) -> tuple[int, int] | None:
    """Return the first steps of two blocks with exactly the same losses, nearly all of them different; None if there are none."""
    seen: dict[bytes, int] = {}
    for step in range(len(losses) - REPEATED_BLOCK + 1):
        block = losses[step : step + REPEATED_BLOCK]
        earlier = seen.setdefault(block.tobytes(), step)
        if earlier < step and len(np.unique(block)) >= DIFFERENT_OF_BLOCK:
            return earlier, step
    return None


def _patterns(times: NDArray[np.float64]) -> Iterator[Problem]:
    """Yield times that lie on a smooth curve, or that repeat earlier ones in the same or the opposite order."""
    changes = np.diff(times)
    turns = float((changes[1:] * changes[:-1] < 0).mean())
    if turns < FEWEST_TURNS:
        fix = f"only {turns:.0%} of the steps are longer or shorter than both neighbours; measured times scatter, and have two thirds"
        yield Problem("trace.completed_at_s", "a smooth curve", fix)
    part = times[:COMPARED_STEPS]
    # Hardly any two of scattered times are this near each other, and copies with noise are.
    spread = float(np.subtract(*np.percentile(part, (75, 25))))
    earlier, later = np.nonzero(np.triu(np.abs(part[:, None] - part[None, :]) < max(REPEATED_S, REPEATED * spread), 1))
    # Pairs in the same order have one distance, and mirrored ones have one centre, where each stands once.
    for places, order in ((later - earlier, "the same"), (later + earlier, "the opposite")):
        repeated = int(np.bincount(places).max(initial=0))
        if repeated > MOST_REPEATED * len(part):
            yield Problem(
                "trace.completed_at_s", f"{repeated} repeated times", f"they follow each other in {order} order; a clock repeats none"
            )
            return


def _same_times(times: NDArray[np.float64], slots: NDArray[np.float64]) -> Iterator[Problem]:
    """Yield steps of a CPU with far more and fewer tokens that take the same time: it is that of their products."""
    long, short = np.percentile(slots[1:], (98, 2))
    slow, fast = np.percentile(times[1:], (98, 2))
    if short and long / short > FAR_LONGER and slow / fast < SAME_TIME:
        fix = f"within {slow / fast - 1:.1%} of each other, for {short:.0f} to {long:.0f} tokens; more tokens take more time"
        yield Problem("trace.completed_at_s", f"{fast:.3g} s to {slow:.3g} s", fix)


def _short_steps(times: NDArray[np.float64], slots: NDArray[np.float64]) -> Iterator[Problem]:
    """Yield a first step, or single steps between others, that are far shorter than the rest for their tokens."""
    pace = times / np.maximum(slots, 1) / float(np.median(times / np.maximum(slots, 1)))
    if pace[0] < SHORT_STEP:
        fix = f"{pace[0]:.1%} of the usual time for its tokens; the first step fills caches and allocates memory, and is never that short"
        yield Problem("trace.completed_at_s", f"step 1: {times[0]:.3g} s", fix)
    # A mark that comes late lengthens one step and shortens the next. A machine may be faster for a while.
    single = (pace[1:-1] < SHORT_STEP) & (pace[:-2] > SHORT_STEP) & (pace[2:] > SHORT_STEP) & (pace[:-2] < LATE)
    if single.sum() > max(2, SHORT_STEPS * len(times)):
        fix = "single steps of the same work are never that much shorter than the steps beside them"
        yield Problem("trace.completed_at_s", f"{int(single.sum())} short steps", fix)
    # Two steps in a row that take the time of one are one step that was written twice.
    half = (pace > HALF[0]) & (pace < HALF[1])
    pairs = half[1:-2] & half[2:-1] & ~half[:-3] & ~half[3:] & (np.abs(pace[1:-2] - pace[2:-1]) < EQUAL_HALVES)
    if pairs.sum() > max(2, HALVED_STEPS * len(times)):
        fix = "two steps of half the usual time follow each other; one step of its tokens was written as two"
        yield Problem("trace.completed_at_s", f"{int(pairs.sum())} pairs of short steps", fix)


def _micro_steps(s: Submission) -> Iterator[Problem]:
    micro, times = s.trace.micro_completed_at_s, s.trace.step_times_s
    accumulated, total = s.plan.batch.gradient_accumulation, len(s.trace)
    starts, shares, parts = (s.trace.started_at_s, *s.trace.completed_at_s), [], []
    timed = [step for step, inside in enumerate(micro) if inside]
    missing = next((step for step in range(timed[0], total) if not micro[step]), None) if timed and s.outcome.status is Status.OK else None
    if missing is not None or (timed and timed[0] and sum(map(len, micro)) < MOST_MICRO_STEPS - accumulated):
        fix = "all steps have the times of their micro-steps, or in a long run the last ones do"
        yield Problem("trace.micro_completed_at_s", f"none in step {(missing or 0) + 1}", fix)
    for step, inside in enumerate(micro):
        if not inside:
            continue
        if len(inside) != accumulated and not (step == total - 1 and s.plan.data.finite):
            fix = f"plan.batch.gradient_accumulation is {accumulated}; a step has all of its micro-steps"
            yield Problem("trace.micro_completed_at_s", f"{len(inside)} in step {step + 1}", fix)
            return
        shares.append((inside[-1] - starts[step]) / times[step])
        if len(inside) == accumulated:
            parts.append(np.diff([starts[step], *inside]) / times[step])
    if len(parts) >= FEWEST_STEPS:
        spread, typical = np.std(parts, axis=0), np.median(parts, axis=0)
        if (spread < COPIED).all():
            fix = "all micro-steps take the same share of their step; a clock never measures that"
            yield Problem("trace.micro_completed_at_s", "", fix)
        elif len(typical) > 2 and typical[:-1].max() > LONG_MICRO_STEP * np.median(typical):  # noqa: PLR2004 - two have no usual one
            # The last one may hold the exchange of gradients.
            place = int(typical[:-1].argmax()) + 1
            fix = (
                f"micro-step {place} of a step takes {typical.max():.0%} of it, the others {np.median(typical):.1%}; they do the same work"
            )
            yield Problem("trace.micro_completed_at_s", "", fix)
        elif typical.min() < PART_OF_A_STEP * np.median(typical):
            place = int(typical.argmin()) + 1
            fix = (
                f"micro-step {place} of a step takes {typical.min():.2%} of it, the others {np.median(typical):.0%}; they do the same work"
            )
            yield Problem("trace.micro_completed_at_s", "", fix)
    if shares and np.median(shares) < SHORTEST_UPDATE:
        fix = "micro-steps end in the first part of their steps; the update takes less time than they do"
        yield Problem("trace.micro_completed_at_s", f"{np.median(shares):.1%} of a step", fix)


def _limits(s: Submission) -> Iterator[Problem]:
    """Yield runs that are longer than their own limits allow, and results that the plan does not ask for."""
    rules, process, times = s.plan.measurement, s.process, s.trace.step_times_s
    # Ending a run takes a while too.
    slack_s = {Status.OK: RANK_SLACK_S, Status.TIMEOUT: LONGEST_TEARDOWN_S}.get(s.outcome.status)
    if rules.timeout_s is not None and slack_s is not None and process.wall_s > rules.timeout_s * TIME_TOLERANCE + slack_s:
        yield Problem("process.wall_s", f"{process.wall_s:g} s", f"plan.measurement.timeout_s is {rules.timeout_s:g}; such a run is ended")
    if s.outcome.status is Status.OK:
        last = s.timeline[-1]
        if process.wall_s - last.at_s < SHORTEST_END_S:
            yield Problem(
                "process.wall_s", f"{process.wall_s:g} s", f"the last phase begins at {last.at_s:g} s; ending a process takes time"
            )
        if last.phase is Phase.TEARDOWN and process.wall_s - last.at_s > LONGEST_TEARDOWN_S + last.at_s:
            yield Problem("process.wall_s", f"{process.wall_s:g} s", f"the last phase begins at {last.at_s:g} s; check the unit")
        if compiled_cold(s) and len(times) >= FEWEST_STEPS and times[0] < median(times[1:]) + SHORTEST_COMPILATION_S:
            fix = f"the others took {median(times[1:]):.3g} s, and the first one compiled graphs for a cold cache, which takes seconds"
            yield Problem("trace.completed_at_s", f"{times[0]:.3g} s for the first step", fix)
        if rules.max_train_s is not None and len(times) > max(rules.min_steps, 1):
            trained_s = sum(times[1:]) - sum(times[step - 1] for step in compile_steps(s) - {1})
            if trained_s - 3 * max(times) > rules.max_train_s * TIME_TOLERANCE:
                yield Problem("trace", f"{trained_s:.1f} s", f"plan.measurement.max_train_s is {rules.max_train_s:g}; training stops there")
    longest = 0.0
    for step, time_s in enumerate(times):
        if rules.no_step_s is not None and step and time_s > TIME_TOLERANCE * max(rules.no_step_s, 10 * longest) + RANK_SLACK_S:
            fix = f"longer than plan.measurement.no_step_s {rules.no_step_s:g} and ten times any earlier step; the run is ended before"
            yield Problem("trace.completed_at_s", f"step {step + 1}: {time_s:.1f} s", fix)
            break
        longest = max(longest, time_s)
    if (s.saved_bytes is not None) and not rules.save:
        yield Problem("saved_bytes", str(s.saved_bytes), "plan.measurement.save is false; such a run saves nothing")
    elif s.saved_bytes is None and rules.save and s.outcome.status is Status.OK and s.plan.device.backend is not Backend.NEURON:
        yield Problem("saved_bytes", "null", "plan.measurement.save is true; a successful run has saved")
    kernels = s.plan.model.fused_kernels != "none" or (s.plan.optimizer_rounds_stochastically and s.plan.device.backend in COMPILED_UPDATE)
    if process.compile_cache in {"cold", "warm"} and not _compiles(s) and not kernels:
        yield Problem(
            "process.compile_cache", repr(process.compile_cache), "plan.model.compile is 'none'; nothing is compiled in such a run"
        )
    elif process.compile_cache == "none" and _compiles(s) and s.outcome.status is Status.OK and s.plan.device.backend is not Backend.NEURON:
        fix = f"plan.model.compile is {s.plan.model.compile!r}; a run that compiled has found its cache cold or warm"
        yield Problem("process.compile_cache", "'none'", fix)
    elif process.compile_cache == "warm" and rules.cold:
        yield Problem("process.compile_cache", "'warm'", "plan.measurement.cold is true; such a run begins with empty caches of its own")
    elif process.compile_cache is None and s.plan.device.backend is not Backend.NEURON and not _compiles(s):
        yield Problem("process.compile_cache", "null", "plan.model.compile is 'none'; the state of a cache that is not used is 'none'")
    from_hub = (
        s.plan.model.hub_id is not None or s.plan.data.source is DataSource.HUB or s.plan.data.tokenizer not in {"none", "word-level"}
    )
    if process.model_cache != "none" and not from_hub:
        yield Problem("process.model_cache", repr(process.model_cache), "weights and data of this plan come from no hub")
