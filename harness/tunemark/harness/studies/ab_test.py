"""A/B: two settings in interleaved runs, each in a fresh process, and a verdict on their difference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from tunemark.harness.plan.options import Options
from tunemark.harness.plan.resolve import Resolved
from tunemark.harness.run.show import say
from tunemark.harness.studies.series import Bench, Done, Point, Series, Stopped, card_with, settings_of
from tunemark.schema.derive import Derived, derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.formats import counted
from tunemark.schema.records.submission import Submission
from tunemark.schema.statistics.comparison import ARMS, ArmRun, Change, break_even_steps, loss_after, paired_change
from tunemark.schema.statistics.intervals import ShareDifference, share_difference
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import Status

LOSS_TOLERANCE = 0.01
"""Other kernels and number formats round differently. Above this difference in loss, the two arms do not train the same way."""
HOPELESS = (Status.UNSUPPORTED, Status.OOM_DEVICE, Status.OOM_HOST)
"""Statuses that a retry of the same settings would reproduce."""
Pair = tuple[Submission, Submission]
DerivedPair = tuple[Derived, Derived]


@dataclass(frozen=True, slots=True)
class Comparison:
    """B compared with A."""

    study_id: str
    a: str
    b: str
    pairs: int
    """Pairs in which both runs are ok."""
    throughput: Change | None
    """Real tokens per second; None without a pair."""
    step_time: Change | None
    """Median step: the throughput of an undisturbed machine."""
    memory: Change | None
    """Peak memory."""
    loss: Change | None
    """Training loss after equal tokens; None if it is not above 0."""
    accuracy: ShareDifference | None
    """Means over the pairs, on the evaluation rows that all runs share; None without classification."""
    compiling_pays_after_steps: float | None
    """Steps after which the longer compilation of B has paid off (definitions#compile-overhead), by the medians of the pairs, most of which
    find a warm cache; None when B is not faster, or does not compile longer."""
    ended: str | None
    """Why there are fewer pairs than requested, or None."""
    runs: tuple[Done, ...]

    @property
    def loss_changed(self) -> bool:
        """Return True if B trains differently from A, so that their speeds are not comparable."""
        return self.loss is not None and self.loss.significant and abs(self.loss.change.value) > LOSS_TOLERANCE

    @property
    def exit_code(self) -> Exit:
        """Return 0 if there is a verdict."""
        return Exit.OK if self.throughput and self.throughput.verdict != "too few pairs" else Exit.UNTRUSTWORTHY


def run_ab(workload: str, a: str, b: str, options: Options, bench: Bench, *, pairs: int = 5, again: bool = False) -> Comparison:
    """Run A B, B A, A B, .. for a number of pairs, and compare them.

    Raises TunemarkError before anything runs: for an unknown setting or value, arms that do not differ, and an arm that this
    machine cannot run.
    """
    card = card_with(bench.facts.workload(workload), options)
    arms = {name: settings_of(text, f"--{name}", card) for name, text in zip(ARMS, (a, b), strict=True)}
    base = bench.plan(workload, options)
    plans = {name: bench.plan_of(point, workload, options, f"--{name}") for name, point in arms.items()}
    for name, plan in plans.items():
        if plan.unsupported:
            raise TunemarkError(f"--{name}", arms[name].text, plan.unsupported, exit_code=Exit.UNSUPPORTED)
        rules = plan.plan.measurement
        fewest = rules.min_warmup_steps + RANKABLE_STEPS
        if rules.max_steps is not None and rules.max_steps < fewest:
            fix = f"too few to compare: the first {rules.min_warmup_steps} are warm-up; give --steps {fewest} or more"
            raise TunemarkError("--steps", rules.max_steps, fix)
    if plans["a"].plan.model_dump(exclude={"reasons"}) == plans["b"].plan.model_dump(exclude={"reasons"}):
        raise TunemarkError("--b", arms["b"].text, "gives the same plan as --a; name a value that differs")
    points = [_point_name(arm, arms[arm], 0) for arm in ARMS]
    series = Series.find("ab", base, points, bench, again=again, expected=2 * pairs)
    say(f"{workload}: A/B {series.study_id}, {counted(pairs, 'pair')}")
    turns = [(number, arm) for number in range(1, pairs + 1) for arm in order(number)]
    with series.stoppable():
        for pair, arm in turns:
            done = series.run(_point_name(arm, arms[arm], pair), plan_of_pair(plans[arm], pair))
            if done.status in HOPELESS:
                raise Stopped(f"{done.point} ({done.status.value}): retrying would fail the same way")
    if series.ended:
        say(series.ended)
    return compare(series.study_id, arms, series.done, series.ended)


def order(pair: int) -> tuple[str, ...]:
    """Return the arms of a pair in running order: A B, B A, A B, .., so that a steady drift of the machine favours neither."""
    return ARMS if pair % 2 else ARMS[::-1]


def plan_of_pair(resolved: Resolved, pair: int) -> Resolved:
    """Return the plan of a pair. Its two runs share a seed, and each pair has another, else all losses of an arm would be equal."""
    return resolved.measured_with(seed=resolved.plan.measurement.seed + pair - 1)


def _point_name(arm: str, point: Point, pair: int) -> str:
    return ArmRun(arm, point.text, pair).point


def compare(study_id: str, arms: dict[str, Point], runs: Sequence[Done], ended: str | None) -> Comparison:
    """Return the comparison over the pairs whose runs are both ok and long enough for a rate."""
    pairs = _pairs(arms, runs)
    derived = [(derive(a), derive(b)) for a, b in pairs]
    tokens = min((sum(run.trace.real_tokens) for pair in pairs for run in pair), default=0)
    throughput = _change(derived, lambda figures: figures.tokens_per_s.value if figures.tokens_per_s else None)
    if not pairs and ended is None:
        ended = f"no pair has two runs that are ok, pass their gates and have {RANKABLE_STEPS} steps after warm-up; raise --steps, or seconds with --set"
    return Comparison(
        study_id=study_id,
        a=arms["a"].text,
        b=arms["b"].text,
        pairs=len(pairs),
        throughput=throughput,
        step_time=_change(derived, lambda figures: figures.step_time.p50 if figures.step_time else None),
        memory=_change(derived, lambda figures: figures.peak_memory.peak_bytes),
        loss=_ratio([(loss_after(a.trace, tokens), loss_after(b.trace, tokens)) for a, b in pairs]),
        accuracy=_accuracy(pairs),
        compiling_pays_after_steps=_pays_after(derived, throughput),
        ended=ended,
        runs=tuple(runs),
    )


def _pairs(arms: dict[str, Point], runs: Sequence[Done]) -> list[Pair]:
    usable: dict[str, Submission] = {}
    for run in runs:
        submission = run.record.submission
        window = derive(submission).window
        long_enough = window is not None and window.steps >= RANKABLE_STEPS
        if run.status is Status.OK and long_enough and all(gate.passed is not False for gate in submission.gates):
            usable[run.point] = submission
    names = [(_point_name("a", arms["a"], pair), _point_name("b", arms["b"], pair)) for pair in range(1, len(runs) + 1)]
    return [(usable[a], usable[b]) for a, b in names if a in usable and b in usable]


def _change(pairs: Sequence[DerivedPair], figure: Callable[[Derived], float | None]) -> Change | None:
    return _ratio([(figure(a), figure(b)) for a, b in pairs])


def _ratio(pairs: Sequence[tuple[float | None, float | None]]) -> Change | None:
    """Return the change over the pairs that have both values, each above 0."""
    known = [(a, b) for a, b in pairs if a and b and min(a, b) > 0]
    return paired_change([a for a, _ in known], [b for _, b in known]) if known else None


def _accuracy(pairs: Sequence[Pair]) -> ShareDifference | None:
    evaluated = [(a.evaluation, b.evaluation) for a, b in pairs if a.evaluation and b.evaluation]
    known = [(a, b) for a, b in evaluated if a.accuracy is not None and b.accuracy is not None]
    if not known:
        return None
    first, second = (mean(evaluation.accuracy or 0.0 for evaluation in arm) for arm in zip(*known, strict=True))
    return share_difference(first, min(a.rows for a, _ in known), second, min(b.rows for _, b in known))


def _pays_after(derived: Sequence[DerivedPair], throughput: Change | None) -> float | None:
    if throughput is None or throughput.verdict != "higher":
        return None
    gain_s = median(a.step_time.p50 - b.step_time.p50 for a, b in derived if a.step_time and b.step_time)
    overhead_s = median((b.compile_overhead_s or 0.0) - (a.compile_overhead_s or 0.0) for a, b in derived)
    return break_even_steps(overhead_s, gain_s) if overhead_s > 0 else None
