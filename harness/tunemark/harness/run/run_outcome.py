"""How a run ended, judged from its log, its exit code, its last output, and who ended it."""

import re
import signal
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from tunemark.harness.run.run_log import RunLog
from tunemark.harness.run.telemetry import Telemetry
from tunemark.schema.formats import counted
from tunemark.schema.privacy import scrub
from tunemark.schema.records.plan import Measurement
from tunemark.schema.records.submission import RECOVERED, Outcome
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import Phase, Status

CacheState = Literal["cold", "warm", "none"]
Ending = tuple[Status, str | None, str | None]
"""Status, message, and what to do."""
KILLED_RANK = re.compile(r"rank\s*:\s*(\d+)[^\n]*\n\s*exitcode\s*:\s*-(\d+)")
"""Torchrun's message about a process that a signal ended."""
PARTIAL_RECORD = "run it again; the steps so far are in this record"


@dataclass(frozen=True, slots=True)
class Finished:
    """Evidence about a worker that has ended."""

    log: RunLog
    telemetry: Telemetry
    started_at: datetime
    wall_s: float = 0.0
    user_s: float = 0.0
    system_s: float = 0.0
    max_rss_bytes: int = 0
    exit_code: int = 0
    """Negative: the signal that ended it."""
    ended_by: str | None = None
    """`interrupted`, `timeout` or `no step` when the parent ended the worker, `parent killed` for a recovered run."""
    host_oom_kills: int = 0
    """Processes that the kernel killed for lack of memory while the worker ran."""
    model_cache: CacheState = "none"
    """State of the hub's cache before the run."""
    output_tail: str = ""
    """The last output of the worker."""


def refused_run(reason: str) -> Finished:
    """Return the result of a run that was refused before it began: status `unsupported`, with the reason."""
    fix = "choose another method, setting or device; `tunemark doctor` lists what runs here"
    failure = {"status": Status.UNSUPPORTED.value, "message": reason, "fix": fix}
    return Finished(log=RunLog(failure=failure), telemetry=Telemetry(), started_at=datetime.now(UTC))


def outcome_of(finished: Finished, rules: Measurement) -> Outcome:
    """Return the outcome of a run that was to be measured by these rules."""
    log = finished.log
    status, message, fix = _ending(finished, rules)
    phase = Phase(log.phases[-1]["phase"]) if log.phases else Phase.IMPORT
    return Outcome(status=status, phase=phase, last_good_step=len(log.steps), message=scrub(message) if message else None, fix=fix)


def _ending(finished: Finished, rules: Measurement) -> Ending:
    log, killed = finished.log, killed_by(finished)
    if finished.ended_by == "interrupted":
        return Status.INTERRUPTED, "stopped by the user", PARTIAL_RECORD
    if finished.ended_by == "timeout":
        fix = "raise --set timeout=SECONDS, or find out what hangs in this phase"
        return Status.TIMEOUT, f"not finished after {finished.wall_s:.0f} s", fix
    if finished.ended_by == "parent killed":
        return Status.CRASH, RECOVERED, PARTIAL_RECORD
    if finished.ended_by is not None:
        message = f"no progress: ended after {finished.wall_s:.0f} s with {counted(len(log.steps), 'completed step')}"
        fix = "find out what hangs in this phase, or allow slow steps more time with --set no_step_timeout=SECONDS"
        return Status.TIMEOUT, message, fix

    # The other processes failed only because one was killed.
    if log.failure and not (killed and finished.exit_code > 0):
        return Status(log.failure["status"]), log.failure["message"], log.failure["fix"]
    if log.ended and finished.exit_code == 0:
        return _completed(log, rules)
    if killed:
        name, number = killed
        if finished.host_oom_kills and number == signal.SIGKILL:
            fix = "lower batch.micro_batch, or free memory on this machine"
            return Status.OOM_HOST, f"the kernel killed {name} for lack of memory", fix
        return Status.CRASH, f"{name} was killed by {number.name}", PARTIAL_RECORD

    # The worker could not log its failure. A full disk, for example, prevents that too.
    printed = finished.output_tail.strip().splitlines()
    last = next((line for line in reversed(printed) if "Error" in line), printed[-1] if printed else "it printed nothing")
    status, fix = judge(finished.output_tail) or (Status.CRASH, "run `tunemark doctor`")
    return status, f"the worker ended with exit code {finished.exit_code}: {last[:300]}", fix


