"""A sweep: every point of a grid, and each as often as asked, in fresh processes. A point that fails is a result and stops nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from tunemark.harness.plan.resolve import Options, Resolved
from tunemark.harness.studies.report import Row, summarise_points
from tunemark.harness.studies.resume import Kind
from tunemark.harness.studies.series import Bench, Series, Stopped, say
from tunemark.harness.studies.settings_grid import Point, axis_of, card_with, grid, star_of_card
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.workloads import WorkloadCard


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep came to."""

    kind: Kind
    study_id: str
    rows: list[Row]
    missing: int
    """Runs without a record, since somebody stopped it."""

    @property
    def exit_code(self) -> Exit:
        """Return 0 when each run has a record and one of them is ok."""
        good = any(row.ok for row in self.rows) and not self.missing
        return Exit.OK if good else Exit.UNTRUSTWORTHY


def run_sweep(workload: str, overs: Sequence[str], options: Options, bench: Bench, *, repeats: int = 1, again: bool = False) -> SweepResult:
    """Run all points that are not done yet.

    Raises
    ------
    TunemarkError
        Before anything runs: for a setting, value or workload that does not exist, and where nothing varies.

    """
    card = card_with(bench.facts.workload(workload), options)
    plans = {point: bench.plan(workload, point.applied(options)) for point in _points(overs, card, repeats)}
    return _run_points(workload, options, bench, plans if overs else different(plans), repeats, again=again)


def run_repeats(workload: str, options: Options, bench: Bench, repeats: int, *, again: bool = False) -> SweepResult:
    """Run the workload so often as it is asked for, in fresh processes."""
    as_asked = Point(())
    return _run_points(workload, options, bench, {as_asked: bench.plan(workload, options)}, repeats, again=again)


def refuse_superseding(identity: str | None) -> None:
    """Raise TunemarkError where several runs were to replace one result."""
    if identity is not None:
        raise TunemarkError("--supersedes", identity, "one run replaces one result; leave --repeats out")


def _run_points(workload: str, options: Options, bench: Bench, plans: dict[Point, Resolved], repeats: int, *, again: bool) -> SweepResult:
    runs = _runs(list(plans), repeats)
    kind: Kind = "repeat" if len(plans) == 1 else "sweep"
    base = next(iter(plans.values())) if kind == "repeat" else bench.plan(workload, options)
    series = Series.find(kind, base, [text for text, _ in runs], bench, again=again, expected=len(runs))
    say(f"{workload}: {kind} {series.study_id}, {len(runs)} runs")
    missing = 0
    try:
        with series.stoppable():
            for text, point in runs:
                series.run(text, plans[point])
    except Stopped as stopped:
        missing = len(runs) - len(series.done)
        say(f"stopped at {stopped}; {missing} of {len(runs)} runs are not done, the same command goes on with them")
    texts = {text: point.text for text, point in runs}
    return SweepResult(kind, series.study_id, summarise_points(series.done, texts), missing)


def _points(overs: Sequence[str], card: WorkloadCard, repeats: int) -> list[Point]:
    if overs:
        return grid([axis_of(text, card) for text in overs])
    if not card.axes and not card.points and repeats == 1:
        fix = (
            "the card has no axes of its own; say what to vary, such as --over batch_size=8,16,32, or how often to repeat it with --repeats"
        )
        raise TunemarkError("--over", card.key, fix)
    return star_of_card(card)


def different(plans: dict[Point, Resolved]) -> dict[Point, Resolved]:
    """Return the points whose plans differ: an axis goes through the card's own value too, and some mean nothing on this machine."""
    seen: dict[str, Point] = {}
    for point, resolved in plans.items():
        seen.setdefault(resolved.plan.model_dump_json(exclude={"reasons"}), point)
    return {point: plans[point] for point in seen.values()}


def _runs(points: Sequence[Point], repeats: int) -> list[tuple[str, Point]]:
    """Return name and point of each run: all points once, then all again, so that a machine that changes spares none."""
    if repeats == 1:
        return [(point.text, point) for point in points]
    return [(f"{point.text}, repeat {number}", point) for number in range(1, repeats + 1) for point in points]
