"""Points of a series as rows: of one run its own interval, of several the median and the lowest and highest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.table import Table

from tunemark.harness.run.show import as_text
from tunemark.harness.studies.ab_test import BreakEven, Comparison
from tunemark.harness.studies.frontier import Edge
from tunemark.harness.studies.series import Done
from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.statistics.comparison import SIGN_TEST_PAIRS, Change
from tunemark.schema.statistics.intervals import Interval
from tunemark.schema.statistics.job_prediction import Prediction
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import Doubt, Status

OF_ALL = (Doubt.RANDOM_WEIGHTS, Doubt.UNKNOWN_ACCELERATOR, Doubt.DIRTY_SOURCE)
"""Doubts that say nothing of one point against another."""


@dataclass(frozen=True, slots=True)
class Row:
    """One point, summed up over its runs."""

    point: str
    status: str
    """`ok` when one of its runs is; else how the first ended."""
    runs: int
    """How many."""
    ok: int
    """How many ended well."""
    step_time_s: float | None
    """Median step; of several runs the median of these."""
    tokens_per_s: float | None
    """Of several runs the median."""
    tokens_per_s_low: float | None
    """Lower end of the 95% interval; of several runs the lowest."""
    tokens_per_s_high: float | None
    """Upper end of the 95% interval; of several runs the highest."""
    peak_memory_bytes: int | None
    """The highest."""
    train_loss: float | None
    """Of several runs the median."""
    speed: float | None
    """Tokens a second over those of the first point with enough steady steps; null where one of both has too few to be compared."""
    doubts: tuple[str, ...]
    """Why its measurement is trusted less, by name; what is so of each run of the workload is left out."""
    message: str | None
    """Why it is not ok."""
    files: tuple[str, ...]
    """Its submissions."""


def summarise_points(done: Sequence[Done], point_of: dict[str, str] | None = None) -> list[Row]:
    """Return a row per point, in order; `point_of` says which runs are repeats of the same point."""
    groups: dict[str, list[Done]] = {}
    for run in done:
        groups.setdefault((point_of or {}).get(run.point, run.point), []).append(run)
    rows: list[Row] = []
    for point, runs in groups.items():
        first = next((row.tokens_per_s for row in rows if row.tokens_per_s and row.speed), None)
        rows.append(_row(point, runs, first))
    return rows


def _row(point: str, runs: Sequence[Done], first: float | None) -> Row:
    good = [run for run in runs if run.status is Status.OK]
    every = [(run, derive(run.record.submission)) for run in runs]
    derived = [one for run, one in every if run.status is Status.OK]
    rates = [one.tokens_per_s for one in derived if one.tokens_per_s]
    values = [rate.value for rate in rates]
    low, high = (None, None) if not rates else (min(values), max(values))
    if len(runs) == 1 and rates:
        low, high = (rates[0].low, rates[0].high) if rates[0].bounded else (None, None)
    rate = median(values) if values else None
    peaks = [one.peak_memory.peak_bytes for _, one in every]
    losses = [one.train_loss for one in derived if one.train_loss is not None]
    comparable = bool(rates) and all(one.window is not None and one.window.steps >= RANKABLE_STEPS for one in derived)
    steps = [one.step_time.p50 for one in derived if one.step_time]
    return Row(
        point=point,
        status=(good or runs)[0].status.value,
        runs=len(runs),
        ok=len(good),
        step_time_s=median(steps) if steps else None,
        tokens_per_s=rate,
        tokens_per_s_low=low,
        tokens_per_s_high=high,
        peak_memory_bytes=max((peak for peak in peaks if peak is not None), default=None),
        train_loss=median(losses) if losses else None,
        speed=rate / (first or rate) if rate and comparable else None,
        doubts=tuple(dict.fromkeys(w.doubt.value for run in good for w in run.record.submission.warnings if w.doubt not in OF_ALL)),
        message=next((run.record.submission.outcome.message for run in runs if run.status is not Status.OK), None),
        files=tuple(str(run.record.path) for run in runs),
    )


def points_table(rows: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    repeated = any(row.runs > 1 for row in rows)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("point", overflow="fold")
    table.add_column("status", no_wrap=True)
    spread = "lowest to highest" if repeated else "95% interval"
    for head in ("step time", "tokens/s", spread, "peak memory", "loss", "speed"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("doubts", overflow="fold")
    for row in rows:
        table.add_row(*as_text(*_cells(row)))
    return table


def _cells(row: Row) -> list[str]:
    missing = formats.MISSING
    between = None
    if row.tokens_per_s_low is not None and row.tokens_per_s_high is not None:
        between = f"{formats.significant(row.tokens_per_s_low)} to {formats.significant(row.tokens_per_s_high)}"
    return [
        row.point,
        row.status if row.runs == 1 else f"{row.status} ({row.ok} of {row.runs})",
        formats.duration(row.step_time_s) if row.step_time_s else missing,
        formats.significant(row.tokens_per_s) if row.tokens_per_s else missing,
        between or missing,
        formats.gib(row.peak_memory_bytes) if row.peak_memory_bytes else missing,
        f"{row.train_loss:.3f}" if row.train_loss is not None else missing,
        formats.ratio(row.speed) if row.speed else missing,
        ", ".join(row.doubts),
    ]


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as plain data."""
    return [{name: getattr(row, name) for name in Row.__dataclass_fields__} for row in rows]