def _completed(log: RunLog, rules: Measurement) -> Ending:
    if log.evaluation and log.evaluation["loss"] is None:
        fix = "lower optimizer.learning_rate, or use a wider number format"
        return Status.NAN, "the loss on the evaluation rows is not a finite number", fix
    if not log.steps:
        return Status.CRASH, "no step was completed: the samples end before the first", "give more rows or a smaller global batch"
    steady = max(0, len(log.steps) - rules.min_warmup_steps)
    planned = rules.epochs is not None or (rules.max_steps is not None and len(log.steps) >= rules.max_steps)
    if steady >= RANKABLE_STEPS:
        return Status.OK, None, None
    if rules.max_train_s is not None and not planned:
        message = f"the time limit of {rules.max_train_s:g} s left {steady} steps after warm-up; a result needs {RANKABLE_STEPS}"
        return Status.TIMEOUT, message, "raise the limit with --set seconds=N, or set the number of steps with --steps"
    message = f"not rankable: {counted(steady, 'step')} after warm-up, and a rank needs {RANKABLE_STEPS}"
    return Status.OK, message, f"train {rules.min_warmup_steps + RANKABLE_STEPS} steps or more, or leave out --steps"


def killed_by(finished: Finished) -> tuple[str, signal.Signals] | None:
    """Return the process that a signal ended, and the signal; None without one."""
    if finished.exit_code < 0:
        return "the worker", signal.Signals(-finished.exit_code)
    # The launcher itself ends the other processes with SIGTERM.
    killed = [(rank, int(number)) for rank, number in KILLED_RANK.findall(finished.output_tail) if int(number) != signal.SIGTERM]
    return (f"rank {killed[0][0]}", signal.Signals(killed[0][1])) if killed and finished.exit_code else None


# What an exception in the worker means

MESSAGE_LINES = 4
LOOK = "read the worker's output above; `tunemark doctor` shows this machine's software"
LESS_MEMORY = "lower batch.micro_batch or data.sequence_length, or use --set gradient_checkpointing=full"
WEIGHTS = (
    "--weights needs a folder or hub repository with config.json, safetensors and, for text, a tokenizer, all of the card's model; "
    "--set model=KEY names another card of data/models, --set labels=N the classes of a head"
)
RULES: tuple[tuple[str, Status, str], ...] = (
    ("lossnotfinite", Status.NAN, "lower optimizer.learning_rate, or use a wider number format"),
    (
        "no kernel image is available|is not compatible with the current pytorch installation",
        Status.UNSUPPORTED,
        "this build of torch has no kernels for this GPU; install one that lists its compute capability in torch.cuda.get_arch_list()",
    ),
    (
        "driver version is insufficient|driver on your system is too old|unsupported toolchain",
        Status.UNSUPPORTED,
        "update the driver, or install a build of torch for an older CUDA",
    ),
    ("deviceunavailable", Status.UNSUPPORTED, "run `tunemark doctor`; install a torch build for this device"),
    (
        r"outofmemoryerror|(cuda|mps backend|error:)\sout\sof\smemory|'out\sof\smemory'|alloc_failed|nrt_resource|resource_exhausted",
        Status.OOM_DEVICE,
        LESS_MEMORY,
    ),
    (
        r"memoryerror: |\nmemoryerror|(can't|cannot) allocate memory|defaultcpuallocator|memory allocation still failed",
        Status.OOM_HOST,
        LESS_MEMORY,
    ),
    ("no space left on device|disk quota exceeded|file too large", Status.CRASH, "free disk space, or name another folder with TMPDIR"),
    (
        "is not a valid model identifier|repositorynotfound|datasetnotfound|doesn't exist on the hub",
        Status.CRASH,
        "no such repository on the hub, or it is private: check its name, or log in with `hf auth login`",
    ),
    (
        "gatedrepoerror|gated repo|401 client error",
        Status.CRASH,
        "accept the model's licence on its hub page and log in with `hf auth login`, or use --weights random",
    ),
    (
        "couldn't connect|offline|connecterror|connectionerror|localentrynotfound|cannot find the requested files|max retries|failed to resolve",
        Status.CRASH,
        "no network, or HF_HUB_OFFLINE is set: use --weights pretrained:DIRECTORY, --weights random, or --data file:PATH",
    ),
    (
        r"instantiate the backend tokenizer|unrecognized model in|no file named (model\.safe|pytorch_model)|are not those of model card|ignore_mismatched",
        Status.CRASH,
        WEIGHTS,
    ),
    ("modulenotfounderror|importerror", Status.UNSUPPORTED, "install the missing package; `tunemark doctor` lists the installed ones"),
)
"""Pattern in an exception's name and text, in any case, the status that it means, and what to do. The first match counts."""


def describe(error: BaseException) -> dict[str, str]:
    """Return `status`, `message` and `fix` of an exception."""
    status, fix = judge(f"{type(error).__name__}: {error}") or (Status.CRASH, LOOK)
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    # A first line that ends in the middle of its sentence needs the next ones.
    message = " ".join(lines[:MESSAGE_LINES]) if lines[0].endswith((":", ",", " of", " from one of")) else lines[0]
    return {"status": status.value, "message": f"{type(error).__name__}: {message}".rstrip(": ")[:500], "fix": fix}


def judge(text: str) -> tuple[Status, str] | None:
    """Return the meaning of an error's name and text, with the fix; None if no rule matches."""
    return next(((status, fix) for pattern, status, fix in RULES if re.search(pattern, text, re.IGNORECASE)), None)
