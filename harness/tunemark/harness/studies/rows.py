"""Points of a series as rows: of one run its own interval, of several the median and the lowest and highest."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.table import Table

from tunemark.harness.show import as_text
from tunemark.harness.studies.series import Done
from tunemark.schema import formats
from tunemark.schema.derive import derive
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


def rows_of(done: Sequence[Done], point_of: dict[str, str] | None = None) -> list[Row]:
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


def table_of(rows: Sequence[Row]) -> Table:
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
