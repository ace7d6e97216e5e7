"""Formatting of numbers for readers, and how people write them. Stored values keep their full precision."""

import math
import re
from functools import partial

GIB = 2**30
MIB = 2**20
GB = 10**9
MINUTE_S = 60
HOUR_S = 3_600
DAY_S = 86_400
DAYS_FROM_H = 72
"""Estimates of at least this many hours are shown in days."""
SEVERAL = 10
"""Minutes from which an estimate has no seconds, and hours from which it has no minutes."""
TIMES = "\N{MULTIPLICATION SIGN}"
MISSING = "\N{EN DASH}"


SIZES = {"": 1, "k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "b": 1e9, "g": 1e9, "billion": 1e9, "t": 1e12, "trillion": 1e12}
SECONDS = {"s": 1, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S}
TIME = r"(\d+(?:\.\d+)?)(seconds?|minutes?|min|hours?|days?|weeks?|s|m|h|d|w)"


def whole_number(text: str) -> int:
    """Return a whole number of 1 or more from text such as `10000`, `82k`, `10M` or `1.5 billion`. Raises ValueError with the fix."""
    match = re.fullmatch(r"(\d+(?:_\d+|,\d{3})*(?:\.\d+)?(?:e\d{1,2})?|\.\d+)\s*([a-z]*)", text.strip().lower())
    value = float(match[1].replace(",", "").replace("_", "")) * SIZES[match[2]] if match and match[2] in SIZES else 0.0
    # 1.1 x 10^9 is not exact.
    if value < 1 or not math.isclose(value, round(value)):
        raise ValueError("must be a whole number of 1 or more, such as 500, 2k or 10M")
    return round(value)


def tokens_in_row(text: str) -> int:
    """Return the tokens of a row: as `whole_number`, but k is 1,024, since contexts are powers of two. Raises ValueError with the fix."""
    match = re.fullmatch(r"(\d+)\s*k", text.strip().lower())
    return int(match[1]) * 1024 or whole_number(text) if match else whole_number(text)


def seconds_of(text: str) -> float:
    """Return seconds from text such as `90s`, `30min`, `2h30min`, `2h30` or `1.5d`. Raises ValueError with the fix."""
    compact = "".join(text.split()).lower()
    compact += "min" if re.fullmatch(r"\d+h\d\d", compact) else ""
    parts = list(re.finditer(TIME, compact))
    value = sum(float(part[1]) * SECONDS[part[2][:1]] for part in parts)
    if not value or "".join(part[0] for part in parts) != compact:
        raise ValueError("must be a time above 0 with its unit, such as 90min, 2h or 1.5d")
    return value


def significant(value: float, digits: int = 3) -> str:
    """Return the value with significant digits and thousands separators: 12473 -> `12,500`, 0.01234 -> `0.0123`."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - exponent)
    return f"{rounded:,.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


def gib(value_bytes: float) -> str:
    """Return bytes as GiB (2^30)."""
    return f"{significant(value_bytes / GIB)} GiB"


def binary(value_bytes: float) -> str:
    """Return bytes as GiB, or as MiB (2^20) below a tenth of a GiB."""
    return gib(value_bytes) if value_bytes >= GIB / 10 else f"{significant(value_bytes / MIB)} MiB"


def duration(value_s: float) -> str:
    """Return seconds as `83 ms`, `4.7 s`, `12 min 05 s` or `2 h 15 min`."""
    if value_s < 1:
        return f"{significant(value_s * 1_000)} ms"
    if value_s < 2 * MINUTE_S:
        return f"{significant(value_s)} s"
    whole = round(value_s)
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min {whole % MINUTE_S:02d} s"
    minutes = round(value_s / MINUTE_S)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def estimated_duration(value_s: float) -> str:
    """Return an estimate in seconds as a duration without false digits: `6 min 05 s`, `25 min`, `1 h 32 min`, `26 h` or `5.9 days`."""
    minutes = round(value_s / MINUTE_S)
    if minutes >= DAYS_FROM_H * MINUTE_S:
        return f"{significant(value_s / DAY_S, 2)} days"
    if minutes >= SEVERAL * MINUTE_S:
        return f"{round(value_s / HOUR_S):,} h"
    if minutes >= MINUTE_S:
        return duration(minutes * MINUTE_S)
    whole = value_s >= 2 * MINUTE_S and round(value_s) % MINUTE_S == 0
    return f"{minutes} min" if minutes >= SEVERAL or whole else duration(value_s)


PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def with_prefix(value: float, unit: str) -> str:
    """Return a value with an SI prefix: 21.2e9 -> `21.2 GFLOP/s`."""
    size, prefix = next(((size, prefix) for size, prefix in PREFIXES if abs(value) >= size), (1.0, ""))
    return f"{significant(value / size)} {prefix}{unit}"


def flop(value: float) -> str:
    """Return floating-point operations."""
    return with_prefix(value, "FLOP")


flop_per_s, joules = (partial(with_prefix, unit=unit) for unit in ("FLOP/s", "J"))
"""Return floating-point operations per second, and an energy in joules."""


def with_unit(value: float, unit: str, size: float = 1) -> str:
    """Return a value in a unit of this size: 48e9 -> `48 GB`."""
    return f"{significant(value / size)}{unit}"


watts, ratio = (partial(with_unit, unit=unit) for unit in (" W", "x"))
"""Return a power in watts, and a ratio: `3.95x`."""
gb, gb_per_s = (partial(with_unit, unit=unit, size=GB) for unit in (" GB", " GB/s"))
"""Return bytes as GB (10^9), and bytes per second."""


def percent(value: float) -> str:
    """Return a share of 1 as a percentage."""
    return f"{significant(value * 100)}%"


def usd(value: float) -> str:
    """Return US dollars with cents, or with three significant digits below one dollar."""
    return f"${value:,.2f}" if abs(value) >= 1 else f"${significant(value)}"


def estimated_usd(value: float) -> str:
    """Return an estimated cost: with cents below 100 dollars, with three significant digits above."""
    return usd(value) if value < 100 else f"${significant(value)}"  # noqa: PLR2004 - three digits show whole dollars


def counted(number: int, what: str) -> str:
    """Return a number of things: `1 file`, `2 files`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def ordinal(number: int) -> str:
    """Return a place in an order: `1st`, `2nd`, `11th`."""
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def plain(value: float) -> str:
    """Return whole numbers without decimals, and others with four significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() else significant(value, 4)
