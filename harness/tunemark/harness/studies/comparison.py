"""Points that are measured in turn, in fresh processes: a sweep over a grid, repeats of one point, and A/B with a verdict.

A point of a sweep that fails is a result and stops nothing.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from tunemark.harness.plan.resolve import Options, Resolved
from tunemark.harness.studies.series import AS_GIVEN, Bench, Kind, Run, Series, StudyResult, grid, named, settings_of, star_of_card
from tunemark.schema import formats
from tunemark.schema.derive import Derived, derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import ARMS, arm_point
from tunemark.schema.statistics.intervals import Change, ShareDifference, one_more_run, paired_change, share_difference
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
    plans = {named(point): bench.plan(workload, options, point, "--over") for point in points}
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


# A/B: two settings in interleaved runs, and a verdict on their difference

LOSS_TOLERANCE = 0.01
"""Other kernels and number formats round differently. Above this difference in loss, the two arms do not train the same way."""
HOPELESS = (Status.UNSUPPORTED, Status.OOM_DEVICE, Status.OOM_HOST)
"""Statuses that a retry of the same settings would reproduce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(StudyResult):
    """B compared with A."""

    a: str
    b: str
    pairs: int
    """Pairs in which both runs are ok."""
    throughput: Change | None
    """Real tokens per second; None without a pair."""
    step_time: Change | None
    """Median step: the throughput of an undisturbed machine."""
    memory: Change | None
    loss: Change | None
    """Training loss after equal tokens; None if it is not above 0."""
    loss_changed: bool
    """True if B trains differently from A, so that their speeds are not comparable."""
    accuracy: ShareDifference | None
    """Means over the pairs, on the evaluation rows that all runs share; None without classification."""
    compiling_pays_after_steps: float | None
    """Steps after which the longer compilation of B has paid off (definitions#compile-overhead), by the medians of the pairs, most of which
    find a warm cache; None when B is not faster, or does not compile longer."""
    cold: bool
    """True if each run began with empty compile caches."""
    runs: tuple[str, ...]

    @property
    def exit_code(self) -> Exit:
        """Return 0 if there is a verdict."""
        return Exit.OK if self.throughput and self.throughput.verdict != "too few pairs" else Exit.UNTRUSTWORTHY

    def shown(self) -> Iterator[str]:
        """Yield the findings about B compared with A, in sentences."""
        yield f"B is {self.b}, A is {self.a}: {formats.counted(self.pairs, 'pair')}"
        for quantity, change, higher, lower in (
            ("throughput", self.throughput, "faster", "slower"),
            ("median step", self.step_time, "longer", "shorter"),
            ("peak memory", self.memory, "higher", "lower"),
            ("loss after equal tokens", self.loss, "higher", "lower"),
        ):
            if change and change.verdict == "too few pairs":
                yield f"{quantity}: {change.change.value:+.1%}, and too few pairs for an interval"
            elif change:
                word = {"higher": f"B is {higher}", "lower": f"B is {lower}"}.get(change.verdict, change.verdict)
                yield f"{quantity}: {word}: {change.change.value:+.1%} (95% interval {change.change.low:+.1%} to {change.change.high:+.1%})"
        if self.accuracy:
            word = "B differs" if self.accuracy.significant else "no significant difference"
            points, error = 100 * self.accuracy.difference, 100 * self.accuracy.standard_error
            yield f"accuracy: {word}: {points:+.1f} points (standard error {error:.1f}; differences below two standard errors are not significant)"
        if self.loss_changed:
            yield "B does not train as A does, so its speed is not comparable"
        if self.compiling_pays_after_steps is not None:
            steps = formats.counted(math.ceil(round(self.compiling_pays_after_steps, 3)), "step")
            caches = "empty caches" if self.cold else "the caches as they were; --set cold=true measures it with empty ones"
            yield f"compiling pays off after {steps} with {caches}"


