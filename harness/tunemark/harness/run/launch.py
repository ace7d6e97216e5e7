"""One run: check, start the worker in a fresh process, watch it, and write the record, whatever happened.

The record of a run whose parent was killed is written later, from its folder.
"""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import ValidationError

from tunemark.harness.plan.resolve import Order, Resolved, hub, hub_cache, refuse_unsupported, step_memory
from tunemark.harness.run import run_log
from tunemark.harness.run.record import Finished, assemble, refused_run, submissions, write
from tunemark.harness.run.show import RunProgress
from tunemark.harness.run.telemetry import Telemetry, open_sampler
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.schema import files
from tunemark.schema.derive import rates_over
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.plan.capabilities import Machine
from tunemark.schema.privacy import identity_leaks, machine_names
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import Measurement, Plan
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Study
from tunemark.schema.statistics.steady_state import settled_after, steady_window
from tunemark.schema.vocabulary import Backend, Phase, Status

OUTPUT_TAIL_BYTES = 8_000


def run_once(
    resolved: Resolved,
    facts: FactBase,
    machine: Machine,
    out: Path | None,
    *,
    supersedes: dict[str, str] | None = None,
    study: Study | None = None,
) -> tuple[Submission, Path]:
    """Run a plan and write its submission; return both.

    Raises TunemarkError before the run starts if the plan identifies this machine, or no submission can be written to the folder. If
    the submission cannot be written after all, it is printed on standard output instead.
    """
    refuse_identity(resolved)
    files.refuse_unwritable("--out", submissions(out))
    # A second Ctrl-C while the record is written would lose the run, so signals are held until then.
    with stop_signals() as stopped:
        # Where the run itself would have written it, wherever it is recovered.
        place, card = submissions(out).absolute(), facts.model(resolved.plan.model.key)
        order = Order(resolved=resolved, machine=machine, card=card, out=place, supersedes=supersedes, study=study)
        finished = refused_run(resolved.unsupported) if resolved.unsupported else launch(order, stopped)
        submission = recorded(order, finished, facts)
        failure = finished.log.failure
        if submission.outcome.status is Status.CRASH and finished.output_tail.strip() and (not failure or failure["fix"] == run_log.LOOK):
            # It may contain paths, so it is printed on the terminal and never recorded.
            sys.stderr.write(f"--- the worker's last output\n{finished.output_tail.rstrip()}\n---\n")
        try:
            return submission, write(submission, out)
        except OSError as error:
            fix = f"could not write ({error.strerror}); the submission was printed instead: save it, free space or name another folder"
            unwritten = TunemarkError("--out", str(error.filename or out or "submissions"), fix, exit_code=Exit.INTERNAL)
        except TunemarkError as error:
            unwritten = error
        sys.stdout.write(submission.model_dump_json() + "\n")
        raise unwritten


def help_another_node(resolved: Resolved, facts: FactBase, machine: Machine) -> int:
    """Run this machine's part of a plan for several, and return the worker's exit code. The first machine writes the record."""
    refuse_unsupported(resolved)
    with stop_signals() as stopped:
        finished = launch(Order(resolved=resolved, machine=machine, card=facts.model(resolved.plan.model.key)), stopped)
    if finished.exit_code:
        sys.stderr.write(finished.output_tail.rstrip() + "\n")
    return finished.exit_code


# Checks before a run


def refuse_identity(resolved: Resolved) -> None:
    """Raise TunemarkError if the plan contains something that a submission must not, such as a path, or letters outside of ASCII."""
    content: dict[str, Any] = {name: getattr(resolved, name).model_dump(mode="json") for name in ("requested", "plan")}
    content["overrides"] = [override.model_dump(mode="json") for override in resolved.overrides]
    for field, value, what in identity_leaks(content, machine_names()):
        raise TunemarkError(field, value, f"looks like {what}, which no submission may hold; give local data with --data file:PATH")
    for field, value in flattened(content["requested"]):
        if not str(value).isascii():
            raise TunemarkError(
                f"--{field}", value, "a submission names it in ASCII; rename the file or folder, or link to it by such a name"
            )


