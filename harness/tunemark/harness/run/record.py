"""Assemble the submission from log, plan and machine: how the run ended, what it measured, and the source that measured.

The parent does this, so that it also works after the worker has died.
"""

import json
import re
import signal
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunemark.harness.run.run_log import SOURCE, CacheState, RunLog, judge
from tunemark.harness.run.telemetry import Telemetry, memory_used, utilisation
from tunemark.schema import VERSION
from tunemark.schema.derive import derive, loss_band, warnings_of_record
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.workloads import GoldenLosses
from tunemark.schema.files import git_or_none, is_checkout, project_root, write_atomically
from tunemark.schema.formats import GIB, counted
from tunemark.schema.plan.capabilities import Machine
from tunemark.schema.privacy import identity_leaks, machine_names, scrub
from tunemark.schema.records import submission as records
from tunemark.schema.records.base import canonical_json, content_id
from tunemark.schema.records.plan import Measurement, division_of
from tunemark.schema.records.trace import Energy, Study
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import EAGER_UPDATE, HOST_INTERVAL_S, Division, Phase, Status, WarningKind

if TYPE_CHECKING:
    from tunemark.harness.plan.resolve import Resolved

BUILT_FROM = Path(__file__).parents[1] / "built_from.json"
"""Commit of an installed package: `hatch_build.py` writes it into distributions."""

SUBMISSIONS, TRIES = "submissions", Path("build") / "tries"
LOW_DISK_BYTES = 2 * GIB
MEASURING = ("schema", "harness", "data/models")
"""Folders of the checkout that a measurement depends on. A commit of results or of pages changes none of them."""


# How a run ended


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


def outcome_of(finished: Finished, rules: Measurement) -> records.Outcome:
    """Return the outcome of a run that was to be measured by these rules."""
    log = finished.log
    status, message, fix = _ending(finished, rules)
    phase = Phase(log.phases[-1]["phase"]) if log.phases else Phase.IMPORT
    return records.Outcome(status=status, phase=phase, last_good_step=len(log.steps), message=scrub(message) if message else None, fix=fix)


def _ending(finished: Finished, rules: Measurement) -> Ending:
    log, killed = finished.log, killed_by(finished)
    if finished.ended_by == "interrupted":
        return Status.INTERRUPTED, "stopped by the user", PARTIAL_RECORD
    if finished.ended_by == "timeout":
        fix = "raise --set timeout=SECONDS, or find out what hangs in this phase"
        return Status.TIMEOUT, f"not finished after {finished.wall_s:.0f} s", fix
    if finished.ended_by == "parent killed":
        return Status.CRASH, records.RECOVERED, PARTIAL_RECORD
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


# The record


