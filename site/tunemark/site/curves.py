"""Chart of the runs of a converted result: how fast each came to the target."""

import altair as alt

from tunemark.schema.formats import MINUTE_S
from tunemark.site.charts import ACCENT, INK, WARMUP, Chart, drawn, inline
from tunemark.site.queries import Row

REACHED, MISSED = "reached the target", "no time to target"


def loss_of_runs(curves: list[Row], reached: set[int], target: float | None) -> Chart | None:
    """Return eval loss over minutes, a line for each run, the target dashed where it is known; None without evaluations."""
    if not curves:
        return None
    layers: list[alt.Chart] = [_lines(curves, reached)]
    caption = "Eval loss over minutes since the clock of the benchmark started; a thin line for each run."
    if target is not None:
        rule = alt.Chart(inline([{"target": target}])).mark_rule(strokeDash=[5, 4], color=INK, opacity=0.8)
        layers.append(rule.encode(y="target:Q"))
        caption += f" The dashed line is the target, {target:g}."
    if len(curves) == len({row["run"] for row in curves}):
        caption += " Each run was evaluated once."
    return drawn("eval-loss", caption, alt.layer(*layers))


def _lines(curves: list[Row], reached: set[int]) -> alt.Chart:
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
