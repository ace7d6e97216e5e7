"""How long a whole job takes and what it costs, predicted from short runs of it. Pure functions of the runs' records.

whole job = what is paid once (import, load, data, the slower first steps, save) + steps x steady step + evaluations.

The interval of one run is that of the steps' mean time: a block bootstrap over the steady window, widened by
sqrt(1 + n / N) since the N steps of the job are a sample too and not only the n that were measured. What another
process adds is not in it. That is seen in k repeats: the job is one process more, whose mean step lies within
t(k - 1) x s x sqrt(1 + 1 / k) of theirs, s being the standard deviation of the logarithms of their mean steps.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from tunemark.schema.derive import Derived, derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.records.submission import Submission
from tunemark.schema.statistics.comparison import t_quantile
from tunemark.schema.statistics.intervals import CONFIDENCE, Interval, ratio_interval
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS, SteadyWindow
from tunemark.schema.vocabulary import Doubt, Phase, PriceKind

HOUR_S = 3_600
ONCE = (Phase.IMPORT, Phase.LOAD, Phase.DATA, Phase.SAVE, Phase.TEARDOWN)
"""Phases that a job has once, however long it is. Checks and probes belong to measuring and not to the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How much is to be trained: exactly one of steps, samples and tokens, over `epochs` passes."""

    steps: int | None = None
    """Optimizer steps."""
    samples: int | None = None
    """Rows of the data set."""
    tokens: int | None = None
    """Real tokens of the data set."""
    epochs: int = 1
    """Passes over the samples or tokens."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The whole job."""

    steps: int
    """Optimizer steps."""
    step_time_s: Interval
    """Mean of a steady step."""
    once_s: float
    """Paid once, outside of training: import, load, data, save."""
    train_s: Interval
    """First step's start to last step's end; what the first steps take beyond steady ones is in it."""
    evaluation_s: float
    """All evaluations."""
    wall_s: Interval
    """All of it: what is paid once, training and evaluations."""
    usd: Interval | None
    """Cost of all of it; None without a price."""
    doubts: tuple[str, ...]
    """Why it may be wrong."""


@dataclass(frozen=True, slots=True)
class _Learnt:
    """What one run teaches of its job."""

    steps: int
    step: Interval
    begin_s: float
    """What the first steps take beyond steady ones."""
    once_s: float
    evaluation_s: float
    """All evaluations."""


def predict(runs: Sequence[Submission], job: Job, usd_per_hour: float | None = None) -> Prediction:
    """Predict a whole job from one or more runs of the same plan on the same machine.

    Raises
    ------
    TunemarkError
        When a run has no steady steps to learn from, when the runs are not repeats, or when the job has no size.

    """
    found = stranger(runs)
    if found is not None:
        which, why = found
        raise TunemarkError("submission", runs[which].run_id, why)
    derived = [derive(run) for run in runs]
    learnt = [_learn(run, one, job) for run, one in zip(runs, derived, strict=True)]
    steps = fmean(one.steps for one in learnt)
    begin = fmean(one.begin_s for one in learnt)
    once = fmean(one.once_s for one in learnt)
    evaluation = fmean(one.evaluation_s for one in learnt)
    step = learnt[0].step if len(learnt) == 1 else over_runs([one.step.value for one in learnt])
    train = _shifted(step, round(steps), begin)
    wall = _shifted(train, 1, once + evaluation)
    usd = None if usd_per_hour is None else _shifted(wall, usd_per_hour / HOUR_S, 0.0)
    return Prediction(round(steps), step, once, train, evaluation, wall, usd, tuple(_doubts(runs, derived)))


def _learn(run: Submission, derived: Derived, job: Job) -> _Learnt:
    window = derived.window
    if window is None or window.steps < RANKABLE_STEPS:
        seen = window.steps if window else 0
        fix = f"a prediction needs {RANKABLE_STEPS} steady steps; measure longer, such as --steps 150"
        raise TunemarkError("steady steps", seen, fix, exit_code=Exit.UNTRUSTWORTHY)
    steps = job_steps(run, window, job)
    step = step_interval(run, window, steps)
    return _Learnt(
        steps,
        step,
        beginning_s(run, window, steps, step.value),
        sum(derived.phases.get(phase.value, 0.0) for phase in ONCE),
        derived.phases.get(Phase.EVAL.value, 0.0) * job.epochs,
    )


