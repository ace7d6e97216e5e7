"""How a run ended, judged from its log, its exit code, what it printed last, and who ended it."""

import re
import signal

from tunemark.harness.launch import Finished
from tunemark.harness.worker.failures import judge
from tunemark.schema.privacy import scrub
from tunemark.schema.records.submission import Outcome
from tunemark.schema.vocabulary import Phase, Status

KILLED_RANK = re.compile(r"rank\s*:\s*(\d+)[^\n]*\n\s*exitcode\s*:\s*-(\d+)")
"""What torchrun prints of a process that a signal ended."""


def outcome(finished: Finished) -> Outcome:
    """Return how the run ended, judged from the log, the exit code and who ended the worker."""
    log = finished.log
    status, message, fix = _ending(finished)
    phase = Phase(log.phases[-1]["phase"]) if log.phases else Phase.IMPORT
    return Outcome(status=status, phase=phase, last_good_step=len(log.steps), message=scrub(message) if message else None, fix=fix)


def _ending(finished: Finished) -> tuple[Status, str | None, str | None]:
    log = finished.log
    if finished.ended_by == "interrupted":
        return Status.INTERRUPTED, "stopped by the person running it", "run it again; the steps so far are in this record"
    if finished.ended_by == "timeout":
        return (
            Status.TIMEOUT,
            f"not finished after {finished.wall_s:.0f} s",
            "raise --timeout, or find out what hangs in the phase named here",
        )
    if finished.ended_by == "no step":
        return (
            Status.TIMEOUT,
            f"nothing got on any more: ended after {finished.wall_s:.0f} s with {len(finished.log.steps)} steps done",
            "find out what hangs in the phase named here, or give slow steps longer with --no-step-timeout",
        )
    killed = killed_by(finished)
    # The other processes only saw that one was gone.
    if log.failure and not (killed and finished.exit_code > 0):
        return Status(log.failure["status"]), log.failure["message"], log.failure["fix"]
    if log.ended and finished.exit_code == 0 and log.evaluation and log.evaluation["loss"] is None:
        return (
            Status.NAN,
            "the loss on the evaluation rows is not a finite number",
            "lower optimizer.learning_rate, or use a wider number format",
        )
    if log.ended and finished.exit_code == 0:
        return (
            (Status.OK, None, None)
            if log.steps
            else (Status.CRASH, "not one step was done: the samples end before the first", "give more rows or a smaller global batch")
        )
    if finished.host_oom_kills and killed and killed[1] == signal.SIGKILL:
        return (
            Status.OOM_HOST,
            f"the kernel killed {killed[0]} for want of memory",
            "lower batch.micro_batch, or free memory on this machine",
        )
    if killed:
        return (
            Status.CRASH,
            f"{killed[0]} was killed by {killed[1].name}",
            "run it again; the steps so far are in this record",
        )
    return _unheard(finished)


def _unheard(finished: Finished) -> tuple[Status, str, str]:
    """Return the ending of a worker that could not say why: a full disk, say, takes its last words too."""
    printed = finished.output_tail.strip().splitlines()
    last = next((line for line in reversed(printed) if "Error" in line), printed[-1] if printed else "it printed nothing")
    status, fix = judge(finished.output_tail) or (Status.CRASH, "run `tunemark doctor`")
    return status, f"the worker ended with exit code {finished.exit_code}: {last[:300]}", fix


def killed_by(finished: Finished) -> tuple[str, signal.Signals] | None:
    """Return which process a signal ended, and the signal; None when none did."""
    if finished.exit_code < 0:
        return "the worker", signal.Signals(-finished.exit_code)
    # The launcher itself ends the others with SIGTERM.
    found = [(rank, int(number)) for rank, number in KILLED_RANK.findall(finished.output_tail) if int(number) != signal.SIGTERM]
    return (f"rank {found[0][0]}", signal.Signals(found[0][1])) if found and finished.exit_code else None
