"""Whether what a run saw beside its steps can be: ranks, world size, probe, device use, energy, gates."""

from collections.abc import Iterator

from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import part_of_card
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import DeviceUse
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.statistics.loss_band import loss_band
from tunemark.schema.vocabulary import Status

CLOCK_TOLERANCE = 1.05
"""Ranks have clocks of their own, which begin a moment apart."""
CLOCK_SLACK_S = 5.0
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
        if own_s > steps_s * CLOCK_TOLERANCE + CLOCK_SLACK_S:
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
