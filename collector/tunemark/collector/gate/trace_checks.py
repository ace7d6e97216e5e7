"""Checks of the step log against the plan, the time line, the CPU time and the processes of the same run.

Each function yields one kind of problem. The tolerances are for clock ticks and rounding only: every run of the harness is exact.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil, log

import numpy as np

from tunemark.schema.derive import Derived
from tunemark.schema.formats import GIB
from tunemark.schema.records.submission import Submission, Utilisation
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import Backend, DataSource, Padding, Phase, Status, Task

CLOCK_TOLERANCE = timedelta(days=1)
"""Clocks are often wrong by hours but seldom by days."""
FIRST_RUN = datetime(2026, 11, 1, tzinfo=UTC)
"""No harness existed before."""
TIME_TOLERANCE = 1.05
"""Tolerance for clock ticks, processes that end late, and separate clocks of ranks."""
RANK_SLACK_S = 5.0
TICK_S, LONGEST_GAP_S, GAP_SHARE = 0.01, 0.25, 0.01
"""Training starts and ends with its phase. In every run here the difference was below 1 ms."""
BEFORE_TRAINING = {Phase.IMPORT, Phase.DATA, Phase.LOAD, Phase.CHECK, Phase.PROBE}
AFTER_TRAINING = {Phase.PROBE, Phase.EVAL, Phase.SAVE, Phase.TEARDOWN}
SHORTEST_IMPORT_S = 0.02
"""Even a process that starts with its libraries loaded needs longer."""
BUSY_TRAINING = 0.02
"""Share of one core that training keeps busy at least: the host submits all work, and computes it on a CPU."""
SMOOTH, DISTINCT = 0.05, 0.6
FEWEST_STEPS = 20
"""Steps from which regularity is no chance."""
SAME_S = 1e-6
LEARNED_AT_ONCE = 0.5
"""The second to fifth loss of random weights over the first: one update never halves the loss of a language model."""
SHORTEST_UPDATE = 0.3
"""Time of the last micro-step over that of its step: the update takes less than the rest."""
SHORTEST_PROBE_S = 0.1
LONGEST_TEARDOWN_S = 120.0
RAM_BYTES_PER_S = 1e12
COPIED = 1e-5
"""Relative difference below which the own work of two processes over many steps is a copy."""


def trace_problems(submission: Submission, derived: Derived | None, now: datetime) -> Iterator[Problem]:
    """Yield each contradiction between the step log and the rest of the record."""
    yield from _clock(submission, now)
    yield from _phases(submission)
    yield from _counts(submission)
    yield from _stop(submission, derived)
    yield from _ending(submission)
    yield from _events(submission)
    yield from _processes(submission)
    yield from _cpu_time(submission)
    yield from _evaluation(submission)
    yield from _row_lengths(submission)
    yield from _regular(submission)
    yield from _micro_steps(submission)
    yield from _limits(submission)


def _clock(s: Submission, now: datetime) -> Iterator[Problem]:
    if s.started_at > now + CLOCK_TOLERANCE:
        yield Problem("started_at", s.started_at.isoformat(), "is in the future; set the clock of the machine and run it again")
    if s.started_at < FIRST_RUN:
        yield Problem("started_at", s.started_at.isoformat(), f"is before {FIRST_RUN:%B %Y}, when the first run was made; set the clock")


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
    if s.timeline[1].at_s < SHORTEST_IMPORT_S:
        fix = f"importing the libraries takes longer than {SHORTEST_IMPORT_S} s; times count from the spawn of the worker"
        yield Problem("timeline.1.at_s", f"{s.timeline[1].at_s:g} s", fix)
    yield from _training_fills_its_phase(s, start)


def _expected_phases(s: Submission, phases: Sequence[Phase]) -> Iterator[Problem]:
    """Yield phases of a run that trained which its plan does not have, and missing ones."""
    rules, ended = s.plan.measurement, s.outcome.status is Status.OK
    begun, done = phases[: phases.index(Phase.TRAIN)], phases[phases.index(Phase.TRAIN) :]
    if s.plan.device.backend is Backend.NEURON:
        return
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
    probing = [after.at_s - mark.at_s for mark, after in zip(s.timeline, s.timeline[1:], strict=False) if mark.phase is Phase.PROBE]
    if s.probe is not None and probing and min(probing) < SHORTEST_PROBE_S:
        yield Problem("timeline", f"{min(probing):g} s of probe", "a probe multiplies matrices for half a second")
    weights = sum(s.model.parameter_bytes.values()) if s.model else 0
    if lasted[Phase.LOAD] < weights / RAM_BYTES_PER_S:
        yield Problem("timeline", f"{lasted[Phase.LOAD]:g} s of load", f"{weights:,} bytes of weights are not made in this time")


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


def _counts(s: Submission) -> Iterator[Problem]:
    """Yield counts of tokens, documents and rows that the plan does not give."""
    data, batch, trace = s.plan.data, s.plan.batch, s.trace
    device = s.plan.device
    group = device.tensor_parallel * device.pipeline_parallel
    if batch.data_parallel * group != device.count and s.outcome.status is not Status.UNSUPPORTED:
        fix = f"x {group} devices of a model replica are not the {device.count} of plan.device.count"
        yield Problem("plan.batch.data_parallel", str(batch.data_parallel), fix)
    if not len(trace):
        return
    slots, real, supervised, documents, rows = (
        np.asarray(getattr(trace, name)) for name in ("slot_tokens", "real_tokens", "supervised_tokens", "documents", "rows")
    )
    # Only the step at the end of finite data may be smaller.
    short = np.flatnonzero(rows[:-1] < batch.global_batch) if _finite(s) else np.flatnonzero(rows < batch.global_batch)
    if len(short):
        fix = f"step {short[0] + 1} has fewer than the {batch.global_batch} rows of plan.batch.global_batch; steps are full until the data ends"
        yield Problem("trace.rows", str(rows[short[0]]), fix)
    if data.packing:
        whole = rows * data.sequence_length
        pieces = real - supervised
        # A row cuts at most one document in two at each of its ends.
        fewest, most = rows, documents + 2 * rows
        wrong = (slots != whole) | (real != whole) | (pieces < fewest) | (pieces > most) | (documents > pieces)
        if not data.document_borders:
            wrong = (slots != whole) | (real != whole) | (pieces != rows)
        fix = f"packed rows are full ({data.sequence_length} tokens), and each of their documents has one token without a label"
    else:
        expected = real - rows if s.plan.model.task is Task.CAUSAL_LM else rows
        wrong = (documents != rows) | (supervised != expected) | (real > slots)
        fix = "rows that are not packed hold one document each; in a language model all of its tokens but one have a label, in classification one"
        full = data.padding is Padding.STATIC
        wrong |= (slots != rows * data.sequence_length) if full else np.zeros_like(wrong)
        wrong |= (
            (real != slots) if data.padding is Padding.NONE else (slots % np.maximum(1, rows) != 0) & (batch.gradient_accumulation == 1)
        )
        wrong |= slots > rows * data.sequence_length
    if wrong.any():
        step = int(np.flatnonzero(wrong)[0])
        counted = f"slots {slots[step]}, real {real[step]}, supervised {supervised[step]}, documents {documents[step]}, rows {rows[step]}"
        yield Problem(_column_of(s, step), f"step {step + 1}: {counted}", f"{fix}; padding is {data.padding.value!r}")
    elif not documents.sum():
        yield Problem("trace.documents", "0 in all steps", "a run trains on documents; keep the original record")


def _column_of(s: Submission, step: int) -> str:
    """Return the column that is most likely wrong in a step."""
    trace, data = s.trace, s.plan.data
    slots, real, documents, rows = trace.slot_tokens[step], trace.real_tokens[step], trace.documents[step], trace.rows[step]
    if not data.packing and documents != rows:
        return "trace.documents"
    filled = data.padding is Padding.NONE or data.packing
    if filled and real != slots:
        return "trace.real_tokens"
    return "trace.slot_tokens" if data.packing and slots != rows * data.sequence_length else "trace.supervised_tokens"


def _finite(s: Submission) -> bool:
    return s.plan.data.training_rows is not None or s.plan.data.source is not DataSource.SYNTHETIC


def _planned_steps(s: Submission) -> int | None:
    """Return the number of steps that the plan asks for, or None."""
    rules, limits = s.plan.measurement, []
    if rules.max_steps is not None:
        limits.append(rules.max_steps)
    total = s.plan.data.training_rows or (s.row_lengths.rows if s.row_lengths and not s.plan.data.packing else None)
    if rules.epochs is not None and total is not None and not s.plan.data.packing:
        limits.append(ceil(total * rules.epochs / s.plan.batch.global_batch))
    return min(limits) if limits else None


def _stop(s: Submission, derived: Derived | None) -> Iterator[Problem]:
    """Yield more steps than planned, and a successful run that stopped before any of its limits."""
    rules, steps, planned = s.plan.measurement, len(s.trace), _planned_steps(s)
    if planned is not None and steps > planned:
        yield Problem("trace", f"{steps} steps", f"plan.measurement asks for {planned}; a run stops there")
    if s.outcome.status is not Status.OK or planned is None or steps >= planned:
        return
    trained_s = s.trace.completed_at_s[-1] - s.trace.started_at_s
    out_of_time = rules.max_train_s is not None and steps >= rules.min_steps and trained_s >= rules.max_train_s / TIME_TOLERANCE
    rate = derived.tokens_per_s if derived else None
    narrow = rules.until_relative_ci is not None and rate is not None and rate.relative_half_width <= 2 * rules.until_relative_ci
    ended = rules.epochs is None and s.plan.data.source is not DataSource.SYNTHETIC
    if not (out_of_time or narrow or ended):
        fix = f"plan.measurement asks for {planned}, and neither its time limit nor its interval was reached; steps are missing"
        yield Problem("trace", f"{steps} steps", fix)


def _ending(s: Submission) -> Iterator[Problem]:
    """Yield statuses that the record does not bear out."""
    status, rules, trace = s.outcome.status, s.plan.measurement, s.trace
    message = s.outcome.message or ""
    if status is Status.OK and message and not message.startswith("not rankable"):
        yield Problem("outcome.message", repr(message), "outcome.status is 'ok'; a successful run has no message of a failure")
    if status is Status.OK and not message and s.outcome.fix is not None:
        yield Problem("outcome.fix", repr(s.outcome.fix), "outcome.status is 'ok'; there is nothing to fix")
    phases = [mark.phase for mark in s.timeline]
    after = phases[phases.index(Phase.TRAIN) :] if Phase.TRAIN in phases else []
    if s.probe is not None and s.probe.after_flop_per_s is not None and Phase.PROBE not in after:
        yield Problem("probe.after_flop_per_s", f"{s.probe.after_flop_per_s:g}", "timeline has no probe after training")
    if (
        status is Status.TIMEOUT
        and rules.timeout_s is not None
        and s.process.wall_s > rules.timeout_s * TIME_TOLERANCE + LONGEST_TEARDOWN_S
    ):
        yield Problem(
            "process.wall_s", f"{s.process.wall_s:g} s", f"plan.measurement.timeout_s is {rules.timeout_s:g}; such a run is ended then"
        )
    if OUT_OF_MEMORY.search(message) and status not in {Status.OOM_DEVICE, Status.OOM_HOST}:
        yield Problem(
            "outcome.status", repr(status.value), "the message says that memory ran out; the status is 'oom_device' or 'oom_host'"
        )
    if status is Status.OOM_DEVICE and s.plan.device.backend is Backend.CPU:
        yield Problem("outcome.status", "'oom_device'", "a CPU has the memory of its host; the status is 'oom_host'")
    if status is Status.INTERRUPTED and s.timeline[-1].phase is Phase.TEARDOWN:
        yield Problem("outcome.status", "'interrupted'", "timeline ends with teardown: everything that was planned is done")
    missing = [step for step, loss in enumerate(trace.loss, start=1) if loss is None]
    evaluated_nan = s.evaluation is not None and s.evaluation.loss is None
    if status is Status.NAN and not evaluated_nan and missing != [len(trace)]:
        fix = "a run ends with its first loss that is not a finite number, stored as null; there is none at its end"
        yield Problem("outcome.status", "'nan'", fix)
    elif status is not Status.NAN and missing:
        yield Problem("trace.loss", f"null at step {missing[0]}", f"outcome.status is {status.value!r}; the status of such a run is 'nan'")
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


OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemoryError|can.t allocate memory|cannot allocate memory", re.IGNORECASE)
TOTAL, IN_USE = re.compile(r"total capacity of ([\d.]+) GiB"), re.compile(r"this process has ([\d.]+) GiB")
GIB_TOLERANCE, USED_TOLERANCE = 0.05, 0.6


def _out_of_memory(s: Submission) -> Iterator[Problem]:
    """Yield a failure for lack of device memory whose own figures are not those of the record."""
    total, used = TOTAL.search(s.outcome.message or ""), IN_USE.search(s.outcome.message or "")
    memory = s.environment.devices[0].memory_bytes
    peak = s.memory.device_reserved.peak_bytes or s.memory.device_allocated.peak_bytes
    if total and memory and abs(float(total[1]) * GIB / memory - 1) > GIB_TOLERANCE:
        yield Problem("outcome.message", total[0], f"the device has {memory / GIB:.2f} GiB")
    if used and peak and len(s.trace) and peak < float(used[1]) * GIB * USED_TOLERANCE:
        fix = f"the message says that {used[1]} GiB were in use when memory ran out; check the unit"
        yield Problem("memory.device_allocated.peak_bytes", str(peak), fix)


MEMORY_SHORT = 0.1


def unlikely(s: Submission) -> Iterator[Problem]:
    """Yield what is possible, but unlikely: a reason to ask for a second run."""
    peak, total = s.memory.host_rss.peak_bytes, s.environment.memory_bytes
    if s.outcome.status is Status.OOM_HOST and peak is not None and peak < MEMORY_SHORT * total and "memory limited" not in _point(s):
        yield Problem("outcome.status", "'oom_host'", f"the run held {peak / total:.1%} of the memory of its host")
    held, device = s.memory.device_reserved.peak_bytes, s.environment.devices[0].memory_bytes
    if s.outcome.status is Status.OOM_DEVICE and held is not None and device and held < device / 2:
        yield Problem("outcome.status", "'oom_device'", f"the run held {held / device:.1%} of the memory of its device")


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
        fix = f"the run ended {wall_s:.0f} s after its start and {wall_s - last_s:.0f} s after its last sign of progress, before each of its limits"
        yield Problem("outcome.status", "'timeout'", fix)


def _events(s: Submission) -> Iterator[Problem]:
    """Yield compilations in a run that compiled nothing, and growth of an allocator that the device does not have."""
    plan, kinds = s.plan, {event.kind for event in s.events}
    compiles = plan.model.compile != "none" or plan.model.attention == "flex_attention" or plan.device.backend is Backend.NEURON
    if "compile" in kinds and not compiles:
        yield Problem("events", "compile", "plan.model.compile is 'none'; nothing is compiled in such a run")
    if "allocator_growth" not in kinds:
        return
    reserved, grown = s.memory.device_reserved.peak_bytes, sum(event.amount for event in s.events if event.kind == "allocator_growth")
    if plan.device.backend is Backend.CPU:
        yield Problem("events", "allocator_growth", "a CPU has no allocator whose growth is observed")
    elif reserved is not None and grown > reserved * plan.device.count:
        yield Problem("events", f"{grown} bytes", f"the allocator reserved {reserved} bytes at most; growth cannot exceed that")


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
        if own_s > steps_s * TIME_TOLERANCE + RANK_SLACK_S:
            yield Problem(field, f"{own_s:.1f} s", f"more than the {steps_s:.1f} s of all steps; own work is part of a step")
        longer = [
            step for step, (own, whole) in enumerate(zip(rank.own_work_s, times, strict=False), 1) if own > whole * 1.5 + RANK_SLACK_S
        ]
        if longer:
            yield Problem(field, f"step {longer[0]}", "longer than the step that contains it")
    yield from _copied_ranks([rank.own_work_s for rank in s.ranks])
    for index, rank in enumerate(s.ranks):
        whole = s.memory.host_rss.peak_bytes
        if (
            whole is not None
            and rank.host_rss_bytes is not None
            and s.plan.device.nodes == 1
            and rank.host_rss_bytes > whole * TIME_TOLERANCE
        ):
            yield Problem(f"ranks.{index}.host_rss_bytes", str(rank.host_rss_bytes), f"all processes together peaked at {whole} bytes")


def _copied_ranks(own: Sequence[Sequence[float]]) -> Iterator[Problem]:
    for later in range(1, len(own)):
        for earlier in range(later):
            a, b = np.asarray(own[earlier]), np.asarray(own[later])
            if len(a) != len(b) or len(a) < 3 or not (a > 0).all() or not (b > 0).all():  # noqa: PLR2004 - a ratio needs some steps
                continue
            ratios = b / a
            if ratios.std() < COPIED * ratios.mean() and a.std() > COPIED * a.mean():
                fix = f"the same times as rank {earlier}, step for step; each process is measured by itself"
                yield Problem(f"ranks.{later}.own_work_s", "", fix)
                return


def _cpu_time(s: Submission) -> Iterator[Problem]:
    """Yield CPU seconds that the cores do not have, or without which the run could not have happened."""
    process, environment = s.process, s.environment
    cores, used_s = environment.cpu_logical_cores * s.plan.device.nodes, (process.user_s or 0) + (process.system_s or 0)
    if used_s > (process.wall_s * cores + 1) * TIME_TOLERANCE:
        fix = f"{used_s:.1f} CPU seconds do not fit into {process.wall_s} s on {cores} cores; check the units"
        yield Problem("process.user_s", str(process.user_s), fix)
    if process.user_s is None or not len(s.trace):
        return
    trained_s = s.trace.completed_at_s[-1] - s.trace.started_at_s
    use = s.utilisation
    if use is not None:
        yield from _samples(s, use, trained_s)
    busy_s = BUSY_TRAINING * trained_s + SHORTEST_IMPORT_S
    if use is not None and use.cpu_busy_mean is not None and s.plan.device.nodes == 1:
        window_s = use.samples * use.interval_s
        busy_s = max(busy_s, use.cpu_busy_mean * min(window_s, trained_s) / 2)
        most = environment.cpu_usable_cores * TIME_TOLERANCE + 0.1
        if use.cpu_busy_mean > most:
            fix = f"the process could use {environment.cpu_usable_cores} cores; check how it was sampled"
            yield Problem("utilisation.cpu_busy_mean", f"{use.cpu_busy_mean:g}", fix)
    # A run that was recovered after its parent was killed has no CPU time.
    if used_s < busy_s and s.outcome.status is not Status.CRASH:
        fix = f"{used_s:g} CPU seconds are too few for {trained_s:.1f} s of training after importing the libraries; check the units"
        yield Problem("process.user_s", str(process.user_s), fix)


def _samples(s: Submission, use: Utilisation, trained_s: float) -> Iterator[Problem]:
    """Yield telemetry that does not fit into the time of the run."""
    if use.interval_s < SHORTEST_INTERVAL_S:
        yield Problem("utilisation.samples", f"{use.samples} samples every {use.interval_s:g} s", f"training took {trained_s:.1f} s")
    if use.interval_s > LONGEST_INTERVAL_S or use.samples * use.interval_s > 2 * s.process.wall_s + LONGEST_INTERVAL_S:
        yield Problem("utilisation.interval_s", f"{use.samples} samples every {use.interval_s:g} s", f"training took {trained_s:.1f} s")
    if not use.samples and use.cpu_busy_mean is not None:
        yield Problem("utilisation.samples", "0", "a mean needs a sample")
    mean, peak = use.cpu_busy_mean, use.cpu_busy_peak
    if mean is not None and peak is not None and s.plan.device.nodes == 1 and peak < mean * (1 - 1e-6):
        yield Problem("utilisation.cpu_busy_peak", f"{peak:g}", f"below the mean {mean:g}")
    if mean is not None and s.plan.device.backend is Backend.CPU and mean < BUSY_TRAINING:
        yield Problem("utilisation.cpu_busy_mean", f"{mean:g}", "a CPU that trains is busy")
    for index, device in enumerate(use.devices):
        if device.samples > s.process.wall_s * FASTEST_SAMPLES:
            yield Problem(f"utilisation.devices.{index}.samples", str(device.samples), f"the whole run took {s.process.wall_s:.1f} s")


LONGEST_INTERVAL_S, SHORTEST_INTERVAL_S = 10.0, 0.05
FASTEST_SAMPLES = 200
"""Samples of a device per second that no monitor exceeds."""


def _evaluation(s: Submission) -> Iterator[Problem]:
    """Yield evaluations that the plan does not ask for, missing ones, and an accuracy that its loss rules out."""
    planned, held_out, rules = s.plan.data.evaluation_rows, s.evaluation, s.plan.measurement
    if held_out is None:
        if s.outcome.status is Status.OK and rules.evaluate and s.plan.device.backend is not Backend.NEURON:
            yield Problem("evaluation", "null", "plan.measurement.evaluate is true; a successful run has it")
        return
    if not rules.evaluate:
        yield Problem("evaluation", "", "plan.measurement.evaluate is false; such a run does not evaluate")
    if planned and held_out.rows > planned:
        yield Problem("evaluation.rows", str(held_out.rows), f"plan.data.evaluation_rows is {planned}; no more rows are held out")
    if (held_out.accuracy is not None) != (s.plan.model.task is Task.SEQUENCE_CLASSIFICATION):
        yield Problem("evaluation.accuracy", str(held_out.accuracy), "a classifier has an accuracy, a language model has none")
    labels, loss, accuracy = s.plan.model.labels, held_out.loss, held_out.accuracy
    if loss is None and s.outcome.status is Status.OK:
        yield Problem("evaluation.loss", "null", "outcome.status is 'ok'; a run whose evaluation gives no finite loss is 'nan'")
    if loss is not None and held_out.loss_standard_error is not None and held_out.loss_standard_error > loss:
        yield Problem("evaluation.loss_standard_error", f"{held_out.loss_standard_error:g}", f"above the loss itself, {loss:g}")
    if loss is not None and loss < 0:
        yield Problem("evaluation.loss", f"{loss:g}", "a cross-entropy is never negative")
    if labels is None or loss is None or accuracy is None:
        return
    # A row that is classified correctly has a loss below ln(labels); a wrong one has at least ln 2.
    least, most = (1 - accuracy) * log(2), 0.9 * log(labels) * accuracy + (1 - accuracy) * 30
    if not least * 0.999 <= loss <= most:
        fix = f"with {accuracy:.1%} of rows correct, the mean loss of {labels} classes is between {least:.3g} and {most:.3g}"
        yield Problem("evaluation.accuracy", f"{accuracy:g} with a loss of {loss:g}", fix)
    correct = accuracy * held_out.rows
    if abs(correct - round(correct)) > 1e-6 * held_out.rows:
        yield Problem("evaluation.accuracy", f"{accuracy:g}", f"is no whole number of {held_out.rows} rows; accuracy is a share of them")


def _row_lengths(s: Submission) -> Iterator[Problem]:
    lengths = s.row_lengths
    if lengths is None:
        return
    if not _finite(s):
        yield Problem("row_lengths", f"{lengths.rows} rows", "synthetic rows without end have no lengths; write null")
    longest = s.plan.data.sequence_length
    if not s.plan.data.packing and lengths.maximum > longest:
        yield Problem("row_lengths.maximum", str(lengths.maximum), f"rows are cut to plan.data.sequence_length {longest}")
    if s.plan.data.training_rows is not None and lengths.rows > s.plan.data.training_rows:
        yield Problem("row_lengths.rows", str(lengths.rows), f"plan.data.training_rows is {s.plan.data.training_rows}")
    rows, real = sum(s.trace.rows), sum(s.trace.real_tokens)
    if not s.plan.data.packing and rows >= 50 and not lengths.mean / 3 < real / rows < lengths.mean * 3:  # noqa: PLR2004 - a mean of few rows says little
        fix = f"the rows of the data have {lengths.mean:.0f} tokens on average, those trained on {real / rows:.0f}"
        yield Problem("trace.real_tokens", f"{real} in {rows} rows", fix)


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
    if len(losses) >= FEWEST_STEPS:
        # Losses of real batches jump from step to step by more than they fall.
        smooth = np.median(np.abs(np.diff(losses, 2))) < SMOOTH * np.median(np.abs(np.diff(losses)))
        if smooth or len(np.unique(losses)) < DISTINCT * len(losses) or (losses == np.round(losses)).mean() > 0.5:  # noqa: PLR2004 - half are whole
            yield Problem(
                "trace.loss", f"{len(np.unique(losses))} different values in {len(losses)} steps", "too regular for losses of training"
            )


def _micro_steps(s: Submission) -> Iterator[Problem]:
    micro, times = s.trace.micro_completed_at_s, s.trace.step_times_s
    accumulated, total = s.plan.batch.gradient_accumulation, len(s.trace)
    starts, shares = (s.trace.started_at_s, *s.trace.completed_at_s), []
    for step, inside in enumerate(micro):
        if not inside:
            continue
        if len(inside) != accumulated and not (step == total - 1 and _finite(s)):
            fix = f"plan.batch.gradient_accumulation is {accumulated}; a step has all of its micro-steps"
            yield Problem("trace.micro_completed_at_s", f"{len(inside)} in step {step + 1}", fix)
            return
        shares.append((inside[-1] - starts[step]) / times[step])
    if shares and np.median(shares) < SHORTEST_UPDATE:
        fix = "micro-steps end in the first part of their steps; the update takes less time than they do"
        yield Problem("trace.micro_completed_at_s", f"{np.median(shares):.1%} of a step", fix)


def _limits(s: Submission) -> Iterator[Problem]:
    """Yield runs that are longer than their own limits allow, and results that the plan does not ask for."""
    rules, process, times = s.plan.measurement, s.process, s.trace.step_times_s
    if rules.timeout_s is not None and s.outcome.status is Status.OK and process.wall_s > rules.timeout_s * TIME_TOLERANCE + RANK_SLACK_S:
        yield Problem("process.wall_s", f"{process.wall_s:g} s", f"plan.measurement.timeout_s is {rules.timeout_s:g}; such a run is ended")
    if s.outcome.status is Status.OK:
        last = s.timeline[-1]
        if last.phase is Phase.TEARDOWN and process.wall_s - last.at_s > LONGEST_TEARDOWN_S + last.at_s:
            yield Problem("process.wall_s", f"{process.wall_s:g} s", f"the last phase begins at {last.at_s:g} s; check the unit")
        compiled = any(event.kind == "compile" for event in s.events)
        if rules.max_train_s is not None and len(times) > max(rules.min_steps, 1) and not compiled:
            trained_s = sum(times[1:])
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
    compiles = s.plan.model.compile != "none" or s.plan.model.attention == "flex_attention" or s.plan.device.backend is Backend.NEURON
    if process.compile_cache in {"cold", "warm"} and not compiles and s.plan.model.fused_kernels == "none":
        yield Problem(
            "process.compile_cache", repr(process.compile_cache), "plan.model.compile is 'none'; nothing is compiled in such a run"
        )
    from_hub = (
        s.plan.model.hub_id is not None or s.plan.data.source is DataSource.HUB or s.plan.data.tokenizer not in {"none", "word-level"}
    )
    if process.model_cache != "none" and not from_hub:
        yield Problem("process.model_cache", repr(process.model_cache), "weights and data of this plan come from no hub")