def refuse_hopeless(runs: Sequence[Resolved], facts: FactBase, machine: Machine, *, searched: bool = False) -> None:
    """Raise TunemarkError if by the memory model none of the runs fits, or if one would wait for a hub that does not answer.

    Libraries ask the hub again for a minute, for each file. `searched` is a run whose series searches for what fits.
    """
    possible = [each.plan for each in runs if not (each.unsupported or searched)]
    needs = [step_memory(plan, facts.model(plan.model.key), machine) for plan in possible]
    if needs and all(memory.too_large for memory in needs):
        fix = f"a step {needs[0].words} by the memory model; {needs[0].fix}, or try it anyway with --set force=true"
        raise TunemarkError("memory", possible[0].workload, fix, exit_code=Exit.OUT_OF_MEMORY)
    state = hub() if any(hub_cache(each) == "cold" for each in runs if not each.unsupported) else "reachable"
    if not state.startswith("reachable"):
        fix = "not all weights and data are in the cache of this machine; give --weights pretrained:DIRECTORY, --weights random or --data file:PATH"
        raise TunemarkError("model hub", state.partition(";")[0], fix)


def superseded(identity: str | None, reason: str | None, plan: Plan, out: Path | None) -> dict[str, str] | None:
    """Return the result that a run replaces and why, as its record holds both. Raise TunemarkError if no earlier one of the workload has this id, or without a reason."""
    if identity is None:
        if reason is not None:
            raise TunemarkError("--reason", reason, "it belongs to --supersedes ID; name the result that is replaced")
        return None
    if not (reason or "").strip():
        raise TunemarkError("--supersedes", identity, "say with --reason TEXT why the earlier result is replaced")
    known = {path.stem.rsplit("-", 1)[-1]: path for path in (submissions(out) / plan.workload).glob("*.json")}
    if identity not in known:
        suggestion = did_you_mean(identity, known) if known else "there is none yet"
        raise TunemarkError("--supersedes", identity, f"no result of {plan.workload} has this id; {suggestion}")
    if Plan.model_validate(json.loads(known[identity].read_bytes())["plan"]).settings != plan.settings:
        fix = "its plan has other settings; only a run of the same plan on the same machine replaces a result"
        raise TunemarkError("--supersedes", identity, fix)
    return {"supersedes": identity, "supersedes_reason": reason or ""}


# The worker's process: its command line, environment and end, and the signals that ask a run to stop

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "ACCELERATE_")
"""Variables of an enclosing distributed job. The worker would mistake the processes of that job for its own."""
WORKER = "tunemark.harness.worker.entry"
POLL_S = 0.1
GRACE_S = 5.0


class Worker:
    """A worker in a fresh process. It leads a process group of its own."""

    def __init__(self, resolved: Resolved, folder: Path) -> None:
        with (folder / run_log.OUTPUT_FILE).open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command(resolved, folder),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                # An interactive Ctrl-C reaches only this process.
                start_new_session=True,
                env=environment(resolved.plan, folder),
            )
        self.pid = self._process.pid
        if resolved.limit_memory_bytes is not None and psutil.LINUX:
            # Excess use fails in the worker and its children, and not on the whole machine. Data memory is limited, not address space:
            # libraries reserve far more addresses than they use. Other systems do not enforce such a limit.
            with contextlib.suppress(psutil.Error):
                psutil.Process(self.pid).rlimit(psutil.RLIMIT_DATA, (resolved.limit_memory_bytes,) * 2)

    def poll(self) -> dict[str, Any] | None:
        """Return its end, as `Finished` holds it, or None while it runs; not called again after its end."""
        done, status, usage = os.wait4(self.pid, os.WNOHANG)
        if not done:
            return None
        self._process.returncode = code = os.waitstatus_to_exitcode(status)
        peak = usage.ru_maxrss * run_log.MAXRSS_UNIT
        return {"exit_code": code, "user_s": usage.ru_utime, "system_s": usage.ru_stime, "max_rss_bytes": peak}

    def end(self) -> dict[str, Any]:
        """End its process group: first with a request, after some seconds by force."""
        for number, grace_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, math.inf)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            until_s = time.monotonic() + grace_s
            while time.monotonic() < until_s:
                ended = self.poll()
                if ended is not None:
                    return ended
                time.sleep(POLL_S)
        raise AssertionError


def command(resolved: Resolved, folder: Path) -> list[str]:
    """Return the command that runs the worker: python for one process, torchrun or accelerate for several."""
    device, (host, _, port) = resolved.plan.device, (resolved.rendezvous or "").rpartition(":")
    # The Neuron stack needs a process group for one process too.
    if device.launcher is None and device.backend is not Backend.NEURON_XLA:
        return [sys.executable, "-m", WORKER, str(folder)]
    if device.launcher == "accelerate":
        launcher = ["accelerate.commands.launch", f"--num_processes={device.count}", f"--num_machines={device.nodes}"]
        # With --cpu it requires MPI; with --multi_gpu it starts plain processes, whatever they compute on.
        launcher += ["--mixed_precision=no", "--dynamo_backend=no", "--multi_gpu"]
        if resolved.rendezvous is not None:
            launcher += [f"--machine_rank={resolved.node_rank}", f"--main_process_ip={host}", f"--main_process_port={port}"]
        return [sys.executable, "-m", *launcher, "--module", WORKER, str(folder)]
    processes = device.count // device.nodes
    launcher = ["torch.distributed.run", f"--nproc-per-node={processes}", f"--nnodes={device.nodes}", "--max-restarts=0"]
    if resolved.rendezvous is None:
        launcher += ["--standalone"]
    else:
        # The first node writes the record, so ranks follow the given node numbers.
        launcher += [f"--node-rank={resolved.node_rank}", f"--master-addr={host}", f"--master-port={port}"]
    return [sys.executable, "-m", *launcher, "-m", WORKER, str(folder)]


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes that work on a run: launchers start them in sessions of their own, and the folder is an argument of each."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.cmdline():
                found.append(process)
    return found


