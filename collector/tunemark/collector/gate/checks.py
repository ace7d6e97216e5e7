"""What no machine can have done, and what no measurement may be: checks that need nothing but the record itself."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import part_of_card
from tunemark.schema.records.plan import Measurement
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import DeviceUse
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.statistics.loss_band import loss_band
from tunemark.schema.vocabulary import Status

LARGEST_EXACT = 2**53
"""Above this, readers of JSON and doubles no longer hold whole numbers exactly."""
LARGEST_SETTING = 2**31
"""Settings are stored as 32-bit numbers."""
CPU_TIME_TOLERANCE = 1.05
"""Clock ticks and processes that end late."""
CLOCK_TOLERANCE = timedelta(days=1)
"""Clocks are wrong by hours, seldom by days."""


def impossible(submission: Submission) -> Iterator[Problem]:
    """Yield a problem for each value that cannot be: sizes beyond the machine, times beyond its cores."""
    sizes = list(_sizes(submission))
    if sizes:
        # Arithmetic with such numbers is not even possible.
        yield from sizes
        return
    yield from _memory(submission)
    yield from _model(submission)
    yield from _cpu_time(submission)
    yield from _overrides(submission)


def lenient(submission: Submission) -> Iterator[Problem]:
    """Yield a problem for each rule of measurement that a record sets below the project's own: what is steady is not for a record to say."""
    rules, least = submission.plan.measurement, Measurement()
    for name in ("min_warmup_steps", "min_steady_steps", "min_steady_s"):
        value, minimum = getattr(rules, name), getattr(least, name)
        if value < minimum:
            yield Problem(
                f"plan.measurement.{name}",
                f"{value:g}",
                f"below {minimum:g}, which every measurement keeps to; run it again with {minimum:g} or more",
            )


def from_the_future(submission: Submission, now: datetime) -> Iterator[Problem]:
    """Yield a problem for a run that began later than any clock may be wrong."""
    if submission.started_at > now + CLOCK_TOLERANCE:
        yield Problem("started_at", submission.started_at.isoformat(), "is in the future; set the clock of the machine and run it again")


def _sizes(submission: Submission) -> Iterator[Problem]:
    limits = {"plan": LARGEST_SETTING}
    for field, number in _integers(submission.model_dump(mode="python"), ""):
        limit = limits.get(field.split(".")[0], LARGEST_EXACT)
        if abs(number) >= limit:
            yield Problem(
                field,
                f"{number:.3g}" if abs(number) < 10**300 else "a number of hundreds of digits",
                f"larger than anything that is counted here; must be below {limit}",
            )


def _integers(node: Any, path: str) -> Iterator[tuple[str, int]]:  # noqa: ANN401 - any JSON value
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _integers(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list | tuple):
        # One problem for a whole column is enough.
        whole = [value for value in node if isinstance(value, int)]
        if whole:
            yield path, max(whole)
        for index, value in enumerate(node):
            if isinstance(value, dict):
                yield from _integers(value, f"{path}.{index}")
    elif isinstance(node, int) and not isinstance(node, bool):
        yield path, node


def _memory(submission: Submission) -> Iterator[Problem]:
    device = max((device.memory_bytes or 0 for device in submission.environment.devices), default=0)
    capacities = {
        "device_allocated": device,
        "device_reserved": device,
        "device_used": device,
        "host_rss": submission.environment.memory_bytes,
    }
    for name, capacity in capacities.items():
        peak = getattr(submission.memory, name).peak_bytes
        if peak is not None and capacity and peak > capacity:
            yield Problem(
                f"memory.{name}.peak_bytes",
                str(peak),
                f"more than the {capacity} bytes there are; check the unit and which device was read",
            )


def _model(submission: Submission) -> Iterator[Problem]:
    model = submission.model
    if model is not None and sum(model.parameter_bytes.values()) >= LARGEST_EXACT:
        yield Problem("model.parameter_bytes", "", f"sums to more than anything that is counted here; must be below {LARGEST_EXACT}")
    if model is not None and model.trainable_parameters > model.parameters:
        yield Problem(
            "model.trainable_parameters",
            str(model.trainable_parameters),
            f"more than all {model.parameters} parameters; count tied ones once in both",
        )


def _cpu_time(submission: Submission) -> Iterator[Problem]:
    process, cores = submission.process, submission.environment.cpu_logical_cores
    used = (process.user_s or 0) + (process.system_s or 0)
    if used > (process.wall_s * cores + 1) * CPU_TIME_TOLERANCE:
        yield Problem(
            "process.user_s",
            str(process.user_s),
            f"{used:.1f} CPU seconds do not fit into {process.wall_s} s on {cores} cores; check the units",
        )


def _overrides(submission: Submission) -> Iterator[Problem]:
    fields = [override.field for override in submission.overrides]
    for field in sorted({field for field in fields if fields.count(field) > 1}):
        yield Problem("overrides", repr(field), "is overridden twice; list the value that was used, once")


# MOVE: was tunemark.collector.gate.checks: Whether what a run saw beside its steps can be: ranks, world size, probe, device use, energy, gates.

RANK_CLOCK_TOLERANCE = 1.05
"""Ranks have clocks of their own, which begin a moment apart."""
RANK_CLOCK_SLACK_S = 5.0
PEAK_TOLERANCE = 1.05
"""Dense peaks are given for a nominal clock; some devices boost a little above it."""
POWER_TOLERANCE = 1.3
"""Board power is a limit of means over milliseconds; readings overshoot it."""
TERA = 1e12


