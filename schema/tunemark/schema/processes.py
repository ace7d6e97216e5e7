"""Pools of processes for work that one process is too slow for, with the same start, interrupt and end everywhere."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

PARALLEL_ABOVE = 200
"""Number of files above which starting worker processes pays off."""
CHUNK = 50
MAX_WORKERS = 8
"""Each worker needs the memory of a Python process with numpy and pyarrow."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_cores() -> int:
    """Return the number of hardware threads that this process may use: its affinity, or the container's quota if lower."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        limit, _, period = quota.read_text(encoding="ascii").strip().partition(" ")
        if limit != "max":
            return max(1, min(affinity, int(limit) // int(period)))
    return affinity


def worker_count() -> int:
    """Return the number of worker processes that a pool should have on this machine."""
    return min(usable_cores(), MAX_WORKERS)


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Provide a pool of fresh processes, which leaves interrupts to this process and drops pending work at the end.

    Processes are spawned, not forked: the threads of numpy, DuckDB and the chart library do not survive a fork. They start with the
    first work that is submitted.
    """
    ignored = (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=signal.signal, initargs=ignored)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def in_processes(
    work: Callable[[Item], Result], items: Sequence[Item], *, parallel_above: int = PARALLEL_ABOVE, chunk: int = CHUNK
) -> Iterator[Result]:
    """Yield `work(item)` for each item, in order; many go through a pool of processes, `chunk` at a time, so `work` must be picklable."""
    workers = worker_count()
    if len(items) <= parallel_above or workers == 1:
        yield from map(work, items)
        return
    with process_pool(workers) as pool:
        yield from pool.map(work, items, chunksize=chunk)
