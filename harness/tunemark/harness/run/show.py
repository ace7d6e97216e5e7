"""What a run shows: its progress on the terminal, its headline numbers afterwards, and both in the experiment tracker that its user has."""

import math
import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TimeElapsedColumn

from tunemark.harness.run.run_log import RunLog
from tunemark.schema import formats
from tunemark.schema.derive import Derived, derive
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import Physics, physics
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import Status
from tunemark.terminal import print_table, say, tell

PLAIN_EVERY_STEPS = 50
ETA_STEPS = 10
"""Last steps whose mean time gives the time left."""


class RunProgress:
    """A progress bar on a terminal; elsewhere a plain line per phase and every fifty steps."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._phase, self._shown_steps = plan, "", 0
        console = Console(stderr=True, highlight=False)
        columns = ("[bold]{task.fields[workload]}", "{task.description}", BarColumn(), "{task.fields[steps]}", TimeElapsedColumn())
        self._bar = Progress(SpinnerColumn(), *columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=plan.measurement.max_steps, workload=plan.workload, steps="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, log: RunLog) -> None:
        """Show the worker's progress."""
        phase = log.phases[-1]["phase"] if log.phases else "starting"
        steps = len(log.steps)
        loss = f", loss {log.steps[-1]['loss']:.3f}" if log.steps and log.steps[-1]["loss"] is not None else ""
        most, limit = self._plan.measurement.max_steps, "at most " if self._plan.measurement.until_relative_ci else ""
        done = f"{steps} of {limit}{most} steps" if most else formats.counted(steps, "step")
        if most and ETA_STEPS < steps < most:
            last_s = [step["completed_at_s"] for step in log.steps[-1 - ETA_STEPS :]]
            done += f", {formats.estimated_duration((last_s[-1] - last_s[0]) / ETA_STEPS * (most - steps))} left"
        if not self._bar.disable:
            self._bar.update(self._task, description=phase, completed=steps, steps=f"{done}{loss}" if steps else "")
        elif phase != self._phase or steps >= self._shown_steps + PLAIN_EVERY_STEPS:
            self._shown_steps = steps - steps % PLAIN_EVERY_STEPS
            say(f"{self._plan.workload}: {phase}{f', {done}{loss}' if steps else ''}")
        self._phase = phase


def summary(submission: Submission) -> dict[str, Any]:
    """Return the headline numbers of a submission as plain data, derived from its raw values."""
    derived = derive(submission)
    rate = derived.tokens_per_s
    return {
        "workload": submission.plan.workload,
        "status": submission.outcome.status.value,
        "message": submission.outcome.message,
        "steps": len(submission.trace),
        "steady_steps": derived.window.steps if derived.window else 0,
        "stable": derived.window.stable if derived.window else False,
        "step_time_s": derived.step_time.p50 if derived.step_time else None,
        "micro_step_time_s": derived.micro_steps.time.p50 if derived.micro_steps else None,
        "micro_steps": derived.micro_steps.count if derived.micro_steps else 0,
        "tokens_per_s": rate.value if rate else None,
        "tokens_per_s_interval": [rate.low, rate.high] if rate and rate.bounded else None,
        "samples_per_s": derived.samples_per_s.value if derived.samples_per_s else None,
        "peak_memory_bytes": derived.peak_memory.peak_bytes,
        "loss_start": derived.loss_start,
        "train_loss": derived.train_loss,
        "accuracy": submission.evaluation.accuracy if submission.evaluation else None,
        "accuracy_standard_error": derived.accuracy_standard_error,
        "gates": {gate.name: gate.passed for gate in submission.gates},
        **{name: known.value for name, known in _physics(submission, derived).figures.items()},
        "data_wait_s": submission.trace.data_wait_s,
        "compile_overhead_s": derived.compile_overhead_s,
        "slowest_rank": derived.slowest_rank.rank if derived.slowest_rank else None,
        "wall_s": submission.process.wall_s,
        "phases_s": derived.phases,
        "warnings": [f"{warned.kind.value}: {warned.message}" for warned in submission.warnings],
    }


def print_summary(submission: Submission, place: str) -> None:
    """Print the headline numbers and the submission's file."""
    derived, outcome = derive(submission), submission.outcome
    unsupported = outcome.status is Status.UNSUPPORTED
    failed = ", nothing was started: " if unsupported else f" in phase {outcome.phase.value}: "
    where = "" if not outcome.message else ", " if outcome.status is Status.OK else failed
    tell(f"{submission.plan.workload}: {outcome.status.value}{where}{outcome.message or ''}")
    if outcome.fix:
        tell(f"what to do: {outcome.fix}")
    if not unsupported:
        print_table(("", "this run"), list(_lines(submission, derived)))
    for warned in submission.warnings:
        tell(f"warning {warned.kind.value}: {warned.message}")
    typer.echo(place)