def environment(plan: Plan, folder: Path) -> dict[str, str]:
    """Return the worker's environment: the parent's, with devices in PCI order, without noise from libraries, and with what the plan sets.

    That is its own compile caches, and settings of its device family.
    """
    device, vendor = plan.device, vendor_of(plan.device.backend)
    threads = {"OMP_NUM_THREADS": str(device.threads)} if device.threads and device.count > 1 else {}
    # Spin-waiting threads slow a step several-fold when other processes use the cores.
    passive = {"DS_ACCELERATOR": "cpu", "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    caches = fresh(folder / "caches") if plan.measurement.cold else {}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)},
        **threads,
        **(passive if vendor.on_host else {}),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        **caches,
        **vendor.environment(plan, {**os.environ, **caches}),
    }


CACHE_FLAG = re.compile(r"--cache_dir[= ]\s*(\S+)")
"""In NEURON_CC_FLAGS, where it overrides NEURON_COMPILE_CACHE_URL."""


def fresh(folder: Path) -> dict[str, str]:
    """Return environment variables that move all compile caches to an empty folder of the run, which is removed with it."""
    flags = CACHE_FLAG.sub("", os.environ.get("NEURON_CC_FLAGS", "")).strip()
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        "NEURON_COMPILE_CACHE_URL": str(folder / "neuron"),
        **({"NEURON_CC_FLAGS": flags} if "NEURON_CC_FLAGS" in os.environ else {}),
    }


STOPPED = threading.Event()
"""Set by a signal within `stop_signals`."""


def _stop(*_: object) -> None:
    STOPPED.set()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn Ctrl-C, SIGTERM and a closed terminal into an event, so that no signal interrupts the writing of a record.

    A nested call returns the same event: a request that arrives as a series starts its next run ends that run too.
    """
    if signal.getsignal(signal.SIGINT) is _stop or threading.current_thread() is not threading.main_thread():
        yield STOPPED
        return
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield STOPPED
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
        STOPPED.clear()


# Start a worker and wait for its end


def recorded(order: Order, finished: Finished, facts: FactBase) -> Submission:
    """Return the record of a run that has ended."""
    golden = facts.golden_losses(order.resolved.plan.workload)
    return assemble(order.resolved, order.machine, finished, supersedes=order.supersedes, study=order.study, golden=golden)


def launch(order: Order, stopped: threading.Event) -> Finished:
    """Run this machine's worker to its end, with progress on the terminal; `stopped` ends it early.

    Whatever happens here, no worker is left running.
    """
    resolved, plan, rules = order.resolved, order.resolved.plan, order.resolved.plan.measurement
    indexes = order.machine.indexes[: plan.device.count // plan.device.nodes]
    with (
        RunProgress(plan) as progress,
        tempfile.TemporaryDirectory(prefix=run_log.FOLDER_PREFIX) as name,
        open_sampler(plan.device.backend, indexes) as sampler,
    ):
        folder = Path(name)
        kills, spawned_at_s = _oom_kills(), time.monotonic()
        order = order.model_copy(update={"spawned_at_s": spawned_at_s})
        (folder / run_log.ORDER_FILE).write_text(order.model_dump_json(), encoding="utf-8")
        reader, judge, watchdog = run_log.LogReader(folder / run_log.LOG_FILE), SteadinessJudge(rules), Watchdog(rules, spawned_at_s)
        process, ended, ended_by = Worker(resolved, folder), None, None
        sampler.follow(process.pid, spawned_at_s)
        try:
            while (ended := process.poll()) is None:
                log = reader.read()
                progress(log)
                if judge.sure(log):
                    # A full disk must not end the run.
                    with contextlib.suppress(OSError):
                        (folder / run_log.STOP_FILE).touch()
                ended_by = "interrupted" if stopped.is_set() else watchdog.expired(log, time.monotonic())
                if ended_by:
                    ended = process.end()
                    break
                stopped.wait(POLL_S)
            progress(reader.read())
        finally:
            if ended is None:
                process.end()
            # Launchers leave their processes behind when they are killed.
            for leftover in processes_of(folder):
                with contextlib.suppress(psutil.Error):
                    leftover.kill()
        return Finished(
            log=merge_failures(reader.finish(), folder),
            telemetry=sampler.telemetry,
            started_at=order.started_at,
            wall_s=time.monotonic() - spawned_at_s,
            **ended,
            ended_by=ended_by,
            host_oom_kills=_oom_kills() - kills,
            model_cache=order.model_cache,
            output_tail=(folder / run_log.OUTPUT_FILE).read_bytes()[-OUTPUT_TAIL_BYTES:].decode(errors="replace"),
        )


def merge_failures(log: run_log.RunLog, folder: Path) -> run_log.RunLog:
    """Return the log with the first failure of any process: the others only fail because that one left."""
    readers = {path.name.split("-")[1]: run_log.LogReader(path) for path in sorted(folder.glob(f"rank-*-{run_log.LOG_FILE}"))}
    known = [(rank, failure) for rank, reader in readers.items() if (failure := reader.finish().failure)]
    rank, first = min(known, key=lambda entry: entry[1]["at_s"], default=("", None))
    if first and (log.failure is None or first["at_s"] < log.failure["at_s"]):
        log.failure = first | {"message": f"rank {rank}: {first['message']}"}
    return log


def _oom_kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory; 0 if it is not reported."""
    path = Path("/proc/vmstat")
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else ()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


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

    def expired(self, log: run_log.RunLog, now_s: float) -> Literal["timeout", "no step"] | None:
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

    def sure(self, log: run_log.RunLog) -> bool:
        """Return True if the interval of throughput over a steady window is narrow enough."""
        limit = self._rules.until_relative_ci
        if limit is None or len(log.steps) < self._next:
            return False
        self._next = int(len(log.steps) * JUDGE_AGAIN_AFTER) + 1
        trace = log.trace()
        window = steady_window(trace, self._rules, settled_after((event["step"] for event in log.events), len(trace)))
        return window.stable and bool(rates_over(trace, window)["tokens_per_s"].relative_half_width <= limit)


