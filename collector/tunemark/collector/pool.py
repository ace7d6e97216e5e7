"""Many files through a pool of processes, few files in this one: the same results in the same order."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

MANY = 200
"""Above this the start of worker processes pays."""
CHUNK = 50
MOST_WORKERS = 8
"""Each needs the memory of a Python with numpy and pyarrow."""


def over_files(work: Callable[[Path], Result], files: Sequence[Path], *, many: int = MANY) -> Iterator[Result]:
    """Yield `work(file)` for each file, in order. `work` must be picklable when there are many files."""
    workers = min(_usable_cores(), MOST_WORKERS)
    if len(files) <= many or workers == 1:
        yield from map(work, files)
        return
    # Spawned, not forked: this process has threads of numpy and DuckDB.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_leave_interrupts_to_parent)
    try:
        yield from pool.map(work, files, chunksize=CHUNK)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _usable_cores() -> int:
    """Return the cores this process may use, which in a container are fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
