"""The command that starts the worker: python for one process, torchrun or accelerate for several."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tunemark.harness.plan import capabilities
from tunemark.harness.worker.compile_cache import fresh
from tunemark.schema.records.plan import DeviceChoice, Plan
from tunemark.schema.vocabulary import Backend

OF_OTHER_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "ACCELERATE_")
"""Variables of a job that this one may have been started in: they would tell the worker of processes that are not its own."""
WORKER = "tunemark.harness.worker"


@dataclass(frozen=True, slots=True)
class Node:
    """Which of several machines one is."""

    rank: int = 0
    rendezvous: str | None = None
    """HOST:PORT of the first node; None for one node."""


def command(device: DeviceChoice, folder: Path, node: Node = Node()) -> list[str]:
    """Return the command that runs the worker with the order in a folder."""
    # The Neuron stack wants a process group for one process too.
    if device.launcher is None and device.backend is not Backend.NEURON:
        return [sys.executable, "-m", WORKER, str(folder)]
    if device.launcher == "accelerate":
        return [*_accelerate(device, node), "--module", WORKER, str(folder)]
    return [*_torchrun(device, node), "-m", WORKER, str(folder)]


def _torchrun(device: DeviceChoice, node: Node) -> list[str]:
    processes = device.count // device.nodes
    base = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--nnodes={device.nodes}", "--max-restarts=0"]
    if node.rendezvous is None:
        return [*base, "--standalone"]
    # The first node is the one whose record is written, so ranks follow the numbers that the nodes were given.
    host, _, port = node.rendezvous.rpartition(":")
    return [*base, f"--node-rank={node.rank}", f"--master-addr={host}", f"--master-port={port}"]


def _accelerate(device: DeviceChoice, node: Node) -> list[str]:
    base = [sys.executable, "-m", "accelerate.commands.launch", f"--num_processes={device.count}", f"--num_machines={device.nodes}"]
    base += ["--mixed_precision=no", "--dynamo_backend=no"]
    # Told of a CPU it asks for MPI; told of several GPUs it starts plain processes, whatever they compute on.
    base.append("--multi_gpu")
    if node.rendezvous is not None:
        host, _, port = node.rendezvous.rpartition(":")
        base += [f"--machine_rank={node.rank}", f"--main_process_ip={host}", f"--main_process_port={port}"]
    return base


LIMIT = "import os, resource, sys; most = int(sys.argv[1]); resource.setrlimit(resource.RLIMIT_DATA, (most, most)); os.execv(sys.argv[2], sys.argv[2:])"
"""Data memory and not address space: libraries reserve far more addresses than they ever use."""


def with_memory_limit(arguments: list[str], most_bytes: int | None) -> list[str]:
    """Return a command under a limit on the memory of each of its processes: what is above fails in the worker, not on the machine.

    In a process that becomes the worker, since a function between fork and exec may hang where there are threads.
    """
    if most_bytes is None:
        return arguments
    return [sys.executable, "-c", LIMIT, str(most_bytes), *arguments]


def environment(device: DeviceChoice) -> dict[str, str]:
    """Return the worker's environment: the parent's, with devices in nvidia-smi's order, and without what would make it print or fork oddly."""
    several = {"OMP_NUM_THREADS": str(device.threads)} if device.threads and device.count > 1 else {}
    # Threads that wait by spinning slow a step by several times where anything else runs on the cores.
    patient = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
    on_host = {"DS_ACCELERATOR": "cpu", **patient} if device.backend in {Backend.CPU, Backend.FAKE} else {}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(OF_OTHER_LAUNCHERS)},
        **several,
        **on_host,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }


def run_environment(plan: Plan, folder: Path) -> dict[str, str]:
    """Return what the worker's environment has in this run only."""
    caches = fresh(folder / "caches") if plan.measurement.cold else {}
    return caches | family_environment(plan, caches)


def family_environment(plan: Plan, of_this_run: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return what the worker's environment has on the plan's device family only."""
    return capabilities.neuron_environment(plan, {**os.environ, **of_this_run}) if plan.device.backend is Backend.NEURON else {}


# MOVE: was tunemark.harness.run.process: Signals that ask a run or a series to stop, as an event: nobody is interrupted in writing a record.


@dataclass(frozen=True, slots=True)
class _StopOnSignal:
    """A handler of signals that only notes the wish to stop."""

    stopped: threading.Event

    def __call__(self, *_: object) -> None:
        self.stopped.set()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn Ctrl-C, SIGTERM and a closed terminal into an event, until the record of the run is written.

    One inside another is the same event: a wish that comes as a series begins its next run ends that run too.
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
        for number, handler in before.items():
            signal.signal(number, handler)
