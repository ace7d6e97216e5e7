"""Figures in printed words: numbers, units and durations, as tables of documents write them."""

import re

from tunemark.schema.quantities import QUANTITIES

PARTS = re.compile(r"([0-9.]+)\s*(d|h|m|s)[a-z]*\b", re.IGNORECASE)
CLOCK = re.compile(r"(?:(\d+):)?(\d{1,3}):(\d{2}(?:\.\d+)?)")
SECONDS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
PER_DEVICE = "printed per device, times the devices"
"""Note of a claim whose printed figure is that of one device."""
FIGURE = re.compile(r"[~≈>]?\s*\$?(?P<number>\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+)\s*(?P<unit>%|[A-Za-z]+)?(?P<rest>.*)", re.DOTALL)
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
"""Decimal prefixes of printed units."""
_WORDS = frozenset({"epochs", "epoch", "th", "seq", "sequences", "sentences", "tok", "toks", "gen", "average", "bytes", "flops", "if"})
"""Words after a number that are no unit."""


def printed_value(quantity: str, printed: str) -> float | None:
    """Return the figure in printed words, in the unit of its quantity, or None if there is none."""
    unit, bare = QUANTITIES[quantity].unit, printed.strip().replace("+", "")
    match = FIGURE.fullmatch(bare)
    if match is None:
        return None
    number, word = float(match["number"].replace(",", "")), match["unit"] or ""
    if unit == "s":
        in_time = duration(re.sub(r"(?<=[dhm])(?=\d)", " ", bare)) if word.lower() != "ms" else number / 1000
        return in_time if in_time is not None else number if word in {"", "s", "Sec"} else None
    if word == "%":
        return number / 100
    if word in {"", "x", "W"} or unit.startswith(word.lower()[:3]):
        return number
    if unit == "bytes" and re.fullmatch("[kKMGT]iB", word):
        return number * 1024.0 ** (1 + "kmgt".index(word[0].lower()))
    if word == "GF":
        # The transformers trainer prints floating-point operations in units of 2^30.
        return number * 2.0**30
    if re.fullmatch(r"[kMGTPE]?(?:B|FLOP|FLOPS|F)?|B", word):
        return number * (1e9 if (unit, word) == ("1", "B") else PREFIXES[word[:1].lower() if word[:1] in "kMGTPE" else ""])
    return number if word.lower() in _WORDS else None


def duration(cell: str) -> float | None:
    """Return the seconds in `1h 2m 3s`, `45 min` or `1:02:03` (hours first) or `2:03` (minutes first), or None."""
    clock = CLOCK.fullmatch(cell)
    if clock:
        return int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + float(clock[3])
    parts = PARTS.findall(cell)
    left = PARTS.sub("", cell).replace(",", "").replace("and", "").strip("~ ")
    return sum(float(number) * SECONDS[unit.lower()] for number, unit in parts) if parts and not left else None
