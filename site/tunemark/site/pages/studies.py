"""Studies: findings over all results, and the runs of sweeps, frontiers, A/B comparisons and repeats.

A study of findings is a module of tunemark.site.studies with a function `study(evidence)`; a new module is found automatically.
Its sentences are made of figures of at least two results, which they cite. A figure of a failed, impossible or refuted result is
None, and a sentence without its figures is not written.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from statistics import fmean, median
from typing import TypeVar

from tunemark.schema.formats import MISSING, percent, significant
from tunemark.schema.statistics.comparison import ARMS, Change, arm_run, paired_change
from tunemark.schema.statistics.intervals import share_difference
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.site import studies, tables, wording
from tunemark.site.charts import ACCENT, HEIGHT, INK, Chart, drawn, inline
from tunemark.site.page import Fact, Page, result_path, study_path, workload_path
from tunemark.site.queries import Catalogue
from tunemark.site.results_table import accuracy_cell, cost_cell, memory_cell, rate_cell, status_cell
from tunemark.site.tables import Cell, Column, Row, Table, quantity_column, text_column

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
CRUMBS = (("Studies", "studies/index"),)
FIRST_CITATIONS = 6
"""Citations that are shown after a sentence; the others are folded."""
LONG = 60
"""A table with more rows is folded."""
OUT_OF_MEMORY = ("oom_device", "oom_host")
MEANING = {
    "sweep": "Vary one or several settings. A point that fails is a result and does not stop the others.",
    "frontier": "Find the largest micro-batch and sequence length that fit, by doubling and then bisection. A fresh process confirms the largest.",
    "ab": "Run two arms in turn in fresh processes, so that slow drifts of the machine cancel in their ratio.",
    "tune": "Find the fastest configuration of the tuned division, one setting at a time, in short trials. Trials are never ranked.",
    "repeat": "Repeat the same run in fresh processes to see how much results on one machine vary.",
}
LEAST = 2
"""A finding needs this number of results."""
REFUTED = "impossible"
POINT = 60
"""Area of a point on a chart."""
LABELS = {"labelLimit": 170, "labelExpr": "split(datum.label, '|')"}
"""Labels of bars: a line break where the text has a bar."""
BAND = 34
"""Height of a label's band of bars or ranges in pixels."""


# Findings ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sentence:
    """One finding: a sentence and the results that its figures come from."""

    text: str
    citations: tuple[str, ...]
    """Result ids, at least two."""


@dataclass(frozen=True, slots=True)
class Study:
    """A question, the findings that answer it, and the evidence behind them."""

    key: str
    """Name in the page's path."""
    title: str
    question: str
    sentences: tuple[Sentence, ...]
    tables: tuple[Table, ...]
    method: tuple[str, ...]
    caveats: tuple[str, ...]
    draw: tuple[Callable[[], Chart | None], ...] = ()
    """Functions that draw the charts, which takes longer than all sentences; a chart without points is None."""
    answers: int = 0
    """The number of tables, from the first, that answer the question at a glance and come before the findings."""

    @property
    def citations(self) -> tuple[str, ...]:
        """The ids of all cited results."""
        return tuple(dict.fromkeys(result for sentence in self.sentences for result in sentence.citations))


