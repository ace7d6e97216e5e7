"""What a monitor has seen of the devices over a run: raw samples, and nothing derived."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, Self, TypeVar

import psutil

from tunemark.harness.plan.capabilities import cannot_do
from tunemark.harness.vendors.cuda import NvmlMonitor
from tunemark.harness.vendors.neuron import NeuronMonitor
from tunemark.harness.vendors.protocol import DeviceMonitor, Feature, MonitorUnavailable, Reading
from tunemark.harness.vendors.rocm import AmdMonitor
from tunemark.harness.vendors.xpu import XpuSmiMonitor
from tunemark.schema.records.submission import MemoryReading
from tunemark.schema.records.trace import DeviceUse, Energy
from tunemark.schema.vocabulary import Backend


class Moment(NamedTuple):
    """All devices at one time."""

    at_s: float
    """Seconds since the worker was spawned, after the devices were asked."""
    readings: tuple[Reading, ...]


@dataclass
class DeviceSeries:
    """All samples of the devices, and how they were before the run."""

    indexes: tuple[int, ...] = ()
    """Number of each device, as its vendor counts."""
    reason: str = "no device was looked at"
    """Why there are no samples, or why none of them tells energy."""
    memory_method: str = "none"
    """What tells the memory in use."""
    interval_s: float = 0.0
    before: list[Moment] = field(default_factory=list)
    """Samples from before the worker was spawned."""
    during: list[Moment] = field(default_factory=list)
    foreign: dict[int, int] = field(default_factory=dict)
    """Device -> most processes on it that are none of the worker's; only devices that had any."""
    asking_s: float = 0.0
    """CPU seconds that this process spent on asking."""

    def between(self, start_s: float, end_s: float) -> list[Moment]:
        """Return the samples of a stretch of the run."""
        return [moment for moment in self.during if start_s <= moment.at_s <= end_s]


# MOVE: was tunemark.harness.run.telemetry: Samples the worker's process tree and the host from outside, so that the measurement is not disturbed.

INTERVAL_S = 0.2
TREE_EVERY = 5
"""Samples between two looks at which processes there are."""
KIB = 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment, and how busy the cores were since the moment before."""

    at_s: float
    """Seconds since the worker was spawned."""
    rss_bytes: int
    swap_bytes: int | None
    busy_cores: float
    """Of the worker's process tree."""
    foreign_cores: float
    """Of everything else on the host."""


@dataclass
class Telemetry:
    """All samples of a run: of the host, and of the devices where they have a monitor."""

    samples: list[Sample] = field(default_factory=list)
    devices: DeviceSeries = field(default_factory=DeviceSeries)

    def between(self, start_s: float, end_s: float) -> list[Sample]:
        """Return the samples whose interval lies in a stretch of the run."""
        return [sample for sample in self.samples if start_s + INTERVAL_S <= sample.at_s <= end_s]

    @property
    def rss_peak_bytes(self) -> int:
        """Highest resident memory of the tree that was seen; 0 without a sample."""
        return max((sample.rss_bytes for sample in self.samples), default=0)

    @property
    def swap_peak_bytes(self) -> int | None:
        """Highest swap of the tree that was seen; None where the system does not tell."""
        return max((sample.swap_bytes for sample in self.samples if sample.swap_bytes is not None), default=None)


class Sampler:
    """A thread that samples every 200 ms while the worker lives."""

    def __init__(self, pid: int, spawned_at_s: float) -> None:
        self.telemetry = Telemetry()
        self._process = psutil.Process(pid)
        self._spawned_at_s = spawned_at_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._before = (spawned_at_s, 0.0, _host_busy_s())

    def __enter__(self) -> Self:
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        tree: list[psutil.Process] = []
        for turn in count():
            if self._done.wait(INTERVAL_S):
                return
            try:
                # To list the tree looks at every process of the host: this costs most of all.
                tree = (
                    tree
                    if turn % TREE_EVERY
                    else [self._process, *(child for child in self._process.children(recursive=True) if _trains(child))]
                )
            except psutil.Error:
                # The worker has ended.
                return
            self._sample(tree)

    def _sample(self, tree: list[psutil.Process]) -> None:
        rss, busy_s, swap = 0, 0.0, 0
        for process in tree:
            # A child may end between two questions; the others still count.
            with contextlib.suppress(psutil.Error, OSError), process.oneshot():
                memory, times = process.memory_info().rss, process.cpu_times()
                rss += memory
                busy_s += times.user + times.system
                swap += _swap_bytes(process.pid)
        now_s, host_s = time.monotonic(), _host_busy_s()
        before_s, busy_before_s, host_before_s = self._before
        elapsed_s = now_s - before_s
        busy = max(0.0, (busy_s - busy_before_s) / elapsed_s)
        foreign = max(0.0, (host_s - host_before_s) / elapsed_s - busy)
        self.telemetry.samples.append(Sample(now_s - self._spawned_at_s, rss, swap if psutil.LINUX else None, busy, foreign))
        self._before = (now_s, busy_s, host_s)


