"""A sweep: every point of a grid, repeated as requested, in fresh processes. A point that fails is a result and stops nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from tunemark.harness.plan.options import Options
from tunemark.harness.plan.resolve import Resolved
from tunemark.harness.run.show import say
from tunemark.harness.studies.report import Row, summarise_points
from tunemark.harness.studies.series import Bench, Kind, Point, Series, axis_of, card_with, grid, star_of_card
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.formats import counted


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The points of a sweep."""

    kind: Kind
    study_id: str
    rows: list[Row]
    missing: int
    """Runs without a record, because the user stopped the sweep."""

    @property
    def exit_code(self) -> Exit:
        """Return 0 when every run has a record and one of them is ok."""
        good = any(row.ok for row in self.rows) and not self.missing
        return Exit.OK if good else Exit.UNTRUSTWORTHY


def run_sweep(workload: str, overs: Sequence[str], options: Options, bench: Bench, *, repeats: int = 1, again: bool = False) -> SweepResult:
    """Run all points that are not done yet. Raises TunemarkError before anything runs for an unknown name, or if nothing varies."""
    card = card_with(bench.facts.workload(workload), options)
    if not overs and not card.axes and not card.points:
        if repeats > 1:
            return run_repeats(workload, options, bench, repeats, again=again)
        fix = f"is missing, and {card.key} has no axes of its own; name what to vary, such as --over batch_size=8,16,32, or repeat it with --repeats N"
        raise TunemarkError("--over", None, fix)
    base = bench.plan(workload, options)
    points = grid([axis_of(text, card) for text in overs]) if overs else star_of_card(card)
    plans = {point: bench.plan_of(point, workload, options, "--over") for point in points}
    return _run_points("sweep", workload, base, bench, plans if overs else different(plans), repeats, again=again)


def run_repeats(workload: str, options: Options, bench: Bench, repeats: int, *, again: bool = False) -> SweepResult:
    """Run the workload as requested, `repeats` times, in fresh processes."""
    base = bench.plan(workload, options)
    return _run_points("repeat", workload, base, bench, {Point(()): base}, repeats, again=again)


def _run_points(
    kind: Kind, workload: str, base: Resolved, bench: Bench, plans: dict[Point, Resolved], repeats: int, *, again: bool
) -> SweepResult:
    # All points once, then all again, so a drift of the machine affects all points equally.
    numbered = repeats > 1 or kind == "repeat"
    runs = [(f"{point.text}, repeat {number}" if numbered else point.text, point) for number in range(1, repeats + 1) for point in plans]
    series = Series.find(kind, base, [text for text, _ in runs], bench, again=again, expected=len(runs))
    say(f"{workload}: {kind} {series.study_id}, {counted(len(runs), 'run')}")
    with series.stoppable():
        for text, point in runs:
            series.run(text, plans[point])
    missing = len(runs) - len(series.done)
    if series.ended:
        say(f"{series.ended}; {missing} of {counted(len(runs), 'run')} not done; the same command resumes the series")
    texts = {text: point.text for text, point in runs}
    return SweepResult(kind, series.study_id, summarise_points(series.done, texts), missing)


def different(plans: dict[Point, Resolved]) -> dict[Point, Resolved]:
    """Return the points whose plans differ: an axis includes the card's own value, and some settings have no effect here."""
    seen: dict[str, Point] = {}
    for point, resolved in plans.items():
        seen.setdefault(resolved.plan.model_dump_json(exclude={"reasons"}), point)
    return {point: plans[point] for point in seen.values()}
