"""What the harness says on a terminal: progress while it runs, and the headline numbers after."""

import sys
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tunemark.harness.run.run_log import RunLog
from tunemark.schema import formats
from tunemark.schema.derive import Derived, derive
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import Physics, physics
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import Submission
from tunemark.schema.statistics.intervals import Interval
from tunemark.schema.vocabulary import Status

PLAIN_EVERY_STEPS = 50


PIPE_WIDTH = 160


def console() -> Console:
    """Return the console for progress and messages: standard output stays free for answers."""
    return Console(stderr=True, highlight=False)


def answers() -> Console:
    """Return the console for answers, on standard output; a pipe has no width, so it gets a generous one.

    Words of ours may be marked up; what comes from elsewhere, as a message or a setting, goes through `escape` or `as_text`.
    """
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def as_text(*cells: str) -> list[Text]:
    """Return the cells of a row as they are: brackets in a message or a list are no markup."""
    return [Text(cell) for cell in cells]


class RunProgress:
    """A bar on a terminal; elsewhere a plain line per phase and per fifty steps."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._console = console()
        self._phase = ""
        self._said_steps = 0
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("[bold]{task.fields[workload]}"),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[steps]}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )

    def __enter__(self) -> Self:
        """Start the bar."""
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._plan.measurement.max_steps, workload=self._plan.workload, steps="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Take the bar away."""
        if self._bar:
            self._bar.stop()

    def __call__(self, log: RunLog) -> None:
        """Show how far the worker is."""
        phase = log.phases[-1]["phase"] if log.phases else "starting"
        steps = len(log.steps)
        loss = f", loss {log.steps[-1]['loss']:.3f}" if log.steps and log.steps[-1]["loss"] is not None else ""
        most = self._plan.measurement.max_steps
        done = f"{steps} of {'at most ' if self._plan.measurement.until_relative_ci else ''}{most} steps" if most else f"{steps} steps"
        if self._bar:
            self._bar.update(self._task, description=phase, completed=steps, steps=f"{done}{loss}" if steps else "")
        elif phase != self._phase or steps >= self._said_steps + PLAIN_EVERY_STEPS:
            self._said_steps = steps - steps % PLAIN_EVERY_STEPS
            sys.stderr.write(f"{self._plan.workload}: {phase}{f', {done}{loss}' if steps else ''}\n")
            sys.stderr.flush()
        self._phase = phase


def summary(submission: Submission) -> dict[str, Any]:
    """Return the headline numbers of a submission as plain data, derived from its raw values."""
    derived = derive(submission)
    rate, found = derived.tokens_per_s, _physics(submission, derived)
    return {
        "workload": submission.workload,
        "status": submission.outcome.status.value,
        "message": submission.outcome.message,
        "steps": len(submission.trace),
        "steady_steps": derived.window.steps if derived.window else 0,
        "stable": derived.window.stable if derived.window else False,
        "step_time_s": derived.step_time.p50 if derived.step_time else None,
        "tokens_per_s": derived.tokens_per_s.value if derived.tokens_per_s else None,
        "tokens_per_s_interval": [rate.low, rate.high] if rate and rate.bounded else None,
        "samples_per_s": derived.samples_per_s.value if derived.samples_per_s else None,
        "peak_memory_bytes": derived.peak_memory.peak_bytes,
        "loss_start": derived.loss_start,
        "train_loss": derived.train_loss,
        "accuracy": submission.evaluation.accuracy if submission.evaluation else None,
        "accuracy_standard_error": derived.accuracy_standard_error,
        "gates": {gate.name: gate.passed for gate in submission.gates},
        **{name: known.value for name, known in found.figures().items()},
        "compile_overhead_s": derived.compile_overhead_s,
        "slowest_rank": derived.slowest_rank.rank if derived.slowest_rank else None,
        "wall_s": submission.process.wall_s,
        "phases_s": derived.phases,
        "warnings": [f"{warned.doubt.value}: {warned.message}" for warned in submission.warnings],
    }


def print_summary(submission: Submission, place: str) -> None:
    """Print the headline numbers and where the submission is."""
    screen, derived = answers(), derive(submission)
    outcome = submission.outcome
    screen.print(f"[bold]{escape(submission.workload)}[/bold]: {outcome.status.value}{_where(submission)}{escape(outcome.message or '')}")
    if outcome.fix:
        screen.print(f"  what to do: {escape(outcome.fix)}")
    table = Table(show_header=False, box=None, padding=(0, 2))
    for label, value in [] if outcome.status is Status.UNSUPPORTED else _lines(submission, derived):
        table.add_row(*as_text(label, value))
    screen.print(table)
    for warned in submission.warnings:
        screen.print(f"  [yellow]doubt[/yellow] {warned.doubt.value}: {escape(warned.message)}")
    screen.print(f"  {escape(place)}", soft_wrap=True)


