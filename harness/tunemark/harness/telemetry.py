"""Samples the worker's process tree and the host from outside, so that the measurement is not disturbed."""

import threading
from dataclasses import dataclass, field
from typing import Self

import psutil

INTERVAL_S = 0.2


@dataclass
class Telemetry:
    """Running totals over the samples taken so far."""

    samples: int = 0
    rss_peak_bytes: int = 0
    swap_peak_bytes: int | None = None
    cpu_busy: list[float] = field(default_factory=list)
    """Busy cores of the worker's tree in each interval."""
    foreign_busy: list[float] = field(default_factory=list)
    """Busy cores of everything else in each interval."""


class Sampler:
    """A thread that samples every 200 ms while the worker lives."""

    def __init__(self, pid: int) -> None:
        self.telemetry = Telemetry()
        self._process = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._busy_s: float | None = None

    def __enter__(self) -> Self:
        """Start sampling."""
        psutil.cpu_percent(interval=None)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(INTERVAL_S):
            try:
                self._sample()
            except psutil.Error:
                # The worker ended between two samples.
                return

    def _sample(self) -> None:
        tree = [self._process, *self._process.children(recursive=True)]
        rss, busy_s = 0, 0.0
        for process in tree:
            with process.oneshot():
                rss += process.memory_info().rss
                times = process.cpu_times()
                busy_s += times.user + times.system
        swap = _swap_bytes(tree)
        host_busy = psutil.cpu_percent(interval=None) / 100 * (psutil.cpu_count() or 1)
        seen = self.telemetry
        seen.samples += 1
        seen.rss_peak_bytes = max(seen.rss_peak_bytes, rss)
        if swap is not None:
            seen.swap_peak_bytes = max(seen.swap_peak_bytes or 0, swap)
        if self._busy_s is not None:
            busy = max(0.0, (busy_s - self._busy_s) / INTERVAL_S)
            seen.cpu_busy.append(busy)
            seen.foreign_busy.append(max(0.0, host_busy - busy))
        self._busy_s = busy_s


def _swap_bytes(tree: list[psutil.Process]) -> int | None:
    """Return the tree's swapped bytes, or None where the system does not tell."""
    if not psutil.LINUX:
        return None
    total = 0
    for process in tree:
        with open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - read five times a second
            total += next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmSwap:")), 0)
    return total
