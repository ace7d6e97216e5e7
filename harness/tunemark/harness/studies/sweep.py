"""A sweep: every point of a grid, repeated as requested, in fresh processes. A point that fails is a result and stops nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from tunemark.harness.plan.resolve import Options, Resolved
from tunemark.harness.studies.series import AS_GIVEN, Bench, Kind, Run, Series, StudyResult, grid, named, star_of_card
from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.statistics.intervals import one_more_run
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import Status, WarningKind
from tunemark.terminal import Table, say

ALL_RUNS = (WarningKind.RANDOM_WEIGHTS, WarningKind.UNKNOWN_ACCELERATOR, WarningKind.DIRTY_SOURCE)
"""Warnings that apply to every point alike."""
ONE_RUN = "The 95% interval covers this run only, since a single run cannot show the difference between processes; --repeats 3 measures it."
Range = tuple[float, float]


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
    tokens_per_s_interval: Range | None
    """95% interval: of the run, or with several runs for one more run (see `one_more_run`)."""
    tokens_per_s_range: Range | None
    """The slowest and the fastest run."""
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

    def cells(self, ranges: int) -> list[object]:
        """Return its cells in the table, with this many of its ranges of tokens per second."""
        between = (self.tokens_per_s_interval, self.tokens_per_s_range)[:ranges]
        return [
            self.point,
            self.status if self.runs == 1 else f"{self.status} ({self.ok} of {self.runs})",
            self.step_time_s and formats.duration(self.step_time_s),
            self.tokens_per_s and formats.significant(self.tokens_per_s),
            *(each and f"{formats.significant(each[0])} to {formats.significant(each[1])}" for each in between),
            self.peak_memory_bytes and formats.gib(self.peak_memory_bytes),
            None if self.train_loss is None else f"{self.train_loss:.3f}",
            self.speed and formats.ratio(self.speed),
            ", ".join(self.warnings),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult(StudyResult):
    """The points of a sweep."""

    missing: int
    """Runs without a record, because the user stopped the sweep."""
    points: tuple[Row, ...]

    @property
    def exit_code(self) -> Exit:
        """Return 0 when every run has a record and one of them is ok."""
        return Exit.OK if any(row.ok for row in self.points) and not self.missing else Exit.UNTRUSTWORTHY

    def shown(self) -> Iterator[Table | str]:
        """Yield the table of the points."""
        if not self.points:
            return
        repeated = any(row.runs > 1 for row in self.points)
        spread = ("95% for one more run", "lowest to highest") if repeated else ("95% interval",)
        headings = ("point", "status", "step time", "tokens/s", *spread, "peak memory", "loss", "speed", "warnings")
        yield Table(headings, [row.cells(len(spread)) for row in self.points])
        if any(row.runs == 1 and row.tokens_per_s_interval for row in self.points):
            yield ONE_RUN


def run_sweep(workload: str, overs: Sequence[str], options: Options, bench: Bench, *, repeats: int = 1) -> SweepResult:
    """Run all points that are not done yet. Raises TunemarkError before anything runs for an unknown name, or if nothing varies."""
    card = bench.card(workload, options)
    if not overs and not card.axes and not card.points:
        fix = f"is missing, and {card.key} has no axes of its own; name what to vary, such as --over batch_size=8,16,32, or use `tunemark run --repeats N`"
        raise TunemarkError("--over", None, fix)
    base = bench.plan(workload, options)
    points = grid(overs, card) if overs else star_of_card(card)
    plans = {named(point): bench.plan_of(point, workload, options, "--over") for point in points}
    if not overs:
        # An axis includes the card's own value, and some settings have no effect here.
        settings = [resolved.plan.settings for resolved in plans.values()]
        plans = {point: plans[point] for place, point in enumerate(plans) if settings.index(settings[place]) == place}
    return _run_points("sweep", base, bench, plans, repeats)


def run_repeats(workload: str, options: Options, bench: Bench, repeats: int) -> SweepResult:
    """Run the workload as requested, `repeats` times, in fresh processes."""
    base = bench.plan(workload, options)
    return _run_points("repeat", base, bench, {AS_GIVEN: base}, repeats)


def _run_points(kind: Kind, base: Resolved, bench: Bench, plans: dict[str, Resolved], repeats: int) -> SweepResult:
    # All points once, then all again, so a drift of the machine affects all points equally.
    turns = [(number, point) for number in range(1, repeats + 1) for point in plans]
    runs = {f"{point}, repeat {number}" if repeats > 1 or kind == "repeat" else point: plans[point] for number, point in turns}
    series = Series.find(kind, base, list(runs), bench, *plans.values())
    total, workload = formats.counted(len(turns), "run"), base.plan.workload
    say(f"{workload}: {kind} {series.study_id}, {total}")
    series.run_all(runs)
    missing = len(turns) - len(series.done)
    ended = series.ended and f"{series.ended}; {missing} of {total} not done"
    rows: list[Row] = []
    for place, name in enumerate(plans):
        if done := series.done[place :: len(plans)]:
            rows.append(_row(name, done, next((row.tokens_per_s for row in rows if row.speed), None)))
    return SweepResult(workload=workload, kind=kind, study_id=series.study_id, ended=ended, missing=missing, points=tuple(rows))


def _row(point: str, runs: Sequence[Run], first: float | None) -> Row:
    """Return the row of a point; `first` is the throughput that its speed is relative to, or None for the first one."""
    good = [run.submission for run in runs if run.status is Status.OK]
    derived = [derive(submission) for submission in good]
    rates = [figures.tokens_per_s for figures in derived if figures.tokens_per_s]
    values = [rate.value for rate in rates]
    # Of the only run, or with several for one more.
    interval = rates[0] if len(runs) == 1 and rates and rates[0].bounded else None
    if len(runs) > 1 and len(rates) > 1:
        interval = one_more_run(values)
    rate = median(values) if values else None
    peaks = [derive(run.submission).peak_memory.peak_bytes for run in runs]
    losses = [figures.train_loss for figures in derived if figures.train_loss is not None]
    steps = [figures.step_time.p50 for figures in derived if figures.step_time]
    comparable = all(figures.window is not None and figures.window.steps >= RANKABLE_STEPS for figures in derived)
    warnings = [warned.kind for submission in good for warned in submission.warnings]
    return Row(
        point=point,
        status=Status.OK.value if good else runs[0].status.value,
        runs=len(runs),
        ok=len(good),
        step_time_s=median(steps) if steps else None,
        tokens_per_s=rate,
        tokens_per_s_interval=(interval.low, interval.high) if interval else None,
        tokens_per_s_range=(min(values), max(values)) if values else None,
        peak_memory_bytes=max((peak for peak in peaks if peak is not None), default=None),
        train_loss=median(losses) if losses else None,
        speed=rate / (first or rate) if rate and comparable else None,
        warnings=tuple(dict.fromkeys(warning.value for warning in warnings if warning not in ALL_RUNS)),
        message=next((run.submission.outcome.message for run in runs if run.status is not Status.OK), None),
        files=tuple(str(run.path) for run in runs),
    )
