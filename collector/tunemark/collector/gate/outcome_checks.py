"""Checks of the end of a run: its status, message and number of steps against its plan, time line and memory.

Some ends are possible but unlikely; these are accepted, and need a second run.
"""

import re
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from tunemark.collector.gate.trace_checks import TIME_TOLERANCE, compile_steps, compiled_cold
from tunemark.schema.derive import Derived
from tunemark.schema.formats import GIB
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import Backend, DataSource, Phase, Status

OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemoryError|can.t allocate memory|cannot allocate memory", re.IGNORECASE)
OWN_WORDS = {
    "CUDA": {Backend.CUDA, Backend.ROCM},
    "HIP": {Backend.ROCM},
    "XPU": {Backend.XPU},
    "MPS backend": {Backend.MPS},
}
"""Back ends whose out-of-memory message in torch names this kind of device."""
TOTAL, IN_USE = re.compile(r"total capacity of ([\d.]+) GiB"), re.compile(r"this process has ([\d.]+) GiB")
GIB_TOLERANCE, USED_TOLERANCE = 0.05, 0.6
LEFT = re.compile(r"not rankable: (\d+) steps? after warm-up")
ASKED, FREE = re.compile(r"ried to allocate ([\d.]+) ([KMG]iB)"), re.compile(r"of which ([\d.]+) ([KMG]iB) is free")
DEVICE, KILLED = (
    re.compile(r"\bGPU (\d+) has a total"),
    re.compile(r"kernel killed|oom.?killer|SIGKILL|lack of (host )?memory", re.IGNORECASE),
)
MEMORY_SHORT = 0.1
"""Share of the memory of a host below which a run seldom runs out of it."""
LONG_END_S, LONG_END, SHORT_CPU_S = 20.0, 0.05, 5.0
"""Time after the last phase began, usually at most: seconds, and share of the whole time."""
LATEST_REPEAT = 5
"""Runs per finished run in a series of repeats, usually at most."""
LONGEST_WAIT_S, SLOWER_COMPILED = 600.0, 1.05
"""Time without progress after which an operator stops a run that has no limit; time of a first step that compiles over that of other steps, at least."""
OFTEN_GROWN, FAR_NARROWER, TRIED_AGAIN = 0.3, 3.0, 1.4
"""Share of steps in which an allocator grows, at most; interval asked for over the one reached, usually at most; steps between two looks at
it, twice the 1.15 of the harness."""
SPIKE, FEWEST_LOSSES, FASTEST_FIRST = 10.0, 10, 0.9
LONG_FIRST_S, LONG_FIRST = 3.0, 15.0
"""A first step on a CPU is unlikely above both: seconds, and a multiple of the median of later steps."""
LONGEST_SILENCE, SLOW_STEPS = 4, 10
"""Times the time limit of a step, and times the slowest step, after which a phase without progress is ended."""
MANY_STEPS, LEAST_SCATTER, NO_SLOW_STEPS = 40, 3e-4, 0.8
"""Steps from which the shape of their times is no chance; range of the middle half of the times of a CPU over their median, at least; and
distance of the slowest from the median over that of the fastest tenth, at least: 1.3 for a uniform distribution, more with slow steps."""
BESIDE, FALLEN, SPREADS = 4, 0.5, 10.0
"""Losses before and after one that it is compared with; share of the lowest of them, and times their range, below which no single loss falls."""


def outcome_problems(submission: Submission, derived: Derived | None) -> Iterator[Problem]:
    """Yield each contradiction between the end of a run and the rest of its record."""
    yield from _stop(submission, derived)
    yield from _status(submission)
    yield from _before_its_phase(submission)
    yield from _not_rankable(submission, derived)


def _planned_steps(s: Submission) -> int | None:
    """Return the number of steps that the plan asks for, or None; how many rows documents are packed into is unknown."""
    data = s.plan.data
    rows = None if data.packing else data.training_rows or (s.row_lengths.rows if s.row_lengths else None)
    return s.plan.planned_steps(rows)


