"""Printed figures as intervals: `4.7 s` is any value from 4.65 to 4.75 s, and arithmetic carries the bounds.

All figures of the audit are positive, so the bounds of a product or quotient are products or quotients of bounds (Moore 1966).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Union

from tunemark.schema.records.published import Claim

ROUGHLY = 1.25
"""Factor within which rough figures agree: rules of thumb, tables of requirements, rooflines, and words such as 'slightly'."""
TIMES = ("train_time_s", "wall_s", "epoch_time_s", "step_time_s")
TIMES_TOLERANCE = 0.05
"""Share by which a ratio of rates may differ from the ratio of the times of the same work."""
MORE_MEMORY = 1.05
"""Factor above which one peak memory counts as higher than another: allocator caches differ by a few per cent."""
GB_OR_GIB = 0.09
"""Share by which two amounts of memory may differ: 7% between GB and GiB, and rounding."""
UNIT_S = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
"""First letter of a unit of time, or `ms` -> its seconds."""
PARTS = re.compile(r"([0-9]+(?:\.([0-9]+))?)\s*(weeks?|days?|hours?|hrs?|minutes?|mins?|seconds?|secs?|ms|[dhms])(?![a-z])", re.IGNORECASE)
CLOCK = re.compile(r"(?:(?P<days>\d+) days?, )?(?:(?P<hours>\d+):)?(?P<minutes>\d{1,6}):(?P<seconds>\d{2}(?:\.(?P<decimals>\d+))?)")
NUMBER = re.compile(r"[0-9][0-9,]*(?:\.([0-9]+))?")
APPROXIMATE = re.compile(r"~|about|around|roughly|nearly|approximately|\bca\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its lower and upper bound."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> "Interval":
        """Return a value without uncertainty."""
        return cls(value, value, value)

    @classmethod
    def of(cls, claim: Claim, value: float | None = None) -> "Interval":
        """Return a claim, or one of its readings, with the width of its last printed digit."""
        reading, half = claim.value if value is None else value, half_digit(claim)
        return cls(reading, reading * (1 - half), reading * (1 + half))

    def widened(self, share: float) -> "Interval":
        """Return the same value with bounds wider by a share."""
        return Interval(self.value, self.low * (1 - share), self.high * (1 + share))

    def overlaps(self, other: "Interval") -> bool:
        """Return True if both can be the same figure."""
        return self.low <= other.high and other.low <= self.high

    def __mul__(self, other: Union["Interval", float]) -> "Interval":
        """Multiply."""
        factor = other if isinstance(other, Interval) else Interval.exact(other)
        return Interval(self.value * factor.value, self.low * factor.low, self.high * factor.high)

    def __truediv__(self, other: Union["Interval", float]) -> "Interval":
        """Divide."""
        divisor = other if isinstance(other, Interval) else Interval.exact(other)
        return Interval(self.value / divisor.value, self.low / divisor.high, self.high / divisor.low if divisor.low > 0 else float("inf"))

    def __add__(self, other: "Interval") -> "Interval":
        """Add."""
        return Interval(self.value + other.value, self.low + other.low, self.high + other.high)


Amounts = Callable[[str], Sequence[tuple[str, Interval]]]
"""Name of a figure -> the values that it may have, with the words of each reading."""


def products_of(factors: Iterable[str], amounts: Amounts) -> Iterator[tuple[str, Interval]]:
    """Yield the products of factors in words with their values: names of figures or numbers, divided by after `/`, with and without those before `?`, as printed only before `!`."""
    choices = list[list[tuple[bool, str, Interval | None]]]()
    for factor in factors:
        name, divides = factor.strip("/?!"), factor.startswith("/")
        known = [("", Interval.exact(float(name)))] if re.fullmatch(r"[\d.]+", name) else amounts(name)
        known = known[:1] if factor.endswith("!") else known
        optional: list[tuple[bool, str, Interval | None]] = [(divides, "", None)] if factor.endswith("?") else []
        choices.append([*((divides, meaning, value) for meaning, value in known), *optional])
    for chosen in product(*choices):
        result, parts = Interval.exact(1.0), list[str]()
        for divides, meaning, value in chosen:
            if value is not None:
                result = result / value if divides else result * value
                # A meaning that begins with a number is that number in its unit.
                amount = "" if meaning[:1].isdigit() else f"{value.value:,.10g} "
                parts.append(f"{'/' if divides else 'x'} {amount}{meaning if not amount else f'({meaning})' if meaning else ''}".rstrip())
        yield " ".join(parts).removeprefix("x "), result


@lru_cache(maxsize=16_384)
def half_digit(claim: Claim) -> float:
    """Return half of the last printed digit as a share of the figure.

    The last part of a duration sets its precision. Words such as `about` double the width. In a sentence
    (`76.3% of the available 40GB`) the first number sets the precision.
    """
    factor = 2.0 if APPROXIMATE.search(claim.printed) else 1.0
    clock, parts = CLOCK.fullmatch(claim.printed.strip()), PARTS.findall(claim.printed)
    match = NUMBER.search(claim.printed)
    decimals, unit_size, figure = match and match[1], 1.0, float(match[0].replace(",", "")) if match else 0.0
    if claim.value > 0 and (clock or parts):
        decimals, unit = (clock["decimals"], "s") if clock else parts[-1][1:]
        unit_size, figure = _seconds(unit), claim.value
    return factor * 0.5 * 10.0 ** -len(decimals or "") * unit_size / figure if figure else 0.0


def _seconds(unit: str) -> float:
    return UNIT_S["ms" if unit.lower() == "ms" else unit[0].lower()]


def duration(printed: str) -> float | None:
    """Return the seconds in `1h 2m 3s`, `45 min`, `2h30min`, `2h30`, `1 day, 1:02:03` (hours first) or `2:03` (minutes first), or None."""
    printed = re.sub(r"(?<=\dh)([0-5]\d)$", r"\1min", printed)
    clock, parts = CLOCK.fullmatch(printed), PARTS.findall(printed)
    if clock:
        return sum(float(clock[part] or 0) * _seconds(part) for part in ("days", "hours", "minutes", "seconds"))
    left = PARTS.sub("", printed).replace(",", "").replace("and", "").strip("~ ")
    return sum(float(number) * _seconds(unit) for number, _, unit in parts) if parts and not left else None
