"""Figures with the width of their last printed digit: `4.7 s` is anything from 4.65 to 4.75 s. Arithmetic keeps the bounds.

All figures of the audit are positive, so bounds of products and quotients are products and quotients of bounds (Moore 1966).
"""

import re
from dataclasses import dataclass
from typing import Union

from tunemark.schema.records.claims import Claim

UNIT_S = {"week": 604_800.0, "day": 86_400.0, "hour": 3_600.0, "h": 3_600.0, "min": 60.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
PARTS = re.compile(r"(\d+(?:\.(\d+))?)\s*(week|day|hour|minute|min|second|sec|ms|h|m|s)s?\b", re.IGNORECASE)
CLOCK = re.compile(r"(?:\d+:)?\d{1,2}:\d{2}(?:\.(\d+))?")
NUMBER = re.compile(r"[0-9][0-9,]*(?:\.([0-9]+))?")


@dataclass(frozen=True, slots=True)
class Span:
    """A value, and how low and how high it may be."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> "Span":
        """Return a value without doubt."""
        return cls(value, value, value)

    @classmethod
    def of(cls, claim: Claim, value: float | None = None) -> "Span":
        """Return a claim, or one of its readings, with the width of its last printed digit."""
        reading = claim.value if value is None else value
        half = half_digit(claim)
        return cls(reading, reading * (1 - half), reading * (1 + half))

    def widened(self, share: float) -> "Span":
        """Return the same value with wider bounds."""
        return Span(self.value, self.low * (1 - share), self.high * (1 + share))

    def overlaps(self, other: "Span") -> bool:
        """Return whether both can be the same figure."""
        return self.low <= other.high and other.low <= self.high

    def __mul__(self, other: Union["Span", float]) -> "Span":
        """Multiply."""
        by = other if isinstance(other, Span) else Span.exact(other)
        return Span(self.value * by.value, self.low * by.low, self.high * by.high)

    def __truediv__(self, other: Union["Span", float]) -> "Span":
        """Divide."""
        by = other if isinstance(other, Span) else Span.exact(other)
        return Span(self.value / by.value, self.low / by.high, self.high / by.low if by.low > 0 else float("inf"))

    def __add__(self, other: "Span") -> "Span":
        """Add."""
        return Span(self.value + other.value, self.low + other.low, self.high + other.high)


def half_digit(claim: Claim) -> float:
    """Return half of the last printed digit as a share of the figure.

    A duration in parts is as exact as its last part; words such as `about` double the width; a figure in a sentence
    (`76.3% of the available 40GB`) is as exact as its first number.
    """
    loose = 2.0 if re.search(r"~|about|around|\bca\b", claim.printed, re.IGNORECASE) else 1.0
    duration = _duration_half(claim.printed)
    if duration is not None and claim.value > 0:
        return loose * duration / claim.value
    found = NUMBER.search(claim.printed)
    if found is None:
        return 0.0
    number = float(found[0].replace(",", ""))
    return loose * 0.5 * 10.0 ** -len(found[1] or "") / number if number else 0.0


def _duration_half(printed: str) -> float | None:
    """Return half of the last unit in seconds of a duration in parts, or None for what is none."""
    clock = CLOCK.fullmatch(printed.strip())
    if clock:
        return 0.5 * 10.0 ** -len(clock[1] or "")
    parts = list(PARTS.finditer(printed))
    if not parts:
        return None
    last = parts[-1]
    unit = last[3].lower()
    unit = {"minute": "min", "second": "s", "sec": "s"}.get(unit, unit)
    return 0.5 * 10.0 ** -len(last[2] or "") * UNIT_S[unit]
