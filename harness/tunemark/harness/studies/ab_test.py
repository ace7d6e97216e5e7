"""A/B: two settings in turn, each run in a fresh process, and what may be said of their difference."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Literal, get_args

from tunemark.harness.plan.resolve import Options, Resolved
from tunemark.harness.studies.series import Bench, Done, Series, Stopped, say
from tunemark.harness.studies.settings_grid import Point, card_with, settings_of
from tunemark.schema.derive import Derived, derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import Submission
from tunemark.schema.statistics.comparison import ARMS, ArmRun, Change, break_even_steps, loss_after, paired_change
from tunemark.schema.statistics.intervals import ShareDifference, share_difference
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import Status

LOSS_TOLERANCE = 0.01
"""Other kernels and number formats round differently; a loss that differs by more than this is another training."""
HOPELESS = (Status.UNSUPPORTED, Status.OOM_DEVICE, Status.OOM_HOST)
"""What a second try of the same settings would end in again."""
CacheState = Literal["cold", "warm"]


@dataclass(frozen=True, slots=True)
class BreakEven:
    """After how many steps B has earned back what it compiles longer, with the cache in one state (definitions.md, 14)."""

    cache: CacheState
    pairs: int
    """Pairs whose compiled graphs were all in this state; 0: not measured."""
    steps: float | None
    """0 when B compiles no longer than A; None without a pair, and when the median step of B is no shorter."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A."""

    study_id: str
    a: str
    b: str
    pairs: int
    """Pairs of which both runs are ok."""
    throughput: Change | None
    """Of real tokens a second; None without a pair."""
    step_time: Change | None
    """Of the median step: what throughput would say on a machine that nothing disturbs."""
    memory: Change | None
    """Of peak memory."""
    loss: Change | None
    """Of the training loss after equal tokens; None where there is none above 0."""
    accuracy: ShareDifference | None
    """Of the means over the pairs, on the rows of one evaluation, which all runs share; None where nothing was classified."""
    break_even: tuple[BreakEven, ...]
    """By state of the compile cache; empty when B is not faster, or neither compiles."""
    ended: str | None
    """Why there are fewer pairs than asked, or None."""
    runs: tuple[Done, ...]

    @property
    def loss_changed(self) -> bool:
        """Return whether B trains otherwise than A, so that its speed is not that of the same training."""
        return self.loss is not None and self.loss.significant and abs(self.loss.change.value) > LOSS_TOLERANCE

    @property
    def exit_code(self) -> Exit:
        """Return 0 when there is a verdict."""
        return Exit.OK if self.throughput and self.throughput.verdict != "too few pairs" else Exit.UNTRUSTWORTHY


def run_ab(workload: str, a: str, b: str, options: Options, bench: Bench, *, pairs: int = 5, again: bool = False) -> Comparison:
    """Run A B B A A B .. until there are so many pairs.

    Raises
    ------
    TunemarkError
        Before anything runs: for a setting or value that does not exist, arms that do not differ, and an arm that this
        machine cannot run.

    """
    card = card_with(bench.facts.workload(workload), options)
    arms = {name: settings_of(text, f"--{name}", card) for name, text in zip(ARMS, (a, b), strict=True)}
    plans = {name: bench.plan(workload, point.applied(options)) for name, point in arms.items()}
    for name, plan in plans.items():
        if plan.unsupported:
            raise TunemarkError(f"--{name}", arms[name].text, plan.unsupported, exit_code=Exit.UNSUPPORTED)
        _refuse_too_short(f"--{name}", plan.plan)
    if plans["a"].plan.model_dump(exclude={"reasons"}) == plans["b"].plan.model_dump(exclude={"reasons"}):
        raise TunemarkError("--b", arms["b"].text, "gives the same plan as --a; name a value that differs")
    points = [_point_name(arm, arms[arm], 0) for arm in ARMS]
    series = Series.find("ab", bench.plan(workload, options), points, bench, again=again, expected=2 * pairs)
    say(f"{workload}: A/B {series.study_id}, {pairs} pairs")
    ended = None
    try:
        with series.stoppable():
            for turn, arm in ((pair, arm) for pair in range(1, pairs + 1) for arm in order(pair)):
                _refuse_hopeless(series.run(_point_name(arm, arms[arm], turn), plan_of_pair(plans[arm], turn)))
    except Stopped as stopped:
        ended = f"stopped at {stopped}"
        say(ended)
    return compare(series.study_id, arms, series.done, ended)


def _refuse_too_short(option: str, plan: Plan) -> None:
    rules = plan.measurement
    least = rules.min_warmup_steps + RANKABLE_STEPS
    if rules.max_steps is not None and rules.max_steps < least:
        fix = f"nothing can be compared of so few: the first {rules.min_warmup_steps} are left out; give --steps {least} or more"
        raise TunemarkError("--steps", rules.max_steps, f"{fix} (in {option})")


def _refuse_hopeless(done: Done) -> None:
    if done.status in HOPELESS:
        raise Stopped(f"{done.point}, which is {done.status.value} and would be so again")


def order(pair: int) -> tuple[str, ...]:
    """Return which arm of a pair runs first: A B, B A, A B, ..; a steady drift of the machine then favours neither."""
    return ARMS if pair % 2 else ARMS[::-1]


