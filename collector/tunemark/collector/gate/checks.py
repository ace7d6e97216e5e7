"""Checks of one submission against itself and its accelerator card: impossible values and invalid measurements."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import part_of_card
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import Measurement
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.statistics.loss_band import loss_band
from tunemark.schema.vocabulary import Backend, Status

LARGEST_EXACT = 2**53
"""Above this, JSON readers and doubles no longer represent whole numbers exactly."""
LARGEST_SETTING = 2**31
"""Settings are stored as 32-bit numbers."""
UNPRINTABLE = 10**300
CLOCK_TOLERANCE = timedelta(days=1)
"""Clocks are often wrong by hours but seldom by days."""
TIME_TOLERANCE = 1.05
"""Tolerance for clock ticks, processes that end late, and separate clocks of ranks."""
RANK_SLACK_S = 5.0
PEAK_TOLERANCE = 1.05
"""Dense peaks are given for a nominal clock; some devices boost a little above it."""
POWER_TOLERANCE = 1.3
"""Board power is a limit of means over milliseconds; readings overshoot it."""
TERA = 1e12


def record_problems(submission: Submission, facts: FactBase, now: datetime) -> Iterator[Problem]:
    """Yield all problems of a submission that need no other record."""
    # Arithmetic with such numbers would fail.
    yield from list(_sizes(submission)) or _amounts(submission)
    for name in ("min_warmup_steps", "min_steady_steps", "min_steady_s"):
        # A record may not lower the project's own minimum.
        value, minimum = getattr(submission.plan.measurement, name), getattr(Measurement(), name)
        if value < minimum:
            fix = f"below {minimum:g}, the minimum of every measurement; run it again with {minimum:g} or more"
            yield Problem(f"plan.measurement.{name}", f"{value:g}", fix)
    yield from evidence_problems(submission, facts)
    if submission.started_at > now + CLOCK_TOLERANCE:
        yield Problem("started_at", submission.started_at.isoformat(), "is in the future; set the clock of the machine and run it again")


def _duplicates(values: list[str]) -> list[str]:
    return sorted({value for value in values if values.count(value) > 1})


def _sizes(submission: Submission) -> Iterator[Problem]:
    for field, value in flattened(submission.model_dump(mode="json")):
        # Report one problem per column.
        numbers = [number for number in (value if isinstance(value, list) else [value]) if type(number) is int]
        limit = LARGEST_SETTING if field.startswith("plan.") else LARGEST_EXACT
        largest = max(numbers, key=abs, default=0)
        if abs(largest) >= limit:
            shown = f"{largest:.3g}" if abs(largest) < UNPRINTABLE else "a number of hundreds of digits"
            yield Problem(field, shown, f"larger than any plausible count; must be below {limit}")


def _amounts(submission: Submission) -> Iterator[Problem]:
    """Yield a problem for memory beyond the machine, contradictory parameters, times beyond the cores, and repeated overrides."""
    memory, model, process = submission.memory, submission.model, submission.process
    for name in ("device_allocated", "device_reserved", "device_used", "host_rss"):
        capacity = submission.environment.memory_bytes if name == "host_rss" else _device_memory(submission)
        peak = getattr(memory, name).peak_bytes
        if peak is not None and capacity and peak > capacity:
            fix = f"more than the {capacity} bytes there are; check the unit and which device was read"
            yield Problem(f"memory.{name}.peak_bytes", str(peak), fix)
    if model is not None and sum(model.parameter_bytes.values()) >= LARGEST_EXACT:
        yield Problem("model.parameter_bytes", "", f"sums to more than any plausible count; must be below {LARGEST_EXACT}")
    if model is not None and model.trainable_parameters > model.parameters:
        fix = f"more than all {model.parameters} parameters; count tied ones once in both"
        yield Problem("model.trainable_parameters", str(model.trainable_parameters), fix)
    cores, used = submission.environment.cpu_logical_cores, (process.user_s or 0) + (process.system_s or 0)
    if used > (process.wall_s * cores + 1) * TIME_TOLERANCE:
        fix = f"{used:.1f} CPU seconds do not fit into {process.wall_s} s on {cores} cores; check the units"
        yield Problem("process.user_s", str(process.user_s), fix)
    for field in _duplicates([override.field for override in submission.overrides]):
        yield Problem("overrides", repr(field), "is overridden twice; list the value that was used, once")


def _device_memory(submission: Submission) -> int:
    return max((device.memory_bytes or 0 for device in submission.environment.devices), default=0)


def evidence_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each impossible observation: processes, ranks, probe, device use, energy, gates."""
    card = facts.accelerators.get(submission.plan.device.accelerator or "")
    yield from _processes(submission)
    yield from _probe(submission, card)
    yield from _device_use(submission, card)
    yield from _energy(submission, card)
    yield from _gates(submission, facts)