def _stop(s: Submission, derived: Derived | None) -> Iterator[Problem]:
    """Yield more steps than planned, and a successful run that stopped before any of its limits."""
    rules, steps, planned = s.plan.measurement, len(s.trace), _planned_steps(s)
    if planned is not None and steps > planned:
        yield Problem("trace", f"{steps} steps", f"plan.measurement asks for {planned}; a run stops there")
    if s.outcome.status is not Status.OK or not steps or (planned is not None and steps >= planned):
        return
    trained_s = s.trace.completed_at_s[-1] - s.trace.started_at_s
    out_of_time = rules.max_train_s is not None and steps >= rules.min_steps and trained_s >= rules.max_train_s / TIME_TOLERANCE
    rate = derived.tokens_per_s if derived else None
    narrow = rules.until_relative_ci is not None and rate is not None and rate.relative_half_width <= 2 * rules.until_relative_ci
    ended = rules.epochs is None and s.plan.data.source is not DataSource.SYNTHETIC
    if not (out_of_time or narrow or ended):
        fix = f"plan.measurement asks for {planned or 'no number of steps'}, and neither its time limit nor its interval was reached; steps are missing"
        yield Problem("trace", f"{steps} steps", fix)


def _status(s: Submission) -> Iterator[Problem]:
    """Yield statuses that the record does not bear out."""
    status, rules, trace, message = s.outcome.status, s.plan.measurement, s.trace, s.outcome.message or ""
    if status is Status.OK and message and not message.startswith("not rankable"):
        yield Problem("outcome.message", repr(message), "outcome.status is 'ok'; a successful run has no message of a failure")
    if status is Status.OK and not message and s.outcome.fix is not None:
        yield Problem("outcome.fix", repr(s.outcome.fix), "outcome.status is 'ok'; there is nothing to fix")
    if status is not Status.OK and (s.outcome.fix is None or s.outcome.message is None):
        field = "message" if s.outcome.message is None else "fix"
        yield Problem(f"outcome.{field}", "null", f"outcome.status is {status.value!r}; the harness says what happened and how to fix it")
    phases = [mark.phase for mark in s.timeline]
    after = phases[phases.index(Phase.TRAIN) :] if Phase.TRAIN in phases else []
    if s.probe is not None and s.probe.after_flop_per_s is not None and Phase.PROBE not in after:
        yield Problem("probe.after_flop_per_s", f"{s.probe.after_flop_per_s:g}", "timeline has no probe after training")
    if OUT_OF_MEMORY.search(message) and status not in {Status.OOM_DEVICE, Status.OOM_HOST}:
        yield Problem(
            "outcome.status", repr(status.value), "the message says that memory ran out; the status is 'oom_device' or 'oom_host'"
        )
    named = next((family for family in OWN_WORDS if f"{family} out of memory" in message), None)
    if named is not None and s.plan.device.backend not in OWN_WORDS[named]:
        fix = f"plan.device.backend is {s.plan.device.backend.value!r}, whose message has other words"
        yield Problem("outcome.message", repr(f"{named} out of memory"), fix)
    elif named is not None and status is Status.OOM_HOST:
        yield Problem("outcome.status", "'oom_host'", "the message says that the memory of the device ran out; the status is 'oom_device'")
    if status is Status.OOM_DEVICE and s.plan.device.backend is Backend.CPU:
        yield Problem("outcome.status", "'oom_device'", "a CPU has the memory of its host; the status is 'oom_host'")
    ended = s.timeline[-1].phase is Phase.TEARDOWN
    if status is Status.INTERRUPTED and ended:
        yield Problem("outcome.status", "'interrupted'", "timeline ends with teardown: everything that was planned is done")
    if status in {Status.OOM_DEVICE, Status.OOM_HOST} and ended:
        yield Problem("outcome.status", repr(status.value), "timeline ends with teardown, which frees memory and needs none")
    missing = [step for step, loss in enumerate(trace.loss, start=1) if loss is None]
    evaluated_nan = s.evaluation is not None and s.evaluation.loss is None
    if status is Status.NAN and not evaluated_nan and missing != [len(trace)]:
        fix = "a run ends with its first loss that is not a finite number, stored as null; there is none at its end"
        yield Problem("outcome.status", "'nan'", fix)
    elif status is not Status.NAN and missing:
        yield Problem("trace.loss", f"null at step {missing[0]}", f"outcome.status is {status.value!r}; the status of such a run is 'nan'")
    fallen = next(_fallen(trace.loss), None)
    if fallen is not None:
        fix = "far below the losses of the steps before and after it; the loss of one step does not fall and rise again like that"
        yield Problem("trace.loss", f"{trace.loss[fallen]:.4g} at step {fallen + 1}", fix)
    negative = next((step for step, loss in enumerate(trace.loss, start=1) if loss is not None and loss < 0), None)
    if negative is not None:
        yield Problem("trace.loss", f"{trace.loss[negative - 1]} at step {negative}", "a cross-entropy is never negative")
    if status is Status.TIMEOUT:
        yield from _timeout(s)
    if status is Status.OOM_DEVICE:
        yield from _out_of_memory(s)
    if status is Status.UNSUPPORTED and len(trace):
        yield Problem("outcome.status", "'unsupported'", f"trace has {len(trace)} steps; a run that trained was supported")
    if status is Status.OK and rules.max_train_s is not None and _planned_steps(s) is None and len(trace) < RANKABLE_STEPS:
        yield Problem("outcome.status", "'ok'", f"{len(trace)} steps within the time limit; the status of such a run is 'timeout'")


