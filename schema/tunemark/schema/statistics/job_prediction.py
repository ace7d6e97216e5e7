"""Prediction of the time and cost of a whole job from short runs of it. Pure functions of the runs' records.

whole job = one-time cost (import, load, data, the slower first steps, save) + steps x steady step + evaluations.

The interval of one run is that of the mean step time over the steady window, widened by
sqrt(1 + n / N), since the N steps of the job are a sample as well as the n measured ones. It does not cover the
difference to another process. With k repeats, the interval covers a new process: its mean step lies within
t(k - 1) x s x sqrt(1 + 1 / k) of theirs, where s is the standard deviation of the logarithms of their mean steps.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from tunemark.schema.derive import Derived, derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.formats import HOUR_S
from tunemark.schema.records.submission import Submission
from tunemark.schema.statistics.intervals import Interval, one_more_run, ratio_interval
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS, SteadyWindow
from tunemark.schema.vocabulary import Phase, Status, WarningKind

ONCE = (Phase.IMPORT, Phase.LOAD, Phase.DATA, Phase.SAVE, Phase.TEARDOWN)
"""Phases that a job has once. Checks and probes are part of measuring and not of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The size of a job: exactly one of steps, samples and tokens, over `epochs` passes."""

    steps: int | None = None
    samples: int | None = None
    """Rows of the dataset."""
    tokens: int | None = None
    """Real tokens of the dataset."""
    epochs: int = 1
    """Passes over the samples or tokens."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted job."""

    steps: int
    step_time_s: Interval
    """Mean of a steady step."""
    once_s: float
    """One-time cost outside of training: import, load, data, save."""
    train_s: Interval
    """From the start of the first step to the end of the last, including the slower first steps."""
    evaluation_s: float
    wall_s: Interval
    """Total: one-time cost, training and evaluations."""
    usd: Interval | None
    """Cost of the total; None without a price."""
    caveats: tuple[str, ...]
    """Reasons why the prediction may be wrong."""


def predict(runs: Sequence[Submission], job: Job, usd_per_hour: float | None = None) -> Prediction:
    """Predict a whole job from one or more runs of the same plan on the same machine.

    Raises TunemarkError if a run has no steady steps, or the job has no size. `stranger` finds a run that is no repeat.
    """
    derived = [derive(run) for run in runs]
    windows = [_steady(run, figures) for run, figures in zip(runs, derived, strict=True)]
    of_each = [(run, window, job_steps(run, window, job)) for run, window in zip(runs, windows, strict=True)]
    each_step, steps = [step_interval(*each) for each in of_each], fmean(count for *_, count in of_each)
    # The time of the steps before the steady window beyond that of steady steps. It includes compiling and can be negative.
    slower = [
        (run.trace.step_times_s[: min(window.first, count)], step.value)
        for (run, window, count), step in zip(of_each, each_step, strict=True)
    ]
    begin = fmean(sum(times) - len(times) * steady_s for times, steady_s in slower)
    once = fmean(sum(figures.phases.get(phase.value, 0.0) for phase in ONCE) for figures in derived)
    evaluation = fmean(figures.phases.get(Phase.EVAL.value, 0.0) * job.epochs for figures in derived)
    step = each_step[0] if len(runs) == 1 else one_more_run([each.value for each in each_step])
    train = _shifted(step, round(steps), begin)
    wall = _shifted(train, 1, once + evaluation)
    usd = None if usd_per_hour is None else _shifted(wall, usd_per_hour / HOUR_S, 0.0)
    single = "the interval covers this run only, since a single run cannot show the difference between processes; use `run --repeats 3`"
    caveats = dict.fromkeys(caveat for run, figures in zip(runs, derived, strict=True) for caveat in _caveats_of(run, figures))
    return Prediction(round(steps), step, once, train, evaluation, wall, usd, (*([single] if len(runs) == 1 else []), *caveats))


def _steady(run: Submission, derived: Derived) -> SteadyWindow:
    window = derived.window
    if run.outcome.status is Status.UNSUPPORTED:
        raise TunemarkError("submission", run.run_id, f"was not run: {run.outcome.message}", exit_code=Exit.UNTRUSTWORTHY)
    if window is None or window.steps < RANKABLE_STEPS:
        steady = window.steps if window else 0
        fix = f"a prediction needs {RANKABLE_STEPS} steady steps; run longer, for example with --steps 150"
        raise TunemarkError("steady steps", steady, fix, exit_code=Exit.UNTRUSTWORTHY)
    return window


def stranger(runs: Sequence[Submission]) -> tuple[int, str] | None:
    """Return the index of the first run that is not a repeat, with the reason, or None if all have one plan and machine."""
    first = runs[0]
    for number, run in enumerate(runs):
        if run.run_id in {earlier.run_id for earlier in runs[:number]}:
            return number, "is listed twice; list each run once"
        if run.plan != first.plan or run.environment.devices != first.environment.devices:
            return number, "is not a repeat of the first run: its plan or device differs; use runs of one plan (`run --repeats 3`)"
    return None


def _shifted(interval: Interval, factor: float, offset: float) -> Interval:
    return Interval(interval.value * factor + offset, interval.low * factor + offset, interval.high * factor + offset)


def job_steps(run: Submission, window: SteadyWindow, job: Job) -> int:
    """Return the optimizer steps of a job. The last step of each epoch may have a partial batch."""
    sizes = {"--steps": job.steps, "--samples": job.samples, "--tokens": job.tokens}
    given = {name: size for name, size in sizes.items() if size is not None}
    if len(given) != 1:
        shown = " and ".join(f"{name} {size}" for name, size in given.items()) or "no size"
        raise TunemarkError("job", shown, "set the size of the job with exactly one of --steps, --samples and --tokens")
    if job.steps is not None:
        return job.steps
    part = slice(window.first, window.stop)
    per_step = run.trace.documents[part] if job.samples is not None else run.trace.real_tokens[part]
    return math.ceil(sum(given.values()) / float(np.mean(per_step))) * job.epochs


def step_interval(run: Submission, window: SteadyWindow, steps: int) -> Interval:
    """Return the mean time of `steps` future steady steps in seconds, with its 95% interval."""
    times = np.asarray(run.trace.step_times_s[window.first : window.stop])
    mean, wider = ratio_interval(times, np.ones_like(times)), math.sqrt(1 + window.steps / steps)
    return Interval(mean.value, max(0.0, mean.value - (mean.value - mean.low) * wider), mean.value + (mean.high - mean.value) * wider)


def _caveats_of(run: Submission, derived: Derived) -> Iterable[str]:
    for warning in run.warnings:
        if warning.kind not in {WarningKind.NOT_STABLE, WarningKind.RANDOM_WEIGHTS, WarningKind.UNKNOWN_ACCELERATOR, WarningKind.FEW_STEPS}:
            yield f"warning of the run: {warning.kind.value}, {warning.message}"
    if derived.window is not None and not derived.window.stable:
        yield f"the run never became steady: {derived.window.verdict}"
    if run.plan.optimizer.scheduler != "constant" and run.plan.measurement.max_steps is None and run.plan.measurement.epochs is None:
        yield "the run had no planned end, so its learning rate schedule differs from that of the job; this affects the loss, not time and cost"
    if Phase.EVAL.value not in derived.phases:
        yield "the run did not evaluate, so the time of evaluations is not included"
    if Phase.SAVE.value not in derived.phases:
        yield "the run saved no weights, so the time of saving is not included; `run --set save=true` measures it"