def run_ab(workload: str, a: str, b: str, options: Options, bench: Bench, *, pairs: int = 5) -> Comparison:
    """Run A B, B A, A B, .. for a number of pairs, and compare them.

    Raises TunemarkError before anything runs: for an unknown setting or value, arms that do not differ, and an arm that this
    machine cannot run.
    """
    card = bench.card(workload, options)
    settings = {name: settings_of(text, f"--{name}", card) for name, text in zip(ARMS, (a, b), strict=True)}
    arms, base = {name: named(each) for name, each in settings.items()}, bench.plan(workload, options)
    plans = {name: bench.plan(workload, options, each, f"--{name}") for name, each in settings.items()}
    for name, plan in plans.items():
        if plan.unsupported:
            raise TunemarkError(f"--{name}", arms[name], plan.unsupported, exit_code=Exit.UNSUPPORTED)
        rules = plan.plan.measurement
        fewest = rules.min_warmup_steps + RANKABLE_STEPS
        if rules.max_steps is not None and rules.max_steps < fewest:
            fix = f"too few to compare: the first {rules.min_warmup_steps} are warm-up; give --steps {fewest} or more"
            raise TunemarkError("--steps", rules.max_steps, fix)
    if plans["a"].plan.settings == plans["b"].plan.settings:
        raise TunemarkError("--b", arms["b"], "gives the same plan as --a; name a value that differs")
    series = Series.find("ab", base, [arm_point(arm, arms[arm]) for arm in ARMS], bench, *plans.values())
    say(f"{workload}: A/B {series.study_id}, {formats.counted(pairs, 'pair')}")
    runs = dict[str, Resolved]()
    for pair in range(1, pairs + 1):
        # A B, B A, A B, .., so that a steady drift of the machine favours neither.
        for arm in ARMS if pair % 2 else ARMS[::-1]:
            # The two runs of a pair share a seed, and each pair has another, else all losses of an arm would be equal.
            runs[arm_point(arm, arms[arm], pair)] = plans[arm].measured_with(seed=plans[arm].plan.measurement.seed + pair - 1)
    series.run_all(runs, HOPELESS)
    usable = {run.study.point: run.submission for run in series.done if derive(run.submission).usable}
    names = [[arm_point(arm, arms[arm], pair) for arm in ARMS] for pair in range(1, pairs + 1)]
    known = [(usable[a], usable[b]) for a, b in names if a in usable and b in usable]
    ended = series.ended
    if not known and ended is None:
        ended = f"no pair has two runs that are ok, pass their gates and have {RANKABLE_STEPS} steps after warm-up; raise --steps, or seconds with --set"
    files = tuple(str(run.path) for run in series.done)
    return _compared(known, workload=workload, study_id=series.study_id, ended=ended, **arms, runs=files)


def _compared(pairs: Sequence[tuple[Submission, Submission]], **study: Any) -> Comparison:  # noqa: ANN401 - fields of the comparison
    """Return the comparison over some pairs."""
    derived = [(derive(a), derive(b)) for a, b in pairs]

    def change(figure: Callable[[Derived], float | None]) -> Change | None:
        return _ratio([(figure(a), figure(b)) for a, b in derived])

    tokens = min((sum(run.trace.real_tokens) for pair in pairs for run in pair), default=0)
    throughput = change(lambda figures: figures.tokens_per_s.value if figures.tokens_per_s else None)
    loss = _ratio([(a.trace.loss_after(tokens), b.trace.loss_after(tokens)) for a, b in pairs])
    return Comparison(
        **study,
        kind="ab",
        pairs=len(pairs),
        throughput=throughput,
        step_time=change(lambda figures: figures.step_time.p50 if figures.step_time else None),
        memory=change(lambda figures: figures.peak_memory.peak_bytes),
        loss=loss,
        loss_changed=loss is not None and loss.significant and abs(loss.change.value) > LOSS_TOLERANCE,
        accuracy=_accuracy(pairs),
        compiling_pays_after_steps=_pays_after(derived) if throughput and throughput.verdict == "higher" else None,
        cold=bool(pairs) and all(run.plan.measurement.cold for pair in pairs for run in pair),
    )


def _ratio(pairs: Sequence[tuple[float | None, float | None]]) -> Change | None:
    """Return the change over the pairs that have both values, each above 0."""
    known = [(a, b) for a, b in pairs if a and b and min(a, b) > 0]
    return paired_change([a for a, _ in known], [b for _, b in known]) if known else None


def _accuracy(pairs: Sequence[tuple[Submission, Submission]]) -> ShareDifference | None:
    evaluated = [(a.evaluation, b.evaluation) for a, b in pairs if a.evaluation and b.evaluation]
    known = [(a, b) for a, b in evaluated if a.accuracy is not None and b.accuracy is not None]
    if not known:
        return None
    first, second = (mean(evaluation.accuracy or 0.0 for evaluation in arm) for arm in zip(*known, strict=True))
    return share_difference(first, min(a.rows for a, _ in known), second, min(b.rows for _, b in known))


def _pays_after(derived: Sequence[tuple[Derived, Derived]]) -> float | None:
    gain_s = median(a.step_time.p50 - b.step_time.p50 for a, b in derived if a.step_time and b.step_time)
    overhead_s = median((b.compile_overhead_s or 0.0) - (a.compile_overhead_s or 0.0) for a, b in derived)
    return overhead_s / gain_s if overhead_s > 0 and gain_s > 0 else None