def _processes(submission: Submission) -> Iterator[Problem]:
    """Yield a problem for missing processes, and for each rank with more own work than the steps that contain it."""
    count, effective, times = submission.plan.device.count, submission.effective, submission.trace.step_times_s
    succeeded = submission.outcome.status is Status.OK
    if effective is not None and effective.processes != count:
        fix = f"plan.device.count is {count}; a run with a missing process measures other work; run it again"
        yield Problem("effective.processes", str(effective.processes), fix)
    # XLA has no mark between a process's own work and the exchange of gradients.
    measured = submission.plan.device.backend is not Backend.NEURON
    if effective is not None and succeeded and count > 1 and measured and not submission.ranks:
        yield Problem("ranks", "[]", f"a successful run must list all {count} processes")
    for index, rank in enumerate(submission.ranks):
        field = f"ranks.{index}.own_work_s"
        if succeeded and len(rank.own_work_s) != len(times):
            yield Problem(field, f"{len(rank.own_work_s)} values", f"trace has {len(times)} steps; a rank has one value for each")
        own_s, steps_s = sum(rank.own_work_s), sum(times)
        if own_s > steps_s * TIME_TOLERANCE + RANK_SLACK_S:
            yield Problem(field, f"{own_s:.1f} s", f"more than the {steps_s:.1f} s of all steps; own work is part of a step")


def _probe(submission: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    probe, compute = submission.probe, submission.plan.precision.compute
    if probe is None:
        return
    if probe.dtype is not compute:
        fix = f"plan.precision.compute is {compute.value!r}; the probe must use the format of the run"
        yield Problem("probe.dtype", repr(probe.dtype.value), fix)
    peak, part = (card.peak_tflops.get(probe.dtype), part_of_card(submission, card)) if card else (None, None)
    if card is None or peak is None or part is None:
        return
    # The cores of a CPU may run above the clock of its peak.
    headroom = card.cpu.headroom() if card.cpu else 1.0
    if headroom is None:
        return
    most = part * peak * headroom
    for name in ("before_flop_per_s", "after_flop_per_s"):
        rate = getattr(probe, name)
        if rate is not None and rate > most * TERA * PEAK_TOLERANCE:
            dense = f"{most:g} TFLOP/s {probe.dtype.value}"
            fix = f"above the dense peak of {card.name}, {dense}; the probe did not wait for the device, or the device is another one"
            yield Problem(f"probe.{name}", f"{rate / TERA:.4g} TFLOP/s", fix)


def _device_use(submission: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    devices = submission.utilisation.devices if submission.utilisation else ()
    indexes = [f"node {use.node}, device {use.index}" for use in devices]
    for index in _duplicates(indexes):
        yield Problem("utilisation.devices", index, "is listed twice; list each device once")
    if len(set(indexes)) > submission.plan.device.count:
        fix = f"plan.device.count is {submission.plan.device.count}; list the devices used"
        yield Problem("utilisation.devices", str(len(indexes)), fix)
    memory = _device_memory(submission)
    for position, use in enumerate(devices):
        field = f"utilisation.devices.{position}"
        for name, mean, peak in (("busy_mean", use.busy_mean, use.busy_peak), ("power_mean_w", use.power_mean_w, use.power_peak_w)):
            if mean is not None and peak is not None and mean > peak:
                yield Problem(f"{field}.{name}", f"{mean:g}", f"above its highest sample {peak:g}")
        if card is not None and card.tdp_w and use.power_mean_w is not None and use.power_mean_w > card.tdp_w * POWER_TOLERANCE:
            fix = f"{card.name} has a board power of {card.tdp_w:g} W; check the unit"
            yield Problem(f"{field}.power_mean_w", f"{use.power_mean_w:g} W", fix)
        used = use.memory_used_peak_bytes
        if memory and used is not None and used > memory:
            yield Problem(f"{field}.memory_used_peak_bytes", str(used), f"more than the {memory} bytes there are; check the unit")


def _energy(submission: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    energy = submission.utilisation.energy if submission.utilisation else None
    if energy is None or energy.joules is None:
        return
    if not energy.window_s:
        fix = "energy needs the time between the readings; write both"
        yield Problem("utilisation.energy.window_s", str(energy.window_s), fix)
        return
    if energy.window_s > submission.process.wall_s:
        fix = f"longer than the whole process, {submission.process.wall_s:g} s; it is the time between two readings"
        yield Problem("utilisation.energy.window_s", f"{energy.window_s:g}", fix)
    count, watts = submission.plan.device.count, energy.joules / energy.window_s
    if card is not None and card.tdp_w and watts > count * card.tdp_w * POWER_TOLERANCE:
        fix = f"{watts:,.0f} W on {count} x {card.name} of {card.tdp_w:g} W; check the unit, and that no other device was counted"
        yield Problem("utilisation.energy.joules", f"{energy.joules:g}", fix)


def _gates(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield repeated gates, and a loss band that is reported as passed although the trace is outside it."""
    for name in _duplicates([gate.name for gate in submission.gates]):
        yield Problem("gates", repr(name), "is listed twice; each check must have one verdict")
    reported = next((gate for gate in submission.gates if gate.name == "loss_band"), None)
    plan = submission.plan
    if reported is None or not reported.passed or plan.workload not in facts.workloads:
        return
    checked = loss_band(facts.golden_losses(plan.workload), plan, submission.trace, changed=bool(submission.overrides))
    if checked.passed is False:
        fix = f"the trace disagrees: {checked.detail}; the verdict of a gate must match the trace"
        yield Problem("gates.loss_band", "passed", fix)
