"""The chart of time against cost of the options of a recommendation, which the script of the home page draws too."""

import math
from collections.abc import Sequence
from html import escape

from tunemark.schema.formats import HOUR_S, estimated_duration, estimated_usd
from tunemark.schema.recommendation import PROVEN, Option
from tunemark.schema.recommendation_words import hardware, place

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 26, 40
FLOOR = HEIGHT - BOTTOM - 44
"""Points are above it. Between it and the axis are names, two rows of the large letters of a phone."""
TICKS = 6
TIMES_S = tuple(
    count * unit
    for unit, counts in ((1, (1, 2, 5, 10, 30)), (60, (1, 2, 5, 10, 30)), (HOUR_S, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)))
    for count in counts
)
COSTS_USD = tuple(digit * 10.0**power for power in range(-4, 8) for digit in (1, 2, 5))


def front(options: Sequence[Option]) -> list[Option]:
    """Return the options that no other beats in both time and cost, fastest first."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda each: (each.seconds, each.usd)):
        if not kept or option.usd < kept[-1].usd:
            kept.append(option)
    return kept


def ticks(values: Sequence[float], low: float, high: float) -> list[float]:
    """Return at most six of the values between two limits, evenly thinned."""
    inside = [value for value in values if low <= value <= high]
    stride = -(-len(inside) // TICKS) or 1
    return inside[::stride]


def time_and_cost_svg(options: Sequence[Option]) -> str:
    """Return the chart of ranked options that cost something, or nothing for fewer than two."""
    options = [option for option in options if option.usd]
    if len(options) < 2:  # noqa: PLR2004 - one point is no chart
        return ""
    times, costs = [option.seconds for option in options], [option.usd for option in options]
    x_low, x_high, y_low, y_high = min(times) / 1.2, max(times) * 1.2, min(costs) / 1.2, max(costs) * 1.2

    def x(value: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / x_low) / math.log(x_high / x_low):.1f}"

    def y(value: float) -> str:
        return f"{TOP + (FLOOR - TOP) * (1 - math.log(value / y_low) / math.log(y_high / y_low)):.1f}"

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Time against cost of {len(options)} options, both axes logarithmic">'
    ]
    for value in ticks(TIMES_S, x_low, x_high):
        parts.append(f'<line class="tm-grid" x1="{x(value)}" x2="{x(value)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x(value)}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{short(value)}</text>')
    for value in ticks(COSTS_USD, y_low, y_high):
        parts.append(f'<line class="tm-grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(value)}" dy="4" text-anchor="end">{dollars(value)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">time, start-up included</text>')
    parts.append(f'<text x="{LEFT - 6}" y="{HEIGHT - 6}" text-anchor="end">cost</text>')
    best = front(options)
    line = " ".join(f"{x(option.seconds)},{y(option.usd)}" for option in best)
    parts.append(f'<polyline class="tm-front" points="{line}"/>')
    # Names stand where no points are: that of the first option above all, below all those of the cheapest and of the fastest.
    rows = ((options[0], 18), (best[-1], FLOOR + 18), (best[0], FLOOR + 38))
    for option, row in {id(option): (option, row) for option, row in rows}.values():
        at, left = x(option.seconds), float(x(option.seconds)) < WIDTH / 2
        parts.append(f'<line x1="{at}" x2="{at}" y1="{y(option.usd)}" y2="{row}" stroke="currentColor" stroke-dasharray="1 3"/>')
        side = 'dx="5"' if left else 'dx="-5" text-anchor="end"'
        parts.append(f'<text class="tm-name" x="{at}" y="{row}" {side}>{escape(hardware(option))}</text>')
    for option in options:
        kind = "tm-proven" if option.rate.evidence in PROVEN else "tm-predicted"
        words = f"{hardware(option)} ({place(option)}): {estimated_duration(option.seconds)}, {estimated_usd(option.usd)}"
        parts.append(f'<circle class="{kind}" cx="{x(option.seconds)}" cy="{y(option.usd)}" r="4"><title>{escape(words)}</title></circle>')
    return "".join([*parts, "</svg>"])


def short(seconds: float) -> str:
    """Return the label of a tick of time."""
    for unit, name in ((HOUR_S, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


def dollars(value: float) -> str:
    """Return the label of a tick of cost."""
    return f"${value:,.0f}" if value >= 1 else f"${value:.4g}"
