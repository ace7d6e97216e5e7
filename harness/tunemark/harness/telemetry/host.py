"""Samples the worker's process tree and the host from outside, so that the measurement is not disturbed."""

import contextlib
import threading
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Self

import psutil

from tunemark.harness.telemetry.series import DeviceSeries

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
