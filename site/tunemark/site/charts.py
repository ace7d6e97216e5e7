"""Charts: Vega-Lite specifications made with Altair, and the same as SVG for readers without JavaScript."""

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import vl_convert

from tunemark.schema.formats import MINUTE_S, duration
from tunemark.site.tables import Row

if TYPE_CHECKING:
    import altair as alt

HEIGHT = 260
FALLBACK_WIDTH = 640
MOST_POINTS = 2_000
HEADROOM = 1.6
"""Top of the scale as a multiple of the longest steady step."""
GLOBAL = "window.vegaEmbed = vegaEmbed;"
WINDOWS = {"warmup": "warm-up", "steady": "steady"}
# CSS variables of the page, so that charts follow light and dark mode without being drawn again.
WARMUP, STEADY, ACCENT, GRID = "var(--tm-warmup)", "var(--tm-steady)", "var(--tm-accent)", "var(--tm-line)"
INK = "currentColor"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart on a page."""

    name: str
    """Unique on its page."""
    caption: str
    spec: dict[str, Any]
    """Vega-Lite, as wide as its container."""
    svg: str
    """The same at a fixed width."""


# Charts --------------------------------------------------------------------------------------------


def step_time_chart(steps: list[Row]) -> Chart:
    """Return step time over steps, with warm-up and steady steps distinguished and the median of the steady window marked."""
    import altair as alt  # noqa: PLC0415

    steady = [row["step_time_s"] for row in steps if row["label"] == "steady"]
    top = HEADROOM * max(steady or [row["step_time_s"] for row in steps])
    above = [row["step_time_s"] for row in steps if row["step_time_s"] > top]
    layers = [_points(steps, top)]
    caption = "Step time of each optimizer step."
    if steady:
        rule = alt.Chart(inline([{"median": median(steady)}])).mark_rule(strokeDash=[5, 4], color=INK, opacity=0.7)
        layers.append(rule.encode(y="median:Q"))
        caption = "Step time of each optimizer step; the dashed line is the median of the steady window."
    if above:
        caption += f" {len(above)} step{'s' * (len(above) > 1)} at the upper edge exceed the scale, up to {duration(max(above))}."
    return drawn("step-time", caption, alt.layer(*layers))


def _points(steps: list[Row], top: float) -> "alt.Chart":
    import altair as alt  # noqa: PLC0415

    # A first step that compiles can take as long as a hundred steady steps. It is drawn at the edge to keep the others visible.
    values = [
        {
            "step": row["step"],
            "seconds": row["step_time_s"],
            "drawn": min(row["step_time_s"], top),
            "window": WINDOWS.get(row["label"], row["label"]),
        }
        for row in _thinned(steps)
    ]
    names = list(WINDOWS.values())
    colour = alt.Color("window:N", title=None, scale=alt.Scale(domain=names, range=[WARMUP, STEADY]))
    shape = alt.Shape("window:N", title=None, scale=alt.Scale(domain=names, range=["diamond", "circle"]))
    y = alt.Y("drawn:Q", title="step time (s)", scale=alt.Scale(domain=[0, top]))
    points = alt.Chart(inline(values)).mark_point(filled=True, size=34, opacity=0.85)
    return points.encode(x=_steps(), y=y, color=colour, shape=shape, tooltip=["step:Q", "seconds:Q", "window:N"])


def loss_chart(steps: list[Row]) -> Chart | None:
    """Return training loss over steps, or None without a finite loss."""
    import altair as alt  # noqa: PLC0415

    values = [{"step": row["step"], "loss": row["loss"]} for row in _thinned(steps) if row["loss"] is not None]
    if not values:
        return None
    y = alt.Y("loss:Q", title="training loss", scale=alt.Scale(zero=False))
    line = alt.Chart(inline(values)).mark_line(color=ACCENT, strokeWidth=1.6).encode(x=_steps(), y=y, tooltip=["step:Q", "loss:Q"])
    return drawn("loss", "Training loss of each optimizer step.", line)


def bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script without external requests."""
    return vl_convert.javascript_bundle(GLOBAL)


def _steps() -> "alt.X":
    import altair as alt  # noqa: PLC0415

    return alt.X("step:Q", title="optimizer step", scale=alt.Scale(nice=False), axis=alt.Axis(grid=False, tickMinStep=1))