def _trains(process: psutil.Process) -> bool:
    """Return whether a process is one of the run's own and not a compiler that builds a kernel for it, whose memory is not that of training."""
    try:
        return Path(process.exe()).name.startswith("python")
    except (psutil.Error, OSError):
        return False


def _host_busy_s() -> float:
    """Return the seconds for which the host's cores were busy since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0) + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0))


def _swap_bytes(pid: int) -> int:
    """Return a process' swapped bytes; 0 where the system does not tell by process."""
    if not psutil.LINUX:
        return 0
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    return next((int(line.split()[1]) * KIB for line in status.splitlines() if line.startswith("VmSwap:")), 0)


# MOVE: was tunemark.harness.run.telemetry: A thread of the parent process that asks a monitor while the worker lives, and before it.

BEFORE_SAMPLES = 5
"""Samples of the idle device, taken before the worker is spawned."""
PROCESSES_EVERY_S = 2.0
"""To list processes costs more than to read sensors."""


class DeviceSampler:
    """Samples the devices of a run. Nothing that a monitor does can end the run: it then tells nothing more."""

    def __init__(self, monitor: DeviceMonitor | None, indexes: tuple[int, ...], reason: str) -> None:
        self.series = DeviceSeries(indexes=indexes, reason=reason)
        self._monitor = monitor
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._pid, self._spawned_at_s, self._listed_at_s = 0, 0.0, 0.0
        if monitor is not None:
            self.series.memory_method, self.series.interval_s = monitor.memory_method, monitor.interval_s
            self.series.reason = monitor.energy_reason

    def __enter__(self) -> Self:
        """Look at the devices while no worker is there: their idle power, what is in use already, and by how many processes."""
        if self._monitor is not None:
            started_s = time.monotonic()
            for _ in range(BEFORE_SAMPLES):
                self._sample(self.series.before, started_s)
                time.sleep(self._monitor.interval_s)
            self._count_foreign(frozenset())
        return self

    def follow(self, pid: int, spawned_at_s: float) -> None:
        """Begin to sample beside a worker, given its process and when it was spawned."""
        self._pid, self._spawned_at_s = pid, spawned_at_s
        if self._monitor is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Stop sampling and let the monitor go."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._monitor is not None:
            self._monitor.close()

    def _run(self) -> None:
        next_s = time.monotonic()
        while self._monitor is not None and not self._done.wait(max(0.0, next_s - time.monotonic())):
            # By the clock, so that the time of asking does not lower the rate; a missed turn is left out.
            next_s = max(next_s + self._monitor.interval_s, time.monotonic())
            self._sample(self.series.during, self._spawned_at_s)
            if time.monotonic() - self._listed_at_s > PROCESSES_EVERY_S:
                self._listed_at_s = time.monotonic()
                self._count_foreign(_tree(self._pid))
            self.series.asking_s = time.thread_time()

    def _sample(self, samples: list[Moment], since_s: float) -> None:
        readings = self._monitor.read() if self._monitor else ()
        if readings:
            samples.append(Moment(time.monotonic() - since_s, readings))

    def _count_foreign(self, own: frozenset[int]) -> None:
        """Keep the most processes that were on each device beside the worker's."""
        listed = self._monitor.processes() if self._monitor else None
        for index, seen in zip(self.series.indexes, listed or (), strict=False):
            # In a container the driver may number processes otherwise; then one of them is taken to be the worker's.
            others = len(seen - own) if seen & own or not own else max(0, len(seen) - 1)
            if others > self.series.foreign.get(index, 0):
                self.series.foreign[index] = others


def _tree(pid: int) -> frozenset[int]:
    """Return a process and all below it; at least itself."""
    try:
        return frozenset({pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))})
    except psutil.Error:
        return frozenset({pid})


# MOVE: was tunemark.harness.run.telemetry: What is seen of a run from outside of its worker, so that the measurement is not disturbed: the host, and the devices.

__all__ = ["INTERVAL_S", "DeviceSampler", "Sample", "Sampler", "Telemetry"]


# MOVE: was tunemark.harness.run.telemetry: Samples of the devices -> what a record holds of them. Pure functions of the samples (definitions.md, 11 to 13).

Value = TypeVar("Value", int, float)

SLOWEST_INTEGRATION_S = 0.125
"""Mean time between samples up to which power may be integrated: 10 Hz, and a quarter for a thread that is woken late."""


def device_uses(series: DeviceSeries, start_s: float, end_s: float) -> tuple[DeviceUse, ...]:
    """Return each device over a stretch of the run, times in seconds since the worker was spawned."""
    moments = series.between(start_s, end_s)
    return tuple(_use(series, place, index, moments) for place, index in enumerate(series.indexes)) if moments else ()


