"""Fingerprints of step times: a copy of a measurement is recognised under another date, device or person.

The noise of step times is as individual as a fingerprint. Only its order within short windows is used, so that a copy is found
after scaling, shifting, cutting, reversing, mirroring, rounding, and small changes of every value. What two honest runs share is taken out
first: the work of a step, and slow changes of its time.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tunemark.schema.records.submission import Submission

WINDOW = 16
"""Steps of a window. Those whose longest step is in the middle are landmarks: a cut does not move them."""
NEIGHBOURS = 9
"""Steps whose median is the local level of a series."""
ALIKE, LEAST_SHARE = 0.85, 0.6
"""Rank correlation from which a window of two series is the same, and the share of such windows of a copy."""
SHORT_ALIKE = 0.95
"""The same for two series that share one window only."""
LEAST_OVERLAP = 0.4
"""Share of the shorter series that the other one covers."""
FEWEST_OF_A_KIND = 3
"""Steps of the same work from which their expected time is known."""
SAME_VALUES = 0.45
"""Share of the step times, to the nanosecond, that a copy in another order has in common."""
SAME_MARKS, MOST_LIKELY = 3, 5
"""Times of phases, rates of the probe and other readings with many digits that a copy has in common."""
LARGE = 1e6
Series = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies a measurement."""

    series: tuple[Series, ...] = ()
    """The noise of the step times and of each rank's own work; none for a run too short to be told from others."""
    values: tuple[int, ...] = ()
    """All step times in nanoseconds: two measurements share almost none, in whatever order."""
    marks: frozenset[float] = frozenset()
    """Readings with many digits: the times of the phases and of the whole run, the rates of the probe, power and energy."""


def identity_of(submission: Submission) -> Identity:
    """Return the fingerprints of the measurement of a submission."""
    times, slots = np.asarray(submission.trace.step_times_s)[1:], np.asarray(submission.trace.slot_tokens, dtype=float)[1:]
    series = [noise(times, slots), *(noise(np.asarray(rank.own_work_s)[1:], slots) for rank in submission.ranks)]
    return Identity(tuple(one for one in series if len(one)), nanoseconds(submission), readings(submission))


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


def nanoseconds(submission: Submission) -> tuple[int, ...]:
    """Return the step times in nanoseconds."""
    return tuple(np.round(np.asarray(submission.trace.step_times_s) * 1e9).astype(int).tolist())


def noise(times: NDArray[np.float64], work: NDArray[np.float64]) -> Series:
    """Return step times over those of steps with the same work and over their local level, minus 1; empty if there are too few."""
    if len(times) <= WINDOW or len(times) != len(work) or not (times > 0).all():
        return np.empty(0, np.float32)
    if np.ptp(work) > 0:
        # Honest runs on the same data share the times of their shapes; the noise is what differs among steps of one shape.
        _, kind, counts = np.unique(work, return_inverse=True, return_counts=True)
        known = counts[kind] >= FEWEST_OF_A_KIND
        medians = np.array([np.median(times[kind == each]) for each in range(len(counts))])
        times = (times / medians[kind])[known]
        if len(times) <= WINDOW:
            return np.empty(0, np.float32)
    rest = times / _running_median(times) - 1
    return rest.astype(np.float32) if np.ptp(rest) > 0 else np.empty(0, np.float32)


