"""Several processes: which one this is, and what each of them saw, gathered by the first."""

import os
import resource
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunemark.harness.worker.log import Log
    from tunemark.harness.worker.loop import Trainer

MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""ru_maxrss counts bytes on macOS and KiB elsewhere."""


def rank_of_this_process() -> int:
    """Return the number that the launcher gave this process; 0 where there is one only."""
    return int(os.environ.get("RANK", "0"))


def report_ranks(trainer: "Trainer", log: "Log") -> None:
    """Gather what each process saw and log it, as `submission.ranks` holds it; nothing for one process."""
    if trainer.engine.processes == 1:
        return
    import torch  # noqa: PLC0415

    peaks = trainer.device.memory()
    own: dict[str, Any] = {
        "rank": trainer.rank,
        "own_work_s": trainer.own_work_s,
        "device_allocated_bytes": peaks.allocated.peak_bytes,
        "device_reserved_bytes": peaks.reserved.peak_bytes,
        "host_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT,
    }
    everyone: list[Any] = [None] * trainer.engine.processes
    torch.distributed.all_gather_object(everyone, own)
    for seen in everyone:
        log.event("rank", **seen)
