"""The answer on the home page to a usual question, with its chart. The script of the page answers other questions."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tunemark.schema import recommendation_words
from tunemark.schema.formats import HOUR_S, estimated_duration, usd
from tunemark.schema.recommendation import PROVEN, Answer, Option, Question, recommend
from tunemark.schema.recommendation_words import hardware, place
from tunemark.site import recommend_data, tables
from tunemark.site.database import Database
from tunemark.site.page import accelerator_path, result_path
from tunemark.site.tables import Cell, Column, Table

USUAL = "llama-3.1-8b"
"""Model of the question that is answered first."""
TOKENS, LENGTH = 10_000_000, 2_048
SHOWN, CITED = 10, 3
WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 40
MOST = 120
"""Options that are drawn, and those that no other beats."""
TICKS = 6
TIMES_S = tuple(
    count * unit
    for unit, counts in ((1, (1, 2, 5, 10, 30)), (60, (1, 2, 5, 10, 30)), (HOUR_S, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)))
    for count in counts
)
COSTS_USD = tuple(digit * 10.0**power for power in range(-4, 8) for digit in (1, 2, 5))


@dataclass(frozen=True)
class FirstAnswer:
    """The answer to the usual question, in words and as a table."""

    model: str
    headline: str
    best: Option
    evidence: str
    disputed: str
    memory: str
    cards: list[tuple[str, Option]]
    chart: str
    """SVG."""
    table: Table
    number: int
    changes: list[str]
    unknown: list[list[tuple[str, str | None]]]
    """Parts of each line, see `with_links`."""
    remark: str


def first_answer(database: Database) -> FirstAnswer | None:
    """Return the answer to the usual question; None if nothing can be recommended, as with an empty database."""
    model = next((row for row in recommend_data.models(database) if row["key"] == USUAL), None)
    if model is None:
        return None
    question = Question("lora", TOKENS, LENGTH)
    rates = recommend_data.rates(database, USUAL)
    offers = recommend_data.offers(database)
    answer = recommend(question, rates, offers)
    if answer.best is None:
        return None
    tuned = recommend(Question("lora", TOKENS, LENGTH, software="tuned"), rates, offers)
    words = recommendation_words
    return FirstAnswer(
        model["name"],
        words.headline(question, answer),
        answer.best,
        words.evidence(answer.best),
        words.disputed(answer.best),
        " ".join(words.needs(answer.best)),
        [(words.PICKS[pick], answer.ranked[number]) for pick, number in answer.picks.items()],
        time_and_cost_svg(answer.ranked),
        _table(answer),
        len(answer.ranked),
        [line for line in (*words.changes(question, answer), words.with_tuned(question, answer, tuned)) if line],
        [with_links(line, recommend_data.rentable(database)) for line in _not_known(database, question, answer) if line],
        f"{words.startup(question)} {words.NOT_INCLUDED}",
    )


def _not_known(database: Database, question: Question, answer: Answer) -> tuple[str, str, str]:
    """Return the sentences on what is not recommended, what is not known, and how to measure it; each can be empty."""
    words = recommendation_words
    workload = words.workload_for(recommend_data.workloads(database).get(USUAL, ()), question)
    return words.not_fitting(answer), words.unknown(answer), words.fill_gap(answer, workload)


def with_links(line: str, accelerators: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Return the parts of a line: each name of an accelerator with the path of its page, and the text between without one.

    `accelerators` are names by key.
    """
    keys = {name: key for key, name in accelerators.items()}
    names = "|".join(re.escape(name) for name in sorted(keys, key=len, reverse=True))
    parts = re.split(rf"(?<![\w.-])({names})(?![\w.-])", line) if names else [line]
    return [(part, accelerator_path(keys[part]) if part in keys else None) for part in parts if part]


