"""Telemetry of several machines: the parent on each one summarises its samples, and the workers send the summaries to the first.

The steady window is known when training ends. The first process then announces it, as seconds before a barrier, since the
clocks of two machines are unrelated. The first process of each machine writes it into the folder of its run, where
its parent answers. If a machine does not answer, energy and device use are null: they cover all machines or none.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from pydantic import BaseModel, ValidationError

from tunemark.harness.run.run_log import LOG_FILE, LogReader, LogWriter, RunLog, rank_of_this_process
from tunemark.harness.run.telemetry import Telemetry, memory_used, utilisation, window_times
from tunemark.harness.vendors.protocol import Device
from tunemark.schema.files import write_atomically
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import MemoryReading, Utilisation
from tunemark.schema.records.trace import Energy
from tunemark.schema.statistics.steady_state import settled_after, steady_window
from tunemark.schema.vocabulary import HOST_INTERVAL_S

WINDOW_FILE = "window.json"
USE_FILE = "use.json"
ANSWER_S = 5.0
"""Time for the parent to answer; it looks ten times a second."""
POLL_S = 0.02


class Window(BaseModel):
    """The steady window, in seconds since the worker of one machine was spawned."""

    start_s: float
    end_s: float


class NodeUse(BaseModel):
    """The summary of one machine's samples."""

    utilisation: Utilisation | None
    """Null without a sample in the window."""
    device_used: MemoryReading
    host_rss_bytes: int
    """Peak resident memory of the worker's processes; 0 without a sample."""
    host_swap_bytes: int | None
    foreign: dict[int, int]
    """Processes of others by device."""


# In the parent


def answer(folder: Path, telemetry: Telemetry) -> None:
    """Summarise the samples if the worker has asked for them and has no answer yet."""
    asked, answered = folder / WINDOW_FILE, folder / USE_FILE
    if answered.exists() or not asked.exists():
        return
    window = Window.model_validate_json(asked.read_bytes())
    swaps = [sample.swap_bytes for sample in telemetry.samples if sample.swap_bytes is not None]
    use = NodeUse(
        utilisation=utilisation(telemetry, window.start_s, window.end_s),
        device_used=memory_used(telemetry.devices),
        host_rss_bytes=max((sample.rss_bytes for sample in telemetry.samples), default=0),
        host_swap_bytes=max(swaps, default=None),
        foreign=telemetry.devices.foreign,
    )
    # A full disk must not end the run: the worker then goes on without an answer.
    with contextlib.suppress(OSError):
        write_atomically(answered, use.model_dump_json().encode())


# In the worker


def report_nodes(plan: Plan, device: Device, log: LogWriter, folder: Path) -> None:
    """Gather the summary of each machine and log it; nothing for a single machine. All processes call this after training."""
    if plan.device.nodes == 1:
        return
    import torch.distributed as dist  # noqa: PLC0415 - the parent has no torch

    rank = rank_of_this_process()
    window = measured_window(plan, LogReader(folder / LOG_FILE).read()) if rank == 0 else None
    dist.barrier()
    device.synchronise()
    # The first machine's window is on the clock of its device, and samples are on the clock of their host.
    device_now_s, now_s = log.since_spawn(device.now()), log.since_spawn(time.monotonic())
    before = [None if window is None else (device_now_s - window.start_s, device_now_s - window.end_s)]
    dist.broadcast_object_list(before)
    use: NodeUse | None = None
    if before[0] is not None and rank % (plan.device.count // plan.device.nodes) == 0:
        use = ask_parent(folder, Window(start_s=now_s - before[0][0], end_s=now_s - before[0][1]))
    uses: list[NodeUse | None] = [None] * plan.device.count
    dist.all_gather_object(uses, use)
    for place, known in enumerate(uses):
        if known is not None:
            log.event("node", node=place * plan.device.nodes // plan.device.count, use=known.model_dump(mode="json"))


def measured_window(plan: Plan, log: RunLog) -> Window | None:
    """Return the window over which use is summarised, on the clock of the log; None without a step."""
    trace = log.trace()
    if not len(trace):
        return None
    window = steady_window(trace, plan.measurement, settled_after((event["step"] for event in log.events), len(trace)))
    start_s, end_s = window_times(trace, window)
    return Window(start_s=start_s, end_s=end_s)


def ask_parent(folder: Path, window: Window) -> NodeUse | None:
    """Return the summary that the parent of this worker makes of its samples; None if it does not answer."""
    write_atomically(folder / WINDOW_FILE, window.model_dump_json().encode())
    until_s = time.monotonic() + ANSWER_S
    while time.monotonic() < until_s:
        try:
            return NodeUse.model_validate_json((folder / USE_FILE).read_bytes())
        except (OSError, ValidationError):
            time.sleep(POLL_S)
    return None


# In the record


def node_uses(log: RunLog) -> dict[int, NodeUse]:
    """Return the summaries in a log, by machine."""
    return {entry["node"]: NodeUse.model_validate(entry["use"]) for entry in log.nodes}


def joined(uses: dict[int, NodeUse], nodes: int) -> Utilisation:
    """Return the use of all machines: energy is the sum, and every device is listed. All null if a machine did not report."""
    parts = {node: use.utilisation for node, use in sorted(uses.items()) if use.utilisation is not None}
    missing = [str(node) for node in range(nodes) if node not in parts]
    if missing:
        reason = f"no samples from node {', '.join(missing)} of {nodes}, so the energy of all devices is unknown"
        return Utilisation(samples=0, interval_s=HOST_INTERVAL_S, energy=Energy(source="none", reason=reason))
    devices = [device.model_copy(update={"node": node}) for node, part in parts.items() for device in part.devices]
    return Utilisation(
        samples=sum(part.samples for part in parts.values()),
        interval_s=HOST_INTERVAL_S,
        cpu_busy_mean=fmean(part.cpu_busy_mean or 0.0 for part in parts.values()),
        cpu_busy_peak=max(part.cpu_busy_peak or 0.0 for part in parts.values()),
        foreign_cpu_busy_mean=max(part.foreign_cpu_busy_mean or 0.0 for part in parts.values()),
        devices=tuple(devices),
        energy=total_energy([part.energy for part in parts.values()]),
    )


def total_energy(parts: Sequence[Energy | None]) -> Energy:
    """Return the energy of all machines, in their order: the sum, or the reason of the first one without."""
    known = [part for part in parts if part is not None and part.joules is not None]
    if len(known) < len(parts):
        node, without = next((node, part) for node, part in enumerate(parts) if part is None or part.joules is None)
        return Energy(source="none", reason=f"node {node}: {without.reason if without else 'energy was not measured'}")
    idle = [part.idle_w for part in known if part.idle_w is not None]
    return Energy(
        source="counter" if all(part.source == "counter" for part in known) else "integrated",
        joules=sum(part.joules or 0.0 for part in known),
        # They differ by less than the time between two samples.
        window_s=fmean(part.window_s or 0.0 for part in known),
        idle_w=sum(idle) if len(idle) == len(known) else None,
    )
