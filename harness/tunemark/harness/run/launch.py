"""One run: check, start the worker in a fresh process, watch it, and write the record, whatever happened."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal

import psutil

from tunemark.harness.plan.machine import Machine
from tunemark.harness.plan.resolve import Resolved, refuse_unsupported
from tunemark.harness.run.node_telemetry import answer
from tunemark.harness.run.process import command, environment, processes_of, run_environment, stop_signals, with_memory_limit
from tunemark.harness.run.record import Superseded, assemble, write
from tunemark.harness.run.recover import NOTE_FILE, RecoveryNote
from tunemark.harness.run.run_log import (
    FOLDER_PREFIX,
    LOG_FILE,
    MAXRSS_UNIT,
    ORDER_FILE,
    OUTPUT_FILE,
    PARENT,
    STOP_FILE,
    LogReader,
    Order,
    RunLog,
)
from tunemark.harness.run.run_outcome import CacheState, Finished, refused_run
from tunemark.harness.run.show import RunProgress
from tunemark.harness.run.telemetry import HostSampler, Telemetry, open_sampler
from tunemark.schema import formats
from tunemark.schema.derive import rates_over
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.training_shape import BYTES, shape_of_plan
from tunemark.schema.privacy import identity_leaks, machine_names
from tunemark.schema.records.plan import Measurement, Plan
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Study
from tunemark.schema.statistics.steady_state import settled_after, steady_window
from tunemark.schema.vocabulary import DataSource, Phase, Status, Weights

POLL_S = 0.1
GRACE_S = 5.0
OUTPUT_TAIL_BYTES = 8_000


def run_once(
    resolved: Resolved,
    facts: FactBase,
    machine: Machine,
    out: Path | None,
    supersedes: Superseded | None = None,
    study: Study | None = None,
) -> tuple[Submission, Path]:
    """Run a plan and write its submission; return both.

    Raises TunemarkError before the run starts if the plan identifies this machine or a disk is full. If the submission cannot be
    written, it is printed on standard output instead.
    """
    refuse_identity(resolved)
    refuse_unwritable(out)
    if not resolved.unsupported:
        refuse_full_disk(resolved.plan, facts.model(resolved.plan.model.key))
    # A second Ctrl-C while the record is written would lose the run, so signals are held until then.
    with stop_signals() as stopped:
        finished = (
            refused_run(resolved.unsupported)
            if resolved.unsupported
            else launch(resolved, facts, machine, stopped, _recovery_note(resolved, machine, out, supersedes, study))
        )
        golden = facts.golden_losses(resolved.plan.workload)
        submission = assemble(resolved, machine, finished, supersedes=supersedes, study=study, golden=golden)
        if submission.outcome.status is Status.CRASH and finished.output_tail.strip():
            # It may contain paths, so it is printed on the terminal and never recorded.
            sys.stderr.write(f"--- the worker's last output\n{finished.output_tail.rstrip()}\n---\n")
        return submission, _write(submission, out)


def help_another_node(resolved: Resolved, facts: FactBase, machine: Machine) -> int:
    """Run this machine's part of a plan for several, and return the worker's exit code. The first machine writes the record."""
    refuse_unsupported(resolved)
    refuse_full_disk(resolved.plan, facts.model(resolved.plan.model.key))
    with stop_signals() as stopped:
        finished = launch(resolved, facts, machine, stopped)
    if finished.exit_code:
        sys.stderr.write(finished.output_tail.rstrip() + "\n")
    return finished.exit_code


def _write(submission: Submission, out: Path | None) -> Path:
    try:
        return write(submission, out)
    except OSError as error:
        fix = f"could not write ({error.strerror}); the submission was printed instead: save it, free space or name another folder"
        failure = TunemarkError("--out", str(error.filename or out or "submissions"), fix, exit_code=Exit.INTERNAL)
    except TunemarkError as error:
        failure = error
    sys.stdout.write(submission.model_dump_json() + "\n")
    raise failure


# Checks before a run


def refuse_identity(resolved: Resolved) -> None:
    """Raise TunemarkError if the plan contains something that a submission must not, such as a path."""
    overrides = [override.model_dump(mode="json") for override in resolved.overrides]
    content = {"plan": resolved.plan.model_dump(mode="json"), "overrides": overrides}
    for field, value, what in identity_leaks(content, machine_names()):
        raise TunemarkError(field, value, f"looks like {what}, which no submission may hold; give local data with --data file:PATH")


def superseded(identity: str | None, reason: str | None, plan: Plan, out: Path | None) -> Superseded | None:
    """Return the result that a run replaces. Raise TunemarkError if no earlier one of the workload has this id, or without a reason."""
    if identity is None:
        if reason is not None:
            raise TunemarkError("--reason", reason, "it belongs to --supersedes ID; name the result that is replaced")
        return None
    if not (reason or "").strip():
        raise TunemarkError("--supersedes", identity, "say with --reason TEXT why the earlier result is replaced")
    folder = (out or project_root() / "submissions") / plan.workload
    known = [path.stem.rsplit("-", 1)[-1] for path in folder.glob("*.json")]
    if identity not in known:
        suggestion = did_you_mean(identity, known) if known else "there is none yet"
        raise TunemarkError("--supersedes", identity, f"no result of {plan.workload} has this id; {suggestion}")
    return Superseded(identity, reason or "")


def refuse_unwritable(out: Path | None) -> None:
    """Raise TunemarkError if no submission can be written to the folder."""
    folder = out or project_root() / "submissions"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TunemarkError("--out", str(folder), f"cannot be written ({error.strerror}); name a folder of yours") from error


LOG_BYTES = 64 * formats.MIB
"""For the worker's log and output: some hundred bytes per step."""
HEADER_BYTES = formats.MIB
"""For the names and shapes of saved tensors."""


