"""Recover runs whose parent process was killed: their logs stay in the temporary folder, and become submissions.

The parent notes in the run's folder what a submission needs besides the log. A folder is recovered once the parent is
gone and its worker has ended, which takes seconds: until then the worker still writes the log.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil
from pydantic import BaseModel, ValidationError

from tunemark.harness.plan.machine import Machine
from tunemark.harness.plan.resolve import Resolved
from tunemark.harness.run.process import processes_of
from tunemark.harness.run.record import Superseded, assemble, write
from tunemark.harness.run.run_log import FOLDER_PREFIX, LOG_FILE, ORDER_FILE, LogReader, Order
from tunemark.harness.run.run_outcome import CacheState, Finished
from tunemark.harness.run.telemetry import Telemetry
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.submission import Override, Submission
from tunemark.schema.records.trace import Study

NOTE_FILE = "recovery.json"
WORKER_ENDS_S = 15.0
"""Time for a worker to notice that its parent is gone, and for its launcher to end."""
POLL_S = 0.1


class RecoveryNote(BaseModel):
    """What the parent knows about a run, besides the order and the log."""

    parent_pid: int
    parent_created_s: float
    """Start of the parent process, seconds since 1970, since numbers of processes are used again."""
    started_at: datetime
    out: Path | None
    supersedes: Superseded | None
    study: Study | None
    overrides: tuple[Override, ...]
    machine: Machine
    model_cache: CacheState

    @property
    def parent_alive(self) -> bool:
        """True if the process that started the run is still there."""
        try:
            return abs(psutil.Process(self.parent_pid).create_time() - self.parent_created_s) < 1
        except psutil.Error:
            return False


def orphans() -> Iterator[tuple[Path, RecoveryNote]]:
    """Yield the folders of runs without a parent, oldest first."""
    folders = sorted(Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"), key=lambda folder: folder.stat().st_mtime)
    for folder in folders:
        try:
            note = RecoveryNote.model_validate_json((folder / NOTE_FILE).read_bytes())
        except (OSError, ValidationError):
            continue
        if not note.parent_alive:
            yield folder, note


def running(folder: Path, wait_s: float) -> list[int]:
    """Return the processes of a run that are still alive after `wait_s`; they end by themselves once they notice that the parent is gone."""
    until = time.monotonic() + wait_s
    # A process that has ended but was not collected by its parent has no arguments any longer, so it is not listed.
    while (alive := processes_of(folder)) and time.monotonic() < until:
        time.sleep(POLL_S)
    return sorted(process.pid for process in alive)


def recover(folder: Path, note: RecoveryNote, facts: FactBase) -> tuple[Submission, Path]:
    """Write the submission of an orphaned run and remove its folder; return both.

    The run ends with its last log line: the times of its processes are unknown, and nothing was sampled from outside.
    """
    order = Order.model_validate_json((folder / ORDER_FILE).read_bytes())
    log = LogReader(folder / LOG_FILE).finish()
    marks = [mark["at_s"] for mark in log.phases] + [step["completed_at_s"] for step in log.steps]
    finished = Finished(
        log=log,
        telemetry=Telemetry(),
        started_at=note.started_at,
        wall_s=max(marks, default=0.0),
        ended_by="parent killed",
        model_cache=note.model_cache,
    )
    resolved = Resolved(order.plan, note.overrides, None, None, None)
    golden = facts.golden_losses(order.plan.workload)
    submission = assemble(resolved, note.machine, finished, supersedes=note.supersedes, study=note.study, golden=golden)
    path = write(submission, note.out)
    shutil.rmtree(folder)
    return submission, path
