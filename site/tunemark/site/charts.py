"""Charts: Vega-Lite specifications made with Altair. Those of results are drawn by a script, those of studies are SVG in the page.

Altair copies and checks all data of a chart again and again, so a chart names its data, and the rows come in when it is written out.
"""

import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt
import vl_convert

from tunemark.schema.formats import duration
from tunemark.site.page import Row

HEIGHT = 260
WIDTH, PHONE_WIDTH = 800, 350  # of a drawing, in pixels
HEADROOM = 1.6
"""Top of the scale as a multiple of the longest steady step."""
MARK = re.compile(r'<(\w+) aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="(?:point|bar)"([^>]*)/>')
LABEL = re.compile(
    r' aria-label="[^"]*"| role="graphics-\w+"| aria-roledescription="[^"]*"| aria-hidden="true"'
)  # the drawing as a whole has a label
# CSS variables of the page, so that charts follow light and dark mode without being drawn again.
WARMUP, STEADY, ACCENT, GRID = "var(--tm-warmup)", "var(--tm-steady)", "var(--tm-accent)", "var(--tm-line)"
INK = "currentColor"
of = alt.NamedData
"""Returns the data of a layer: rows that `drawn` is given by this name."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart on a page."""

    name: str
    """Unique on its page."""
    caption: str
    spec: dict[str, Any]
    """Vega-Lite, as wide as its container."""
    svg: str
    phone: str
    """Drawings for wide windows, with the text of each mark in its title, and for phones; empty on pages of results, which are thousands."""


# Charts of a result --------------------------------------------------------------------------------


def step_time_chart(steps: list[Row]) -> Chart:
    """Return `seconds` over `step`, with the windows `warm-up` and `steady` distinguished and the median of the steady one marked."""
    steady = [row["seconds"] for row in steps if row["window"] == "steady"]
    top = HEADROOM * max(steady or [row["seconds"] for row in steps])
    above = [row["seconds"] for row in steps if row["seconds"] > top]
    windows = ["warm-up", "steady"]
    marks = alt.Chart(of("steps")).mark_point(filled=True, size=34, opacity=0.85)
    points = marks.encode(
        x=_steps(),
        # A first step that compiles can take as long as a hundred steady steps. It is drawn at the edge to keep the others visible.
        y=alt.Y("seconds:Q", title="step time (s)", scale=alt.Scale(domain=[0, top], clamp=True)),
        color=alt.Color("window:N", title=None, scale=alt.Scale(domain=windows, range=[WARMUP, STEADY])),
        shape=alt.Shape("window:N", title=None, scale=alt.Scale(domain=windows, range=["diamond", "circle"])),
        tooltip=_tips("step:Q", "seconds:Q", "window:N"),
    )
    middle = _dashed("steps").transform_filter("datum.window == 'steady'").encode(y=alt.Y("median(seconds):Q"))
    caption = f"Step time of each optimizer step{'; the dashed line is the median of the steady window' if steady else ''}."
    if above:
        caption += f" {len(above)} step{'s' * (len(above) > 1)} at the upper edge exceed the scale, up to {duration(max(above))}."
    return drawn("step-time", caption, alt.layer(points, *([middle] if steady else [])).to_dict(validate=False), {"steps": steps})


def loss_chart(steps: list[Row]) -> Chart:
    """Return the training `loss` over `step`."""
    y = alt.Y("loss:Q", title="training loss", scale=alt.Scale(zero=False))
    line = alt.Chart(of("steps")).mark_line(color=ACCENT, strokeWidth=1.6).encode(x=_steps(), y=y, tooltip=_tips("step:Q", "loss:Q"))
    return drawn("loss", "Training loss of each optimizer step.", line.to_dict(validate=False), {"steps": steps})


def loss_of_runs(curves: list[Row], target: float | None) -> Chart:
    """Return eval `loss` over `minutes` with a line for each `run`, coloured by whether it `reached` the target, which is dashed."""
    caption = "Eval loss over minutes since the benchmark clock started, one line per run."
    if target is not None:
        caption += f" The dashed line is the target, {target:g}."
    if len(curves) == len({row["run"] for row in curves}):
        caption += " Each run was evaluated once."
    spec = _of_runs(legend=len({row["reached"] for row in curves}) > 1, target=target is not None)
    return drawn("eval-loss", caption, spec, {"runs": curves, "target": [{"target": target}]})


@cache
def _of_runs(*, legend: bool, target: bool) -> dict[str, Any]:
    """Return the specification of that chart, which hundreds of pages share."""
    reached = alt.Scale(domain=["reached the target", "no time to target"], range=[ACCENT, WARMUP])
    lines = alt.Chart(of("runs")).mark_line(strokeWidth=1.1, opacity=0.75, point={"size": 14, "opacity": 0.8})
    encoded = lines.encode(
        x=alt.X("minutes:Q", title="minutes", scale=alt.Scale(nice=False), axis=alt.Axis(grid=False)),
        y=alt.Y("loss:Q", title="eval loss", scale=alt.Scale(zero=False)),
        color=alt.Color("reached:N", title=None, legend=alt.Legend() if legend else None, scale=reached),
        detail=alt.Detail("run:N"),
        tooltip=_tips("run:Q", "minutes:Q", "samples:Q", "loss:Q"),
    )
    layers = [encoded, *([_dashed("target").encode(y=alt.Y("target:Q"))] if target else [])]
    return dict(alt.layer(*layers).to_dict(validate=False))


def bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script without external requests."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def _steps() -> alt.X:
    return alt.X("step:Q", title="optimizer step", scale=alt.Scale(nice=False), axis=alt.Axis(grid=False, tickMinStep=1))


def _dashed(name: str, mark: str = "rule") -> alt.Chart:
    """Return a dashed line of reference."""
    return alt.Chart(of(name), mark=alt.MarkDef(mark, strokeDash=[5, 4], color=INK, opacity=0.7))


def _tips(*columns: str) -> list[alt.Tooltip]:
    """Return the columns that a mark shows when it is pointed at. Altair takes long to find the channel of a bare name."""
    return [alt.Tooltip(column) for column in columns]


def drawn(name: str, caption: str, spec: dict[str, Any], rows: dict[str, list[Row]], height: int = HEIGHT, *, svg: bool = False) -> Chart:
    """Return a chart of rows, by the name of their data, in the palette of the page. The height is in pixels."""
    spec = spec | {"height": height, "description": caption, "config": _CONFIG, "datasets": rows}
    fitted = spec | {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    wide, phone = (vl_convert.vegalite_to_svg({**fitted, "width": width}) if svg else "" for width in (WIDTH, PHONE_WIDTH))
    # Browsers show a title on hover; phones have no hover.
    return Chart(name, caption, fitted, LABEL.sub("", MARK.sub(r"<\1\3><title>\2</title></\1>", wide)), LABEL.sub("", phone))


_TEXT = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12}
_LINES = {"domainColor": GRID, "tickColor": GRID, "gridColor": GRID}
_CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": _TEXT | _LINES | {"titleFontSize": 12, "titleFontWeight": 500, "titlePadding": 8},
    "axisX": {"labelOverlap": "greedy", "labelSeparation": 8},
    "legend": _TEXT | {"symbolBaseFillColor": INK, "orient": "top", "offset": 6, "columns": 2, "columnPadding": 24},
}


# Charts of rows ------------------------------------------------------------------------------------