def refuse_full_disk(plan: Plan, card: ModelCard) -> None:
    """Raise TunemarkError if the temporary folder has too little space for the files of a run."""
    folder, written = tempfile.gettempdir(), temporary_bytes(plan, card)
    needed, free = sum(written.values()), shutil.disk_usage(folder).free
    if free < needed:
        parts = " and ".join(f"{size:,} for {purpose}" for purpose, size in written.items())
        problem = f"has {free:,} bytes ({formats.gib(free)}) free, and the run needs {needed:,} ({formats.gib(needed)}): {parts}"
        fix = "free space there, or name a folder on a larger disk with TMPDIR=FOLDER"
        raise TunemarkError("TMPDIR", folder, f"{problem}; {fix}", exit_code=Exit.UNSUPPORTED)


def temporary_bytes(plan: Plan, card: ModelCard) -> dict[str, int]:
    """Return the bytes that the processes of one machine write into the temporary folder, by purpose."""
    written = {"the worker's log": LOG_BYTES}
    if plan.quantisation is not None and plan.model.weights is Weights.RANDOM:
        processes = plan.device.count // plan.device.nodes
        purpose = "random weights, which are quantised as they are read" + (f", of {processes} processes" if processes > 1 else "")
        written[purpose] = processes * int(count_parameters(card).total * BYTES[plan.precision.parameters])
    if plan.measurement.save:
        count = shape_of_plan(plan, card).adapter_weights if plan.lora else count_parameters(card).total
        written[f"the saved {'adapters' if plan.lora else 'model'}"] = int(count * BYTES[plan.precision.parameters]) + HEADER_BYTES
    return written


# Start a worker and wait for its end


def _recovery_note(
    resolved: Resolved, machine: Machine, out: Path | None, supersedes: Superseded | None, study: Study | None
) -> RecoveryNote:
    """Return the note that `tunemark recover` needs if this process is killed."""
    return RecoveryNote(
        parent_pid=os.getpid(),
        parent_created_s=psutil.Process().create_time(),
        started_at=datetime.now(UTC),
        out=None if out is None else out.absolute(),
        supersedes=supersedes,
        study=study,
        overrides=resolved.overrides,
        machine=machine,
        model_cache=hub_cache(resolved),
    )


