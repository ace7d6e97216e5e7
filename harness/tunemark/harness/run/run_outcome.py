"""A run that was refused before it began is a result too: status `unsupported`, with the reason."""

import re
import signal
from datetime import UTC, datetime

from tunemark.harness.run.launch import Finished
from tunemark.harness.run.run_log import RunLog
from tunemark.harness.run.telemetry import Telemetry
from tunemark.schema.privacy import scrub
from tunemark.schema.records.submission import Outcome
from tunemark.schema.vocabulary import Phase, Status


def refused_run(reason: str) -> Finished:
    """Return what is known of a worker that was never started."""
    failure = {
        "status": Status.UNSUPPORTED.value,
        "message": reason,
        "fix": "choose another method, setting or device; `tunemark doctor` lists what runs here",
    }
    return Finished(
        log=RunLog(failure=failure),
        telemetry=Telemetry(),
        started_at=datetime.now(UTC),
        wall_s=0.0,
        user_s=0.0,
        system_s=0.0,
        max_rss_bytes=0,
        exit_code=0,
        ended_by=None,
        host_oom_kills=0,
        model_cache="none",
        output_tail="",
    )


# MOVE: was tunemark.harness.run.run_outcome: What an exception in the worker means: a status, a message, and what to do about it.

LESS_MEMORY = "lower batch.micro_batch or data.sequence_length, or use --set gradient_checkpointing=full"

GATED = "accept the model's licence on its hub page and log in with `hf auth login`, or use --weights random"
OFFLINE = "no network, or HF_HUB_OFFLINE is set: use --weights pretrained:DIRECTORY, --weights random, or --data file:PATH"
WEIGHTS = (
    "--weights wants a folder or hub repository with config.json, safetensors and, for text, a tokenizer, all of the card's model; "
    "--set model=KEY names another card of data/models, --set labels=N the classes of a head"
)
LOOK = "read the worker's output above; `tunemark doctor` shows this machine's software"
SAID_LINES = 4
OFFLINE_WORDS = (
    "couldn't connect",
    "offline",
    "connecterror",
    "connectionerror",
    "localentrynotfound",
    "cannot find the requested files",
    "max retries",
    "failed to resolve",
)


def describe(error: BaseException) -> dict[str, str]:
    """Return `status`, `message` and `fix` of an exception."""
    status, fix = judge(f"{type(error).__name__}: {error}") or (Status.CRASH, LOOK)
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    # A first line that ends in the middle of its sentence says nothing without the next ones.
    said = " ".join(lines[:SAID_LINES]) if lines[0].endswith((":", ",", " of", " from one of")) else lines[0]
    return {"status": status.value, "message": f"{type(error).__name__}: {said}".rstrip(": ")[:500], "fix": fix}


RULES: tuple[tuple[tuple[str, ...], Status, str], ...] = (
    (("lossnotfinite",), Status.NAN, "lower optimizer.learning_rate, or use a wider number format"),
    (("deviceunavailable",), Status.UNSUPPORTED, "run `tunemark doctor`; install a torch build for this device"),
    (
        (
            "outofmemoryerror",
            "cuda out of memory",
            "mps backend out of memory",
            "error: out of memory",
            "alloc_failed",
            "'out of memory'",
            "nrt_resource",
            "resource_exhausted",
        ),
        Status.OOM_DEVICE,
        LESS_MEMORY,
    ),
    (
        ("memoryerror: ", "\nmemoryerror", "can't allocate memory", "defaultcpuallocator", "cannot allocate memory"),
        Status.OOM_HOST,
        LESS_MEMORY,
    ),
    (
        ("no space left on device", "disk quota exceeded", "file too large"),
        Status.CRASH,
        "free disk space, or name another folder with TMPDIR",
    ),
    (
        ("is not a valid model identifier", "repositorynotfound", "datasetnotfound", "doesn't exist on the hub"),
        Status.CRASH,
        "no such repository on the hub, or it is private: check its name, or log in with `hf auth login`",
    ),
    (("gatedrepoerror", "gated repo", "401 client error"), Status.CRASH, GATED),
    (OFFLINE_WORDS, Status.CRASH, OFFLINE),
    (
        (
            "couldn't instantiate the backend tokenizer",
            "unrecognized model in",
            "no file named model.safetensors",
            "no file named pytorch_model.bin",
            "the weights are not those of model card",
            "ignore_mismatched_sizes",
        ),
        Status.CRASH,
        WEIGHTS,
    ),
    (("modulenotfounderror", "importerror"), Status.UNSUPPORTED, "install the missing package; `tunemark doctor` lists what is there"),
)
"""Words in the exception's name and text, the status they mean, and what to do. The first match counts."""


def judge(text: str) -> tuple[Status, str] | None:
    """Return what an error's name and text mean, and what to do; None where no rule knows."""
    lower = text.lower()
    return next(((status, fix) for words, status, fix in RULES if any(word in lower for word in words)), None)


# MOVE: was tunemark.harness.run.run_outcome: How a run ended, judged from its log, its exit code, what it printed last, and who ended it.

KILLED_RANK = re.compile(r"rank\s*:\s*(\d+)[^\n]*\n\s*exitcode\s*:\s*-(\d+)")
"""What torchrun prints of a process that a signal ended."""


def outcome_of(finished: Finished) -> Outcome:
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