def inline(values: list[dict[str, Any]]) -> "alt.InlineData":
    """Return rows as the inline data of a layer."""
    import altair as alt  # noqa: PLC0415

    return alt.InlineData(values=values)


def _thinned(steps: list[Row]) -> list[Row]:
    stride = -(-len(steps) // MOST_POINTS) or 1
    return steps[::stride]


def drawn(name: str, caption: str, drawing: "alt.Chart | alt.LayerChart", height: int = HEIGHT) -> Chart:
    """Return a chart in the palette of the page. The height is in pixels."""
    spec = drawing.properties(height=height, description=caption).to_dict(validate=True)
    spec["config"] = _CONFIG
    fallback = {**spec, "width": FALLBACK_WIDTH}
    spec |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    return Chart(name, caption, spec, vl_convert.vegalite_to_svg(fallback))


_CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": GRID,
        "tickColor": GRID,
        "gridColor": GRID,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": 500,
        "titlePadding": 8,
    },
    "legend": {
        "labelColor": INK,
        "titleColor": INK,
        "symbolBaseFillColor": INK,
        "orient": "top",
        "labelFontSize": 12,
        "offset": 6,
        "columns": 2,
    },
}


REACHED, MISSED = "reached the target", "no time to target"


def loss_of_runs(curves: list[Row], reached: set[int], target: float | None) -> Chart | None:
    """Return eval loss over minutes with a line per run and the target dashed, or None without evaluations."""
    import altair as alt  # noqa: PLC0415

    if not curves:
        return None
    layers: list[alt.Chart] = [_lines(curves, reached)]
    caption = "Eval loss over minutes since the benchmark clock started, one line per run."
    if target is not None:
        rule = alt.Chart(inline([{"target": target}])).mark_rule(strokeDash=[5, 4], color=INK, opacity=0.8)
        layers.append(rule.encode(y="target:Q"))
        caption += f" The dashed line is the target, {target:g}."
    if len(curves) == len({row["run"] for row in curves}):
        caption += " Each run was evaluated once."
    return drawn("eval-loss", caption, alt.layer(*layers))


def _lines(curves: list[Row], reached: set[int]) -> "alt.Chart":
    import altair as alt  # noqa: PLC0415

    values = [
        {
            "run": row["run"],
            "minutes": row["seconds"] / MINUTE_S,
            "samples": row["samples"],
            "loss": row["eval_loss"],
            "end": REACHED if row["run"] in reached else MISSED,
        }
        for row in curves
    ]
    names = [name for name in (REACHED, MISSED) if any(value["end"] == name for value in values)]
    colours = {REACHED: ACCENT, MISSED: WARMUP}
    legend = alt.Legend() if len(names) > 1 else None
    colour = alt.Color("end:N", title=None, legend=legend, scale=alt.Scale(domain=names, range=[colours[name] for name in names]))
    x = alt.X("minutes:Q", title="minutes", scale=alt.Scale(nice=False), axis=alt.Axis(grid=False))
    y = alt.Y("loss:Q", title="eval loss", scale=alt.Scale(zero=False))
    lines = alt.Chart(inline(values)).mark_line(strokeWidth=1.1, opacity=0.75, point={"size": 14, "opacity": 0.8})
    return lines.encode(x=x, y=y, color=colour, detail="run:N", tooltip=["run:Q", "minutes:Q", "samples:Q", "loss:Q"])


# Charts of rows ------------------------------------------------------------------------------------

POINT = 60
"""Area of a point."""
LABELS = {"labelLimit": 170, "labelExpr": "split(datum.label, '|')"}
"""Labels of bars and ranges: a line break where the text has a bar."""
BAND = 34
"""Height of a label's band of bars or ranges in pixels."""


def row_chart(
    kind: str,
    name: str,
    caption: str,
    rows: list[Row],
    *,
    x: str,
    y: str = "",
    series: str = "",
    scale: str = "log",
    rule: float | None = None,
    diagonal: bool = False,
) -> Chart:
    """Return a chart of rows; `x`, `y` and `series` are the titles of these columns.

    Kinds: `points` and `lines` show y over x with the text `label` on hover, `name` beside the point, and a line for each `line`; `rule` draws a dashed
    line at x = rule, `diagonal` one at y = x. `bars` show x for each `label`, `ranges` show x with a line from `low` to `high`
    and a dashed line at 1. The scale is `log` or `linear`; bars begin at 0.
    """
    if kind in {"points", "lines"}:
        return drawn(name, caption, _over(rows, x, y, series, scale, lines=kind == "lines", rule=rule, diagonal=diagonal))
    labels = list(dict.fromkeys(row["label"] for row in rows))
    drawing = _bars(rows, labels, x, series) if kind == "bars" else _ranges(rows, labels, x, series, scale)
    return drawn(name, caption, drawing, max(HEIGHT, BAND * len(labels)))


