"""Samples of the devices -> what a record holds of them. Pure functions of the samples (definitions.md, 11 to 13)."""

from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean
from typing import TypeVar

from tunemark.harness.telemetry.series import DeviceSeries, Moment
from tunemark.schema.records.submission import MemoryReading
from tunemark.schema.records.trace import DeviceUse, Energy

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
