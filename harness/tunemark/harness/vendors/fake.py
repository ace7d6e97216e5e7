"""A scripted device: its clock follows a script, so that every measurement made with it is known beforehand.

Work is really computed, on the CPU; only time and memory are scripted. Like a GPU it is asynchronous: a mark is reached
only after `lag` more marks, which shows that the harness does not wait inside the window.
"""

import time
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Self

from tunemark.harness.vendors import cpu
from tunemark.harness.vendors.protocol import AllocatorState, Device, DeviceMemory, Stamp, Vendor
from tunemark.schema.records.submission import MemoryReading
from tunemark.schema.vocabulary import Backend

DEFAULT_STEP_S = 0.1


class Fake(Device):
    """A device on which time passes only when work is marked, by the seconds in a script."""

    free_marks = True

    def __init__(
        self, step_times_s: tuple[float, ...] = (), *, marks: int = 1, lag: int = 2, peak_bytes: int = 1_000_000, start_s: float = 0.0
    ) -> None:
        """Script the seconds of each step; its `marks` marks, of micro-steps and of the step, divide them equally."""
        steps = chain(step_times_s, repeat(step_times_s[-1] if step_times_s else DEFAULT_STEP_S))
        self._script: Iterator[float] = (step_s / marks for step_s in steps for _ in range(marks))
        self._clock_s = start_s
        self._marks: list[float] = []
        self._lag = lag
        self._waited_for = 0
        self._peak_bytes = peak_bytes

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - nothing to limit
        """Return a device on which each step takes a tenth of a second, starting at the host's time."""
        return cls(start_s=time.monotonic())

    def now(self) -> float:
        """Return the scripted clock."""
        return self._clock_s

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

    def allocator(self) -> AllocatorState | None:
        """Return the scripted peak, which is held from the start."""
        return AllocatorState(self._peak_bytes)

    def memory(self) -> DeviceMemory:
        """Return the scripted peak."""
        reading = MemoryReading(peak_bytes=self._peak_bytes, method="scripted")
        return DeviceMemory(reading, reading)


VENDOR = Vendor(
    backend=Backend.FAKE,
    device=Fake,
    formats=cpu.VENDOR.formats,
    cannot=cpu.VENDOR.cannot,
    preference=-1,
    probe_size=64,
    on_host=True,
)