def _before_its_phase(s: Submission) -> Iterator[Problem]:
    """Yield facts of a model that the run had not loaded."""
    phases = [mark.phase for mark in s.timeline]
    for name in ("model", "effective", "gates"):
        if getattr(s, name) and phases[-1] in {Phase.IMPORT, Phase.DATA} and Phase.LOAD not in phases:
            yield Problem(name, "", f"must be absent: the timeline ends in phase {phases[-1].value}, before load")


def _fallen(losses: Sequence[float | None]) -> Iterator[int]:
    """Yield the positions of losses far below those around them."""
    for position, loss in enumerate(losses):
        around = [*losses[max(0, position - BESIDE) : position], *losses[position + 1 : position + 1 + BESIDE]]
        known = [other for other in around if other is not None]
        if loss is not None and len(known) > BESIDE and position + 1 < len(losses):
            lowest = min(known)
            if loss < lowest - max((1 - FALLEN) * lowest, SPREADS * (max(known) - lowest)):
                yield position


def _not_rankable(s: Submission, derived: Derived | None) -> Iterator[Problem]:
    message = s.outcome.message or ""
    after, found = max(0, len(s.trace) - s.plan.measurement.min_warmup_steps), LEFT.match(message)
    if found and s.outcome.status is Status.OK and (int(found[1]) != after or after >= RANKABLE_STEPS):
        fix = f"the trace has {after} steps after warm-up, and a rank needs {RANKABLE_STEPS}"
        yield Problem("outcome.message", repr(message), fix)
    elif s.outcome.status is Status.OK and not message and after < RANKABLE_STEPS:
        fix = f"the trace has {after} steps after warm-up, and a rank needs {RANKABLE_STEPS}; the harness says that it is not rankable"
        yield Problem("outcome.message", "null", fix)
    elif derived is not None and derived.rankable and message.startswith("not rankable"):
        yield Problem("outcome.message", repr(message), "the record has enough steps after warm-up; keep the original record")