def plan_of_pair(resolved: Resolved, pair: int) -> Resolved:
    """Return the plan of a pair: both of its runs have the same seed and each pair has another, else all losses of an arm would be one."""
    plan = resolved.plan
    first = plan.measurement.seed
    measurement = plan.measurement.model_copy(update={"seed": first + pair - 1})
    why = f"pair {pair} of an A/B: seed {first} for the first pair and one more for each after it, the same for both runs of a pair"
    reasons = {**plan.reasons, "measurement.seed": why}
    return replace(resolved, plan=plan.model_copy(update={"measurement": measurement, "reasons": reasons}))


def _point_name(arm: str, point: Point, pair: int) -> str:
    return ArmRun(arm, point.text, pair).point


def compare(study_id: str, arms: dict[str, Point], runs: Sequence[Done], ended: str | None) -> Comparison:
    """Return what the pairs say of which both runs are ok and long enough for a rate."""
    pairs = list(_pairs(arms, runs))
    derived = [(derive(one), derive(other)) for one, other in pairs]
    tokens = min((sum(run.trace.real_tokens) for pair in pairs for run in pair), default=0)
    speed = _change([(_throughput(one), _throughput(other)) for one, other in derived])
    return Comparison(
        study_id=study_id,
        a=arms["a"].text,
        b=arms["b"].text,
        pairs=len(pairs),
        throughput=speed,
        step_time=_change([(_median_step(one), _median_step(other)) for one, other in derived]),
        memory=_change([(one.peak_memory.peak_bytes, other.peak_memory.peak_bytes) for one, other in derived]),
        loss=_change([(loss_after(one.trace, tokens), loss_after(other.trace, tokens)) for one, other in pairs]),
        accuracy=_accuracy(pairs),
        break_even=_break_even(pairs, derived, speed),
        ended=ended
        or (
            f"no pair has two runs that are ok, pass their checks and have {RANKABLE_STEPS} steps after warm-up; give more --steps"
            if not pairs
            else None
        ),
        runs=tuple(runs),
    )


def _pairs(arms: dict[str, Point], runs: Sequence[Done]) -> list[tuple[Submission, Submission]]:
    found = {run.point: run.record.submission for run in runs if run.status is Status.OK and _counts(run.record.submission)}
    names = [(_point_name("a", arms["a"], pair), _point_name("b", arms["b"], pair)) for pair in range(1, len(runs) + 1)]
    return [(found[one], found[other]) for one, other in names if one in found and other in found]


def _counts(submission: Submission) -> bool:
    """Return whether a run's speed counts: long enough to be compared, and no check failed."""
    window = derive(submission).window
    long_enough = window is not None and window.steps >= RANKABLE_STEPS
    return long_enough and all(gate.passed is not False for gate in submission.gates)


def _throughput(derived: Derived) -> float | None:
    return derived.tokens_per_s.value if derived.tokens_per_s else None


def _median_step(derived: Derived) -> float | None:
    return derived.step_time.p50 if derived.step_time else None


def _change(pairs: Sequence[tuple[float | None, float | None]]) -> Change | None:
    """Return the change over the pairs that have both values, each above 0."""
    whole = [(one, other) for one, other in pairs if one and other and min(one, other) > 0]
    return paired_change([one for one, _ in whole], [other for _, other in whole]) if whole else None


def _accuracy(pairs: Sequence[tuple[Submission, Submission]]) -> ShareDifference | None:
    judged = [(one.evaluation, other.evaluation) for one, other in pairs if one.evaluation and other.evaluation]
    known = [(one, other) for one, other in judged if one.accuracy is not None and other.accuracy is not None]
    if not known:
        return None
    a, b = (mean(arm.accuracy or 0.0 for arm in arms) for arms in zip(*known, strict=True))
    return share_difference(a, min(one.rows for one, _ in known), b, min(other.rows for _, other in known))


def _break_even(
    pairs: Sequence[tuple[Submission, Submission]], derived: Sequence[tuple[Derived, Derived]], speed: Change | None
) -> tuple[BreakEven, ...]:
    states = [_cache_state(pair) for pair in pairs]
    if speed is None or speed.verdict != "higher" or all(state == "none" for state in states):
        return ()
    gain = median(one.step_time.p50 - other.step_time.p50 for one, other in derived if one.step_time and other.step_time)
    return tuple(
        _in_state(cache, [pair for pair, state in zip(derived, states, strict=True) if state == cache], gain)
        for cache in get_args(CacheState)
    )


def _cache_state(pair: tuple[Submission, Submission]) -> str | None:
    """Return the state of the cache that the runs of a pair had in common; None where they had none, or it is not known."""
    states = {run.process.compile_cache for run in pair}
    compiled = states - {"none"}
    return compiled.pop() if len(compiled) == 1 else None if compiled else "none"


def _in_state(cache: CacheState, derived: Sequence[tuple[Derived, Derived]], gain_s: float) -> BreakEven:
    if not derived:
        return BreakEven(cache, 0, None)
    overhead_s = median((other.compile_overhead_s or 0.0) - (one.compile_overhead_s or 0.0) for one, other in derived)
    return BreakEven(cache, len(derived), break_even_steps(overhead_s, gain_s))
