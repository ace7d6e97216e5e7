"""Tables of series on the terminal: points with their intervals, frontiers, comparisons, predictions."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

from rich.table import Column, Table

from tunemark.harness.run.show import as_text
from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.statistics.comparison import Change
from tunemark.schema.statistics.intervals import Interval, one_more_run
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import Status, WarningKind

if TYPE_CHECKING:
    from tunemark.harness.studies.ab_test import Comparison
    from tunemark.harness.studies.frontier import Edge
    from tunemark.harness.studies.series import Done
    from tunemark.schema.statistics.job_prediction import Prediction

ALL_RUNS = (WarningKind.RANDOM_WEIGHTS, WarningKind.UNKNOWN_ACCELERATOR, WarningKind.DIRTY_SOURCE)
"""Warnings that apply to every point alike."""


@dataclass(frozen=True, slots=True)
class Row:
    """One point, summarised over its runs.

    With several runs, times, rates and losses are medians.
    """

    point: str
    status: str
    """`ok` when one of its runs is; else the status of the first."""
    runs: int
    ok: int
    """Number of runs that are ok."""
    step_time_s: float | None
    """Median step."""
    tokens_per_s: float | None
    tokens_per_s_low: float | None
    """Lower end of the 95% interval: of the run, or with several runs for one more run (see `one_more_run`)."""
    tokens_per_s_high: float | None
    tokens_per_s_lowest: float | None
    """The slowest run."""
    tokens_per_s_highest: float | None
    peak_memory_bytes: int | None
    """The highest."""
    train_loss: float | None
    speed: float | None
    """Throughput relative to the first point with enough steady steps; null if either has too few."""
    warnings: tuple[str, ...]
    """Warnings by name, without those that apply to every run of the workload."""
    message: str | None
    """Why it is not ok."""
    files: tuple[str, ...]
    """Its submissions."""


def summarise_points(done: Sequence["Done"], point_of: dict[str, str] | None = None) -> list[Row]:
    """Return a row per point, in order; `point_of` maps repeats to their point."""
    groups: dict[str, list[Done]] = {}
    for run in done:
        groups.setdefault((point_of or {}).get(run.point, run.point), []).append(run)
    rows: list[Row] = []
    for point, runs in groups.items():
        first = next((row.tokens_per_s for row in rows if row.tokens_per_s and row.speed), None)
        rows.append(_row(point, runs, first))
    return rows


def _row(point: str, runs: Sequence["Done"], first: float | None) -> Row:
    good = [run.record.submission for run in runs if run.status is Status.OK]
    derived = [derive(submission) for submission in good]
    rates = [figures.tokens_per_s for figures in derived if figures.tokens_per_s]
    values = [rate.value for rate in rates]
    interval = _interval(rates, len(runs))
    rate = median(values) if values else None
    peaks = [derive(run.record.submission).peak_memory.peak_bytes for run in runs]
    losses = [figures.train_loss for figures in derived if figures.train_loss is not None]
    steps = [figures.step_time.p50 for figures in derived if figures.step_time]
    comparable = bool(rates) and all(figures.window is not None and figures.window.steps >= RANKABLE_STEPS for figures in derived)
    warnings = [warned.kind for submission in good for warned in submission.warnings]
    return Row(
        point=point,
        status=Status.OK.value if good else runs[0].status.value,
        runs=len(runs),
        ok=len(good),
        step_time_s=median(steps) if steps else None,
        tokens_per_s=rate,
        tokens_per_s_low=interval.low if interval else None,
        tokens_per_s_high=interval.high if interval else None,
        tokens_per_s_lowest=min(values, default=None),
        tokens_per_s_highest=max(values, default=None),
        peak_memory_bytes=max((peak for peak in peaks if peak is not None), default=None),
        train_loss=median(losses) if losses else None,
        speed=rate / (first or rate) if rate and comparable else None,
        warnings=tuple(dict.fromkeys(warning.value for warning in warnings if warning not in ALL_RUNS)),
        message=next((run.record.submission.outcome.message for run in runs if run.status is not Status.OK), None),
        files=tuple(str(run.record.path) for run in runs),
    )


def _interval(rates: Sequence[Interval], runs: int) -> Interval | None:
    """Return the 95% interval of the rate within the only run, or that for one more run; None with too few steps or rates."""
    if runs > 1:
        return one_more_run([rate.value for rate in rates]) if len(rates) > 1 else None
    return rates[0] if rates and rates[0].bounded else None


def table(headings: Sequence[str], rows: Iterable[Sequence[str | None]], *, folded: Sequence[str] = ()) -> Table:
    """Return a table whose folded columns are texts, and all others numbers on the right. None is a missing value."""
    columns = [Column(name, overflow="fold") if name in folded else Column(name, justify="right", no_wrap=True) for name in headings]
    made = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for row in rows:
        made.add_row(*as_text(*(formats.MISSING if cell is None else cell for cell in row)))
    return made


def points_table(rows: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    repeated = any(row.runs > 1 for row in rows)
    spread = ("95% for one more run", "lowest to highest") if repeated else ("95% interval",)

    def cells(row: Row) -> list[str | None]:
        ranges = [_range(row.tokens_per_s_low, row.tokens_per_s_high), _range(row.tokens_per_s_lowest, row.tokens_per_s_highest)]
        return [
            row.point,
            row.status if row.runs == 1 else f"{row.status} ({row.ok} of {row.runs})",
            formats.duration(row.step_time_s) if row.step_time_s else None,
            formats.significant(row.tokens_per_s) if row.tokens_per_s else None,
            *ranges[: len(spread)],
            formats.gib(row.peak_memory_bytes) if row.peak_memory_bytes else None,
            f"{row.train_loss:.3f}" if row.train_loss is not None else None,
            formats.ratio(row.speed) if row.speed else None,
            ", ".join(row.warnings),
        ]

    headings = ("point", "status", "step time", "tokens/s", *spread, "peak memory", "loss", "speed", "warnings")
    return table(headings, map(cells, rows), folded=("point", "status", "warnings"))


def _range(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{formats.significant(low)} to {formats.significant(high)}"


def edges_table(edges: Sequence["Edge"]) -> Table:
    """Return the edges of a frontier as a table."""
    rows = [
        (
            str(edge.sequence_length),
            str(edge.micro_batch or "none"),
            edge.first_failed,
            formats.gib(edge.peak_memory_bytes) if edge.peak_memory_bytes else None,
            str(edge.tries),
        )
        for edge in edges
    ]
    return table(("sequence length", "largest micro-batch", "first failure", "peak memory", "tries"), rows)


TryVerdict = Literal["card", "kept", "no gain", "does not fit", "failed", "excluded"]


@dataclass(frozen=True, slots=True)
class Try:
    """One value of one lever, on top of what was kept before."""

    lever: str
    settings: str
    tokens_per_s: float | None
    """Estimated from few steps; None if it did not run."""
    gain: float | None
    """Rate over the best one before, minus 1."""
    peak_memory_bytes: int | None
    verdict: TryVerdict
    reason: str = ""
    """Why it did not run."""


def tries_table(tries: Sequence["Try"]) -> Table:
    """Return the levers of a search with their gains as a table, in the order in which they were tried."""
    rows = [
        (
            tried.lever,
            tried.settings,
            f"{tried.tokens_per_s:,.0f}" if tried.tokens_per_s else None,
            f"{tried.gain:+.1%}" if tried.gain is not None else None,
            formats.gib(tried.peak_memory_bytes) if tried.peak_memory_bytes else None,
            f"{tried.verdict}: {tried.reason}" if tried.reason else tried.verdict,
        )
        for tried in tries
    ]
    return table(("lever", "settings", "tokens/s", "gain", "peak memory", ""), rows, folded=("lever", "settings", ""))


def verdict(result: "Comparison") -> list[str]:
    """Return the findings about B compared with A, in sentences."""
    lines = [f"B is {result.b}, A is {result.a}: {formats.counted(result.pairs, 'pair')}"]
    if result.throughput:
        lines.append(f"throughput: {_change(result.throughput, 'faster', 'slower')}")
    if result.step_time:
        lines.append(f"median step: {_change(result.step_time, 'longer', 'shorter')}")
    if result.memory:
        lines.append(f"peak memory: {_change(result.memory, 'higher', 'lower')}")
    if result.loss:
        lines.append(f"loss after equal tokens: {_change(result.loss, 'higher', 'lower')}")
    if result.accuracy:
        word = "B differs" if result.accuracy.significant else "no significant difference"
        points, error = 100 * result.accuracy.difference, 100 * result.accuracy.standard_error
        lines.append(
            f"accuracy: {word}: {points:+.1f} points (standard error {error:.1f}; differences below two standard errors are not significant)"
        )
    if result.loss_changed:
        lines.append("B does not train as A does, so its speed is not comparable")
    if result.compiling_pays_after_steps is not None:
        steps = formats.counted(math.ceil(round(result.compiling_pays_after_steps, 3)), "step")
        cold = all(run.record.submission.plan.measurement.cold for run in result.runs)
        caches = "empty caches" if cold else "the caches as they were; --set cold=true measures it with empty ones"
        lines.append(f"compiling pays off after {steps} with {caches}")
    return lines


def _change(change: Change, higher: str, lower: str) -> str:
    if change.verdict == "too few pairs":
        return f"{change.change.value:+.1%}, and too few pairs for an interval"
    word = {"higher": f"B is {higher}", "lower": f"B is {lower}"}.get(change.verdict, change.verdict)
    return f"{word}: {change.change.value:+.1%} (95% interval {change.change.low:+.1%} to {change.change.high:+.1%})"


def prediction_table(prediction: "Prediction", price: str | None) -> Table:
    """Return the parts of a whole job as a table."""
    usd = prediction.usd
    rows = [
        ("optimizer steps", f"{prediction.steps:,}", ""),
        ("one step", formats.duration(prediction.step_time_s.value), _between(prediction.step_time_s)),
        ("start-up", formats.duration(prediction.once_s), ""),
        ("training", formats.duration(prediction.train_s.value), _between(prediction.train_s)),
        ("evaluations", formats.duration(prediction.evaluation_s), ""),
        ("whole job", formats.duration(prediction.wall_s.value), _between(prediction.wall_s)),
        *([("cost", formats.usd(usd.value), f"{formats.usd(usd.low)} to {formats.usd(usd.high)}")] if usd else []),
        *([("price", price, "")] if price else []),
    ]
    headings = ("", "predicted", "95% interval")
    return table(headings, rows, folded=headings)


def _between(interval: Interval) -> str:
    return f"{formats.duration(interval.low)} to {formats.duration(interval.high)}"
