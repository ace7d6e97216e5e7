"""Checks of warnings: each follows from the record, none is left out, and each states the figures that the record gives.

Warnings of speed follow from the steps by rules that change with versions of the harness. Their figures are compared with what any
version of these rules can give.
"""

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tunemark.schema.derive import Derived
from tunemark.schema.measurement_warnings import WIDE_INTERVAL, warnings_of_record
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.statistics.steady_state import CHANGE_LIMIT, LATEST_START
from tunemark.schema.vocabulary import COMPILED_UPDATE, EAGER_UPDATE, WarningKind

DERIVED = {WarningKind.GATE_FAILED, WarningKind.FALLBACK, WarningKind.RANDOM_WEIGHTS, WarningKind.UNKNOWN_ACCELERATOR}
DERIVED |= {WarningKind.THROTTLED, WarningKind.PARTIAL_TELEMETRY}
DERIVED |= {WarningKind.DIRTY_SOURCE, WarningKind.STRAGGLER, WarningKind.PEAK_FELL, WarningKind.PEAK_ROSE, WarningKind.BUSY_HOST}
DERIVED |= {WarningKind.ALLOCATOR_RETRIES}
"""Kinds of warning that follow from the record or are not there."""
STATISTICAL = {WarningKind.FEW_STEPS, WarningKind.NOT_STABLE, WarningKind.WIDE_INTERVAL}
LITTLE_DISK_GIB, SURELY_WIDE = 2.1, 0.06
NUMBERS, WORDS = re.compile(r"\d+(?:\.\d+)?"), re.compile(r"[A-Za-z]{4,}")
COUNTED = re.compile(r"(\d+) steps in ([\d.]+) s after warm-up")
NEEDED = re.compile(r"(?:needs) (\d+) steps or ([\d.]+) s, and (?:at least )?(\d+) steps")
CHANGED = re.compile(r"step time changes by ([+-][\d.]+)% at step (\d+)")
DRIFTED = re.compile(r"step time drifts by ([+-][\d.]+)% over the window")
INTERVAL = re.compile(r"interval of throughput is \+-([\d.]+)%")
KINDER, WORSE = 0.5, 2.0
"""Stated half width of an interval over today's: of all committed records it is 0.56 to 1, as earlier rules ignored correlated steps."""
ROUNDED_S, ROUNDED = 0.051, 0.00051


def warning_problems(s: Submission, derived: Derived) -> Iterator[Problem]:
    """Yield each warning that follows from the record and is not listed, and each that contradicts the record."""
    yield from _listed(s, derived)
    for index, warning in enumerate(s.warnings):
        if warning.kind in STATISTICAL:
            for fix in _wrong_figures(warning.message, s, derived):
                yield Problem(f"warnings.{index}.message", repr(warning.message), fix)


def _wrong_figures(message: str, s: Submission, derived: Derived) -> Iterator[str]:
    """Yield each figure of a statistical warning that the steps cannot give, whatever window they were cut to."""
    times, warm = np.asarray(s.trace.step_times_s), s.plan.measurement.min_warmup_steps
    counted, needed, changed, drifted, interval = (form.search(message) for form in (COUNTED, NEEDED, CHANGED, DRIFTED, INTERVAL))
    starts = range(min(warm, len(times)), max(warm, int(LATEST_START * len(times))) + 1)
    if counted:
        steps, seconds = int(counted[1]), float(counted[2])
        took_s = float(times[len(times) - steps :].sum()) if steps <= len(times) else 0.0
        if len(times) - steps not in starts and steps <= len(times) // 2:
            yield f"the trace has {len(times)} steps, of which {warm} are warm-up"
        elif abs(took_s - seconds) > ROUNDED_S:
            yield f"the last {steps} of {len(times)} steps took {took_s:.1f} s"
        if needed and (steps >= int(needed[1]) or seconds >= float(needed[2])) and steps >= int(needed[3]):
            yield "by its own words there were enough; such a run has no such warning"
    if changed:
        place = int(changed[2]) - 1
        levels = [_change(times[start:], place - start) for start in starts if start < place < len(times)]
        yield from _outside(float(changed[1]) / 100, levels, f"mean step time from step {place + 1} on over that before it")
    if drifted:
        drifts = [_trend(times[start:]) for start in starts if len(times) - start > 2]  # noqa: PLR2004 - a trend needs some steps
        yield from _outside(float(drifted[1]) / 100, drifts, "trend of the step times")
    if not (counted or changed or drifted or interval):
        yield "is not what the harness writes; keep the original record"
    rate = derived.tokens_per_s
    if interval:
        stated, found = float(interval[1]) / 100, rate.relative_half_width if rate else 0.0
        if stated <= WIDE_INTERVAL - ROUNDED or (found and not KINDER <= stated / found <= WORSE):
            yield f"the steps give +-{found:.1%}, and a warning is written above +-{WIDE_INTERVAL:.0%}"