# MOVE: was tunemark.harness.studies.report: What a frontier, a comparison and a prediction look like on a terminal.


def edges_table(edges: Sequence[Edge]) -> Table:
    """Return the edges of a frontier as a table."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("sequence length", "largest micro-batch", "first that failed", "peak memory", "tries"):
        table.add_column(head, justify="right")
    for edge in edges:
        table.add_row(
            str(edge.sequence_length),
            str(edge.micro_batch) if edge.micro_batch else "none",
            edge.first_failed or formats.MISSING,
            formats.gib(edge.peak_memory_bytes) if edge.peak_memory_bytes else formats.MISSING,
            str(edge.tries),
        )
    return table


def verdict(result: Comparison) -> list[str]:
    """Return what may be said of B against A, in sentences."""
    lines = [f"B is {result.b}, A is {result.a}: {result.pairs} pairs"]
    if result.throughput:
        lines.append(f"throughput: {_said(result.throughput, 'faster', 'slower')}")
        if result.pairs >= SIGN_TEST_PAIRS:
            lines.append(f"sign-flip test of throughput: p = {result.throughput.sign_p:.3f}")
    if result.step_time:
        lines.append(f"median step: {_said(result.step_time, 'longer', 'shorter')}")
    if result.memory:
        lines.append(f"peak memory: {_said(result.memory, 'higher', 'lower')}")
    if result.loss:
        lines.append(f"loss after equal tokens: {_said(result.loss, 'higher', 'lower')}")
    if result.accuracy:
        word = "B differs" if result.accuracy.significant else "no significant difference"
        points, error = 100 * result.accuracy.difference, 100 * result.accuracy.standard_error
        lines.append(f"accuracy: {word}: {points:+.1f} points (standard error {error:.1f}; within two of them is no difference)")
    if result.loss_changed:
        lines.append("B does not train as A does: its speed is that of another training")
    return [*lines, *map(_earned_back, result.break_even)]


def _earned_back(found: BreakEven) -> str:
    said = f"compiling with a {found.cache} cache"
    if not found.pairs:
        return f"{said}: not measured{'; --cold asks for it' if found.cache == 'cold' else ''}"
    if found.steps is None:
        return f"{said}: never earned back, the median step of B is no shorter"
    of = f"({found.pairs} pair{'s' * (found.pairs != 1)})"
    return (
        f"{said}: earned back after {math.ceil(round(found.steps, 3)):,} steps {of}"
        if found.steps
        else f"{said}: B needs no longer for it {of}"
    )


def _said(change: Change, higher: str, lower: str) -> str:
    if change.verdict == "too few pairs":
        return f"{change.change.value:+.1%}, and too few pairs for an interval"
    word = {"higher": f"B is {higher}", "lower": f"B is {lower}"}.get(change.verdict, change.verdict)
    return f"{word}: {change.change.value:+.1%} (95% interval {change.change.low:+.1%} to {change.change.high:+.1%})"


def prediction_table(found: Prediction, price: str | None) -> Table:
    """Return the parts of a whole job as a table."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("", "predicted", "95% interval"):
        table.add_column(head)
    table.add_row("optimizer steps", f"{found.steps:,}", "")
    table.add_row("a step", formats.duration(found.step_time_s.value), _between(found.step_time_s))
    table.add_row("paid once", formats.duration(found.once_s), "")
    table.add_row("training", formats.duration(found.train_s.value), _between(found.train_s))
    table.add_row("evaluations", formats.duration(found.evaluation_s), "")
    table.add_row("the whole job", formats.duration(found.wall_s.value), _between(found.wall_s))
    if found.usd:
        usd = found.usd
        table.add_row("cost", formats.usd(usd.value), f"{formats.usd(usd.low)} to {formats.usd(usd.high)}")
    if price:
        table.add_row("price", price, "")
    return table


def _between(interval: Interval) -> str:
    return f"{formats.duration(interval.low)} to {formats.duration(interval.high)}"