def launch(resolved: Resolved, facts: FactBase, machine: Machine, stopped: threading.Event, note: RecoveryNote | None = None) -> Finished:
    """Run this machine's worker to its end, with progress on the terminal; `stopped` ends it early.

    `note` is kept beside the log while the run lasts, so that the run can be recovered. Whatever happens here, no worker is left running.
    """
    plan = resolved.plan
    indexes = machine.indexes[: plan.device.count // plan.device.nodes]
    with (
        RunProgress(plan) as progress,
        tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as name,
        open_sampler(plan.device.backend, indexes) as devices,
    ):
        folder = Path(name)
        cache = note.model_cache if note else hub_cache(resolved)
        kills, started_at, spawned_at_s = _oom_kills(), datetime.now(UTC), time.monotonic()
        order = Order(
            plan=plan,
            card=facts.model(plan.model.key),
            device_name=machine.devices[0].name,
            weights_from=resolved.weights_from,
            data_from=resolved.data_from,
            spawned_at_s=spawned_at_s,
        )
        (folder / ORDER_FILE).write_text(order.model_dump_json(), encoding="utf-8")
        if note is not None:
            (folder / NOTE_FILE).write_text(note.model_dump_json(), encoding="utf-8")
        reader = LogReader(folder / LOG_FILE)
        process = _spawn(resolved, folder)
        devices.follow(process.pid, spawned_at_s)
        try:
            with HostSampler(process.pid, spawned_at_s) as host:
                telemetry = Telemetry(host.samples, devices.series)

                def on_progress(log: RunLog) -> None:
                    progress(log)
                    answer(folder, telemetry)

                ended_by, status, usage = _watch(process.pid, reader, plan, folder, stopped, on_progress)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                _end(process.pid)
            end_leftovers(folder)
        return Finished(
            log=merge_failures(reader.finish(), folder),
            telemetry=telemetry,
            started_at=started_at,
            wall_s=time.monotonic() - spawned_at_s,
            user_s=usage.ru_utime,
            system_s=usage.ru_stime,
            max_rss_bytes=usage.ru_maxrss * MAXRSS_UNIT,
            exit_code=process.returncode,
            ended_by=ended_by,
            host_oom_kills=_oom_kills() - kills,
            model_cache=cache,
            output_tail=(folder / OUTPUT_FILE).read_bytes()[-OUTPUT_TAIL_BYTES:].decode(errors="replace"),
        )


def _spawn(resolved: Resolved, folder: Path) -> "subprocess.Popen[bytes]":
    """Start the worker in its own session, so that an interactive Ctrl-C reaches only this process."""
    with (folder / OUTPUT_FILE).open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - our own module
            with_memory_limit(command(resolved.plan.device, folder, resolved.node), resolved.limit_memory_bytes),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment(resolved.plan.device) | run_environment(resolved.plan, folder) | {PARENT: str(os.getpid())},
        )


def _watch(
    pid: int, reader: LogReader, plan: Plan, folder: Path, stopped: threading.Event, on_progress: Callable[[RunLog], None]
) -> tuple[str | None, int, "os._Rusage"]:  # type: ignore[name-defined]
    """Follow the worker until it ends; end it on request or when its time is over."""
    judge, watchdog = SteadinessJudge(plan.measurement), Watchdog(plan.measurement, time.monotonic())
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        log = reader.read()
        on_progress(log)
        if done:
            return None, status, usage
        if judge.sure(log):
            # A full disk must not end the run.
            with contextlib.suppress(OSError):
                (folder / STOP_FILE).touch()
        ended_by = "interrupted" if stopped.is_set() else watchdog.expired(log, time.monotonic())
        if ended_by:
            status, usage = _end(pid)
            return ended_by, status, usage
        stopped.wait(POLL_S)


def _end(pid: int) -> tuple[int, "os._Rusage"]:  # type: ignore[name-defined]
    """End the worker's process group: first with a request, after some seconds by force."""
    os.killpg(pid, signal.SIGTERM)
    until_s = time.monotonic() + GRACE_S
    while time.monotonic() < until_s:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return status, usage
        time.sleep(POLL_S)
    os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return status, usage


def end_leftovers(folder: Path) -> None:
    """Kill the remaining processes of a run: launchers leave them behind when they are killed."""
    for process in processes_of(folder):
        with contextlib.suppress(psutil.Error):
            process.kill()