def _use(series: DeviceSeries, place: int, index: int, moments: list[Moment]) -> DeviceUse:
    seen = [moment.readings[place] for moment in moments]
    busy, power, clock = (_told(values) for values in zip(*((r.busy, r.power_w, r.clock_mhz) for r in seen), strict=True))
    reasons: set[str] = set().union(*(reading.throttle_reasons for reading in seen))
    return DeviceUse(
        index=index,
        samples=len(seen),
        busy_mean=fmean(busy) if busy else None,
        busy_peak=max(busy, default=None),
        power_mean_w=fmean(power) if power else None,
        power_peak_w=max(power, default=None),
        clock_mean_mhz=fmean(clock) if clock else None,
        clock_min_mhz=min(clock, default=None),
        temperature_peak_c=max(_told(reading.temperature_c for reading in seen), default=None),
        memory_used_peak_bytes=max(_told(reading.memory_used_bytes for reading in seen), default=None),
        memory_used_before_bytes=memory_before(series, place),
        throttle_reasons=tuple(sorted(reasons)),
    )


def memory_before(series: DeviceSeries, place: int) -> int | None:
    """Return what was in use of a device before the run: the lowest, as an earlier process may still be leaving."""
    return min(_told(moment.readings[place].memory_used_bytes for moment in series.before), default=None)


def memory_used(series: DeviceSeries) -> MemoryReading:
    """Return the highest memory in use over the run less what was used before it, of the device where that is most."""
    used = [peak for peak in (_used(series, place) for place in range(len(series.indexes))) if peak is not None]
    if not used:
        return MemoryReading(reason=series.reason if not series.during else "the monitor tells no memory in use")
    method = f"{series.memory_method} every {series.interval_s:g} s, less what was in use before the run"
    return MemoryReading(peak_bytes=max(used), method=method)


def _used(series: DeviceSeries, place: int) -> int | None:
    before = memory_before(series, place)
    peak = max(_told(moment.readings[place].memory_used_bytes for moment in series.during), default=None)
    return None if before is None or peak is None else max(0, peak - before)


def energy(series: DeviceSeries, start_s: float, end_s: float) -> Energy:
    """Return the energy of all devices over a stretch of the run, from their counters, else from power at 10 Hz or more."""
    moments = series.between(start_s, end_s)
    if len(moments) < 2:  # noqa: PLR2004 - two readings make a difference
        return Energy(source="none", reason=series.reason if not series.during else "fewer than two samples lie in the window")
    window_s = moments[-1].at_s - moments[0].at_s
    idle_w = _idle_w(series)
    counted = [_sum(reading.energy_j for reading in moment.readings) for moment in (moments[0], moments[-1])]
    if counted[0] is not None and counted[1] is not None and counted[1] > counted[0]:
        return Energy(source="counter", joules=counted[1] - counted[0], window_s=window_s, idle_w=idle_w)
    powers = [(moment.at_s, _sum(reading.power_w for reading in moment.readings)) for moment in moments]
    known = [(at_s, watts) for at_s, watts in powers if watts is not None]
    if len(known) < len(powers):
        return Energy(source="none", reason=series.reason, idle_w=idle_w)
    if window_s / (len(moments) - 1) > SLOWEST_INTEGRATION_S:
        return Energy(source="none", reason=f"power was read every {window_s / (len(moments) - 1):.2g} s only", idle_w=idle_w)
    return Energy(source="integrated", joules=_trapezoid(known), window_s=window_s, idle_w=idle_w)


def _trapezoid(points: list[tuple[float, float]]) -> float:
    return sum((b_s - a_s) * (a_w + b_w) / 2 for (a_s, a_w), (b_s, b_w) in pairwise(points))


def _idle_w(series: DeviceSeries) -> float | None:
    """Return the power of all devices before the run: the lowest sum that was seen, as a device cools down from what ran before."""
    sums = (_sum(reading.power_w for reading in moment.readings) for moment in series.before)
    return min(_told(sums), default=None)


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum, or None when one of them is not told."""
    found = list(values)
    told = _told(found)
    return sum(told) if told and len(told) == len(found) else None


def _told(values: Iterable[Value | None]) -> list[Value]:
    return [value for value in values if value is not None]


# MOVE: was tunemark.harness.run.telemetry: The monitor of a device family, or the reason why there is none.

MONITORS: dict[Backend, Callable[[Sequence[int]], DeviceMonitor]] = {
    Backend.CUDA: NvmlMonitor.open,
    Backend.ROCM: AmdMonitor.open,
    Backend.NEURON: NeuronMonitor.open,
    Backend.XPU: XpuSmiMonitor.open,
}


def sampler_of(backend: Backend, indexes: Sequence[int]) -> DeviceSampler:
    """Return the sampler of some devices, by their numbers in the vendor's tools; where nothing can be asked, one that says why."""
    if backend not in MONITORS:
        reason = cannot_do(backend).get(Feature.ENERGY, "this device family has no monitor")
        return DeviceSampler(None, (), reason)
    try:
        return DeviceSampler(MONITORS[backend](indexes), tuple(indexes), "")
    except MonitorUnavailable as error:
        return DeviceSampler(None, tuple(indexes), str(error))
