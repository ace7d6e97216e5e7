"""Figures that are possible, but unlike those of known runs: each asks for a second run, and none refuses a record.

All statistics of the gate are here. "The real series" are the step times of accelerators in 133 public logs, of up to 600 steps,
each judged as the times of two plans: 266 records.
"""

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from packaging.version import Version

from tunemark.collector.gate.run_facts import MANY_SAMPLES, MANY_STEPS, SOME_SAMPLES, Run
from tunemark.collector.gate.run_quantities import fewest_samples, sampled_w, version_of
from tunemark.schema.formats import GIB
from tunemark.schema.records.reading import Problem
from tunemark.schema.vocabulary import DEVICE_INTERVAL_S, HOST_INTERVAL_S, Status

Doubts = Iterator[tuple[str, str, str]]
"""Field, value, and what known runs have."""
TICK_S = 1e-6
FEW_TIMES = 0.25
"""Share of different step times, in microseconds, below which a clock did not give them: 0.96 at least in the real series, 0 doubted."""
STILL = 3e-4
"""Interquartile range of the step times of a CPU over their median: 0.023 at least in 15 committed runs, 0 doubted."""
SAME_LOSS = 1e-5
"""Relative difference of the ratios of two series of losses below which one repeats the other: 0 of 10 real series of losses doubted."""
SMOOTH = 0.05
"""Second differences of losses over first ones, in the median: 0.29 at least in 10 real series of losses, 0 doubted."""
HIGH_SHARE = 0.8
"""Share of the dense peak in training: the best of the published results on GPUs is below 0.8, so 0 are doubted."""
FEW_SAMPLES = 0.6
"""Samples over those that fit into the steady window: 3 of the 266 records doubted."""
OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory. Tried to allocate (?P<wanted>[\d.]+) GiB. GPU (?P<number>\d+) has a total capacity of (?P<total>[\d.]+) GiB of which "
    r"(?P<free>[\d.]+) GiB is free. Including non-PyTorch memory, this process has (?P<used>[\d.]+) GiB"
)
"""The words of torch since 2.1."""
KIB = 1024
"""Unit in which Linux reports the peak of a process; pages of other systems are multiples of it."""
ENERGY_OFF = 0.08
"""Relative difference of energy and the mean of sampled power over the same time: 0 of the 266 records doubted, whose power is simulated."""
IDLE_SHARE = 0.8
"""Power while a device waits over that at work: 0 of the 266 records doubted, whose power is simulated."""


def doubts(r: Run) -> Iterator[Problem]:
    """Yield what is unlikely about a record."""
    for kind in (_times, _losses, _speed, _memory, _message, _samples, _energy, _versions):
        yield from (Problem(*doubt) for doubt in kind(r))


def _times(r: Run) -> Doubts:
    """Yield times that no clock gives: few different ones, or those of a CPU that hardly scatter."""
    field, times = "trace.completed_at_s", r.times[1:]
    if r.steps < MANY_STEPS:
        return
    different = min(len(np.unique(np.round(values / TICK_S))) for values in (times, np.diff(times)))
    if different < FEW_TIMES * len(times):
        yield field, f"{different} different times", f"in {len(times)} steps; a clock gives more"
    lower, middle, upper = np.percentile(times, (25, 50, 75))
    if r.cpu and not np.ptp(r.trace.slot_tokens) and upper - lower < STILL * middle:
        yield field, f"{middle:.4g} s", "with hardly any scatter; clocks change more"


def _losses(r: Run) -> Doubts:
    """Yield losses that repeat, or that lie on a curve."""
    field, losses = "trace.loss", r.losses
    if len(losses) < MANY_STEPS:
        return
    lag = _repeated_after(losses)
    if lag:
        yield field, f"the losses from step {lag} on", "repeat earlier ones; training goes on"
    whole = (losses == np.round(losses)).all()
    if whole or np.median(np.abs(np.diff(losses, 2))) < SMOOTH * np.median(np.abs(np.diff(losses))):
        yield field, "a smooth curve, or whole numbers", "losses of batches scatter"


def _repeated_after(losses: NDArray[np.float64]) -> int | None:
    """Return the number of steps after which losses repeat those from the first step on, but for a factor."""
    for lag in range(SOME_SAMPLES, len(losses) - SOME_SAMPLES + 1):
        earlier, later = losses[: len(losses) - lag], losses[lag:]
        ratios = later / np.where(earlier == 0, 1, earlier)
        if ratios.std() < SAME_LOSS * abs(ratios.mean()) and later.std() > SAME_LOSS * abs(later.mean()):
            return lag
    return None


