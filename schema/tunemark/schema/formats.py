"""Numbers as readers see them. Values keep their full precision; this is display only."""

import math

GIB = 2**30
GB = 10**9
MINUTE_S = 60
HOUR_S = 3_600
MISSING = "\N{EN DASH}"


def significant(value: float, digits: int = 3) -> str:
    """Return the value with so many significant digits and thousands separators: 12473 -> `12,500`, 0.01234 -> `0.0123`."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - exponent)
    return f"{rounded:,.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


def gib(value_bytes: float) -> str:
    """Return bytes as GiB (2^30)."""
    return f"{significant(value_bytes / GIB)} GiB"


def gb(value_bytes: float) -> str:
    """Return bytes as GB (10^9)."""
    return f"{significant(value_bytes / GB)} GB"


def duration(value_s: float) -> str:
    """Return seconds as people say them: `83 ms`, `4.7 s`, `12 min 05 s`, `2 h 15 min`."""
    if value_s < 1:
        return f"{significant(value_s * 1_000)} ms"
    if value_s < 2 * MINUTE_S:
        return f"{significant(value_s)} s"
    whole = round(value_s)
    if whole < HOUR_S:
        return f"{whole // MINUTE_S} min {whole % MINUTE_S:02d} s"
    return f"{whole // HOUR_S:,} h {whole % HOUR_S // MINUTE_S:02d} min"


def percent(value: float) -> str:
    """Return a share of 1 as per cent."""
    return f"{significant(value * 100)}%"


def usd(value: float) -> str:
    """Return US dollars: cents from one dollar on, three significant digits below."""
    return f"${value:,.2f}" if abs(value) >= 1 else f"${significant(value)}"


def ratio(value: float) -> str:
    """Return a ratio: `3.95x`."""
    return f"{significant(value)}x"


def plain(value: float) -> str:
    """Return whole numbers whole and others with four significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() else significant(value, 4)