def _where(submission: Submission) -> str:
    """Return the phase in which a run did not end well, where one was begun."""
    outcome = submission.outcome
    if not outcome.message:
        return ""
    return ", nothing was started: " if outcome.status is Status.UNSUPPORTED else f" in phase {outcome.phase.value}: "


def _interval(rate: Interval) -> str:
    return (
        f"95% interval {formats.significant(rate.low)} to {formats.significant(rate.high)}"
        if rate.bounded
        else "too few steps for an interval"
    )


def _lines(submission: Submission, derived: Derived) -> list[tuple[str, str]]:
    lines = [("steps", f"{len(submission.trace)}, of which steady {derived.window.steps if derived.window else 0}")]
    if derived.step_time and derived.tokens_per_s and derived.samples_per_s:
        rate = derived.tokens_per_s
        lines += [
            ("step time", f"{formats.duration(derived.step_time.p50)} median, p95 {formats.duration(derived.step_time.p95)}"),
            (
                "tokens/s",
                f"{formats.significant(rate.value)}  ({_interval(rate)})",
            ),
            ("samples/s", formats.significant(derived.samples_per_s.value)),
        ]
    memory = derived.peak_memory
    lines.append(("peak memory", f"{QUANTITIES['peak_memory_bytes'].text(memory.peak_bytes)} ({memory.method or memory.reason})"))
    if derived.train_loss is not None and derived.loss_start is not None:
        lines.append(("loss", f"{derived.loss_start:.3f} -> {derived.train_loss:.3f}"))
    held_out, error = submission.evaluation, derived.accuracy_standard_error
    if held_out and held_out.accuracy is not None and error is not None:
        said = f"{held_out.accuracy:.1%}, standard error {100 * error:.1f} points ({held_out.split}: {held_out.rows})"
        lines.append(("accuracy", said))
    lines += _evidence_lines(submission, derived)
    lines.append(
        (
            "wall time",
            f"{formats.duration(submission.process.wall_s)}: "
            + ", ".join(f"{name} {seconds / (submission.process.wall_s or 1):.0%}" for name, seconds in derived.phases.items()),
        )
    )
    return lines


def _physics(submission: Submission, derived: Derived) -> Physics:
    """Return FLOPs, utilisation and energy, with the cards of the checkout; without it they are unknown."""
    try:
        facts = FactBase.of_project()
        model = facts.models.get(submission.plan.model.key)
        accelerator = facts.accelerators.get(submission.plan.device.accelerator or "")
    except TunemarkError:
        model = accelerator = None
    return physics(submission, derived, model, accelerator)


def _evidence_lines(submission: Submission, derived: Derived) -> list[tuple[str, str]]:
    found, lines = _physics(submission, derived), []
    # MFU where the device's peak is known, else against what the device itself reached.
    for name in ("mfu", "mafu"):
        known = found.figures()[name]
        if known.value is not None:
            lines.append((QUANTITIES[name].label, f"{formats.percent(known.value)} ({known.reason.rpartition(': ')[2]})"))
            break
    energy = found.energy_per_sample_j
    if energy.value is not None:
        lines.append(("energy", f"{formats.joules(energy.value)} a sample"))
    if derived.compile_overhead_s:
        lines.append(("compiling", f"{formats.duration(derived.compile_overhead_s)} beyond median steps"))
    if derived.slowest_rank:
        slowest = derived.slowest_rank
        lines.append(("slowest rank", f"{slowest.rank}, {slowest.behind:.1%} behind the median of {len(submission.ranks)}"))
    return [*lines, *_gate_lines(submission)]


def _gate_lines(submission: Submission) -> list[tuple[str, str]]:
    failed = [f"{gate.name} FAILED: {gate.detail}" for gate in submission.gates if gate.passed is False]
    passed = [gate.name for gate in submission.gates if gate.passed]
    said = [*failed, *([f"{', '.join(passed)} passed"] if passed else [])]
    unseen = [gate for gate in submission.gates if gate.passed is None]
    if unseen and not said:
        return [("checks", f"none: {unseen[0].detail}")]
    return [("checks", "; ".join(said))] if said else []