def _running_median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    padded = np.pad(values, NEIGHBOURS // 2, mode="reflect")
    return np.asarray(np.median(sliding_window_view(padded, NEIGHBOURS), axis=1))


def landmarks(series: Series) -> list[tuple[tuple[int, ...], int]]:
    """Return (places of the second and third longest and the two shortest steps, index) of each window whose longest is in its middle."""
    windows = sliding_window_view(series, WINDOW)
    middle = np.flatnonzero(windows.argmax(axis=1) == WINDOW // 2)
    order = np.argsort(windows[middle], axis=1, kind="stable")
    return [((int(row[-2]), int(row[-3]), int(row[0]), int(row[1])), int(index)) for row, index in zip(order, middle, strict=True)]


def same_measurement(one: Series, other: Series, shift: int) -> bool:
    """Return True if two series are the same noise, where index `i` of one is `i - shift` of the other."""
    start, stop = max(0, shift), min(len(one), len(other) + shift)
    windows = max(0, stop - start) // WINDOW
    if not windows or stop - start < LEAST_OVERLAP * min(len(one), len(other)):
        return False
    used = windows * WINDOW
    alike = rank_correlations(*(values[at : at + used].reshape(windows, WINDOW) for values, at in ((one, start), (other, start - shift))))
    return bool(alike[0] > SHORT_ALIKE) if windows == 1 else bool((alike > ALIKE).mean() >= LEAST_SHARE)


def rank_correlations(one: Series, other: Series) -> NDArray[np.float64]:
    """Return Spearman's rank correlation of each row of two arrays of the same shape (windows, steps), without ties."""
    difference = np.argsort(np.argsort(one)) - np.argsort(np.argsort(other))
    n = one.shape[1]
    return np.asarray(1 - 6 * (difference**2).sum(axis=1) / (n * (n * n - 1)), dtype=float)


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
    """The measurements seen so far, found by their landmarks."""

    names: list[str] = field(default_factory=list)
    series: list[tuple[int, Series]] = field(default_factory=list)
    """Each series with the number of its measurement."""
    places: dict[tuple[int, ...], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Landmark -> (number of the series, index in it)."""
    exact: dict[tuple[int, ...], str] = field(default_factory=dict)
    """Measurement by all of its step times in nanoseconds."""
    values: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Step time in nanoseconds -> measurements that have it."""
    measured: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The step times of each measurement in nanoseconds."""
    marks: dict[float, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Reading -> measurements that have it."""

    def copy_of(self, identity: Identity) -> tuple[str, bool] | None:
        """Return the measurement of which this is a copy, and True if it shares exact readings with it, or None."""
        if FEWEST_OF_A_KIND < len(identity.values) <= 2 * WINDOW and identity.values in self.exact:
            # Longer ones are found by their noise.
            return self.exact[identity.values], True
        different = set(identity.values)
        shared = Counter(name for value in different for name in self.values.get(value, ()))
        for name, count in shared.most_common(MOST_LIKELY) if len(identity.values) >= WINDOW else ():
            if count > max(SAME_VALUES * len(identity.values), _shared_by_chance(identity.values, self.measured[name])):
                return name, True
        shared = Counter(name for value in identity.marks for name in self.marks.get(value, ()))
        name, count = next(iter(shared.most_common(1)), ("", 0))
        if count >= SAME_MARKS:
            return name, True
        for series in identity.series:
            for turned in (series, series[::-1], -series, -series[::-1]):
                found = next(self._matches(turned), None)
                if found is not None:
                    return found, False
        return None

    def _matches(self, series: Series) -> Iterator[str]:
        tried: set[tuple[int, int]] = set()
        for landmark, index in landmarks(series):
            for number, place in self.places.get(landmark, ()):
                shift = index - place
                if (number, shift) not in tried:
                    tried.add((number, shift))
                    owner, other = self.series[number]
                    if same_measurement(series, other, shift):
                        yield self.names[owner]

    def add(self, name: str, identity: Identity) -> None:
        """Remember a measurement."""
        self.names.append(name)
        for value in set(identity.values):
            self.values[value].append(name)
        for mark in identity.marks:
            self.marks[mark].append(name)
        self.exact.setdefault(identity.values, name)
        self.measured[name] = identity.values
        for series in identity.series:
            for landmark, index in landmarks(series):
                self.places[landmark].append((len(self.series), index))
            self.series.append((len(self.names) - 1, series))


def copies(identities: Sequence[tuple[str, Identity]]) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Yield (name, (earlier name, exact)) of each measurement that is a copy of an earlier one in the list."""
    known = KnownMeasurements()
    for name, identity in identities:
        original = known.copy_of(identity)
        if original is None:
            known.add(name, identity)
        else:
            yield name, original