def _lines(submission: Submission, derived: Derived) -> Iterator[tuple[str, str]]:
    """Yield the label and text of each headline number."""
    yield "steps", f"{len(submission.trace)}, {derived.window.steps if derived.window else 0} of them steady"
    rate, micro, memory = derived.tokens_per_s, derived.micro_steps, derived.peak_memory
    if derived.step_time and rate and derived.samples_per_s:
        interval = "too few steps for an interval"
        if rate.bounded:
            interval = f"95% interval {formats.significant(rate.low)} to {formats.significant(rate.high)}"
        yield "step time", f"{formats.duration(derived.step_time.p50)} median, p95 {formats.duration(derived.step_time.p95)}"
        yield "tokens/s", f"{formats.significant(rate.value)}  ({interval})"
        yield "samples/s", formats.significant(derived.samples_per_s.value)
    if micro:
        which = "steady steps" if micro.steady else "steps after the first, not steady"
        yield "micro-step time", f"{formats.duration(micro.time.p50)} median of {micro.count} in {which}"
    peak = formats.MISSING if memory.peak_bytes is None else formats.gib(memory.peak_bytes)
    yield "peak memory", f"{peak} ({memory.method or memory.reason})"
    if derived.train_loss is not None and derived.loss_start is not None:
        yield "loss", f"{derived.loss_start:.3f} -> {derived.train_loss:.3f}"
    held_out, error = submission.evaluation, derived.accuracy_standard_error
    if held_out and held_out.accuracy is not None and error is not None:
        yield "accuracy", f"{held_out.accuracy:.1%}, standard error {100 * error:.1f} points ({held_out.split}: {held_out.rows})"
    yield from _evidence(submission, derived)


def _evidence(submission: Submission, derived: Derived) -> Iterator[tuple[str, str]]:
    """Yield the lines about utilisation, energy, compilation, ranks, phases and gates."""
    figures = _physics(submission, derived).figures
    # MFU where the device's peak is known, else the fraction of its measured matrix rate.
    known = next(((name, figure) for name in ("mfu", "mafu") if (figure := figures[name]).value is not None), None)
    if known:
        yield known[0].upper(), f"{formats.percent(known[1].value or 0.0)} ({known[1].reason.rpartition(': ')[2]})"
    if (joules := figures["energy_per_sample_j"].value) is not None:
        yield "energy", f"{formats.joules(joules)} per sample"
    if derived.compile_overhead_s:
        yield "compilation", f"{formats.duration(derived.compile_overhead_s)} beyond median steps"
    if derived.slowest_rank:
        slowest = derived.slowest_rank
        yield "slowest rank", f"{slowest.rank}, {slowest.behind:.1%} behind the median of {len(submission.ranks)}"
    wall_s = submission.process.wall_s
    phases = ", ".join(f"{name} {seconds / (wall_s or 1):.0%}" for name, seconds in derived.phases.items())
    yield "wall time", f"{formats.duration(wall_s)}: {phases}"
    gates = [f"{gate.name} FAILED: {gate.detail}" for gate in submission.gates if gate.passed is False]
    if passed := [gate.name for gate in submission.gates if gate.passed]:
        gates.append(f"{', '.join(passed)} passed")
    if submission.gates:
        yield "gates", "; ".join(gates) or f"none checked: {submission.gates[0].detail}"


def _physics(submission: Submission, derived: Derived) -> Physics:
    """Return FLOPs, utilisation and energy, by the cards of the project."""
    facts, plan = FactBase.of_project(), submission.plan
    return physics(submission, derived, facts.models.get(plan.model.key), facts.accelerators.get(plan.device.accelerator or ""))


# The experiment tracker of the user, through accelerate: Weights & Biases, MLflow or TensorBoard

TRACKERS = ("wandb", "mlflow", "tensorboard")


def steps_of(submission: Submission) -> Iterator[dict[str, float]]:
    """Yield the metrics of each step: its loss where it is finite, its time, and its rate."""
    trace = submission.trace
    for seconds, loss, tokens in zip(trace.step_times_s, trace.loss, trace.real_tokens, strict=True):
        found = {"loss": loss, "step_time_s": seconds, "tokens_per_s": tokens / seconds}
        yield {name: value for name, value in found.items() if value is not None}


def refuse_missing_tracker(tracker: str) -> None:
    """Raise TunemarkError for another tracker, or if its package is not installed."""
    if tracker not in TRACKERS:
        raise TunemarkError("--report-to", tracker, did_you_mean(tracker, TRACKERS))
    if find_spec(tracker) is None:
        raise TunemarkError("--report-to", tracker, f"needs its package, which is not installed: pip install {tracker}")


def report(submission: Submission, tracker: str, name: str) -> None:
    """Send settings, steps and headline numbers of a run. Raises TunemarkError if the tracker refuses it; the record is written before."""
    from accelerate import Accelerator  # noqa: PLC0415 - imports torch

    settings = {key: str(value) for key, value in flattened(submission.plan.settings) if value is not None}
    final = {name: float(value) for name, value in summary(submission).items() if isinstance(value, int | float) and math.isfinite(value)}
    # TensorBoard has folders of runs instead of projects.
    project = name if tracker == "tensorboard" else os.environ.get("WANDB_PROJECT", "tunemark")
    named = {"wandb": {"name": name}, "mlflow": {"run_name": name}}
    try:
        sent = Accelerator(cpu=True, log_with=tracker, project_dir=os.environ.get("TENSORBOARD_LOGGING_DIR", "runs"))
        sent.init_trackers(project, settings, named)
        for step, metrics in enumerate(steps_of(submission), start=1):
            sent.log(metrics, step=step)
        sent.log({f"run/{name}": value for name, value in final.items()}, step=len(submission.trace))
        sent.end_training()
    except Exception as error:
        fix = f"did not take the run ({type(error).__name__}: {error}); the record is written all the same"
        raise TunemarkError("--report-to", tracker, fix, exit_code=Exit.INTERNAL) from error
