"""The engine of all series: run a point unless it is done, tell, and stop after the record when asked to."""

import getpass
import hashlib
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from tunemark.harness.plan.machine import Machine
from tunemark.harness.plan.resolve import Options, Resolved, resolve
from tunemark.harness.run.launch import run_once
from tunemark.harness.run.process import stop_signals
from tunemark.harness.studies.resume import Kind, Record, find_series, other_software_message, records_with, settings_sha256
from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Study
from tunemark.schema.vocabulary import Status

Runner = Callable[[Resolved, Study], tuple[Submission, Path]]
"""Runs a plan once and writes its submission. Tests give a scripted one."""


class Stopped(Exception):
    """Somebody stopped the series; what was done is kept."""


TRIED_AGAIN = (Status.INTERRUPTED, Status.CRASH, Status.TIMEOUT)
"""A point that ended so says nothing of what was asked: the next command runs it again."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a series runs on and where it writes."""

    facts: FactBase
    machine: Machine
    out: Path | None
    runner: Runner

    @classmethod
    def here(cls, facts: FactBase, machine: Machine, out: Path | None) -> "Bench":
        """Return the bench of this machine: fresh processes, submissions in a folder."""
        return cls(facts, machine, out, lambda resolved, study: run_once(resolved, facts, machine, out, study=study))

    def plan(self, workload: str, options: Options) -> Resolved:
        """Resolve a run of the series."""
        return resolve(workload, self.facts, self.machine, options)


@dataclass(frozen=True, slots=True)
class Done:
    """A point of a series with its record."""

    point: str
    record: Record
    earlier: bool
    """True when it was there before this command began."""

    @property
    def status(self) -> Status:
        """Return how its run ended."""
        return self.record.submission.outcome.status


@dataclass
class Series:
    """Runs of one study: those that are done already, and those that this command adds."""

    kind: Kind
    study_id: str
    settings_sha256: str
    bench: Bench
    earlier: list[Record]
    expected: int | None = None
    """How many points there are, where that is known beforehand."""
    done: list[Done] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def find(cls, kind: Kind, base: Resolved, points: Sequence[str], bench: Bench, *, again: bool, expected: int | None = None) -> "Series":
        """Return the series of these points: the newest of the same settings by this source on this machine, or a new one.

        Where runs of the same settings are there that other software measured, that is told.
        """
        settings = settings_sha256(kind, base.plan, points)
        identity, records = find_series(settings, base.plan, bench.machine, bench.out, again=again)
        # Once a series of this software has begun, it was told.
        if not records and not again:
            told = other_software_message(records_with(settings, base.plan.workload, bench.out), base.plan, bench.machine, identity)
            if told:
                say(told)
        return cls(kind, identity, settings, bench, records, expected)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Take Ctrl-C as the wish to stop, also between two runs; during a run it ends the run, which leaves its record.

        Raises
        ------
        TunemarkError
            When another command of this user runs the same series on this machine.

        """
        with only_one(self), stop_signals() as self._stopped:
            yield

    def run(self, point: str, resolved: Resolved) -> Done:
        """Return the record of a point: the earlier one, or that of a run made now.

        Raises
        ------
        Stopped
            When somebody stopped it; an interrupted run has left its record, and is run again by the next command.

        """
        known = self._known(point)
        if known is not None:
            done = Done(point, known, earlier=True)
        else:
            if self._stopped.is_set():
                raise Stopped(point)
            submission, path = self.bench.runner(resolved, self._study(point))
            done = Done(point, Record(submission, path), earlier=False)
            if done.status is Status.INTERRUPTED:
                raise Stopped(point)
        self._take(done)
        return done

    def _known(self, point: str) -> Record | None:
        """Return the newest earlier record of a point that somebody did not stop."""
        found = [record for record in self.earlier if _point(record) == point and record.submission.outcome.status not in TRIED_AGAIN]
        return found[-1] if found else None

    def _study(self, point: str) -> Study:
        positions = [record.submission.study.position for record in self.earlier if record.submission.study]
        added = sum(not done.earlier for done in self.done)
        return Study(
            kind=self.kind,
            study_id=self.study_id,
            point=point,
            position=max(positions, default=0) + added + 1,
            settings_sha256=self.settings_sha256,
        )

    def _take(self, done: Done) -> None:
        self.done.append(done)
        total = f"/{self.expected}" if self.expected else ""
        say(f"{len(self.done)}{total} {done.point}: {'done before, ' if done.earlier else ''}{in_short(done.record.submission)}")


@contextmanager
def only_one(series: Series) -> Iterator[None]:
    """Keep a second command of the same user from running the same points into the same folder: they would measure each other."""
    folder = series.bench.out.resolve() if series.bench.out else ""
    of = hashlib.sha256(f"{getpass.getuser()} {series.settings_sha256} {folder}".encode()).hexdigest()
    lock = FileLock(Path(tempfile.gettempdir()) / f"tunemark-{of[:16]}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        fix = "another command runs this very series now; wait until it has ended, or stop it with Ctrl-C: its runs are then gone on with"
        raise TunemarkError(series.kind, series.study_id, fix) from None
    try:
        yield
    finally:
        lock.release()


def _point(record: Record) -> str | None:
    study = record.submission.study
    return study.point if study else None


def in_short(submission: Submission) -> str:
    """Return status, step time, rate and memory of a run in one line."""
    derived = derive(submission)
    parts = [submission.outcome.status.value]
    if submission.outcome.message and submission.outcome.status is not Status.OK:
        parts.append(submission.outcome.message.splitlines()[0][:120])
    if derived.step_time and derived.tokens_per_s:
        parts += [f"{formats.duration(derived.step_time.p50)} a step", f"{formats.significant(derived.tokens_per_s.value)} tokens/s"]
    if derived.peak_memory.peak_bytes:
        parts.append(formats.gib(derived.peak_memory.peak_bytes))
    return ", ".join(parts)


def say(text: str) -> None:
    """Tell on standard error: standard output is for answers."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