def _change(times: NDArray[np.float64], place: int) -> float:
    """Return the relative change of the mean at a place of a series."""
    return float(times[place:].mean() / times[:place].mean() - 1)


def _trend(times: NDArray[np.float64]) -> float:
    """Return the least-squares slope over a series x its length / its median."""
    return float(np.polyfit(np.arange(len(times)), times, 1)[0]) * len(times) / float(np.median(times))


def _outside(stated: float, found: list[float], what: str) -> Iterator[str]:
    """Yield the range of a relative change that the steps give, if what is stated is outside; half to double is the same order."""
    low, high = min(found, default=0.0), max(found, default=0.0)
    slack = CHANGE_LIMIT + ROUNDED
    if not min(low / 2, low * 2) - slack <= stated <= max(high / 2, high * 2) + slack:
        yield f"the steps give {low:+.1%} to {high:+.1%} as {what}"


def _listed(s: Submission, derived: Derived) -> Iterator[Problem]:
    """Yield each warning that follows from the record and is not listed."""
    listed = {warning.kind for warning in s.warnings}
    following = list(warnings_of_record(s, derived))
    for index, warning in enumerate(s.warnings):
        if warning in s.warnings[:index]:
            yield Problem(f"warnings.{index}", warning.kind.value, "is listed twice")
        disk = re.match(r"([\d.]+) GiB of disk", warning.message) if warning.kind is WarningKind.LOW_DISK else None
        if disk and float(disk[1]) > LITTLE_DISK_GIB:
            yield Problem(f"warnings.{index}.message", repr(warning.message), f"only below {LITTLE_DISK_GIB} GiB little disk is free")
    for index, warning in enumerate(s.warnings):
        if warning.kind is WarningKind.FALLBACK and warning.message.startswith(f"{EAGER_UPDATE}:"):
            if not s.plan.optimizer.stochastic_rounding or s.plan.device.backend not in COMPILED_UPDATE:
                yield Problem(f"warnings.{index}.message", repr(warning.message), "nothing is compiled for the update of this plan")
            continue
        alike = [expected for expected in following if expected.kind is warning.kind]
        before = warning.kind is WarningKind.BUSY_DEVICE and "in use before" in warning.message
        if (warning.kind in DERIVED or before) and not alike:
            yield Problem(f"warnings.{index}", warning.kind.value, "does not follow from the record; keep the original record")
        elif alike and not any(set(WORDS.findall(expected.message)) & set(WORDS.findall(warning.message)) for expected in alike):
            yield Problem(f"warnings.{index}.message", repr(warning.message), f"is not about this warning: {alike[0].message}")
        elif (
            warning.kind in DERIVED
            and warning.message not in {expected.message for expected in alike}
            and NUMBERS.findall(warning.message) not in [NUMBERS.findall(expected.message) for expected in alike]
        ):
            yield Problem(f"warnings.{index}.message", repr(warning.message), f"the record gives other figures: {alike[0].message}")
    # A run that ended early has few steps under any rule, and an interval far above the limit is wide under any.
    rate = derived.tokens_per_s
    certain = {WarningKind.FEW_STEPS} | ({WarningKind.WIDE_INTERVAL} if rate and rate.relative_half_width > SURELY_WIDE else set())
    for expected in following:
        if expected.kind not in listed | (STATISTICAL - certain):
            listed.add(expected.kind)
            yield Problem(
                "warnings", f"no {expected.kind.value}", f"it follows from the record: {expected.message}; warnings cannot be left out"
            )


def missing_statistics(s: Submission, derived: Derived) -> Iterator[Problem]:
    """Yield each missing warning that depends on the rules of the steady window and its interval, which change with versions."""
    listed = {warning.kind for warning in s.warnings}
    for expected in warnings_of_record(s, derived):
        if expected.kind in STATISTICAL - listed:
            yield Problem("warnings", "", f"today's rules would add the warning {expected.kind.value} ({expected.message})")
