"""A thread of the parent process that asks a monitor while the worker lives, and before it."""

import threading
import time
from typing import Self

import psutil

from tunemark.harness.telemetry.protocol import DeviceMonitor
from tunemark.harness.telemetry.series import DeviceSeries, Moment

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