@dataclass(frozen=True)
class Evidence:
    """The results of a catalogue, read figure by figure so that refuted figures are never used."""

    catalogue: Catalogue

    @cached_property
    def refuted(self) -> frozenset[tuple[str, str]]:
        """The record and the quantity of each figure that a check proves impossible."""
        return frozenset(
            (record, quantity)
            for finding in self.catalogue.findings
            if finding["verdict"] == REFUTED
            for record in finding["record_ids"]
            for quantity in finding["quantities"]
        )

    @cached_property
    def results(self) -> list[Row]:
        """The results that succeeded and are possible."""
        return [row for row in self.catalogue.results if not row["failed"] and not row["impossible"]]

    def of_source(self, *sources: str) -> list[Row]:
        """Return the usable results of some sources."""
        return [row for row in self.results if row["source"] in sources]

    def figure(self, row: Row | None, quantity: str) -> float | None:
        """Return a figure of a result, or of its claims; None if it is unknown or refuted."""
        if row is None or row["failed"] or row["impossible"] or (row["result_id"], quantity) in self.refuted:
            return None
        value = row.get(quantity)
        return self.claim(row, quantity) if value is None else value

    def doubted(self, row: Row, quantity: str) -> bool:
        """Return True if the audit calls a figure of a result suspicious or impossible."""
        return (row["result_id"], quantity) in self.catalogue.marked_cells

    def claim(self, row: Row, quantity: str) -> float | None:
        """Return a figure as its document prints it; None if it prints none or several."""
        values = {claim["value"] for claim in self.catalogue.claims.get(row["result_id"], ()) if claim["quantity"] == quantity}
        return values.pop() if len(values) == 1 else None

    def label(self, row: Row, name: str) -> str | None:
        """Return a text that a document prints about a result."""
        return next((label["printed"] for label in self.catalogue.labels.get(row["result_id"], ()) if label["label"] == name), None)

    def model(self, row: Row) -> str | None:
        """Return the name of a result's model, or the name that its document prints."""
        return row["model_name"] or self.label(row, "model")

    def method(self, row: Row) -> str:
        """Return the method of a result, with the printed words where a document does not name LoRA or QLoRA."""
        printed, name = self.label(row, "method"), wording.method(row)
        return (
            f"{name} (printed as {printed})"
            if printed and row["method"] != "full" and "lora" not in printed.lower().replace("-", "")
            else name
        )

    def named_cost(self, row: Row) -> Row | None:
        """Return the cost on the instance that a result names, at the first on-demand price in price order."""
        costs = self.catalogue.costs.get(row["result_id"], ())
        return next((cost for cost in costs if cost["same_instance"] and cost["kind"] == "on_demand" and cost["instances"] == 1), None)


def sentence(text: str, rows: Iterable[Row]) -> Sentence | None:
    """Return a sentence with its citations; None if it would cite fewer than two results."""
    cited = tuple(dict.fromkeys(row["result_id"] for row in rows))
    return Sentence(text, cited) if len(cited) >= LEAST else None


def written(sentences: Iterable[Sentence | None]) -> tuple[Sentence, ...]:
    """Return the sentences that have their evidence."""
    return tuple(made for made in sentences if made is not None)


def all_studies(catalogue: Catalogue) -> Iterator[Study]:
    """Yield the studies that have at least one finding, by their order of reading."""
    evidence = Evidence(catalogue)
    for make in makers():
        made = make(evidence)
        if made.sentences:
            yield made


def makers() -> list[Callable[[Evidence], Study]]:
    """Return the functions that make the studies, by their order of reading."""
    modules = [import_module(f"{studies.__name__}.{found.name}") for found in iter_modules(studies.__path__)]
    return [module.study for module in sorted(modules, key=lambda module: module.ORDER)]


# Words ---------------------------------------------------------------------------------------------


def ratio(value: float) -> str:
    """Return a ratio as `3.95x`, with the multiplication sign."""
    return f"{significant(value, 3)}\N{MULTIPLICATION SIGN}"


def spread(values: Sequence[float], show: Callable[[float], str] = ratio) -> str:
    """Return the median of values, and their range in brackets."""
    low, high = show(min(values)), show(max(values))
    return show(median(values)) if low == high else f"{show(median(values))} ({low} to {high})"


def share(value: float) -> str:
    """Return a share as a percentage with three digits."""
    return f"{significant(100 * value, 3)}%"


def change(value: float) -> str:
    """Return a relative change with its direction: `12.0% more`."""
    return f"{percent(abs(value))} {'more' if value > 0 else 'less'}"


