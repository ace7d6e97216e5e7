"""One run: refuse or launch, assemble, write. The record is written whatever happened."""

import sys
import tempfile
import threading
from pathlib import Path

from tunemark.harness.launch import Finished, launch
from tunemark.harness.machine import Machine
from tunemark.harness.planning import Resolved, refuse_unsupported
from tunemark.harness.record import Further, assemble, write
from tunemark.harness.refusal import refused
from tunemark.harness.room import refuse_without_room
from tunemark.harness.show import RunProgress
from tunemark.harness.signals import stop_signals
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.privacy import identity_leaks, machine_names
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Study
from tunemark.schema.vocabulary import Status


def run_once(
    resolved: Resolved, facts: FactBase, machine: Machine, out: Path | None, supersedes: str | None = None, study: Study | None = None
) -> tuple[Submission, Path]:
    """Run a plan and write its submission; returns both.

    Raises
    ------
    TunemarkError
        Before any time is spent, when the plan names this machine or the temporary folder is too small; and when the submission could not be written; it is then printed on standard output, so that nothing is lost.

    """
    refuse_identity(resolved)
    refuse_unwritable(out)
    if not resolved.unsupported:
        refuse_without_room(resolved.plan, facts.model(resolved.plan.model.key))
    # A second Ctrl-C while the record is written would lose the run, so signals are kept until then.
    with stop_signals() as stopped:
        finished = refused(resolved.unsupported) if resolved.unsupported else _work(resolved, facts, machine, stopped)
        submission = assemble(resolved, machine, finished, Further(supersedes, study, facts.golden_losses(resolved.plan.workload)))
        _show_output(submission, finished)
        return submission, _write(submission, out)


def refuse_unwritable(out: Path | None) -> None:
    """Raise TunemarkError, before any time is spent, when no submission could be written into the folder."""
    folder = out or project_root() / "submissions"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TunemarkError("--out", folder, f"nothing can be written there ({error.strerror}); name a folder of yours") from error


def refuse_identity(resolved: Resolved) -> None:
    """Raise TunemarkError, before any time is spent, when the plan itself holds what a submission must not: a path, say."""
    content = {"plan": resolved.plan.model_dump(mode="json"), "overrides": [one.model_dump(mode="json") for one in resolved.overrides]}
    for field, value, what in identity_leaks(content, machine_names()):
        raise TunemarkError(field, value, f"looks like {what}, which no submission may hold; give local data with --data file:PATH")


def help_another_node(resolved: Resolved, facts: FactBase, machine: Machine) -> int:
    """Run this machine's part of a plan for several; the first one writes the record. Returns the worker's exit code.

    Raises
    ------
    TunemarkError
        When this machine cannot do its part, or has no room for its files.

    """
    refuse_unsupported(resolved)
    refuse_without_room(resolved.plan, facts.model(resolved.plan.model.key))
    with stop_signals() as stopped:
        finished = _work(resolved, facts, machine, stopped)
    if finished.exit_code:
        sys.stderr.write(finished.output_tail.rstrip() + "\n")
    return finished.exit_code


def _work(resolved: Resolved, facts: FactBase, machine: Machine, stopped: threading.Event) -> Finished:
    """Run this machine's worker to its end, with progress on the terminal."""
    device = resolved.plan.device
    with RunProgress(resolved.plan) as progress:
        card = facts.model(resolved.plan.model.key)
        return launch(resolved, card, machine.devices[0].name, stopped, progress, machine.indexes[: device.count // device.nodes])


def check_superseded(identity: str | None, plan: Plan, out: Path | None) -> None:
    """Raise TunemarkError, before any time is spent, when no earlier result of the workload has this id."""
    if identity is None:
        return
    folder = (out or project_root() / "submissions") / plan.workload
    known = [path.stem.rsplit("-", 1)[-1] for path in folder.glob("*.json")]
    if identity not in known:
        suggestion = did_you_mean(identity, known) if known else "there is none yet"
        raise TunemarkError("--supersedes", identity, f"no result of {plan.workload} has this id; {suggestion}")


def _write(submission: Submission, out: Path | None) -> Path:
    try:
        return write(submission, out)
    except OSError as error:
        place, problem = str(error.filename or out or "submissions"), f"could not write ({error.strerror})"
        refusal = TunemarkError(
            "--out",
            place,
            f"{problem}; the submission was printed instead, save it, free space or name another folder",
            exit_code=Exit.INTERNAL,
        )
    except TunemarkError as error:
        refusal = error
    sys.stdout.write(submission.model_dump_json() + "\n")
    raise refusal


def _show_output(submission: Submission, finished: Finished) -> None:
    """Pass on what a failed worker printed last: it may hold paths, so it goes to the terminal and into no record."""
    if submission.outcome.status is Status.CRASH and finished.output_tail.strip():
        sys.stderr.write(f"--- the worker's last output\n{finished.output_tail.rstrip()}\n---\n")
