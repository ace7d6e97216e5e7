"""Watch a run from outside its worker, so that the measurement is not disturbed, and summarise the samples.

One thread samples the worker's process tree and the host, another asks the vendor's monitor about the devices. The summary
functions at the end are pure functions of the samples (definitions#memory, definitions#utilisation, definitions#energy).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Self, TypeVar

import psutil

from tunemark.harness.vendors.protocol import DeviceMonitor, DeviceReading, DeviceUnavailable, vendor_of
from tunemark.schema.plan.capabilities import Feature
from tunemark.schema.records.submission import MemoryReading, Utilisation
from tunemark.schema.records.trace import DeviceUse, Energy, StepTrace
from tunemark.schema.statistics.steady_state import SteadyWindow
from tunemark.schema.vocabulary import DEVICE_INTERVAL_S, HOST_INTERVAL_S, MEMORY_TOOLS, SLOWEST_INTEGRATION_S, Backend

TREE_EVERY = 5
"""Samples between two listings of the process tree."""
KIB = 1024
NO_ENERGY = "the monitor reports neither an energy counter nor power of this device"
SAMPLES_BEFORE = 5
"""Samples of the idle devices, taken before the worker is spawned."""
PROCESSES_EVERY_S = 2.0
"""Listing a device's processes costs more than reading its sensors."""
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Sample:
    """The host at one moment; busy cores are means since the previous sample."""

    at_s: float
    """Seconds since the worker was spawned."""
    rss_bytes: int
    swap_bytes: int | None
    busy_cores: float
    """Cores used by the worker's process tree."""
    foreign_cores: float
    """Cores used by everything else."""


class Moment(NamedTuple):
    """All devices at one time."""

    at_s: float
    """Seconds since the worker was spawned, after the readings."""
    readings: tuple[DeviceReading, ...]


@dataclass
class Telemetry:
    """All samples of a run: of the host, and of the devices where they have a monitor."""

    samples: list[Sample] = field(default_factory=list)
    """Of the host."""
    indexes: tuple[int, ...] = ()
    """Number of each device, as its vendor counts."""
    reason: str = "no device was monitored"
    """Why there are no samples of devices, or no energy in them."""
    memory_method: str = "none"
    """Source of the memory in use."""
    interval_s: float = 0.0
    before: list[Moment] = field(default_factory=list)
    """Samples of devices from before the worker was spawned."""
    during: list[Moment] = field(default_factory=list)
    foreign: dict[int, int] = field(default_factory=dict)
    """Highest number of foreign processes by device; empty where the monitor lists no processes."""
    why: Callable[[int, str], str] = lambda _place, _figure: "it was not read"
    """Return the reason why a device, by its place, has no value of a field of its readings."""

    def between(self, start_s: float, end_s: float) -> list[Moment]:
        """Return the samples of devices in an interval of the run."""
        return [moment for moment in self.during if start_s <= moment.at_s <= end_s]


# Sample