def gathered(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return items by key, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def document_means(values: Iterable[tuple[str, float]]) -> list[float]:
    """Return the geometric mean of each document's ratios, from pairs of document and ratio: those of one are not independent."""
    return [math.exp(fmean(math.log(value) for _, value in group)) for group in gathered(values, lambda item: item[0]).values()]


def mean_over_documents(values: Iterable[tuple[str, float]]) -> float:
    """Return the geometric mean of ratios within each document, then across documents."""
    return math.exp(fmean(map(math.log, document_means(values))))


def listed(names: Sequence[str]) -> str:
    """Return names as a list with `and`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def ambiguous_caveat(evidence: Evidence, sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """Return the caveat about cited results with an ambiguous figure; empty if there are none."""
    cited = {result for made in sentences for result in made.citations}
    number = sum(row["ambiguous"] for row in evidence.results if row["result_id"] in cited)
    if not number:
        return ()
    return (
        f"{number} of {len(cited)} cited results contain an ambiguous figure. Their pages show all readings; the study uses the resolved one.",
    )


# Tables and charts ---------------------------------------------------------------------------------


def result_link(text: str, row: Row) -> Cell:
    """Return a cell that links to a result."""
    return tables.text(text, href=result_path(row["result_id"]), small=row["result_id"])


def devices_column(head: str = "Accelerator") -> Column[Row]:
    """Return the column with accelerator and count that links to the result."""
    return Column(head, lambda row: result_link(wording.devices(row), row))


def scatter(
    name: str,
    caption: str,
    values: list[Row],
    x: str,
    y: str,
    series: str | None,
    *,
    lines: bool = False,
    rule: float | None = None,
) -> Chart | None:
    """Return a chart of y over x on logarithmic scales, with a dashed line at x = `rule`.

    The values have the keys `x`, `y`, `series` and `label`.
    """
    import altair as alt  # noqa: PLC0415

    if not values:
        return None
    points = alt.Chart(inline(values))
    drawing = (
        points.mark_line(strokeWidth=1.3, opacity=0.8, point={"size": POINT})
        if lines
        else points.mark_point(filled=True, size=POINT, opacity=0.8)
    )
    colour = alt.Color("series:N", title=series) if series else alt.value(ACCENT)
    # Series differ in more than their colour.
    second = {"strokeDash": alt.StrokeDash("series:N", title=series)} if lines else {"shape": alt.Shape("series:N", title=series)}
    encoded = drawing.encode(
        x=alt.X("x:Q", title=x, scale=alt.Scale(type="log", nice=False, padding=12), axis=alt.Axis(grid=False, format="~g")),
        y=alt.Y("y:Q", title=y, scale=alt.Scale(type="log", nice=False, padding=12), axis=alt.Axis(format="~g")),
        color=colour,
        detail="line:N",
        tooltip=["label:N", "x:Q", "y:Q"],
        **(second if series else {}),
    )
    if rule is None:
        return drawn(name, caption, encoded)
    marked = alt.Chart(inline([{"x": rule}])).mark_rule(strokeDash=[5, 4], color=INK, opacity=0.7).encode(x="x:Q")
    return drawn(name, caption, alt.layer(marked, encoded))


def reference_line(name: str, caption: str, values: list[Row], x: str, y: str) -> Chart | None:
    """Return a line chart on logarithmic scales with y = x dashed, for speed-ups over device counts."""
    import altair as alt  # noqa: PLC0415

    if not values:
        return None
    ends = [{"x": end, "y": end} for end in (min(row["x"] for row in values), max(row["x"] for row in values))]
    scale = alt.Scale(type="log", base=2, nice=False, padding=12)
    lines = alt.Chart(inline(values)).mark_line(strokeWidth=1.2, opacity=0.4, point={"size": 26, "opacity": 0.7})
    layer = lines.encode(
        x=alt.X("x:Q", title=x, scale=scale, axis=alt.Axis(grid=False, format="d")),
        y=alt.Y("y:Q", title=y, scale=scale, axis=alt.Axis(format="~g")),
        color=alt.value(ACCENT),
        detail="line:N",
        tooltip=["label:N", "x:Q", "y:Q"],
    )
    rule = alt.Chart(inline(ends)).mark_line(strokeDash=[5, 4], color=INK, opacity=0.7).encode(x="x:Q", y="y:Q")
    return drawn(name, caption, alt.layer(rule, layer))


def bars(name: str, caption: str, values: list[Row], x: str, series: str) -> Chart | None:
    """Return horizontal bars. The values have the keys `label`, `x` and `series`."""
    import altair as alt  # noqa: PLC0415

    if not values:
        return None
    labels = list(dict.fromkeys(row["label"] for row in values))
    drawing = (
        alt.Chart(inline(values))
        .mark_bar(opacity=0.85)
        .encode(
            y=alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(**LABELS)),
            x=alt.X("x:Q", title=x),
            yOffset=alt.YOffset("series:N"),
            color=alt.Color("series:N", title=series),
            tooltip=["label:N", "series:N", "x:Q"],
        )
    )
    return drawn(name, caption, drawing, max(HEIGHT, BAND * len(labels)))


def ranges(name: str, caption: str, values: list[Row], x: str, series: str, *, scale: str = "log") -> Chart | None:
    """Return ratios as points with their ranges as lines, with a dashed line at 1. The scale is `log` or `linear`.

    The values have the keys `label`, `x`, `low`, `high` and `series`.
    """
    import altair as alt  # noqa: PLC0415

    if not values:
        return None
    labels = list(dict.fromkeys(row["label"] for row in values))
    points = alt.Chart(inline(values))
    y = alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(**LABELS))
    across = alt.X("x:Q", title=x, scale=alt.Scale(type=scale, nice=False, padding=12, zero=False), axis=alt.Axis(format="~g", tickCount=8))
    colour, offset = alt.Color("series:N", title=series), alt.YOffset("series:N")
    lines = points.mark_rule(strokeWidth=2, opacity=0.6).encode(y=y, x=alt.X("low:Q"), x2="high:Q", yOffset=offset, color=colour)
    tooltip = ["label:N", "series:N", "x:Q", "low:Q", "high:Q"]
    dots = points.mark_point(filled=True, size=POINT, opacity=1).encode(y=y, x=across, yOffset=offset, color=colour, tooltip=tooltip)
    one = alt.Chart(inline([{"x": 1}])).mark_rule(strokeDash=[5, 4], color=INK, opacity=0.7).encode(x="x:Q")
    return drawn(name, caption, alt.layer(one, lines, dots), max(HEIGHT, BAND * len(labels)))


# Pages ---------------------------------------------------------------------------------------------


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the list of studies and a page for each."""
    findings = list(all_studies(catalogue))
    context: dict[str, object] = {"studies": findings, "table": _list(catalogue), "meaning": MEANING, "names": wording.SERIES}
    yield Page("studies/index", "Studies", "studies.md.j2", context)
    titles = {row["result_id"]: wording.result_title(row) for row in catalogue.results}
    for made in findings:
        yield _page(made, titles)
    for study in catalogue.studies:
        runs = sorted(catalogue.results_where(study_id=study["study_id"]), key=lambda row: (row["study_position"] or 0, row["result_id"]))
        context = {
            "meaning": MEANING.get(study["study_kind"], ""),
            "facts": _facts(study),
            "table": _table(catalogue, runs),
            "verdict": _verdict(catalogue, study["study_kind"], runs),
        }
        yield Page(study_path(study["study_id"]), _title(study), "study.md.j2", context, CRUMBS)


def _page(study: Study, titles: dict[str, str]) -> Page:
    """Return the page of a study of findings."""
    context = {
        "study": study,
        "charts": [chart for chart in (draw() for draw in study.draw) if chart],
        "titles": titles,
        "first": FIRST_CITATIONS,
        "answers": study.tables[: study.answers],
        "tables": study.tables[study.answers :],
        "long": LONG,
    }
    return Page(study_path(study.key), study.title, "study_findings.md.j2", context, CRUMBS)


def _title(study: Row) -> str:
    return wording.sentence(f"{wording.SERIES.get(study['study_kind'], study['study_kind'])} of {study['workload']}")


def _list(catalogue: Catalogue) -> Table | None:
    columns: list[Column[Row]] = [
        Column(
            "Study",
            lambda row: tables.text(
                wording.SERIES.get(row["study_kind"], row["study_kind"]), href=study_path(row["study_id"]), small=row["study_id"]
            ),
        ),
        Column("Workload", lambda row: tables.text(row["workload"], href=workload_path(row["workload"]))),
        text_column("Device", "accelerator_name"),
        Column("Points", lambda row: tables.number(row["points"]), numeric=True),
        Column("Runs", lambda row: tables.number(row["runs"]), numeric=True),
        Column("Failed", lambda row: tables.number(row["failed"]), numeric=True),
        Column("Date", lambda row: tables.text(wording.day(row["started_us"])), tight=True),
    ]
    return tables.table("Studies", columns, catalogue.studies, interactive=True) if catalogue.studies else None


def _facts(study: Row) -> list[Fact]:
    return [
        Fact("Workload", study["workload"], href=workload_path(study["workload"])),
        Fact("Device", wording.plain(study["accelerator_name"])),
        Fact("Points", wording.plain(study["points"])),
        Fact("Runs", wording.plain(study["runs"]), f"{study['failed']} failed" if study["failed"] else "all succeeded"),
        Fact("Started", wording.moment(study["started_us"])),
        Fact("Study", study["study_id"], "shared by all of its runs"),
    ]


def _table(catalogue: Catalogue, runs: list[Row]) -> Table:
    first = next((row["tokens_per_s"] for row in runs if row["tokens_per_s"]), None)
    classified = any(row["accuracy"] is not None for row in runs)
    columns: list[Column[Row]] = [
        Column(
            "Point",
            lambda row: tables.text(
                row["study_point"],
                small=f"run {row['study_position']}",
                href=result_path(row["result_id"]),
                sort=row["study_position"],
            ),
            explained="Links to the result.",
        ),
        Column("Status", status_cell),
        quantity_column("tokens_per_s", lambda row: rate_cell(row, "tokens_per_s")),
        Column(
            "Relative to the first",
            lambda row: tables.quantity("relative_speed", row["tokens_per_s"] / first if row["tokens_per_s"] and first else None),
            numeric=True,
            explained="Tokens/s divided by the tokens/s of the first point with a rate.",
        ),
        quantity_column("step_time_s"),
        quantity_column("peak_memory_bytes", memory_cell),
        quantity_column("train_loss"),
        *([quantity_column("accuracy", accuracy_cell)] if classified else []),
        Column("Cost per 1k samples", lambda row: cost_cell(catalogue.basis_costs.get(row["result_id"])), numeric=True),
    ]
    return tables.table("Runs of this study", columns, runs, last=lambda row: row["failed"], interactive=True, searchable=False)


def _verdict(catalogue: Catalogue, kind: str, runs: list[Row]) -> str:
    """Return the result of a study in a sentence; empty if its table is the result."""
    if kind == "ab":
        return _ab_verdict([row for row in runs if _counts(catalogue, row)])
    rates = [row["tokens_per_s"] for row in runs if row["tokens_per_s"] and not row["failed"]]
    if kind == "frontier":
        fits = [row["study_point"] for row in runs if not row["failed"]]
        full = [row["study_point"] for row in runs if row["status"] in OUT_OF_MEMORY]
        return f"Fits: {'; '.join(fits) or 'no point that was tried'}. Out of memory: {'; '.join(full) or 'no point'}." + (
            " The other points failed for other reasons." if len(fits) + len(full) < len(runs) else ""
        )
    if kind == "repeat" and len(rates) > 1:
        return f"Tokens/s of {len(rates)} runs differ by {percent(max(rates) / min(rates) - 1)} from the lowest to the highest."
    return ""


def _counts(catalogue: Catalogue, row: Row) -> bool:
    """Return True if a run's speed counts: it succeeded, is long enough to be compared, and no check failed."""
    checked = all(gate["passed"] is not False for gate in catalogue.seen("gates", row["result_id"]))
    return not row["failed"] and (row["steady_steps"] or 0) >= RANKABLE_STEPS and checked


def _ab_verdict(runs: list[Row]) -> str:
    """Return the verdict on the tokens/s of arm B compared with arm A, from the pairs in which both runs count."""
    arms: dict[str, dict[int, Row]] = {arm: {} for arm in ARMS}
    settings = dict.fromkeys(ARMS, MISSING)
    for row in runs:
        run = arm_run(row["study_point"])
        if run is not None and run.pair and row["tokens_per_s"]:
            settings[run.arm] = run.settings
            arms[run.arm][run.pair] = row
    pairs = sorted(set(arms["a"]) & set(arms["b"]))
    if not pairs:
        return f"No verdict: no pair has two successful runs with passed checks and {RANKABLE_STEPS} steady steps."
    a, b = ([arms[arm][pair] for pair in pairs] for arm in ARMS)
    change = paired_change([row["tokens_per_s"] for row in a], [row["tokens_per_s"] for row in b])
    classified = [(first, second) for first, second in zip(a, b, strict=True) if _has_accuracy(first) and _has_accuracy(second)]
    accuracy = _accuracy_verdict([first for first, _ in classified], [second for _, second in classified])
    return f"Tokens/s of B ({settings['b']}) compared with A ({settings['a']}): {_change(change)}.{accuracy}"


def _has_accuracy(row: Row) -> bool:
    return row["accuracy"] is not None and bool(row["evaluation_rows"])


def _accuracy_verdict(a: list[Row], b: list[Row]) -> str:
    """Return the comparison of the mean accuracies of two arms; empty if nothing was classified.

    All runs of an arm classify the same rows, so their mean has the standard error of a single run.
    """
    if not a or not b:
        return ""
    means = [sum(row["accuracy"] for row in rows) / len(rows) for rows in (a, b)]
    test = share_difference(means[0], min(row["evaluation_rows"] for row in a), means[1], min(row["evaluation_rows"] for row in b))
    verdict = "differs" if test.significant else "no significant difference"
    error = f"standard error {wording.standard_error('accuracy', test.standard_error)}"
    return f" Accuracy: {verdict}, {means[0]:.1%} and {means[1]:.1%} ({100 * test.difference:+.1f} points, {error})."


def _change(change: Change) -> str:
    value = change.change
    interval = f", 95% interval {value.low:+.1%} to {value.high:+.1%}" if value.bounded else ""
    return f"{change.verdict}, {value.value:+.1%}{interval}, from {change.pairs} pair{'s' * (change.pairs != 1)}"