def assemble(
    resolved: "Resolved",
    machine: Machine,
    finished: Finished,
    *,
    supersedes: Mapping[str, str] | None = None,
    study: Study | None = None,
    golden: GoldenLosses | None = None,
) -> records.Submission:
    """Return the submission of a run.

    `supersedes` holds the id of the result that it replaces and the reason, by the names of the record, `study` is the series that it
    belongs to, and `golden` holds the reference losses of the workload.
    """
    plan, log = resolved.plan, finished.log
    division = division_of(plan, resolved.overrides)
    cache = log.compile_cache or {"state": "none", "reason": None}
    gates: tuple[Any, ...] = tuple(log.gates)
    if plan.measurement.gates and log.steps:
        gates = (*gates, loss_band(golden, plan, log.trace(), changed=division is Division.OPEN))
    draft = records.Submission.model_validate(
        {
            "run_id": uuid.uuid4().hex,
            "started_at": finished.started_at,
            "harness": harness_version(),
            "division": division,
            "overrides": resolved.overrides,
            **(supersedes or {}),
            "study": study,
            "requested": resolved.requested,
            "plan": plan,
            "environment": environment(machine, plan.device.count // plan.device.nodes, log.stack["versions"] if log.stack else None),
            "outcome": outcome_of(finished, plan.measurement),
            "timeline": tuple(log.phases) or (records.PhaseStart(phase=Phase.IMPORT, at_s=0.0),),
            "process": {name: getattr(finished, name) for name in ("wall_s", "user_s", "system_s", "model_cache")}
            | {"compile_cache": cache["state"], "compile_cache_reason": cache["reason"]},
            **{name: getattr(log, name) for name in ("row_lengths", "model", "effective", "evaluation")},
            "trace": log.trace(),
            "gates": gates,
            "probe": log.probe if "before_flop_per_s" in log.probe else None,
            "events": tuple({"step": event["step"], "kind": event["what"], "amount": event["amount"]} for event in log.events),
            "ranks": tuple(log.ranks),
            "memory": memory(finished, plan.device.nodes),
            "saved_bytes": log.saved["bytes"] if log.saved else None,
        }
    )
    derived, used = derive(draft), None
    if plan.device.nodes > 1 and derived.window:
        reason = f"only the first of {plan.device.nodes} machines was sampled, so the energy of all devices is unknown"
        used = records.Utilisation(samples=0, interval_s=HOST_INTERVAL_S, energy=Energy(source="none", reason=reason))
    elif derived.window:
        used = utilisation(finished.telemetry, draft.trace, derived.window)
    measured = draft.model_copy(update={"utilisation": used})
    warnings = (*warnings_of_record(measured, derived), *observed_warnings(machine, finished))
    return measured.model_copy(update={"warnings": warnings})


def observed_warnings(machine: Machine, finished: Finished) -> Iterator[records.MeasurementWarning]:
    """Yield the warnings about circumstances that the record does not hold."""
    for note in finished.log.notes:
        if note["source"] == EAGER_UPDATE:
            message = f"{EAGER_UPDATE}: not compiled, which takes several times longer and more memory; install a C compiler and Triton"
            yield records.MeasurementWarning(kind=WarningKind.FALLBACK, message=f"{message} ({scrub(note['message'])})")
    for index, count in finished.telemetry.foreign.items():
        if count:
            message = f"{count} other process{'es' * (count != 1)} used device {index}; end them and repeat"
            yield records.MeasurementWarning(kind=WarningKind.BUSY_DEVICE, message=message)
    if machine.free_disk_bytes < LOW_DISK_BYTES:
        message = f"{machine.free_disk_bytes / GIB:.1f} GiB of disk were free"
        yield records.MeasurementWarning(kind=WarningKind.LOW_DISK, message=message)
    if finished.log.torn:
        yield records.MeasurementWarning(kind=WarningKind.TRUNCATED_LOG, message="a line of the worker's log was cut off and left out")


def environment(machine: Machine, count: int, runtime: Mapping[str, str] | None = None) -> records.Environment:
    """Return the recorded facts of a machine, with its first `count` devices and the versions that a worker found."""
    facts: dict[str, Any] = {name: getattr(machine, name) for name in records.Environment.model_fields}
    return records.Environment(**facts | {"devices": machine.devices[:count], "runtime": dict(runtime or {})})


def memory(finished: Finished, nodes: int = 1) -> records.Memory:
    """Return all memory peaks, each with its method or the reason why it is null. The parent sees only the first of several machines."""
    samples, where = finished.telemetry.samples, " of the first machine" if nodes > 1 else ""
    swaps = [sample.swap_bytes for sample in samples if sample.swap_bytes is not None]
    device_used = memory_used(finished.telemetry)
    host_rss = records.MemoryReading(reason="no worker was started")
    host_swap = records.MemoryReading(reason="this system reports no swap by process")
    if finished.max_rss_bytes:
        peak = max([finished.max_rss_bytes, *(sample.rss_bytes for sample in samples)])
        method = f"peak resident memory of the worker's processes{where} (ru_maxrss, and every {HOST_INTERVAL_S:g} s)"
        host_rss = records.MemoryReading(peak_bytes=peak, method=method)
    if swaps:
        method = f"VmSwap of the worker's processes{where} every {HOST_INTERVAL_S:g} s"
        host_swap = records.MemoryReading(peak_bytes=max(swaps), method=method)
    return records.Memory(
        device_allocated=_highest(finished.log, "allocated"),
        device_reserved=_highest(finished.log, "reserved"),
        device_used=device_used.model_copy(update={"method": f"{device_used.method}{where}" if device_used.method else None}),
        host_rss=host_rss,
        host_swap=host_swap,
    )


def _highest(log: RunLog, kind: str) -> records.MemoryReading:
    """Return the highest peak of a kind of all processes; its method or reason is that of the first one."""
    if not log.memory:
        return records.MemoryReading(reason="the worker ended before it read its peaks")
    reading, field = records.MemoryReading.model_validate(log.memory[kind]), f"device_{kind}_bytes"
    peaks = [rank[field] for rank in log.ranks if rank[field] is not None]
    return reading.model_copy(update={"peak_bytes": max(peaks)}) if reading.peak_bytes is not None and peaks else reading


def submissions(folder: Path | None) -> Path:
    """Return the folder of submissions: that of the checkout unless another one is given."""
    return folder or project_root() / SUBMISSIONS


def tries(submitted: Path) -> Path:
    """Return the folder of the records that are not for others, beside a folder of submissions; another folder takes both kinds."""
    return submitted.parent / TRIES if submitted.name == SUBMISSIONS else submitted


def is_submission(record: records.Submission) -> bool:
    """Return True if others learn from a record: it trained, or ran out of memory. Searches only try, and typing errors do neither."""
    searched = record.study is not None and record.study.kind in {"tune", "frontier"}
    return not searched and (len(record.trace) > 0 or record.outcome.status in {Status.OOM_DEVICE, Status.OOM_HOST})


def write(submission: records.Submission, folder: Path | None = None) -> Path:
    """Write a submission under the name of its content; return the file.

    Raises TunemarkError when text in it could identify this machine: nothing is then written.
    """
    content = canonical_json(submission)
    for field, value, what in identity_leaks(submission.model_dump(mode="json"), machine_names()):
        fix = f"looks like {what}; a submission must not identify a machine; please report this"
        raise TunemarkError(field, value, fix, exit_code=Exit.INTERNAL)
    place = submissions(folder) if is_submission(submission) else tries(submissions(folder))
    path = place / submission.plan.workload / records.submission_name(submission, content_id(content))
    write_atomically(path, content)
    return path


# Provenance: the source that measures


def harness_version() -> records.Harness:
    """Return version and commit, and if it has uncommitted changes: of the checkout, else of the one that the package was built from."""
    commit, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    if commit and changes is not None:
        return records.Harness(version=VERSION, commit=commit, dirty=bool(changes))
    built = json.loads(BUILT_FROM.read_bytes()) if BUILT_FROM.exists() else {"commit": None, "dirty": None}
    return records.Harness(version=VERSION, commit=built["commit"], dirty=built["dirty"])


def source_content() -> str:
    """Return a hash of the folders that measure, with uncommitted changes; version and commit where there is no checkout."""
    folders = _git("rev-parse", *(f"HEAD:{folder}" for folder in MEASURING))
    changes = _git("diff", "HEAD", "--", *MEASURING)
    if folders is None or changes is None:
        return " ".join(filter(None, (VERSION, harness_version().commit)))
    return sha256(f"{folders}\n{changes}".encode()).hexdigest()


def tracked(folder: Path) -> set[Path]:
    """Return the files of a folder that git tracks; none outside a checkout."""
    return {(folder / name).absolute() for name in (_git("ls-files", "-z", root=folder) or "").split("\0") if name}


def _git(*arguments: str, root: Path = SOURCE) -> str | None:
    """Return git's output about a folder, by default the checkout of this source; None outside of one, or without git."""
    return git_or_none(root, *arguments) if root.is_dir() and (root != SOURCE or is_checkout(root)) else None
