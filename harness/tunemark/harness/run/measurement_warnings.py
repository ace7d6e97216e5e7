"""Reasons to trust a measurement less, each a typed warning that is stored with the result."""

from collections.abc import Iterator, Mapping

from tunemark.harness.plan.machine import Machine
from tunemark.schema.derive import Derived
from tunemark.schema.records.effective import compared
from tunemark.schema.records.submission import Submission, Utilisation, Warned
from tunemark.schema.records.trace import Probe
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import Doubt, Weights

BUSY_HOST_CORES = 0.25
WIDE_INTERVAL = 0.02
LOW_DISK_BYTES = 2 * 2**30
FALLEN_PEAK = 0.05
RISEN_PEAK = 0.2
SLOW_RANK = 0.05
BUSY_DEVICE_BYTES = 2**30
RANDOM_WEIGHTS = "speed and memory are those of the architecture, loss and accuracy are not those of the pretrained model"


def find_warnings(
    submission: Submission, derived: Derived, machine: Machine, *, torn: bool, foreign: Mapping[int, int]
) -> Iterator[Warned]:
    """Yield reasons to trust the measurement less; `foreign` counts processes on each device that are none of the worker's."""
    yield from _of_steps(derived)
    yield from _of_gates_and_levers(submission)
    if submission.utilisation:
        yield from _of_use(submission.utilisation, machine)
    for index, count in foreign.items():
        message = f"{count} process{'es' * (count != 1)} of others used device {index}; end them and repeat"
        yield Warned(doubt=Doubt.BUSY_DEVICE, message=message)
    yield from probe_warnings(submission.probe)
    if derived.slowest_rank and derived.slowest_rank.behind > SLOW_RANK:
        rank = derived.slowest_rank
        message = f"rank {rank.rank} needs {rank.behind:.0%} longer for its own work than the median of all ranks"
        yield Warned(doubt=Doubt.STRAGGLER, message=message)
    if submission.plan.device.accelerator is None:
        yield Warned(doubt=Doubt.UNKNOWN_ACCELERATOR, message=submission.plan.reasons["device.accelerator"])
    if submission.plan.model.weights is Weights.RANDOM:
        yield Warned(doubt=Doubt.RANDOM_WEIGHTS, message=RANDOM_WEIGHTS)
    if submission.harness.dirty:
        yield Warned(doubt=Doubt.DIRTY_SOURCE, message="the checkout had changes that are not committed")
    if machine.free_disk_bytes < LOW_DISK_BYTES:
        yield Warned(doubt=Doubt.LOW_DISK, message=f"{machine.free_disk_bytes / 2**30:.1f} GiB of disk were free")
    if torn:
        yield Warned(doubt=Doubt.TRUNCATED_LOG, message="a line of the worker's log was cut off and left out")


def probe_warnings(probe: Probe | None) -> Iterator[Warned]:
    if probe and probe.after_flop_per_s:
        change = probe.after_flop_per_s / probe.before_flop_per_s - 1
        if change < -FALLEN_PEAK:
            yield Warned(
                doubt=Doubt.PEAK_FELL, message=f"the matrix rate was {-change:.0%} lower after training than before: heat, or other work"
            )
        elif change > RISEN_PEAK:
            yield Warned(
                doubt=Doubt.PEAK_ROSE,
                message=f"the matrix rate was {change:.0%} higher after training than before: other work, which may have slowed the run too",
            )


def _of_steps(derived: Derived) -> Iterator[Warned]:
    window, rate = derived.window, derived.tokens_per_s
    if window is not None and window.steps < RANKABLE_STEPS:
        yield Warned(doubt=Doubt.FEW_STEPS, message=window.verdict)
    elif window is not None and not window.stable:
        yield Warned(doubt=Doubt.NOT_STABLE, message=window.verdict)
    if rate is not None and rate.bounded and rate.relative_half_width > WIDE_INTERVAL:
        yield Warned(doubt=Doubt.WIDE_INTERVAL, message=f"the 95% interval of throughput is +-{rate.relative_half_width:.1%}")


def _of_gates_and_levers(submission: Submission) -> Iterator[Warned]:
    for gate in submission.gates:
        if gate.passed is False:
            yield Warned(doubt=Doubt.GATE_FAILED, message=f"{gate.name}: {gate.detail}")
    if submission.effective:
        for lever in compared(submission.plan, submission.effective, submission.trace):
            if lever.agrees is False:
                message = f"{lever.setting} {lever.requested} was asked for, {lever.effective} was used"
                yield Warned(doubt=Doubt.FALLBACK, message=message)


def _of_use(use: Utilisation, machine: Machine) -> Iterator[Warned]:
    foreign = use.foreign_cpu_busy_mean
    if foreign is not None and foreign > BUSY_HOST_CORES:
        yield Warned(
            doubt=Doubt.BUSY_HOST,
            message=f"other processes kept {foreign:.1f} of {machine.cpu_logical_cores} cores busy; repeat on an idle machine",
        )
    for device in use.devices:
        if (device.memory_used_before_bytes or 0) > BUSY_DEVICE_BYTES:
            held = (device.memory_used_before_bytes or 0) / 2**30
            message = f"{held:.1f} GiB of device {device.index} were in use before the run; free it and repeat"
            yield Warned(doubt=Doubt.BUSY_DEVICE, message=message)
        if device.throttle_reasons:
            message = f"device {device.index} lowered its clocks: {', '.join(device.throttle_reasons)}"
            yield Warned(doubt=Doubt.THROTTLED, message=message)
