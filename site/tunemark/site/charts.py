"""Charts: Vega-Lite specifications, and the charts of studies also as SVG."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import vl_convert

from tunemark.schema.formats import MINUTE_S, duration
from tunemark.site.tables import Row

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
    """The same at a fixed width; empty on pages of results, which are thousands."""


# Parts of a specification ----------------------------------------------------------------------------

TYPES = {"Q": "quantitative", "N": "nominal"}


def of(shorthand: str, **options: Any) -> Row:  # noqa: ANN401 - options of Vega-Lite
    """Return the encoding of a column: `step:Q` is a quantity, `label:N` a name."""
    name, _, kind = shorthand.partition(":")
    return {"field": name, "type": TYPES[kind], **options}


def layer(values: list[Row], mark: str, encoding: Row, **style: Any) -> Row:  # noqa: ANN401 - properties of a mark
    """Return a layer that draws rows with marks of one kind."""
    return {"data": {"values": values}, "mark": {"type": mark, **style}, "encoding": encoding}


def dashed(values: list[Row], mark: str = "rule", **encoding: Row) -> Row:
    """Return a dashed line of reference."""
    return layer(values, mark, encoding, strokeDash=[5, 4], color=INK, opacity=0.7)


def drawn(name: str, caption: str, layers: list[Row], height: int = HEIGHT, *, svg: bool = False) -> Chart:
    """Return a chart in the palette of the page. The height is in pixels."""
    spec = {"description": caption, "height": height, "layer": layers, "config": _CONFIG}
    picture = vl_convert.vegalite_to_svg({**spec, "width": FALLBACK_WIDTH}) if svg else ""
    return Chart(name, caption, {**spec, "width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}, picture)


def bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script without external requests."""
    return vl_convert.javascript_bundle(GLOBAL)


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


# Charts of a result --------------------------------------------------------------------------------

STEPS_AXIS = of("step:Q", title="optimizer step", scale={"nice": False}, axis={"grid": False, "tickMinStep": 1})
REACHED, MISSED = "reached the target", "no time to target"


def step_time_chart(steps: list[Row]) -> Chart:
    """Return step time over steps, with warm-up and steady steps distinguished and the median of the steady window marked."""
    steady = [row["step_time_s"] for row in steps if row["label"] == "steady"]
    top = HEADROOM * max(steady or [row["step_time_s"] for row in steps])
    above = [row["step_time_s"] for row in steps if row["step_time_s"] > top]
    layers = [_points(steps, top)]
    caption = "Step time of each optimizer step."
    if steady:
        layers.append(dashed([{"median": median(steady)}], y=of("median:Q")))
        caption = "Step time of each optimizer step; the dashed line is the median of the steady window."
    if above:
        caption += f" {len(above)} step{'s' * (len(above) > 1)} at the upper edge exceed the scale, up to {duration(max(above))}."
    return drawn("step-time", caption, layers)


def _points(steps: list[Row], top: float) -> Row:
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
    encoding = {
        "x": STEPS_AXIS,
        "y": of("drawn:Q", title="step time (s)", scale={"domain": [0, top]}),
        "color": of("window:N", title=None, scale={"domain": names, "range": [WARMUP, STEADY]}),
        "shape": of("window:N", title=None, scale={"domain": names, "range": ["diamond", "circle"]}),
        "tooltip": [*map(of, ("step:Q", "seconds:Q", "window:N"))],
    }
    return layer(values, "point", encoding, filled=True, size=34, opacity=0.85)


def loss_chart(steps: list[Row]) -> Chart | None:
    """Return training loss over steps, or None without a finite loss."""
    values = [{"step": row["step"], "loss": row["loss"]} for row in _thinned(steps) if row["loss"] is not None]
    if not values:
        return None
    y = of("loss:Q", title="training loss", scale={"zero": False})
    line = layer(values, "line", {"x": STEPS_AXIS, "y": y, "tooltip": [*map(of, ("step:Q", "loss:Q"))]}, color=ACCENT, strokeWidth=1.6)
    return drawn("loss", "Training loss of each optimizer step.", [line])


