"""A scripted device: its clock follows a script, so that everything measured with it is known beforehand.

Work is really computed, on the CPU; only time and memory are scripted. Like a GPU it is asynchronous: a mark is
reached only after `lag` further marks, which shows that the harness does not wait inside the window.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Self

from tunemark.harness.vendors.cpu import CANNOT
from tunemark.harness.vendors.protocol import DeviceMemory, Reading, Stamp
from tunemark.schema.records.submission import MemoryReading

__all__ = ["CANNOT", "Fake"]

DEFAULT_STEP_S = 0.1


class Fake:
    """A device on which time passes only when work is marked, by the seconds in a script."""

    torch_name = "cpu"
    collectives = "gloo"

    def __init__(self, step_times_s: tuple[float, ...] = (), *, lag: int = 2, peak_bytes: int = 1_000_000, start_s: float = 0.0) -> None:
        self._script: Iterator[float] = chain(step_times_s, repeat(step_times_s[-1] if step_times_s else DEFAULT_STEP_S))
        self._clock_s = start_s
        self._marks: list[float] = []
        self._lag = lag
        self._waited_for = 0
        self._peak_bytes = peak_bytes

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - nothing to limit
        """Return a device on which each step takes a tenth of a second, from the host's time on."""
        return cls(start_s=time.monotonic())

    def now(self) -> float:
        """Return the scripted clock."""
        return self._clock_s

    def name(self) -> str | None:
        """Return None: it has no name."""
        return None

    def begin(self) -> None:
        """Reach all marks."""
        self.synchronise()

    def host_copy(self, scalar: Any) -> Any:  # noqa: ANN401 - a torch tensor
        """Return the scalar itself: it is really computed."""
        return scalar

    def synchronise(self) -> None:
        """Reach all marks."""
        self._waited_for = len(self._marks)

    def stamp(self) -> Stamp:
        """Let the script's next seconds pass and mark the end."""
        self._clock_s += next(self._script)
        self._marks.append(self._clock_s)
        return len(self._marks) - 1

    def reached(self, stamp: Stamp) -> float | None:
        """Return the mark's time once it is waited for or `lag` later marks were made."""
        done = stamp < self._waited_for or len(self._marks) - 1 - stamp >= self._lag
        return self._marks[stamp] if done else None

    def held_bytes(self) -> int | None:
        """Return the scripted peak: it is held from the start."""
        return self._peak_bytes

    def memory(self) -> DeviceMemory:
        """Return the scripted peak."""
        reading = MemoryReading(peak_bytes=self._peak_bytes, method="scripted")
        return DeviceMemory(reading, reading)


# MOVE: was tunemark.harness.vendors.fake: A scripted monitor, so that everything that is made of samples is known beforehand.


class FakeMonitor:
    """Reads from a script, again and again its last line."""

    interval_s = 0.01
    memory_method = "scripted"
    energy_reason = "the script tells no power"

    def __init__(self, script: Sequence[tuple[Reading, ...]], pids: Iterable[frozenset[int]] | None = None) -> None:
        self._script = chain(script, repeat(script[-1])) if script else repeat(())
        self._pids = None if pids is None else tuple(pids)
        self.closed = False

    def read(self) -> tuple[Reading, ...]:
        """Return the script's next line."""
        return next(self._script)

    def processes(self) -> tuple[frozenset[int], ...] | None:
        """Return the scripted processes."""
        return self._pids

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True