def over_runs(mean_steps_s: Sequence[float]) -> Interval:
    """Return the mean steady step of one process more, seconds, from those of two or more."""
    logs = np.log(mean_steps_s)
    k, middle = len(logs), float(logs.mean())
    half = t_quantile((1 + CONFIDENCE) / 2, k - 1) * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / k)
    return Interval(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def stranger(runs: Sequence[Submission]) -> tuple[int, str] | None:
    """Return which run, counted from 0, is no repeat of the first, and why; None when all are of one plan on one machine."""
    first = runs[0]
    for number, run in enumerate(runs):
        if run.run_id in {earlier.run_id for earlier in runs[:number]}:
            return number, "is given twice; give each run once"
        if run.plan != first.plan or run.environment.devices != first.environment.devices:
            return (
                number,
                "is not a repeat of the first one: its plan or its device differs; give runs of one plan, as `run --repeats 3` makes",
            )
    return None


def _shifted(interval: Interval, factor: float, more: float) -> Interval:
    return Interval(interval.value * factor + more, interval.low * factor + more, interval.high * factor + more)


def job_steps(run: Submission, window: SteadyWindow, job: Job) -> int:
    """Return the optimizer steps of a job; the last one of each epoch may be a part of a batch."""
    given = [size for size in (job.steps, job.samples, job.tokens) if size is not None]
    if len(given) != 1:
        sizes = {"--job-steps": job.steps, "--samples": job.samples, "--tokens": job.tokens}
        said = " and ".join(f"{name} {size}" for name, size in sizes.items() if size is not None) or "no size"
        raise TunemarkError("job", said, "say how much is trained: one of --job-steps, --samples and --tokens")
    if job.steps is not None:
        return job.steps
    part = slice(window.first, window.stop)
    of_step = run.trace.documents[part] if job.samples is not None else run.trace.real_tokens[part]
    return math.ceil(given[0] / float(np.mean(of_step))) * job.epochs


def step_interval(run: Submission, window: SteadyWindow, steps: int) -> Interval:
    """Return the mean time of `steps` future steady steps, seconds, with its 95% interval."""
    times = np.asarray(run.trace.step_times_s[window.first : window.stop])
    rate = ratio_interval(np.ones_like(times), times)
    mean, wider = 1 / rate.value, math.sqrt(1 + window.steps / steps)
    return Interval(mean, mean - (mean - 1 / rate.high) * wider, mean + (1 / rate.low - mean) * wider)


def beginning_s(run: Submission, window: SteadyWindow, steps: int, steady_s: float) -> float:
    """Return what the steps before the steady window took beyond steady ones, seconds: compiling is in it. Below 0 where they were faster."""
    first = min(window.first, steps)
    return sum(run.trace.step_times_s[:first]) - first * steady_s


def _doubts(runs: Sequence[Submission], derived: Sequence[Derived]) -> Iterable[str]:
    """Return why a prediction may be wrong, each doubt once."""
    if len(runs) == 1:
        yield "one run cannot tell how much processes differ, so the interval is of this one alone; `run --repeats 3` and all three files tell"
    yield from dict.fromkeys(doubt for run, one in zip(runs, derived, strict=True) for doubt in _doubts_of(run, one))


def _doubts_of(run: Submission, derived: Derived) -> Iterable[str]:
    for warned in run.warnings:
        if warned.doubt not in {Doubt.NOT_STABLE, Doubt.RANDOM_WEIGHTS, Doubt.UNKNOWN_ACCELERATOR, Doubt.FEW_STEPS}:
            yield f"of the run itself: {warned.doubt.value}, {warned.message}"
    if derived.window is not None and not derived.window.stable:
        yield f"the run never became steady: {derived.window.verdict}"
    if run.plan.optimizer.scheduler != "constant" and run.plan.measurement.max_steps is None and run.plan.measurement.epochs is None:
        yield "the run had no planned end, so its learning rate did not fall as that of the job: time and cost are not touched, the loss is"
    if Phase.EVAL.value not in derived.phases:
        yield "the run evaluated nothing, so evaluations cost nothing here"
    if Phase.SAVE.value not in derived.phases:
        yield "the run saved no weights, so saving costs nothing here; `run --save` measures it"


def price_of(prices: Iterable[PriceRow], accelerator: str, devices: int, instance: str | None = None) -> PriceRow | None:
    """Return the cheapest on-demand price in force of an instance that holds so many of an accelerator, or None without one.

    The whole instance is paid for, also when it holds more. With `instance` only that one counts.
    """
    latest: dict[tuple[str, str, str | None], PriceRow] = {}
    for row in prices:
        place = (row.provider, row.instance, row.region)
        wanted = row.accelerator == accelerator and row.kind is PriceKind.ON_DEMAND and row.accelerator_count >= devices
        if wanted and instance in {None, row.instance} and (place not in latest or row.effective_on >= latest[place].effective_on):
            latest[place] = row
    return min(latest.values(), key=lambda row: (row.usd_per_hour, row.provider, row.instance, row.region or ""), default=None)