POINT = 60
"""Area of a point."""
LETTER, LINE = 6.2, 14.0
"""Width of a letter and height of a line of the names in a chart, in pixels."""
LABELS, LETTERS = {"labelLimit": 140, "labelExpr": "split(datum.label, '|')"}, 20
"""Labels of bars and ranges: a line break where the text has a bar, and at most this number of letters in a line."""
NAMES = 0.35
"""Room for names left of points or right of lines, as a share of a logarithmic axis: a name on a phone."""
BAND = 34
"""Height of a label's band of bars or ranges in pixels."""
TIP = alt.Description("tip:N")


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

    Each mark shows its `label` and figures on hover. Kinds: `points` and `lines` show y over x, `name` beside the point, and a line for
    each `line`; `rule` draws a dashed line at x = rule, `diagonal` one at y = x. `bars` show x for each `label`, `ranges` show x with a
    line from `low` to `high` and a dashed line at 1. The scale is `log` or `linear`; bars begin at 0.
    """
    rows = [row | {"tip": _tip(row, x, y)} for row in rows]
    if kind in {"points", "lines"}:
        least, most = (pick(row["x"] for row in rows) for pick in (min, max))
        ends = [{"x": end, "y": end} for end in (least, most)]
        named = _apart([row for row in rows if row.get("name")], rows, log=scale == "log")
        room = (most / least) ** NAMES if scale == "log" and named else 1.0
        beside = {} if room == 1.0 else {"domainMax": most * room} if kind == "lines" else {"domainMin": least / room}
        lines = {row.get("line") for row in named}
        data = {"rows": rows, "named": named, "marked": [row for row in rows if row.get("line") in lines]}
        data |= ({} if rule is None else {"rule": [{"x": rule}]}) | ({"diagonal": ends} if diagonal else {})
        drawing = _over(
            x, y, series, scale, lines=kind == "lines", named=bool(named), beside=beside, rule=rule is not None, diagonal=diagonal
        )
        return drawn(name, caption, drawing.to_dict(validate=False), data, svg=True)
    rows = [row | {"label": "|".join(line for part in row["label"].split("|") for line in textwrap.wrap(part, LETTERS))} for row in rows]
    labels = list(dict.fromkeys(row["label"] for row in rows))
    band = max(BAND, *(LINE * (label.count("|") + 2) for label in labels))
    drawing = _bars(labels, x, series) if kind == "bars" else _ranges(labels, x, series, scale)
    return drawn(
        name, caption, drawing.to_dict(validate=False), {"rows": rows, "rule": [{"x": 1}]}, max(HEIGHT, int(band * len(labels))), svg=True
    )


def _tip(row: Row, x: str, y: str) -> str:
    """Return the text of a mark that is pointed at."""
    more = f", {y} {row['y']:.5g}" if y else f" ({row['low']:.5g} to {row['high']:.5g})" if "low" in row else ""
    name = row["label"].replace("|", " ") + ("" if y else f", {row['series']}")
    return f"{name}: {x} {row['x']:.5g}{more}"


def _over(
    x: str, y: str, series: str, scale: str, *, lines: bool, named: bool, beside: dict[str, float], rule: bool, diagonal: bool
) -> alt.LayerChart:
    # Speed-ups of many families overlap: their lines are thin. Lines are over lengths, batches and device counts, which are powers of two.
    options, doubled = {"type": scale, "nice": False, "padding": 12}, {"base": 2} if scale == "log" and lines else {}
    axis = alt.Scale(**options, **(doubled if diagonal else {}))
    across = alt.Scale(**options, **doubled, **beside)
    size, opacity = (POINT / 2, 0.4) if diagonal else (POINT, 0.8)
    points = alt.Chart(of("rows"))
    dots = {"size": size, "opacity": opacity}
    marks = points.mark_line(strokeWidth=1.3, opacity=opacity, point=dots) if lines else points.mark_point(filled=True, **dots)
    # Series differ in more than their colour.
    second = {"strokeDash": alt.StrokeDash("series:N", title=series)} if lines else {"shape": alt.Shape("series:N", title=series)}
    encoded = marks.encode(
        x=alt.X("x:Q", title=x, scale=across, axis=alt.Axis(grid=False, format="~g")),
        y=alt.Y("y:Q", title=y, scale=axis, axis=alt.Axis(format="~g")),
        color=alt.Color("series:N", title=series) if series else alt.value(ACCENT),
        detail=alt.Detail("line:N"),
        description=TIP,
        **(second if series else {}),
    )
    # Points are named because no other is better in both, so none is below to the left. Lines with a name, which is at their end, are thick.
    place: dict[str, Any] = {"align": "left", "dx": 7, "dy": 4} if lines else {"align": "right", "dx": -5, "dy": 11}
    text = alt.Chart(of("named")).mark_text(fontSize=11, color=INK, **place)
    layers = [encoded]
    if named and lines:
        colour = {"color": alt.Color("series:N", title=series), **second} if series else {"color": alt.value(INK)}
        layers.append(alt.Chart(of("marked")).mark_line(strokeWidth=2.2).encode(x="x:Q", y="y:Q", detail="line:N", **colour))
    if named:
        layers.append(text.encode(x=alt.X("x:Q"), y=alt.Y("y:Q"), text=alt.Text("name:N")))
    if rule:
        layers.insert(0, _dashed("rule").encode(x=alt.X("x:Q")))
    if diagonal:
        layers.insert(0, _dashed("diagonal", "line").encode(x=alt.X("x:Q"), y=alt.Y("y:Q")))
    return alt.layer(*layers)


def _apart(named: list[Row], rows: list[Row], *, log: bool) -> list[Row]:
    """Return the rows whose names do not cover each other in the picture, from the lowest point to the highest."""
    place: Callable[[float], float] = math.log if log else float
    low_x, high_x, low_y, high_y = (place(pick(row[key] for row in rows)) for key in ("x", "y") for pick in (min, max))
    kept: list[tuple[float, float, Row]] = []
    for row in sorted(named, key=lambda row: (row["y"], row["x"])):
        left = WIDTH * (place(row["x"]) - low_x) / (high_x - low_x or 1)
        bottom = HEIGHT * (place(row["y"]) - low_y) / (high_y - low_y or 1)
        width = LETTER * max(len(each["name"]) for each in [row, *(other for _, _, other in kept)])
        if all(abs(left - x) >= width or abs(bottom - y) >= LINE for x, y, _ in kept):
            kept.append((left, bottom, row))
    return [row for _, _, row in kept]


def _bars(labels: list[str], x: str, series: str) -> alt.Chart:
    marks = alt.Chart(of("rows")).mark_bar(opacity=0.85)
    return marks.encode(
        y=alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(**LABELS)),
        x=alt.X("x:Q", title=x),
        yOffset=alt.YOffset("series:N"),
        color=alt.Color("series:N", title=series) if series else alt.value(ACCENT),
        description=TIP,
    )


def _ranges(labels: list[str], x: str, series: str, scale: str) -> alt.LayerChart:
    points = alt.Chart(of("rows"))
    y = alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(**LABELS))
    across = alt.X(
        "x:Q",
        title=x,
        scale=alt.Scale(type=scale, nice=False, padding=12, **({} if scale == "log" else {"zero": False})),
        axis=alt.Axis(format="~g", tickCount=8),
    )
    encoded = {"color": alt.Color("series:N", title=series), "yOffset": alt.YOffset("series:N")}
    lines = points.mark_rule(strokeWidth=2, opacity=0.6).encode(y=y, x=alt.X("low:Q"), x2=alt.X2("high:Q"), **encoded)
    dots = points.mark_point(filled=True, size=POINT, opacity=1).encode(y=y, x=across, description=TIP, **encoded)
    return alt.layer(_dashed("rule").encode(x=alt.X("x:Q")), lines, dots)