def _speed(r: Run) -> Doubts:
    """Yield training that is faster than the probe, or than any that is known."""
    trained = float(r.flops.sum() / r.times.sum()) if r.flops.sum() else 0.0
    if r.probed and trained > r.probed:
        yield "trace.completed_at_s", f"{trained / r.probed:.0%} of the probe", "large products are faster than training"
    if r.gpu and r.peak and trained > HIGH_SHARE * r.peak:
        yield (
            "trace.completed_at_s",
            f"{trained / r.peak:.1%} of the dense peak",
            f"known training on GPUs reaches {HIGH_SHARE:.0%} at most",
        )


def _memory(r: Run) -> Doubts:
    """Yield a peak of the host that is no multiple of a KiB."""
    if (r.memory.host_rss.peak_bytes or 0) % KIB:
        yield "memory.host_rss.peak_bytes", str(r.memory.host_rss.peak_bytes), "kernels count the memory of a process in KiB"


def _message(r: Run) -> Doubts:
    """Yield a message of CUDA about its memory that contradicts itself, or the record."""
    said = OUT_OF_MEMORY.search(r.s.outcome.message or "")
    if said is None:
        return
    number, (wanted, total, free, used) = int(said["number"]), (float(said[name]) for name in ("wanted", "total", "free", "used"))
    reserved = r.memory.device_reserved.peak_bytes
    for wrong, why in (
        (r.status is Status.OOM_HOST, "CUDA speaks of the memory of its devices, not of the host"),
        (number >= r.count, f"the run used {r.count} devices"),
        (wanted < free, "that much is free"),
        (free + used > total, "more is free and in use than the device has"),
        (reserved is not None and reserved < used * GIB / 2, "the peak that torch reserved is less than half of what is in use"),
    ):
        if wrong:
            yield "outcome.message", said[0], why


def _samples(r: Run) -> Doubts:
    """Yield far fewer samples than fit into the window."""
    if r.use is None or not r.window_s:
        return
    every = DEVICE_INTERVAL_S.get(r.environment.backend)
    counts = [("utilisation.samples", r.use.samples, HOST_INTERVAL_S)]
    counts += [(f"utilisation.devices.{index}.samples", use.samples, every) for index, use in enumerate(r.use.devices) if every]
    for field, samples, every_s in counts:
        fitting = r.window_s / every_s
        if fitting > SOME_SAMPLES and samples < FEW_SAMPLES * fitting:
            yield field, str(samples), f"one every {every_s:g} s makes {fitting:.0f}"


def _energy(r: Run) -> Doubts:
    """Yield energy that is not that of the sampled power, and devices that take as much while they wait."""
    energy, watts = r.use.energy if r.use else None, sampled_w(r)
    if energy is None or not energy.joules or not energy.window_s or not watts or fewest_samples(r) < MANY_SAMPLES:
        return
    ratio = energy.joules / energy.window_s / watts
    if abs(ratio - 1) > ENERGY_OFF:
        yield "utilisation.energy.joules", f"{energy.joules:g}", f"{ratio:.1%} of the mean power over the same time"
    if (energy.idle_w or 0.0) > IDLE_SHARE * watts:
        yield "utilisation.energy.idle_w", f"{energy.idle_w:g} W", f"devices at work took {watts:g} W"


def _versions(r: Run) -> Doubts:
    """Yield versions that this catalogue does not know, that came out after the run, or that do not go together by it."""
    versions = {name: version for name, text in r.environment.packages.items() if (version := version_of(text)) is not None}
    python = version_of(".".join(r.environment.python.split(".")[:2]))
    known = versions | ({"python": python} if python else {})
    for name, version in versions.items():
        field, listed = f"environment.packages.{name}", next((each for each in r.facts.known.libraries if each.library == name), None)
        own = version.is_prerelease or version.is_postrelease or not re.fullmatch(r"(cpu|cu\d+|rocm[\d.]*|xpu)?", version.local or "")
        day = listed.released_on.get(version.base_version) if listed else None
        if listed and day is None and (not own or version.major > listed.newest.major + 1):
            yield field, str(version), f"is not among the releases that were known on {listed.read_on}"
        elif day is not None and not version.is_prerelease and (day - r.s.started_at.date()).days > 1:
            yield field, str(version), f"was released on {day}, after this run"
        for needed, requirement in r.facts.known.requirements_of(name, Version(version.base_version)).items():
            other = known.get(needed)
            low, high = Version(requirement.least), Version(requirement.newest) if requirement.newest else None
            if other is not None and (Version(other.base_version) < low or (high is not None and other.release[:2] > high.release[:2])):
                yield field, str(version), f"is for {needed} {low}{f' to {high}' if high else ' or newer'}, and the record has {other}"