def _out_of_memory(s: Submission) -> Iterator[Problem]:
    """Yield a failure for lack of device memory whose own figures are not those of the record."""
    total, used = TOTAL.search(s.outcome.message or ""), IN_USE.search(s.outcome.message or "")
    memory = s.environment.devices[0].memory_bytes
    peak = s.memory.device_reserved.peak_bytes or s.memory.device_allocated.peak_bytes
    if total and memory and abs(float(total[1]) * GIB / memory - 1) > GIB_TOLERANCE:
        yield Problem("outcome.message", total[0], f"the device has {memory / GIB:.2f} GiB")
    asked, free, device = (pattern.search(s.outcome.message or "") for pattern in (ASKED, FREE, DEVICE))
    if total and used and free and _gib(free) + float(used[1]) > float(total[1]) * (1 + GIB_TOLERANCE):
        yield Problem("outcome.message", f"{free[0]}, {used[0]}", f"together more than the {total[1]} GiB of the device")
    if asked and free and _gib(free) > 2 * _gib(asked):
        yield Problem("outcome.message", f"{asked[0]}, {free[0]}", "memory does not run out while twice as much is free as is asked for")
    if device and int(device[1]) >= s.plan.device.count // s.plan.device.nodes:
        yield Problem("outcome.message", device[0], f"the run used {s.plan.device.count} devices, which torch counts from 0")
    if KILLED.search(s.outcome.message or ""):
        yield Problem("outcome.status", "'oom_device'", "the system kills processes for lack of host memory; the status is 'oom_host'")
    if used and peak and len(s.trace) and peak < float(used[1]) * GIB * USED_TOLERANCE:
        fix = f"the message says that {used[1]} GiB were in use when memory ran out; check the unit"
        yield Problem("memory.device_allocated.peak_bytes", str(peak), fix)


def _gib(found: re.Match[str]) -> float:
    return float(found[1]) / {"GiB": 1, "MiB": 2**10, "KiB": 2**20}[found[2]]