class Sampler:
    """Samples the devices before the worker exists; while it lives, two threads sample its processes and the host, and the devices.

    Without a monitor of the devices, it stores the reason.
    """

    def __init__(self, monitor: DeviceMonitor | None, telemetry: Telemetry) -> None:
        self.telemetry, self._monitor = telemetry, monitor
        self._threads: list[threading.Thread] = []
        self._done = threading.Event()

    def __enter__(self) -> Self:
        """Sample the devices before the worker exists: idle power, memory in use, and the number of processes."""
        if self._monitor is not None:
            started_s = time.monotonic()
            for _ in range(SAMPLES_BEFORE):
                self._read(self._monitor, self.telemetry.before, started_s)
                time.sleep(self.telemetry.interval_s)
            self._count_foreign(self._monitor, set())
        return self

    def follow(self, pid: int, spawned_at_s: float) -> None:
        """Start sampling while a worker runs, given its process and when it was spawned."""
        process, monitor = psutil.Process(pid), self._monitor
        self._tree: list[psutil.Process] = []
        self._turn, self._before, self._listed_at_s = 0, (spawned_at_s, 0.0, _host_busy_s()), 0.0
        self._repeat(HOST_INTERVAL_S, lambda: self._sample_host(process, spawned_at_s))
        if monitor is not None:
            self._repeat(self.telemetry.interval_s, lambda: self._sample_devices(monitor, process, spawned_at_s))

    def _repeat(self, every_s: float, turn: Callable[[], bool | None]) -> None:
        """Take turns by the clock in a thread, until one returns True or the sampler is closed.

        The time of a turn does not lower the rate; a missed turn is skipped.
        """

        def run() -> None:
            next_s = time.monotonic() + every_s
            while not self._done.wait(max(0.0, next_s - time.monotonic())) and not turn():
                next_s = max(next_s + every_s, time.monotonic())

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()
        if self._monitor is not None:
            self._monitor.close()

    def _sample_host(self, process: psutil.Process, spawned_at_s: float) -> bool:
        """Sample the process tree and the host; return True once the worker has ended."""
        if self._turn % TREE_EVERY == 0:
            try:
                # Listing the tree looks at every process of the host, which costs the most.
                self._tree = [process, *filter(_trains, process.children(recursive=True))]
            except psutil.Error:
                return True
        self._turn += 1
        rss, busy_s, swap = 0, 0.0, 0
        for member in self._tree:
            # A child may end between two calls; the others still count.
            with contextlib.suppress(psutil.Error, OSError), member.oneshot():
                memory, times = member.memory_info().rss, member.cpu_times()
                rss += memory
                busy_s += times.user + times.system
                if psutil.LINUX:
                    status = Path(f"/proc/{member.pid}/status").read_text(encoding="ascii", errors="replace")
                    swap += sum(int(line.split()[1]) * KIB for line in status.splitlines() if line.startswith("VmSwap:"))
        now_s, host_s = time.monotonic(), _host_busy_s()
        before_s, busy_before_s, host_before_s = self._before
        elapsed_s = now_s - before_s
        # A process that has joined the tree since the last sample brings the time that it used before.
        busy = min(max(0.0, (busy_s - busy_before_s) / elapsed_s), float(psutil.cpu_count() or 1))
        foreign = max(0.0, (host_s - host_before_s) / elapsed_s - busy)
        self.telemetry.samples.append(Sample(now_s - spawned_at_s, rss, swap if psutil.LINUX else None, busy, foreign))
        self._before = (now_s, busy_s, host_s)
        return False

    def _sample_devices(self, monitor: DeviceMonitor, process: psutil.Process, spawned_at_s: float) -> None:
        self._read(monitor, self.telemetry.during, spawned_at_s)
        if time.monotonic() - self._listed_at_s > PROCESSES_EVERY_S:
            self._listed_at_s, own = time.monotonic(), {process.pid}
            with contextlib.suppress(psutil.Error):
                own |= {child.pid for child in process.children(recursive=True)}
            self._count_foreign(monitor, own)

    def _read(self, monitor: DeviceMonitor, samples: list[Moment], since_s: float) -> None:
        readings = monitor.read()
        if readings:
            samples.append(Moment(time.monotonic() - since_s, readings))

    def _count_foreign(self, monitor: DeviceMonitor, own: set[int]) -> None:
        """Keep the highest number of processes on each device that are not the worker's."""
        series = self.telemetry
        for index, pids in zip(series.indexes, monitor.processes() or (), strict=False):
            # In a container the driver may number processes differently; then one of them is taken to be the worker's.
            others = len(pids - own) if pids & own or not own else max(0, len(pids) - 1)
            series.foreign[index] = max(others, series.foreign.get(index, 0))


def _trains(process: psutil.Process) -> bool:
    """Return True for a training process, and False for a compiler that builds a kernel: its memory does not belong to training."""
    try:
        return Path(process.exe()).name.startswith("python")
    except (psutil.Error, OSError):
        return False


def _host_busy_s() -> float:
    """Return the seconds for which the host's cores were busy since it started."""
    times = psutil.cpu_times()
    return float(sum(getattr(times, kind, 0.0) for kind in ("user", "system", "nice", "irq", "softirq")))


def open_sampler(backend: Backend, indexes: Sequence[int]) -> Sampler:
    """Return a sampler of the host and of devices, by their numbers in the vendor's tools; without a monitor, it holds the reason."""
    vendor, monitor = vendor_of(backend), None
    telemetry = Telemetry(indexes=tuple(indexes), reason=vendor.cannot.get(Feature.ENERGY, NO_ENERGY))
    telemetry.memory_method, telemetry.interval_s = MEMORY_TOOLS.get(backend, "none"), DEVICE_INTERVAL_S.get(backend, HOST_INTERVAL_S)
    try:
        if vendor.monitor is not None:
            monitor = vendor.monitor(indexes)
            telemetry.why = monitor.why
    except DeviceUnavailable as error:
        telemetry.reason = str(error)
    return Sampler(monitor, telemetry)


# Summarise the samples


def utilisation(telemetry: Telemetry, trace: StepTrace, window: SteadyWindow) -> Utilisation | None:
    """Return the use of host and devices over the steady window, or over all of training where it has no step; None without a sample."""
    times = (trace.started_at_s, *trace.completed_at_s)
    start_s, end_s = times[window.first if window.steps else 0], times[-1]
    # A sample covers the time since the one before it.
    samples = [sample for sample in telemetry.samples if start_s + HOST_INTERVAL_S <= sample.at_s <= end_s]
    if not samples:
        return None
    return Utilisation(
        samples=len(samples),
        interval_s=HOST_INTERVAL_S,
        cpu_busy_mean=sum(sample.busy_cores for sample in samples) / len(samples),
        cpu_busy_peak=max(sample.busy_cores for sample in samples),
        foreign_cpu_busy_mean=sum(sample.foreign_cores for sample in samples) / len(samples),
        devices=device_uses(telemetry, start_s, end_s),
        energy=energy(telemetry, start_s, end_s),
    )