# Recover runs whose parent process was killed: their orders and logs stay in the temporary folder, and become submissions. A folder is
# recovered once the parent is gone and its worker has ended, which takes seconds: until then the worker still writes the log.

WORKER_ENDS_S = 15.0
"""Time for a worker to notice that its parent is gone, and for its launcher to end."""


def orphans() -> Iterator[tuple[Path, Order]]:
    """Yield the folders of this source's runs without a parent, oldest first. Of several machines, the first has the record."""
    folders = sorted(Path(tempfile.gettempdir()).glob(f"{run_log.FOLDER_PREFIX}*"), key=lambda folder: folder.stat().st_mtime)
    for folder in folders:
        try:
            order = Order.model_validate_json((folder / run_log.ORDER_FILE).read_bytes())
        except (OSError, ValidationError):
            continue
        alive = False
        with contextlib.suppress(psutil.Error):
            alive = abs(psutil.Process(order.parent_pid).create_time() - order.parent_created_s) < 1
        if order.source == run_log.SOURCE and order.resolved.node_rank == 0 and not alive:
            yield folder, order


def recover(folder: Path, order: Order, facts: FactBase) -> tuple[Submission, Path]:
    """Write the submission of an orphaned run and remove its folder; return both. Raises ValueError if its worker does not end.

    The run ends with its last log line: the times of its processes are unknown, and nothing was sampled from outside.
    """
    until = time.monotonic() + WORKER_ENDS_S
    # A process that has ended but was not collected by its parent has no arguments any longer, so it is not listed.
    while alive := processes_of(folder):
        if time.monotonic() > until:
            numbers = " ".join(str(process.pid) for process in alive)
            msg = f"its worker (process {numbers}) is still running after {WORKER_ENDS_S:g} s; end it with `kill {numbers}`, then do this again"
            raise ValueError(msg)
        time.sleep(POLL_S)
    log = run_log.LogReader(folder / run_log.LOG_FILE).finish()
    finished = Finished(
        log=log,
        telemetry=Telemetry(),
        started_at=order.started_at,
        wall_s=max([mark["at_s"] for mark in log.phases] + [step["completed_at_s"] for step in log.steps], default=0.0),
        ended_by="parent killed",
        model_cache=order.model_cache,
    )
    submission = recorded(order, finished, facts)
    path = write(submission, order.out)
    shutil.rmtree(folder)
    return submission, path
