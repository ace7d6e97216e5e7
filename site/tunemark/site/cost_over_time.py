"""The sections of the cost page on time: prices over the years, and the time to a target against its cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from tunemark.schema.formats import HOUR_S, MINUTE_S, usd
from tunemark.schema.recommendation import provider_name
from tunemark.site import tables, wording
from tunemark.site.charts import ACCENT, Chart, drawn, inline, kept
from tunemark.site.costs import as_of, front
from tunemark.site.page import Fact, accelerator_path, document_path, prices_path, workload_path
from tunemark.site.queries import Catalogue, grouped
from tunemark.site.results_table import result_cell, trust_cell
from tunemark.site.tables import Column, Row, Table

PLACES = ("on the Pareto front", "other results")
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
class Frontier:
    """Time and cost of the results that trained one workload to its target."""

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
        priced = [_with_cost(row, catalogue.basis_costs[row["result_id"]]) for row in rows if row["result_id"] in catalogue.basis_costs]
        if priced:
            yield _frontier(key, priced, len(rows) - len(priced))


def _with_cost(row: Row, cost: Row) -> Row:
    ends = {end: row[f"time_to_target{end}_s"] for end in ("", "_low", "_high")}
    return (
        row | {f"usd{end}": None if time is None else cost["usd_per_hour"] / HOUR_S * time for end, time in ends.items()} | {"cost": cost}
    )


def _frontier(key: str, rows: list[Row], unpriced: int) -> Frontier:
    by_time = sorted(rows, key=lambda row: (row["time_to_target_s"], row["usd"], row["result_id"]))
    on_front = front(by_time, "time_to_target_s", "usd")
    best, rest = ([row for row in by_time if (row["result_id"] in on_front) is wanted] for wanted in (True, False))
    converted = rows[0]["trust"] == "converted"
    title = rows[0]["source_title"] if converted else rows[0]["workload"]
    cheapest, fastest = min(best, key=lambda row: row["usd"]), best[0]
    return Frontier(
        title=title,
        href=document_path(key) if converted else workload_path(rows[0]["workload"]),
        facts=(_fact("Cheapest", cheapest, usd(cheapest["usd"])), _fact("Fastest", fastest, wording.seconds(fastest["time_to_target_s"]))),
        chart=_chart(key, title, best, rest),
        best=_entries(f"{title}: results on the Pareto front", best),
        rest=_entries(f"{title}: other results", rest) if rest else None,
        unpriced=unpriced,
    )


def _fact(name: str, row: Row, value: str) -> Fact:
    time_and_cost = f"{wording.seconds(row['time_to_target_s'])}, {usd(row['usd'])}"
    return Fact(name, value, f"{wording.devices(row)}: {time_and_cost}")


def _entries(name: str, rows: Sequence[Row]) -> Table:
    columns: list[Column[Row]] = [
        Column("Accelerator", result_cell),
        Column("Time to target", lambda row: tables.number(row["time_to_target_s"], wording.seconds), numeric=True, tight=True),
        Column("Cost to target", lambda row: tables.Cell(usd(row["usd"]), small=_interval(row), sort=row["usd"]), numeric=True, tight=True),
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


def _chart(key: str, title: str, best: Sequence[Row], rest: Sequence[Row]) -> Chart:
    """Return cost over time on logarithmic scales, with a line along the front."""
    name = f"front-{''.join(char if char.isalnum() else '-' for char in key)}"
    return _drawn(
        name,
        title,
        *(
            [
                {"minutes": row["time_to_target_s"] / MINUTE_S, "usd": row["usd"], "result": wording.devices(row), "place": place}
                for row in rows
            ]
            for place, rows in zip(PLACES, (best, rest), strict=True)
        ),
    )


@kept
def _drawn(name: str, title: str, front: list[Row], others: list[Row]) -> Chart:
    """Return the chart of the points on the front and of the others."""
    import altair as alt  # noqa: PLC0415

    x = alt.X("minutes:Q", title="minutes to the target", scale=alt.Scale(type="log", nice=False, padding=12), axis=alt.Axis(grid=False))
    y = alt.Y("usd:Q", title="cost to the target (USD)", scale=alt.Scale(type="log", nice=False, padding=12))
    colour = alt.Color("place:N", title=None, scale=alt.Scale(domain=list(PLACES), range=[ACCENT, QUIET]))
    shape = alt.Shape("place:N", title=None, scale=alt.Scale(domain=list(PLACES), range=["circle", "diamond"]))
    line = alt.Chart(inline(front)).mark_line(color=ACCENT, strokeWidth=1.4).encode(x=x, y=y)
    dots = alt.Chart(inline([*others, *front])).mark_point(filled=True, size=44, opacity=1)
    encoded = dots.encode(x=x, y=y, color=colour, shape=shape, tooltip=["result:N", "minutes:Q", "usd:Q"])
    caption = f"{title}: cost against time to the target, both on logarithmic scales. No other result is both faster and cheaper than those on the line."
    return drawn(name, caption, alt.layer(line, encoded))
