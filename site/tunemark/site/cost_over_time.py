"""Costs and time: prices over the years, and Pareto fronts of time and cost, to a target or for a million tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from tunemark.schema.formats import HOUR_S, MINUTE_S, usd
from tunemark.schema.recommendation import provider_name
from tunemark.site import tables, wording
from tunemark.site.charts import ACCENT, Chart, drawn, inline
from tunemark.site.costs import as_of, front
from tunemark.site.page import Fact, accelerator_path, document_path, model_path, prices_path, workload_path
from tunemark.site.queries import Catalogue, grouped
from tunemark.site.results_table import result_cell, trust_cell, verdict_on_rate
from tunemark.site.tables import Column, Row, Table

PLACES = ("on the Pareto front", "other results")
FRONT_RESULTS, FRONT_ACCELERATORS = 3, 2
"""Fewest results and accelerators of a front for a million tokens."""
TOKENS = 1e6
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, LINE = 340, 150, 46, 144, 12, 22, 12
"""Sizes of the chart of prices in pixels; LINE is the height of a line of text."""
QUIET = "var(--tm-quiet)"


@dataclass(frozen=True, slots=True)
class Step:
    """The price of an offer over time, drawn as steps."""

    points: str
    """Coordinates for an SVG polyline."""
    label: str
    label_y: float
    end_y: float


@dataclass(frozen=True, slots=True)
class History:
    """Prices of one accelerator over time: offers with more than one dated price."""

    title: str
    href: str
    change: str
    """The first and the last price in words."""
    steps: tuple[Step, ...]
    days: tuple[str, str]
    """First and last day of the chart."""
    top: str
    """Price at the upper edge."""
    table: Table


@dataclass(frozen=True, slots=True)
class Work:
    """The work whose time and cost a front compares."""

    time: str
    """Heading of the time; the axis of a chart has the same words before its unit."""
    cost: str
    seconds: Callable[[Row], tuple[float | None, float | None, float | None]]
    """The time of a result in seconds, and the ends of its interval."""


TARGET = Work(
    "Time to target", "Cost to target", lambda row: (row["time_to_target_s"], row["time_to_target_low_s"], row["time_to_target_high_s"])
)


def _seconds_of_tokens(row: Row) -> tuple[float | None, float | None, float | None]:
    middle, low, high = (TOKENS / rate if rate else None for rate in (row[f"tokens_per_s{end}"] for end in ("", "_high", "_low")))
    return middle, low, high


MILLION_TOKENS = Work("Time for 1M tokens", "Cost of 1M tokens", _seconds_of_tokens)


@dataclass(frozen=True, slots=True)
class Frontier:
    """Time and cost of comparable results."""

    title: str
    href: str
    facts: tuple[Fact, ...]
    chart: Chart
    best: Table
    """Results on the Pareto front."""
    rest: Table | None
    unpriced: int
    """Results without an offer."""


# Prices --------------------------------------------------------------------------------------------


def histories(catalogue: Catalogue) -> Iterator[History]:
    """Yield the price history of each accelerator that has an offer with more than one dated price."""
    last = as_of(catalogue)
    for accelerator in catalogue.accelerators:
        prices = [
            row for row in catalogue.prices if row["accelerator"] == accelerator["accelerator"] and row["effective_on"] <= (last or "9")
        ]
        offers = grouped(reversed(prices), lambda row: (row["provider"], row["instance"], row["region"], row["kind"]))
        series = [sorted(rows, key=lambda row: row["effective_on"]) for rows in offers.values()]
        several = [rows for rows in series if rows[0]["effective_on"] != rows[-1]["effective_on"]]
        if several and last:
            yield _history(accelerator, several, last)


def _history(accelerator: Row, series: list[list[Row]], last: str) -> History:
    dearest = max(_hourly(row) for rows in series for row in rows)
    first = min(rows[0]["effective_on"] for rows in series)
    columns: list[Column[tuple[Row, Row | None]]] = [
        Column("Date", lambda item: tables.text(item[0]["effective_on"])),
        Column("Provider", lambda item: tables.text(provider_name(item[0]["provider"]))),
        Column("Instance", lambda item: tables.text(item[0]["instance"], small=_terms(item[0]))),
        Column("Per accelerator and hour", lambda item: tables.number(_hourly(item[0]), usd), numeric=True),
        Column("Whole instance per hour", lambda item: tables.number(item[0]["usd_per_hour"], usd), numeric=True),
        Column("Change", lambda item: tables.text(_change(*item)), numeric=True),
    ]
    dated = [(row, rows[number - 1] if number else None) for rows in series for number, row in enumerate(rows)]
    dated.sort(key=lambda item: (item[0]["effective_on"], item[0]["provider"], item[0]["instance"], item[0]["kind"]), reverse=True)
    name = accelerator["name"]
    return History(
        title=name,
        href=prices_path(accelerator["accelerator"]),
        change=f"{_range(series)} ({', '.join(sorted({provider_name(rows[0]['provider']) for rows in series}))} only)",
        steps=_steps(series, first, last, dearest),
        days=(first, last),
        top=usd(dearest),
        table=tables.table(f"Prices of {name} over time", columns, dated, searchable=False, stacked=True),
    )


def _hourly(row: Row) -> float:
    return float(row["usd_per_hour"] / row["accelerator_count"])


def _terms(row: Row) -> str:
    parts = (f"{row['accelerator_count']:g} per instance", wording.words(row["kind"]), row["region"])
    return ", ".join(part for part in parts if part)


def _change(row: Row, previous: Row | None) -> str:
    if previous is None:
        return ""
    share = row["usd_per_hour"] / previous["usd_per_hour"] - 1
    return f"{share:+.0%}" if abs(share) >= 0.005 else "none"  # noqa: PLR2004 - rounds to a whole percent


def _range(series: list[list[Row]]) -> str:
    firsts, lasts = ([_hourly(rows[place]) for rows in series] for place in (0, -1))
    shown = [
        f"{usd(min(prices))} to {usd(max(prices))}" if usd(min(prices)) != usd(max(prices)) else usd(prices[0])
        for prices in (firsts, lasts)
    ]
    return f"{shown[0]}, unchanged" if shown[0] == shown[1] else f"{shown[0]}, now {shown[1]}"


def _steps(series: list[list[Row]], first: str, last: str, dearest: float) -> tuple[Step, ...]:
    """Return the lines of the chart. Labels that would overlap are moved apart."""
    start, days = date.fromisoformat(first), max(1, (date.fromisoformat(last) - date.fromisoformat(first)).days)

    def x(day: str) -> float:
        return LEFT + (date.fromisoformat(day) - start).days / days * (WIDTH - LEFT - RIGHT)

    def y(price: float) -> float:
        return TOP + (1 - price / dearest) * (HEIGHT - TOP - BOTTOM)

    steps: list[Step] = []
    label_y = 0.0
    for rows in sorted(series, key=lambda rows: -_hourly(rows[-1])):
        points: list[tuple[float, float]] = []
        for row in rows:
            if points:
                points.append((x(row["effective_on"]), points[-1][1]))
            points.append((x(row["effective_on"]), y(_hourly(row))))
        points.append((x(last), points[-1][1]))
        label_y = max(points[-1][1], label_y + LINE if steps else 0)
        drawn_points = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        steps.append(Step(drawn_points, f"{usd(_hourly(rows[-1]))} {rows[0]['instance']}", round(label_y, 1), round(points[-1][1], 1)))
    return tuple(steps)


# Time and cost -------------------------------------------------------------------------------------


def frontiers(catalogue: Catalogue) -> Iterator[Frontier]:
    """Yield each MLPerf round, then each measured workload, whose results have a time to target and a cost."""
    reached = [row for row in catalogue.results if row["time_to_target_s"] and not row["failed"] and not row["impossible"]]
    groups = grouped(
        reached, lambda row: row["source"] if row["trust"] == "converted" else f"{row['workload']} {row['comparability_group']}"
    )
    for key, rows in sorted(groups.items(), key=lambda item: item[0], reverse=True):
        priced = _priced(catalogue, rows, TARGET)
        if priced:
            converted = rows[0]["trust"] == "converted"
            title = rows[0]["source_title"] if converted else rows[0]["workload"]
            href = document_path(key) if converted else workload_path(rows[0]["workload"])
            yield _frontier(title, href, priced, len(rows) - len(priced), TARGET)


def token_frontiers(catalogue: Catalogue, model: str) -> list[Frontier]:
    """Return the fronts of time and cost for a million tokens of a model: one for each document, method and row length."""
    return [
        _frontier(f"{_conditions(rows[0])}: {rows[0]['source_title']}", document_path(rows[0]["source"]), rows, unpriced, MILLION_TOKENS)
        for rows, unpriced in _token_groups(catalogue, catalogue.results_where(model=model))
    ]


def token_fronts(catalogue: Catalogue) -> Table | None:
    """Return the cheapest and the fastest result of each front for a million tokens, with a link to the page of its model."""

    def end(row: Row) -> tables.Cell:
        return tables.text(f"{wording.seconds(row['seconds'])}, {usd(row['usd'])}", small=wording.devices(row))

    columns: list[Column[list[Row]]] = [
        Column(
            "Model",
            lambda rows: tables.text(
                rows[0]["model_name"], href=f"{model_path(rows[0]['model'])}#time-and-cost", small=_conditions(rows[0])
            ),
        ),
        Column("Document", lambda rows: tables.text(rows[0]["source"], href=document_path(rows[0]["source"]))),
        Column("Results", lambda rows: tables.number(len(rows)), numeric=True),
        Column("Cheapest", lambda rows: end(min(rows, key=lambda row: row["usd"]))),
        Column("Fastest", lambda rows: end(rows[0])),
    ]
    groups = [rows for rows, _ in _token_groups(catalogue, catalogue.results)]
    groups.sort(key=lambda rows: (str(rows[0]["model_name"]).lower(), rows[0]["method"], rows[0]["sequence_length"], rows[0]["source"]))
    return tables.table("Time and cost of 1M tokens", columns, groups, interactive=True) if groups else None


def _token_groups(catalogue: Catalogue, rows: Sequence[Row]) -> Iterator[tuple[list[Row], int]]:
    """Yield the results that trained one model with one method and row length in one document, fastest first, and how many have no offer.

    Failed and impossible results and rates that the audit calls suspicious or inconsistent are left out, and entries that have a time to target.
    """
    usable = [
        row
        for row in rows
        if row["tokens_per_s"] and row["model"] and row["sequence_length"] and row["trust"] == "published"
        and not (row["failed"] or row["impossible"] or verdict_on_rate(catalogue, row))
    ]  # fmt: skip
    groups = grouped(usable, lambda row: (row["source"], row["model"], row["method"], row["sequence_length"]))
    for group in sorted(groups.values(), key=len, reverse=True):
        priced = _priced(catalogue, group, MILLION_TOKENS)
        if len(priced) >= FRONT_RESULTS and len({row["accelerator"] for row in priced}) >= FRONT_ACCELERATORS:
            yield priced, len(group) - len(priced)


def _conditions(row: Row) -> str:
    return f"{wording.sentence(wording.method(row))}, rows of {row['sequence_length']:,} tokens"


def _priced(catalogue: Catalogue, rows: Sequence[Row], work: Work) -> list[Row]:
    """Return the results with a cost on the default basis, with their time and cost for the work, fastest first."""
    costs = catalogue.basis_costs
    priced = [_with_cost(row, costs[row["result_id"]], work) for row in rows if row["result_id"] in costs]
    return sorted(priced, key=lambda row: (row["seconds"], row["usd"], row["result_id"]))


def _with_cost(row: Row, cost: Row, work: Work) -> Row:
    ends = dict(zip(("", "_low", "_high"), work.seconds(row), strict=True))
    times = {f"seconds{end}": seconds for end, seconds in ends.items()}
    usds = {f"usd{end}": None if seconds is None else cost["usd_per_hour"] / HOUR_S * seconds for end, seconds in ends.items()}
    return row | times | usds | {"cost": cost}


def _frontier(title: str, href: str, rows: Sequence[Row], unpriced: int, work: Work) -> Frontier:
    on_front = front(rows, "seconds", "usd")
    best, rest = ([row for row in rows if (row["result_id"] in on_front) is wanted] for wanted in (True, False))
    cheapest, fastest = min(best, key=lambda row: row["usd"]), best[0]
    facts = (_fact("Cheapest", cheapest, usd(cheapest["usd"])), _fact("Fastest", fastest, wording.seconds(fastest["seconds"])))
    return Frontier(
        title=title,
        href=href,
        facts=(_fact("Cheapest and fastest", fastest, usd(fastest["usd"])),) if len(best) == 1 else facts,
        chart=_chart(title, best, rest, work),
        best=_entries(f"{title}: results on the Pareto front", best, work),
        rest=_entries(f"{title}: other results", rest, work) if rest else None,
        unpriced=unpriced,
    )


def _fact(name: str, row: Row, value: str) -> Fact:
    return Fact(name, value, f"{wording.devices(row)}: {wording.seconds(row['seconds'])}, {usd(row['usd'])}")


def _entries(name: str, rows: Sequence[Row], work: Work) -> Table:
    columns: list[Column[Row]] = [
        Column("Accelerator", result_cell),
        Column(work.time, lambda row: tables.number(row["seconds"], wording.seconds), numeric=True, tight=True),
        Column(work.cost, lambda row: tables.Cell(usd(row["usd"]), small=_interval(row), sort=row["usd"]), numeric=True, tight=True),
        Column("Price per hour", lambda row: tables.quantity("price_usd_per_hour", row["cost"]["usd_per_hour"]), numeric=True),
        Column(
            "Offer",
            lambda row: tables.text(
                wording.offer(row["cost"]), href=accelerator_path(row["accelerator"]), small=row["cost"]["region"] or ""
            ),
        ),
        Column("Trust", trust_cell),
    ]
    return tables.table(name, columns, rows, interactive=True, searchable=False, stacked=True)


def _interval(row: Row) -> str:
    low, high = row["usd_low"], row["usd_high"]
    return "" if low is None or high is None else f"{usd(low)} to {usd(high)}"


def _chart(title: str, best: Sequence[Row], rest: Sequence[Row], work: Work) -> Chart:
    """Return cost over time on logarithmic scales, with a line along the front and the interval of each time."""
    name = f"front-{''.join(char if char.isalnum() else '-' for char in title)}"
    unit = "minutes" if max(row["seconds"] for row in (*best, *rest)) > 2 * MINUTE_S else "seconds"
    on_front, others = ([_point(row, place, unit) for row in rows] for place, rows in zip(PLACES, (best, rest), strict=True))
    return _drawn(name, title, (work.time, work.cost, unit), on_front, others)


def _point(row: Row, place: str, unit: str) -> Row:
    ends = {end: row[f"seconds{end}"] for end in ("_low", "_high")}
    known = all(seconds is not None for seconds in ends.values())
    length_s = MINUTE_S if unit == "minutes" else 1.0
    return {
        "time": row["seconds"] / length_s,
        "usd": row["usd"],
        "result": wording.devices(row),
        "place": place,
        **({f"time{end}": seconds / length_s for end, seconds in ends.items()} if known else {}),
    }


def _drawn(name: str, title: str, heads: tuple[str, str, str], front: list[Row], others: list[Row]) -> Chart:
    """Return the chart of the points on the front and of the others. The heads are those of the time and of the cost, and the unit of time."""
    import altair as alt  # noqa: PLC0415

    time, cost = (f"{head[0].lower()}{head[1:]}" for head in heads[:2])
    x = alt.X("time:Q", title=f"{time} ({heads[2]})", scale=alt.Scale(type="log", nice=False, padding=12), axis=alt.Axis(grid=False))
    y = alt.Y("usd:Q", title=f"{cost} (USD)", scale=alt.Scale(type="log", nice=False, padding=12))
    colour = alt.Color("place:N", title=None, scale=alt.Scale(domain=list(PLACES), range=[ACCENT, QUIET]))
    shape = alt.Shape("place:N", title=None, scale=alt.Scale(domain=list(PLACES), range=["circle", "diamond"]))
    layers = [alt.Chart(inline(front)).mark_line(color=ACCENT, strokeWidth=1.4).encode(x=x, y=y)]
    spread = [row for row in (*others, *front) if "time_low" in row]
    if spread:
        rules = alt.Chart(inline(spread)).mark_rule(strokeWidth=1, opacity=0.6)
        layers.append(rules.encode(x=alt.X("time_low:Q"), x2="time_high:Q", y=y, color=colour))
    dots = alt.Chart(inline([*others, *front])).mark_point(filled=True, size=44, opacity=1)
    layers.append(dots.encode(x=x, y=y, color=colour, shape=shape, tooltip=["result:N", alt.Tooltip("time:Q", title=heads[2]), "usd:Q"]))
    caption = (
        f"{title}: {cost} against {time}, both on logarithmic scales. No other result is both faster and cheaper than those on the line."
    )
    if spread:
        caption += " A horizontal line is the interval of the time."
    return drawn(name, caption, alt.layer(*layers))