def evidence_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each value that no device and no process can have had."""
    card = facts.accelerators.get(submission.plan.device.accelerator or "")
    yield from _world(submission)
    yield from _own_work(submission)
    yield from _probe(submission, card)
    yield from _device_use(submission, card)
    yield from _energy(submission, card)
    yield from _gates(submission, facts)


def _world(submission: Submission) -> Iterator[Problem]:
    count, seen = submission.plan.device.count, submission.effective
    if seen is not None and seen.processes != count:
        fix = f"plan.device.count is {count}; a run in which a process was missing measures other work, run it again"
        yield Problem("effective.processes", str(seen.processes), fix)
    finished = submission.outcome.status is Status.OK and submission.effective is not None
    if finished and count > 1 and not submission.ranks:
        yield Problem("ranks", "[]", f"a run of {count} processes that ended well lists each of them")


def _own_work(submission: Submission) -> Iterator[Problem]:
    """Yield a problem for each rank whose own work is longer than the steps that it is a part of."""
    times = submission.trace.step_times_s
    for index, rank in enumerate(submission.ranks):
        field = f"ranks.{index}.own_work_s"
        if submission.outcome.status is Status.OK and len(rank.own_work_s) != len(times):
            yield Problem(field, f"{len(rank.own_work_s)} values", f"trace has {len(times)} steps; a rank has one value for each")
        own_s, steps_s = sum(rank.own_work_s), sum(times)
        if own_s > steps_s * RANK_CLOCK_TOLERANCE + RANK_CLOCK_SLACK_S:
            yield Problem(field, f"{own_s:.1f} s", f"more than the {steps_s:.1f} s of all steps; own work is a part of a step")


def _probe(submission: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    probe, compute = submission.probe, submission.plan.precision.compute
    if probe is None:
        return
    if probe.dtype is not compute:
        yield Problem(
            "probe.dtype", repr(probe.dtype.value), f"plan.precision.compute is {compute.value!r}; the probe has the format of the run"
        )
    peak, part = (card.peak_tflops.get(probe.dtype), part_of_card(submission, card)) if card else (None, None)
    if card is None or peak is None or part is None:
        return
    for name in ("before_flop_per_s", "after_flop_per_s"):
        rate = getattr(probe, name)
        if rate is not None and rate > part * peak * TERA * PEAK_TOLERANCE:
            fix = f"above the dense peak of {card.name}, {part * peak:g} TFLOP/s {probe.dtype.value}; the device was not waited for, or is another one"
            yield Problem(f"probe.{name}", f"{rate / TERA:.4g} TFLOP/s", fix)


def _device_use(submission: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    devices = submission.utilisation.devices if submission.utilisation else ()
    indexes = [use.index for use in devices]
    for index in sorted({index for index in indexes if indexes.count(index) > 1}):
        yield Problem("utilisation.devices", str(index), "is listed twice; list each device once")
    if len(set(indexes)) > submission.plan.device.count:
        yield Problem(
            "utilisation.devices", str(len(indexes)), f"plan.device.count is {submission.plan.device.count}; list the devices used"
        )
    for position, use in enumerate(devices):
        yield from _one_device(f"utilisation.devices.{position}", use, submission, card)


def _one_device(field: str, use: DeviceUse, submission: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    if use.busy_mean is not None and use.busy_peak is not None and use.busy_mean > use.busy_peak:
        yield Problem(f"{field}.busy_mean", f"{use.busy_mean:g}", f"above its highest sample {use.busy_peak:g}")
    if use.power_mean_w is not None and use.power_peak_w is not None and use.power_mean_w > use.power_peak_w:
        yield Problem(f"{field}.power_mean_w", f"{use.power_mean_w:g}", f"above its highest sample {use.power_peak_w:g}")
    if card is not None and card.tdp_w and use.power_mean_w is not None and use.power_mean_w > card.tdp_w * POWER_TOLERANCE:
        yield Problem(
            f"{field}.power_mean_w", f"{use.power_mean_w:g} W", f"{card.name} has a board power of {card.tdp_w:g} W; check the unit"
        )
    memory = max((device.memory_bytes or 0 for device in submission.environment.devices), default=0)
    if memory and use.memory_used_peak_bytes is not None and use.memory_used_peak_bytes > memory:
        yield Problem(
            f"{field}.memory_used_peak_bytes", str(use.memory_used_peak_bytes), f"more than the {memory} bytes there are; check the unit"
        )


def _energy(submission: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    energy = submission.utilisation.energy if submission.utilisation else None
    if energy is None or energy.joules is None:
        return
    if not energy.window_s:
        yield Problem(
            "utilisation.energy.window_s", str(energy.window_s), "joules without the time between the readings say nothing; write both"
        )
        return
    if energy.window_s > submission.process.wall_s:
        fix = f"longer than the whole process, {submission.process.wall_s:g} s; it is the time between two readings"
        yield Problem("utilisation.energy.window_s", f"{energy.window_s:g}", fix)
    count, watts = submission.plan.device.count, energy.joules / energy.window_s
    if card is not None and card.tdp_w and watts > count * card.tdp_w * POWER_TOLERANCE:
        fix = f"{watts:,.0f} W on {count} x {card.name} of {card.tdp_w:g} W; check the unit, and that no other device was counted"
        yield Problem("utilisation.energy.joules", f"{energy.joules:g}", fix)


def _gates(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield gates that are there twice, and a loss band that says passed where the trace says otherwise."""
    names = [gate.name for gate in submission.gates]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem("gates", repr(name), "is there twice; a check has one verdict")
    said = next((gate for gate in submission.gates if gate.name == "loss_band"), None)
    plan = submission.plan
    if said is None or not said.passed or plan.workload not in facts.workloads:
        return
    found = loss_band(facts.golden_losses(plan.workload), plan, submission.trace, changed=bool(submission.overrides))
    if found.passed is False:
        yield Problem("gates.loss_band", "passed", f"the trace says otherwise: {found.detail}; a gate is not for a record to say")