def merge_failures(log: RunLog, folder: Path) -> RunLog:
    """Return the log with the first failure of any process: the others only fail because that one left."""
    failures = [(path, LogReader(path).finish().failure) for path in sorted(folder.glob(f"rank-*-{LOG_FILE}"))]
    known = [(failure["at_s"], path, failure) for path, failure in failures if failure]
    first = min(known, key=lambda entry: entry[0], default=None)
    if first and (log.failure is None or first[0] < log.failure["at_s"]):
        rank = first[1].name.split("-")[1]
        log.failure = first[2] | {"message": f"rank {rank}: {first[2]['message']}"}
    return log


def hub_cache(resolved: Resolved) -> CacheState:
    """Return `warm` if the hub's cache on this machine holds all weights and data from the hub, else `cold`; `none` without any."""
    plan = resolved.plan
    repositories = [f"models--{plan.model.hub_id}"] if plan.model.hub_id else []
    if plan.data.source is DataSource.HUB and resolved.data_from and not Path(resolved.data_from).exists():
        repositories.append(f"datasets--{resolved.data_from}")
    if not repositories:
        return "none"
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    return "warm" if all((cache / name.replace("/", "--")).exists() for name in repositories) else "cold"


def _oom_kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory; 0 if it is not reported."""
    path = Path("/proc/vmstat")
    if not path.exists():
        return 0
    return next((int(line.split()[1]) for line in path.read_text(encoding="ascii").splitlines() if line.startswith("oom_kill ")), 0)


# Decide from the run log when a worker must end: out of time, no progress, or measured precisely enough

SLOW_PHASES = 4
"""Loading, compiling, evaluating and saving may take this many times as long as a step."""
COMPILING_STEPS = 2
"""First steps, in which a graph compiler may still be running."""
SLOW_STEPS = 10
"""A step may take this many times as long as the longest recent one."""
RECENT_STEPS = 50


class Watchdog:
    """Ends a worker that exceeds its total time, or that makes no progress."""

    def __init__(self, rules: Measurement, now_s: float) -> None:
        self._rules, self._started_s = rules, now_s
        self._progress, self._progress_s = (0, 0), now_s

    def expired(self, log: RunLog, now_s: float) -> Literal["timeout", "no step"] | None:
        """Return the limit that is exceeded, or None."""
        progress = (len(log.phases), len(log.steps))
        if progress != self._progress:
            self._progress, self._progress_s = progress, now_s
        if self._rules.timeout_s is not None and now_s - self._started_s > self._rules.timeout_s:
            return "timeout"
        if self._rules.no_step_s is None:
            return None
        # More time without progress is allowed outside training, for the first steps, and where steps are slow.
        training = bool(log.phases) and log.phases[-1]["phase"] == Phase.TRAIN.value and len(log.steps) >= COMPILING_STEPS
        # The first steps do not represent the others.
        ends = [step["completed_at_s"] for step in log.steps[COMPILING_STEPS - 1 :][-RECENT_STEPS:]]
        slowest = max((after - before for before, after in pairwise(ends)), default=0.0)
        allowed_s = max(self._rules.no_step_s * (1 if training else SLOW_PHASES), SLOW_STEPS * slowest)
        return "no step" if now_s - self._progress_s > allowed_s else None


JUDGE_AGAIN_AFTER = 1.15
"""Check for a steady state when the number of steps has grown by this factor: the check costs CPU time during the run."""


class SteadinessJudge:
    """Decides if throughput is known precisely enough to stop (definitions#steady-window)."""

    def __init__(self, rules: Measurement) -> None:
        self._rules = rules
        self._next = rules.min_warmup_steps + 20

    def sure(self, log: RunLog) -> bool:
        """Return True if the interval of throughput over a steady window is narrow enough."""
        limit = self._rules.until_relative_ci
        if limit is None or len(log.steps) < self._next:
            return False
        self._next = int(len(log.steps) * JUDGE_AGAIN_AFTER) + 1
        trace = log.trace()
        window = steady_window(trace, self._rules, settled_after((event["step"] for event in log.events), len(trace)))
        return window.stable and rates_over(trace, window).tokens_per_s.relative_half_width <= limit
