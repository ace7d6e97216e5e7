"""How long a whole job takes and what it costs, predicted from a short run of it. Pure functions of the run's record.

whole job = what is paid once (import, load, data, the slower first steps, save) + steps x steady step + evaluations.

The interval is that of the steps' mean time: a block bootstrap over the steady window, widened by sqrt(1 + n / N) since
the N steps of the job are a sample too and not only the n that were measured. What another process or another day adds
is not in it: repeats tell that.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tunemark.schema.cards import PriceRow
from tunemark.schema.derive import derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.statistics import Interval, ratio_interval
from tunemark.schema.steady import RANKABLE_STEPS, SteadyWindow
from tunemark.schema.submission import Submission
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


def predict(run: Submission, job: Job, usd_per_hour: float | None = None) -> Prediction:
    """Predict a whole job from a run of the same workload on the same machine.

    Raises
    ------
    TunemarkError
        When the run has no steady steps to learn from, or the job has no size.

    """
    derived = derive(run)
    window = derived.window
    if window is None or window.steps < RANKABLE_STEPS:
        steps = window.steps if window else 0
        fix = f"a prediction needs {RANKABLE_STEPS} steady steps; measure longer, such as --steps 150"
        raise TunemarkError("steady steps", steps, fix, exit_code=Exit.UNTRUSTWORTHY)
    steps = job_steps(run, window, job)
    step = step_interval(run, window, steps)
    begin = beginning_s(run, window, steps, step.value)
    once = sum(derived.phases.get(phase.value, 0.0) for phase in ONCE)
    evaluation = derived.phases.get(Phase.EVAL.value, 0.0) * job.epochs
    train = _shifted(step, steps, begin)
    wall = _shifted(train, 1, once + evaluation)
    usd = None if usd_per_hour is None else _shifted(wall, usd_per_hour / HOUR_S, 0.0)
    return Prediction(steps, step, once, train, evaluation, wall, usd, tuple(_doubts(run, window, derived.phases)))


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


def _doubts(run: Submission, window: SteadyWindow, phases: dict[str, float]) -> Iterable[str]:
    for warned in run.warnings:
        if warned.doubt not in {Doubt.NOT_STABLE, Doubt.RANDOM_WEIGHTS, Doubt.UNKNOWN_ACCELERATOR, Doubt.FEW_STEPS}:
            yield f"of the run itself: {warned.doubt.value}, {warned.message}"
    if not window.stable:
        yield f"the run never became steady: {window.verdict}"
    if run.plan.optimizer.scheduler != "constant" and run.plan.measurement.max_steps is None and run.plan.measurement.epochs is None:
        yield "the run had no planned end, so its learning rate did not fall as that of the job: time and cost are not touched, the loss is"
    if Phase.EVAL.value not in phases:
        yield "the run evaluated nothing, so evaluations cost nothing here"
    if Phase.SAVE.value not in phases:
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