def _table(answer: Answer) -> Table:
    """Return the first options as a table."""
    words = recommendation_words
    columns: list[Column[Option]] = [
        Column(
            "Hardware",
            lambda option: tables.text(words.hardware(option), href=accelerator_path(option.rate.accelerator), small=words.place(option)),
        ),
        Column("Cost", lambda option: _ranged(option.usd, option.usd_low, option.usd_high, "usd"), numeric=True),
        Column("Time", lambda option: _ranged(option.seconds, option.seconds_low, option.seconds_high, "duration"), numeric=True),
        Column("Price", lambda option: tables.text(words.hourly(option), small=option.offer.effective_on or ""), numeric=True),
        Column("Memory", lambda option: tables.text(option.rate.memory, small=words.memory(option).partition(": ")[2])),
        Column("Evidence", _evidence),
        Column("Rank", lambda option: tables.text(words.rank(option))),
    ]
    return tables.table("Options, best first", columns, answer.ranked[:SHOWN], searchable=False, stacked=True)


def _ranged(value: float, low: float, high: float, kind: str) -> Cell:
    show = usd if kind == "usd" else estimated_duration
    return tables.text(show(value), small=f"{show(low)} to {show(high)}")


def _evidence(option: Option) -> Cell:
    ids = option.rate.result_ids
    href = result_path(ids[0]) if ids else None
    more = f" and {option.rate.results - CITED} more" if option.rate.results > CITED else ""
    not_used = [f"not direct evidence: {recommendation_words.disputed_rates(option)}"] if option.rate.disputed else []
    return tables.text(
        recommendation_words.KINDS_OF_EVIDENCE[option.rate.evidence],
        href=href,
        small="; ".join(filter(None, [", ".join(ids[:CITED]) + more, recommendation_words.not_separated(option.rate), *not_used])),
    )


# The chart of time against cost. The script of the page draws the same; a test compares them. --------------


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


def time_and_cost_svg(ranked: Sequence[Option]) -> str:
    """Return the chart of the first options, or nothing for fewer than two."""
    options = drawn(ranked)
    if len(options) < 2:  # noqa: PLR2004 - one point is no chart
        return ""
    times, costs = [option.seconds for option in options], [option.usd for option in options]
    x_low, x_high, y_low, y_high = min(times) / 1.2, max(times) * 1.2, min(costs) / 1.2, max(costs) * 1.2

    def x(value: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / x_low) / math.log(x_high / x_low):.1f}"

    def y(value: float) -> str:
        return f"{TOP + (HEIGHT - TOP - BOTTOM) * (1 - math.log(value / y_low) / math.log(y_high / y_low)):.1f}"

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
    line = " ".join(f"{x(option.seconds)},{y(option.usd)}" for option in front(options))
    parts.append(f'<polyline class="tm-front" points="{line}"/>')
    for option in options:
        kind = "tm-proven" if option.rate.evidence in PROVEN else "tm-predicted"
        words = f"{hardware(option)} ({place(option)}): {estimated_duration(option.seconds)}, {usd(option.usd)}"
        parts.append(f'<circle class="{kind}" cx="{x(option.seconds)}" cy="{y(option.usd)}" r="4"><title>{escape(words)}</title></circle>')
    for option in named(options):
        text_x, anchor = float(x(option.seconds)), "end" if float(x(option.seconds)) > WIDTH / 2 else "start"
        offset = -9 if option.usd > math.sqrt(y_low * y_high) else 17
        parts.append(
            f'<text class="tm-name" x="{text_x:.1f}" y="{y(option.usd)}" dx="{6 if anchor == "start" else -6}" dy="{offset}" '
            f'text-anchor="{anchor}">{escape(hardware(option))}</text>'
        )
    return "".join([*parts, "</svg>"])


def drawn(ranked: Sequence[Option]) -> list[Option]:
    """Return the options of the chart: the first ones, and all that no other beats."""
    first = list(ranked[:MOST])
    shown = {id(option) for option in first}
    return [*first, *(option for option in front(ranked) if id(option) not in shown)]


def named(options: Sequence[Option]) -> list[Option]:
    """Return the options with a name in the chart: the fastest, the cheapest and the one that is ranked first."""
    ends = front(options)
    return list({id(option): option for option in (ends[0], ends[-1], options[0])}.values())


def short(seconds: float) -> str:
    """Return the label of a tick of time."""
    for unit, name in ((HOUR_S, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


def dollars(value: float) -> str:
    """Return the label of a tick of cost."""
    return f"${value:,.0f}" if value >= 1 else f"${value:.4g}"