def _over(rows: list[Row], x: str, y: str, series: str, scale: str, *, lines: bool, rule: float | None, diagonal: bool) -> "alt.LayerChart":
    import altair as alt  # noqa: PLC0415

    # Speed-ups of many families overlap: their lines are thin, and device counts are powers of two.
    axis = alt.Scale(type=scale, base=2, nice=False, padding=12) if diagonal else alt.Scale(type=scale, nice=False, padding=12)
    size, opacity = (POINT / 2, 0.4) if diagonal else (POINT, 0.8)
    points = alt.Chart(inline(rows))
    dots = {"size": size, "opacity": opacity}
    marks = points.mark_line(strokeWidth=1.3, opacity=opacity, point=dots) if lines else points.mark_point(filled=True, **dots)
    # Series differ in more than their colour.
    second = {"strokeDash": alt.StrokeDash("series:N", title=series)} if lines else {"shape": alt.Shape("series:N", title=series)}
    encoded = marks.encode(
        x=alt.X("x:Q", title=x, scale=axis, axis=alt.Axis(grid=False, format="~g")),
        y=alt.Y("y:Q", title=y, scale=axis, axis=alt.Axis(format="~g")),
        color=alt.Color("series:N", title=series) if series else alt.value(ACCENT),
        detail="line:N",
        tooltip=["label:N", "x:Q", "y:Q"],
        **(second if series else {}),
    )
    layers = [encoded]
    if any(row.get("name") for row in rows):
        text = points.transform_filter("datum.name").mark_text(
            align="right" if lines else "left", dx=-6 if lines else 7, dy=-8, fontSize=11, color=INK
        )
        layers.append(text.encode(x="x:Q", y="y:Q", text="name:N"))
    if rule is not None:
        layers.insert(0, _dashed([{"x": rule}], alt.X("x:Q")))
    if diagonal:
        ends = [{"x": end, "y": end} for end in (min(row["x"] for row in rows), max(row["x"] for row in rows))]
        layers.insert(0, alt.Chart(inline(ends)).mark_line(strokeDash=[5, 4], color=INK, opacity=0.7).encode(x="x:Q", y="y:Q"))
    return alt.layer(*layers)


def _dashed(values: list[Row], x: "alt.X") -> "alt.Chart":
    import altair as alt  # noqa: PLC0415

    return alt.Chart(inline(values)).mark_rule(strokeDash=[5, 4], color=INK, opacity=0.7).encode(x=x)


def _bars(rows: list[Row], labels: list[str], x: str, series: str) -> "alt.Chart":
    import altair as alt  # noqa: PLC0415

    marks = alt.Chart(inline(rows)).mark_bar(opacity=0.85)
    return marks.encode(
        y=alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(**LABELS)),
        x=alt.X("x:Q", title=x),
        yOffset=alt.YOffset("series:N"),
        color=alt.Color("series:N", title=series),
        tooltip=["label:N", "series:N", "x:Q"],
    )


def _ranges(rows: list[Row], labels: list[str], x: str, series: str, scale: str) -> "alt.LayerChart":
    import altair as alt  # noqa: PLC0415

    points = alt.Chart(inline(rows))
    y = alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(**LABELS))
    across = alt.X("x:Q", title=x, scale=alt.Scale(type=scale, nice=False, padding=12, zero=False), axis=alt.Axis(format="~g", tickCount=8))
    colour, offset = alt.Color("series:N", title=series), alt.YOffset("series:N")
    lines = points.mark_rule(strokeWidth=2, opacity=0.6).encode(y=y, x=alt.X("low:Q"), x2="high:Q", yOffset=offset, color=colour)
    tooltip = ["label:N", "series:N", "x:Q", "low:Q", "high:Q"]
    dots = points.mark_point(filled=True, size=POINT, opacity=1).encode(y=y, x=across, yOffset=offset, color=colour, tooltip=tooltip)
    return alt.layer(_dashed([{"x": 1}], alt.X("x:Q")), lines, dots)
