"""A scripted device: its clock follows a script, so that every measurement made with it is known beforehand.

Work is really computed, on the CPU; only time and memory are scripted. Like a GPU it is asynchronous: a mark is reached
only after `lag` more marks, which shows that the harness does not wait inside the window.
"""

from itertools import chain, repeat

from tunemark.harness.vendors.protocol import AllocatorState, Device, DeviceMemory
from tunemark.schema.records.submission import MemoryReading


class Fake(Device):
    """A device on which time passes only when work is marked: `marks` marks, of micro-steps and of the step, divide a step equally."""

    free_marks = True

    def __init__(self, step_times_s, *, marks=1, lag=2, peak_bytes=1_000_000):
        steps = chain(step_times_s, repeat(step_times_s[-1]))
        self._script = (step_s / marks for step_s in steps for _ in range(marks))
        self._clock_s, self._marks, self._waited_for = 0.0, [], 0
        self._lag, self._peak_bytes = lag, peak_bytes

    def now(self):
        return self._clock_s

    def synchronise(self):
        self._waited_for = len(self._marks)

    def stamp(self):
        self._clock_s += next(self._script)
        self._marks.append(self._clock_s)
        return len(self._marks) - 1

    def reached(self, stamp):
        done = stamp < self._waited_for or len(self._marks) - 1 - stamp >= self._lag
        return self._marks[stamp] if done else None

    def allocator(self):
        return AllocatorState(self._peak_bytes)

    def memory(self):
        reading = MemoryReading(peak_bytes=self._peak_bytes, method="scripted")
        return DeviceMemory(reading, reading)
