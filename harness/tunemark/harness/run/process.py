"""The worker's process: its command line, environment and end, and the signals that ask a run to stop."""

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from tunemark.harness.run.run_log import MAXRSS_UNIT, OUTPUT_FILE, PARENT
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.schema.records.plan import DeviceChoice, Plan
from tunemark.schema.vocabulary import Backend, Dtype

if TYPE_CHECKING:
    from tunemark.harness.plan.resolve import Resolved

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "ACCELERATE_")
"""Variables of an enclosing distributed job. The worker would mistake the processes of that job for its own."""
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables with the settings of torch's allocator: the name since torch 2.9, and the older one."""
STOCHASTIC_ROUNDING = "NEURON_RT_STOCHASTIC_ROUNDING_EN"
NEURON_CACHE_FLAG = re.compile(r"--cache_dir[= ]\s*(\S+)")
"""In NEURON_CC_FLAGS, where it overrides NEURON_COMPILE_CACHE_URL."""
WORKER = "tunemark.harness.worker.entry"
POLL_S = 0.1
GRACE_S = 5.0
LIMIT = "import os, resource, sys; most = int(sys.argv[1]); resource.setrlimit(resource.RLIMIT_DATA, (most, most)); os.execv(sys.argv[2], sys.argv[2:])"
"""Limits data memory, not address space: libraries reserve far more addresses than they use."""


class Ended(NamedTuple):
    """The end of a worker as the operating system reports it."""

    exit_code: int
    """Negative: the signal that ended it."""
    user_s: float
    system_s: float
    max_rss_bytes: int


class Worker:
    """A worker in a fresh process. It leads a process group of its own."""

    def __init__(self, resolved: "Resolved", folder: Path) -> None:
        # Excess use fails in the worker and not on the whole machine. The limit is set in a process that becomes the worker: a function
        # between fork and exec may hang where there are threads.
        limit = [sys.executable, "-c", LIMIT, str(resolved.limit_memory_bytes)] if resolved.limit_memory_bytes is not None else []
        with (folder / OUTPUT_FILE).open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [*limit, *command(resolved, folder)],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                # An interactive Ctrl-C reaches only this process.
                start_new_session=True,
                env=environment(resolved.plan.device) | run_environment(resolved.plan, folder) | {PARENT: str(os.getpid())},
            )
        self.pid = self._process.pid

    def poll(self) -> Ended | None:
        """Return its end, or None while it runs; not called again after its end."""
        done, status, usage = os.wait4(self.pid, os.WNOHANG)
        if not done:
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return Ended(self._process.returncode, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * MAXRSS_UNIT)

    def end(self) -> Ended:
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


def command(resolved: "Resolved", folder: Path) -> list[str]:
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


def environment(device: DeviceChoice) -> dict[str, str]:
    """Return the worker's environment: the parent's, with devices in PCI order and without noise from libraries."""
    threads = {"OMP_NUM_THREADS": str(device.threads)} if device.threads and device.count > 1 else {}
    # Spin-waiting threads slow a step several-fold when other processes use the cores.
    passive = {"DS_ACCELERATOR": "cpu", "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)},
        **threads,
        **(passive if vendor_of(device.backend).on_host else {}),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }


def run_environment(plan: Plan, folder: Path) -> dict[str, str]:
    """Return the variables that only this run has: its own compile caches, and settings of its device family."""
    caches = fresh(folder / "caches") if plan.measurement.cold else {}
    set_by_user = any(name in os.environ for name in ALLOCATOR_VARIABLES)
    caches |= {} if set_by_user else vendor_of(plan.device.backend).environment
    return caches | (neuron_environment(plan, {**os.environ, **caches}) if plan.device.backend is Backend.NEURON_XLA else {})


def fresh(folder: Path) -> dict[str, str]:
    """Return environment variables that move all compile caches to an empty folder of the run, which is removed with it."""
    flags = NEURON_CACHE_FLAG.sub("", os.environ.get("NEURON_CC_FLAGS", "")).strip()
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        "NEURON_COMPILE_CACHE_URL": str(folder / "neuron"),
        **({"NEURON_CC_FLAGS": flags} if "NEURON_CC_FLAGS" in os.environ else {}),
    }


def neuron_environment(plan: Plan, already: Mapping[str, str]) -> dict[str, str]:
    """Return settings of the Neuron compiler and runtime, added to the flags that the user has set."""
    settings = plan.neuron
    flags = [already.get("NEURON_CC_FLAGS", ""), "--model-type transformer"]
    if plan.precision.compute is Dtype.FP32 and "--auto-cast" not in flags[0]:
        # fp32 is fp32, whatever the compiler's default is.
        flags.append("--auto-cast none")
    if settings and settings.optimisation_level is not None:
        flags.append(f"-O{settings.optimisation_level}")
    return {"NEURON_CC_FLAGS": " ".join(filter(None, flags)), STOCHASTIC_ROUNDING: str(int(plan.rounds_stochastically))}


@dataclass(frozen=True, slots=True)
class _StopOnSignal:
    """A signal handler that only notes the request to stop."""

    stopped: threading.Event

    def __call__(self, *_: object) -> None:
        self.stopped.set()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn Ctrl-C, SIGTERM and a closed terminal into an event, so that no signal interrupts the writing of a record.

    A nested call returns the same event: a request that arrives as a series starts its next run ends that run too.
    """
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _StopOnSignal):
        yield handler.stopped
        return
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.signal(number, _StopOnSignal(stopped)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stopped
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
