"""A/B: two settings in interleaved runs, each in a fresh process, and a verdict on their difference."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from tunemark.harness.plan.resolve import Options, Resolved
from tunemark.harness.studies.series import Bench, Series, StudyResult, named, settings_of
from tunemark.schema import formats
from tunemark.schema.derive import Derived, derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import ARMS, arm_point
from tunemark.schema.statistics.intervals import Change, ShareDifference, paired_change, share_difference
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import Status
from tunemark.terminal import say

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
    plans = {name: bench.plan_of(each, workload, options, f"--{name}") for name, each in settings.items()}
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