def unlikely(s: Submission, derived: Derived) -> Iterator[Problem]:
    """Yield what is possible, but unlikely: a reason to ask for a second run."""
    peak, total = s.memory.host_rss.peak_bytes, s.environment.memory_bytes
    if s.outcome.status is Status.OOM_HOST and peak is not None and peak < MEMORY_SHORT * total and "memory limited" not in _point(s):
        yield Problem("outcome.status", "'oom_host'", f"the run held only {peak / total:.1%} of the memory of its host")
    used_s, system_s = s.process.user_s, s.process.system_s
    if used_s is not None and system_s is not None and system_s > max(used_s, SHORT_CPU_S):
        fix = f"more than the {used_s:g} s of the program itself; training computes or waits in it"
        yield Problem("process.system_s", f"{system_s:g} s", fix)
    grown = {event.step for event in s.events if event.kind == "allocator_growth"}
    if len(grown) > OFTEN_GROWN * len(s.trace) and len(s.trace) >= RANKABLE_STEPS:
        fix = "an allocator grows in the first steps, and keeps what it has reserved"
        yield Problem("events", f"allocator_growth in {len(grown)} of {len(s.trace)} steps", fix)
    if s.plan.model.compile == "none" and s.plan.model.compile_mode != type(s.plan.model).model_fields["compile_mode"].default:
        yield Problem("plan.model.compile_mode", repr(s.plan.model.compile_mode), "plan.model.compile is 'none'; the mode has no effect")
    marks = s.plan.device.backend in {Backend.CUDA, Backend.ROCM}
    if marks and s.plan.batch.gradient_accumulation > 1 and len(s.trace) and not s.trace.micro_completed_at_s:
        yield Problem("trace.micro_completed_at_s", "none", "the harness times the micro-steps of each step on this device")
    yield from _past_its_interval(s, derived)
    yield from _times(s)
    if s.outcome.status is Status.CRASH and s.timeline[-1].phase is Phase.TEARDOWN:
        yield Problem(
            "outcome.status", "'crash'", "timeline ends with teardown: all measurements were done, and hardly anything was left to fail"
        )
    held, device = s.memory.device_reserved.peak_bytes, s.environment.devices[0].memory_bytes
    ending_s = s.process.wall_s - s.timeline[-1].at_s
    if s.outcome.status is Status.OK and ending_s > max(LONG_END_S, s.process.wall_s * LONG_END):
        yield Problem(
            "process.wall_s", f"{s.process.wall_s:g} s", f"{ending_s:.0f} s of it after the last phase began; teardown takes seconds"
        )
    last_s = max(s.timeline[-1].at_s, s.trace.completed_at_s[-1] if len(s.trace) else 0.0)
    waited_s = s.plan.measurement.no_step_s or LONGEST_WAIT_S
    if s.outcome.status not in {Status.OK, Status.TIMEOUT} and s.process.wall_s - last_s > waited_s * TIME_TOLERANCE + LONG_END_S:
        fix = f"{s.process.wall_s - last_s:.0f} s of it after its last sign of progress; a run that fails ends, or is ended, before"
        yield Problem("process.wall_s", f"{s.process.wall_s:g} s", fix)
    repeat = re.search(r", repeat (\d+)$", _point(s))
    if repeat and s.study and s.study.kind == "repeat" and s.study.position > LATEST_REPEAT * int(repeat[1]) + RANKABLE_STEPS:
        fix = f"{s.study.point!r} is repeat {repeat[1]} of its study; it comes that late only after many runs that were stopped"
        yield Problem("study.position", str(s.study.position), fix)
    if not s.started_at.microsecond:
        yield Problem("started_at", s.started_at.isoformat(), "is a whole second; the harness records microseconds")
    times = s.trace.step_times_s
    if compiled_cold(s) and len(times) > FEWEST_LOSSES and times[0] < SLOWER_COMPILED * median(times[1:]):
        fix = f"the others took {median(times[1:]):.3g} s, and the first one compiled graphs for a cold cache, which takes seconds"
        yield Problem("trace.completed_at_s", f"{times[0]:.3g} s for the first step", fix)
    if 1 in grown and len(times) > FEWEST_LOSSES and times[0] < FASTEST_FIRST * min(times[1:]):
        fix = f"the others took {min(times[1:]):.3g} s at least, and the allocator grew in the first one; it is seldom the fastest"
        yield Problem("trace.completed_at_s", f"{times[0]:.3g} s for the first step", fix)
    yield from _long_first_step(s)
    finite = [loss for loss in s.trace.loss if loss is not None]
    if len(finite) > FEWEST_LOSSES and max(finite[1:]) > SPIKE * max(median(finite), finite[0]):
        yield Problem(
            "trace.loss",
            f"{max(finite[1:]):g}",
            f"{SPIKE:g} times the usual loss, {median(finite):.3g}; training seldom recovers from that",
        )
    if s.outcome.status is Status.OOM_DEVICE and held is not None and device and held < device / 2:
        yield Problem("outcome.status", "'oom_device'", f"the run held only {held / device:.1%} of the memory of its device")


def _times(s: Submission) -> Iterator[Problem]:
    """Yield times of equal steps that scatter less than clocks and hosts allow, or that have no slow ones; and a compilation without effect."""
    times, slots = np.asarray(s.trace.step_times_s[1:]), np.asarray(s.trace.slot_tokens[1:], dtype=float)
    for step in sorted(compile_steps(s) - {1}):
        if step <= len(times) and len(times) > FEWEST_LOSSES and times[step - 2] < SLOWER_COMPILED * float(np.median(times)):
            fix = f"the others took {np.median(times):.3g} s; compiling graphs takes seconds"
            yield Problem("events", f"compile in step {step}, which took {times[step - 2]:.3g} s", fix)
    if s.plan.device.backend is not Backend.CPU or len(times) < MANY_STEPS or np.ptp(slots) > 0:
        return
    low, middle, quarter, three_quarters = np.percentile(times, (10, 50, 25, 75))
    if three_quarters - quarter < LEAST_SCATTER * middle:
        fix = f"the middle half of {len(times)} steps within {(three_quarters - quarter) / middle:.1e} of each other; clocks of CPUs change more"
        yield Problem("trace.completed_at_s", f"{middle:.4g} s", fix)
    elif times.max() - middle < NO_SLOW_STEPS * (middle - low):
        fix = f"above the slowest of {len(times)} steps is an edge, {times.max() / middle - 1:.1%} above their median; a host delays some steps"
        yield Problem("trace.completed_at_s", f"{times.max():.4g} s", fix)