FIGURES: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "busy_mean": ("busy", fmean),
    "busy_peak": ("busy", max),
    "power_mean_w": ("power_w", fmean),
    "power_peak_w": ("power_w", max),
    "clock_mean_mhz": ("clock_mhz", fmean),
    "clock_min_mhz": ("clock_mhz", min),
    "memory_clock_mean_mhz": ("memory_clock_mhz", fmean),
    "temperature_peak_c": ("temperature_c", max),
    "memory_used_peak_bytes": ("memory_used_bytes", max),
}
"""Field of the record -> the field of the readings that it is made of, and how."""
READ = {name: reading for name, (reading, _) in FIGURES.items()}
READ |= {"memory_used_before_bytes": "memory_used_bytes", "other_processes": "processes"}


def device_uses(series: Telemetry, start_s: float, end_s: float) -> tuple[DeviceUse, ...]:
    """Return the use of each device over an interval of the run, in seconds since the worker was spawned."""
    moments, uses = series.between(start_s, end_s), []
    for place, index in enumerate(series.indexes if moments else ()):
        readings = [moment.readings[place] for moment in moments]
        figures: dict[str, Any] = {}
        for name, (reading_field, summary) in FIGURES.items():
            values = _known(getattr(reading, reading_field) for reading in readings)
            figures[name] = summary(values) if values else None
        figures["memory_used_before_bytes"] = min(_memory(series.before, place), default=None)
        figures["other_processes"] = series.foreign.get(index)
        errors = _known(moment.readings[place].errors for moment in series.during)
        figures["errors"] = tuple(sorted(frozenset[str]().union(*errors))) if errors else None
        # A sample stands for the time since the one before it.
        times = pairwise((start_s, *(moment.at_s for moment in moments)))
        weighed = [
            (after_s - before_s, reading.throttle_reasons)
            for (before_s, after_s), reading in zip(times, readings, strict=True)
            if reading.throttle_reasons is not None
        ]
        total_s = sum(seconds for seconds, _ in weighed)
        throttled = {
            name: sum(seconds for seconds, reasons in weighed if name in reasons)
            for name in sorted(set[str]().union(*(reasons for _, reasons in weighed)))
        }
        figures["throttle_reasons"] = tuple(throttled) if weighed else None
        # A single sample at the very start of the window stands for no time.
        shares = {name: min(1.0, seconds / total_s) if total_s else 1.0 for name, seconds in throttled.items()}
        unknown = {name: series.why(place, READ.get(name, name)) for name, value in figures.items() if value is None}
        uses.append(DeviceUse(index=index, samples=len(readings), **figures, throttle_shares=shares, unknown=unknown))
    return tuple(uses)


def _memory(moments: list[Moment], place: int) -> list[int]:
    """Return the memory in use on a device. Before the run the lowest counts, as an earlier process may still be leaving."""
    return _known(moment.readings[place].memory_used_bytes for moment in moments)


def memory_used(series: Telemetry) -> MemoryReading:
    """Return the highest memory in use over the run minus that before it, for the device where it is highest."""
    pairs = [(_memory(series.before, place), _memory(series.during, place)) for place in range(len(series.indexes))]
    used = [max(0, max(during) - min(before)) for before, during in pairs if before and during]
    if not used:
        return MemoryReading(reason=series.reason if not series.during else "the monitor reports no memory in use")
    method = f"{series.memory_method} every {series.interval_s:g} s, minus what was in use before the run"
    return MemoryReading(peak_bytes=max(used), method=method)


def energy(series: Telemetry, start_s: float, end_s: float) -> Energy:
    """Return the energy of all devices over an interval, from their counters, or from power at 10 Hz or more."""
    moments = series.between(start_s, end_s)
    if len(moments) < 2:  # noqa: PLR2004 - two readings make a difference
        return Energy(source="none", reason=series.reason if not series.during else "fewer than two samples lie in the window")
    window_s = moments[-1].at_s - moments[0].at_s
    # The lowest sum before the run, as a device cools down from earlier work.
    idle_w = min(_known(_sum(reading.power_w for reading in moment.readings) for moment in series.before), default=None)
    first, last = (_sum(reading.energy_j for reading in moment.readings) for moment in (moments[0], moments[-1]))
    if first is not None and last is not None and last > first:
        return Energy(source="counter", joules=last - first, window_s=window_s, idle_w=idle_w)
    powers = [(moment.at_s, _sum(reading.power_w for reading in moment.readings)) for moment in moments]
    known = [(at_s, watts) for at_s, watts in powers if watts is not None]
    if len(known) < len(powers):
        return Energy(source="none", reason=series.reason, idle_w=idle_w)
    interval_s = window_s / (len(moments) - 1)
    if interval_s > SLOWEST_INTEGRATION_S:
        return Energy(source="none", reason=f"power was read every {interval_s:.2g} s only", idle_w=idle_w)
    joules = sum((b_s - a_s) * (a_w + b_w) / 2 for (a_s, a_w), (b_s, b_w) in pairwise(known))
    return Energy(source="integrated", joules=joules, window_s=window_s, idle_w=idle_w)


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum, or None when a value is unknown."""
    listed = list(values)
    known = _known(listed)
    return sum(known) if known and len(known) == len(listed) else None


def _known(values: Iterable[Value | None]) -> list[Value]:
    return [value for value in values if value is not None]
