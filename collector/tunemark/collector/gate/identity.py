"""Fingerprints of measurements: a copy is recognised under another date, device or person by its exact readings.

No two runs share many step times to the nanosecond, or several readings with many digits. A copy whose every reading was changed
is not found here: results are trusted when independent runs agree.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from tunemark.schema.records.submission import Submission

FEWEST_STEPS = 16
"""Steps from which two runs of a clock with coarse ticks can be told apart by the times that they share."""
FEWEST_EQUAL = 4
"""Steps from which a run is the same as another one if all of its times are."""
SAME_VALUES = 0.45
"""Share of the step times, to the nanosecond, that a copy in another order has in common."""
SAME_MARKS, MOST_LIKELY = 3, 5
"""Times of phases, rates of the probe and other readings with many digits that a copy has in common."""
LARGE = 1e6


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies a measurement."""

    values: tuple[int, ...] = ()
    """All step times in nanoseconds: two measurements share almost none, in whatever order."""
    marks: frozenset[float] = frozenset()
    """Readings with many digits: the times of the phases and of the whole run, the rates of the probe, power and energy."""


def identity_of(submission: Submission) -> Identity:
    """Return the fingerprints of the measurement of a submission."""
    times = np.round(np.asarray(submission.trace.step_times_s) * 1e9).astype(int).tolist()
    return Identity(tuple(times), readings(submission))


def readings(submission: Submission) -> frozenset[float]:
    """Return the readings that no two runs share."""
    probe, use, process = submission.probe, submission.utilisation, submission.process
    found = {mark.at_s for mark in submission.timeline} | {process.wall_s}
    if probe is not None:
        found |= {probe.before_flop_per_s, probe.after_flop_per_s or 0.0}
    if use is not None:
        energy = (use.energy.joules, use.energy.window_s, use.energy.idle_w) if use.energy else ()
        each = (reading for device in use.devices for reading in (device.power_mean_w, device.clock_mean_mhz, device.busy_mean))
        found |= {value or 0.0 for value in (*energy, *each, use.cpu_busy_mean, use.foreign_cpu_busy_mean)}
    # Those with few digits can be equal by chance.
    return frozenset(value for value in found if value != round(value, 3 if value < LARGE else -3))


def _shared_by_chance(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the number of step times that two runs seldom share where a clock has coarse ticks.

    Equal times within the runs tell the number of ticks that their times cover: b = (n^2 + m^2) / (2 x equal), and of n and m times
    n x m / b are shared on average. Both are taken with five standard deviations.
    """
    n, m = len(one), len(other)
    equal = n + m - len(set(one)) - len(set(other))
    expected = 2 * n * m * (equal + 4 * sqrt(equal) + 8) / (n * n + m * m)
    return expected + 5 * sqrt(expected)


@dataclass
class KnownMeasurements:
    """The measurements seen so far."""

    exact: dict[tuple[int, ...], str] = field(default_factory=dict)
    """Measurement by all of its step times in nanoseconds."""
    values: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Step time in nanoseconds -> measurements that have it."""
    measured: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The step times of each measurement in nanoseconds."""
    marks: dict[float, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Reading -> measurements that have it."""

    def copy_of(self, identity: Identity) -> str | None:
        """Return the measurement of which this is a copy, or None."""
        if len(identity.values) >= FEWEST_EQUAL and identity.values in self.exact:
            return self.exact[identity.values]
        shared = Counter(name for value in set(identity.values) for name in self.values.get(value, ()))
        for name, count in shared.most_common(MOST_LIKELY) if len(identity.values) >= FEWEST_STEPS else ():
            if count > max(SAME_VALUES * len(identity.values), _shared_by_chance(identity.values, self.measured[name])):
                return name
        marked = Counter(name for value in identity.marks for name in self.marks.get(value, ()))
        name, count = next(iter(marked.most_common(1)), ("", 0))
        return name if count >= SAME_MARKS else None

    def add(self, name: str, identity: Identity) -> None:
        """Remember a measurement."""
        for value in set(identity.values):
            self.values[value].append(name)
        for mark in identity.marks:
            self.marks[mark].append(name)
        self.exact.setdefault(identity.values, name)
        self.measured[name] = identity.values


def copies(identities: Sequence[tuple[str, Identity]]) -> Iterator[tuple[str, str]]:
    """Yield (name, earlier name) of each measurement that is a copy of an earlier one in the list."""
    known = KnownMeasurements()
    for name, identity in identities:
        original = known.copy_of(identity)
        if original is None:
            known.add(name, identity)
        else:
            yield name, original