def _long_first_step(s: Submission) -> Iterator[Problem]:
    """Yield a first step that took far longer than the others, on a CPU without a compiler: time may have been moved into it."""
    times = s.trace.step_times_s
    compiled = s.plan.model.compile != "none" or any(event.kind == "compile" for event in s.events)
    if s.plan.device.backend is not Backend.CPU or compiled or len(times) <= FEWEST_LOSSES:
        return
    if times[0] > max(LONG_FIRST_S, LONG_FIRST * median(times[1:])):
        fix = f"the others took {median(times[1:]):.3g} s, and nothing was compiled; on a CPU the first step takes about as long as the others"
        yield Problem("trace.completed_at_s", f"{times[0]:.3g} s for the first step", fix)


def _past_its_interval(s: Submission, derived: Derived) -> Iterator[Problem]:
    """Yield a run that went on although the interval that it was to reach is far narrower by now. Width falls as 1 / sqrt(steps)."""
    rules, rate, window = s.plan.measurement, derived.tokens_per_s, derived.window
    limit, times = rules.until_relative_ci, s.trace.step_times_s
    # Before that, there was no steady window to judge.
    earlier = times[rules.min_warmup_steps : int(len(times) / TRIED_AGAIN)]
    enough = len(earlier) >= rules.min_steady_steps or sum(earlier) >= rules.min_steady_s
    narrow = limit is not None and rate is not None and rate.relative_half_width < limit / FAR_NARROWER
    if enough and narrow and window is not None and window.stable and rate is not None:
        fix = f"plan.measurement.until_relative_ci is {limit:g}, and the interval is +-{rate.relative_half_width:.2%}; such a run ends earlier"
        yield Problem("trace", f"{len(s.trace)} steps", fix)


def _point(s: Submission) -> str:
    return s.study.point if s.study else ""


def _timeout(s: Submission) -> Iterator[Problem]:
    rules, trace, wall_s = s.plan.measurement, s.trace, s.process.wall_s
    last_s = max(s.timeline[-1].at_s, trace.completed_at_s[-1] if len(trace) else 0.0)
    trained_s = trace.completed_at_s[-1] - trace.started_at_s if len(trace) else 0.0
    limits = (
        (rules.timeout_s, wall_s),
        (rules.no_step_s, wall_s - last_s),
        (rules.max_train_s if len(trace) < rules.min_warmup_steps + RANKABLE_STEPS else None, trained_s),
    )
    if not any(limit is not None and reached >= limit / TIME_TOLERANCE - 1 for limit, reached in limits):
        fix = f"the run ended {wall_s:.0f} s after its start and {wall_s - last_s:.0f} s after its last sign of progress, without reaching any of its limits"
        yield Problem("outcome.status", "'timeout'", fix)
    silent_s, slowest_s = wall_s - last_s, max(trace.step_times_s, default=0.0)
    if (
        rules.no_step_s is not None
        and silent_s > max(LONGEST_SILENCE * rules.no_step_s, SLOW_STEPS * slowest_s) * TIME_TOLERANCE + LONG_END_S
    ):
        fix = f"{silent_s:.0f} s after its last sign of progress; no phase may last longer than {LONGEST_SILENCE:g} times no_step_s, {rules.no_step_s:g}"
        yield Problem("process.wall_s", f"{wall_s:g} s", fix)