def _thinned(steps: list[Row]) -> list[Row]:
    stride = -(-len(steps) // MOST_POINTS) or 1
    return steps[::stride]


def loss_of_runs(curves: list[Row], reached: set[int], target: float | None) -> Chart | None:
    """Return eval loss over minutes with a line per run and the target dashed, or None without evaluations."""
    if not curves:
        return None
    layers = [_lines(curves, reached)]
    caption = "Eval loss over minutes since the benchmark clock started, one line per run."
    if target is not None:
        layers.append(dashed([{"target": target}], y=of("target:Q")))
        caption += f" The dashed line is the target, {target:g}."
    if len(curves) == len({row["run"] for row in curves}):
        caption += " Each run was evaluated once."
    return drawn("eval-loss", caption, layers)


def _lines(curves: list[Row], reached: set[int]) -> Row:
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
    colours = {name: colour for name, colour in ((REACHED, ACCENT), (MISSED, WARMUP)) if any(value["end"] == name for value in values)}
    legend = {} if len(colours) > 1 else {"legend": None}
    encoding = {
        "x": of("minutes:Q", title="minutes", scale={"nice": False}, axis={"grid": False}),
        "y": of("loss:Q", title="eval loss", scale={"zero": False}),
        "color": of("end:N", title=None, scale={"domain": list(colours), "range": list(colours.values())}, **legend),
        "detail": of("run:N"),
        "tooltip": [*map(of, ("run:Q", "minutes:Q", "samples:Q", "loss:Q"))],
    }
    return layer(values, "line", encoding, strokeWidth=1.1, opacity=0.75, point={"size": 14, "opacity": 0.8})


# Charts of rows ------------------------------------------------------------------------------------

POINT = 60
"""Area of a point."""
NAMES = 0.35
"""Room for names left of the points, as a share of a logarithmic axis: a name on a phone."""
LETTER, LINE = 6.2, 14.0
"""Width of a letter and height of a line of the names in a chart, in pixels."""
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
        layers = _over(rows, x, y, series, scale, lines=kind == "lines", rule=rule, diagonal=diagonal)
        return drawn(name, caption, layers, svg=True)
    labels = list(dict.fromkeys(row["label"] for row in rows))
    # A label has a line break where its text has a bar.
    common = {
        "y": of("label:N", title=None, sort=labels, axis={"labelLimit": 170, "labelExpr": "split(datum.label, '|')"}),
        "yOffset": of("series:N"),
        "color": of("series:N", title=series),
    }
    layers = _bars(rows, common, x) if kind == "bars" else _ranges(rows, common, x, scale)
    return drawn(name, caption, layers, max(HEIGHT, BAND * len(labels)), svg=True)


def _over(rows: list[Row], x: str, y: str, series: str, scale: str, *, lines: bool, rule: float | None, diagonal: bool) -> list[Row]:
    # Speed-ups of many families overlap: their lines are thin, and device counts are powers of two.
    axis = {"type": scale, "nice": False, "padding": 12} | ({"base": 2} if diagonal else {})
    least, most = (pick(row["x"] for row in rows) for pick in (min, max))
    beside = {"domainMin": least * (least / most) ** NAMES} if scale == "log" and not lines and any(row.get("name") for row in rows) else {}
    dots = {"size": POINT / 2, "opacity": 0.4} if diagonal else {"size": POINT, "opacity": 0.8}
    encoding = {
        "x": of("x:Q", title=x, scale=axis | beside, axis={"grid": False, "format": "~g"}),
        "y": of("y:Q", title=y, scale=axis, axis={"format": "~g"}),
        "color": of("series:N", title=series) if series else {"value": ACCENT},
        "detail": of("line:N"),
        "tooltip": [*map(of, ("label:N", "x:Q", "y:Q"))],
        # Series differ in more than their colour.
        **({"strokeDash" if lines else "shape": of("series:N", title=series)} if series else {}),
    }
    style = {"strokeWidth": 1.3, "opacity": dots["opacity"], "point": dots} if lines else {"filled": True, **dots}
    layers = [layer(rows, "line" if lines else "point", encoding, **style)]
    if named := _apart([row for row in rows if row.get("name")], rows, log=scale == "log"):
        # Points are named because no other is better in both, so none is below to the left.
        place = {"dx": -6, "dy": -8} if lines else {"dx": -5, "dy": 11}
        layers.append(
            layer(named, "text", {"x": of("x:Q"), "y": of("y:Q"), "text": of("name:N")}, **place, align="right", fontSize=11, color=INK)
        )
    if rule is not None:
        layers.insert(0, dashed([{"x": rule}], x=of("x:Q")))
    if diagonal:
        ends = [{"x": end, "y": end} for end in (min(row["x"] for row in rows), max(row["x"] for row in rows))]
        layers.insert(0, dashed(ends, "line", x=of("x:Q"), y=of("y:Q")))
    return layers


def _apart(named: list[Row], rows: list[Row], *, log: bool) -> list[Row]:
    """Return the rows whose names do not cover each other in the picture, from the lowest point to the highest."""
    place: Callable[[float], float] = math.log if log else float
    low_x, high_x, low_y, high_y = (place(pick(row[key] for row in rows)) for key in ("x", "y") for pick in (min, max))
    kept: list[tuple[float, float, Row]] = []
    for row in sorted(named, key=lambda row: (row["y"], row["x"])):
        left = FALLBACK_WIDTH * (place(row["x"]) - low_x) / (high_x - low_x or 1)
        bottom = HEIGHT * (place(row["y"]) - low_y) / (high_y - low_y or 1)
        width = LETTER * max(len(each["name"]) for each in [row, *(other for _, _, other in kept)])
        if all(abs(left - x) >= width or abs(bottom - y) >= LINE for x, y, _ in kept):
            kept.append((left, bottom, row))
    return [row for _, _, row in kept]


def _bars(rows: list[Row], common: Row, x: str) -> list[Row]:
    encoding = {**common, "x": of("x:Q", title=x), "tooltip": [*map(of, ("label:N", "series:N", "x:Q"))]}
    return [layer(rows, "bar", encoding, opacity=0.85)]


def _ranges(rows: list[Row], common: Row, x: str, scale: str) -> list[Row]:
    across = of("x:Q", title=x, scale={"type": scale, "nice": False, "padding": 12, "zero": False}, axis={"format": "~g", "tickCount": 8})
    tooltip = [*map(of, ("label:N", "series:N", "x:Q", "low:Q", "high:Q"))]
    lines = layer(rows, "rule", {**common, "x": of("low:Q"), "x2": {"field": "high"}}, strokeWidth=2, opacity=0.6)
    dots = layer(rows, "point", {**common, "x": across, "tooltip": tooltip}, filled=True, size=POINT, opacity=1)
    return [dashed([{"x": 1}], x=of("x:Q")), lines, dots]
