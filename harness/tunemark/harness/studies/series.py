"""The engine of all series: run a point unless it is done, report it, and stop after the record on request."""

import getpass
import hashlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from tunemark.harness.plan.machine import Machine
from tunemark.harness.plan.resolve import Options, Resolved, resolve
from tunemark.harness.run.process import stop_signals
from tunemark.harness.run.show import say
from tunemark.harness.studies.resume import Kind, Record, find_series, other_software_message, records_with, settings_sha256
from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Study
from tunemark.schema.vocabulary import Status

Runner = Callable[[Resolved, Study], tuple[Submission, Path]]
"""Runs a plan once and writes its submission. Tests use a scripted one."""
TRIED_AGAIN = (Status.INTERRUPTED, Status.CRASH, Status.TIMEOUT)
"""Endings that say nothing about the point: the next command runs it again."""


class Stopped(Exception):
    """The user stopped the series; finished runs are kept."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The machine that a series runs on, and its output folder."""

    facts: FactBase
    machine: Machine
    out: Path | None
    runner: Runner

    @classmethod
    def here(cls, facts: FactBase, machine: Machine, out: Path | None) -> "Bench":
        """Return the bench of this machine: fresh processes, submissions in a folder."""
        from tunemark.harness.run.launch import run_once  # noqa: PLC0415 - scripted benches start no process

        return cls(facts, machine, out, lambda resolved, study: run_once(resolved, facts, machine, out, study=study))

    def plan(self, workload: str, options: Options) -> Resolved:
        """Return the plan of a run of the series."""
        return resolve(workload, self.facts, self.machine, options)


@dataclass(frozen=True, slots=True)
class Done:
    """A point of a series with its record."""

    point: str
    record: Record
    earlier: bool
    """True if it was completed before this command started."""

    @property
    def status(self) -> Status:
        """Return the status of its run."""
        return self.record.submission.outcome.status


@dataclass
class Series:
    """Runs of one study: those done before, and those that this command adds."""

    kind: Kind
    study_id: str
    settings_sha256: str
    bench: Bench
    earlier: list[Record]
    expected: int | None = None
    """Number of runs, if it is known in advance."""
    done: list[Done] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def find(cls, kind: Kind, base: Resolved, points: Sequence[str], bench: Bench, *, again: bool, expected: int | None = None) -> "Series":
        """Return the series of these points: the newest of the same settings by this source on this machine, or a new one.

        When another software has measured the same settings, a message names its runs.
        """
        settings = settings_sha256(kind, base.plan, points)
        identity, records = find_series(settings, base.plan, bench.machine, bench.out, again=again)
        # Once a series of this software has begun, the message was shown.
        if not records and not again:
            same_settings = records_with(settings, base.plan.workload, bench.out)
            message = other_software_message(same_settings, base.plan, bench.machine, identity)
            if message:
                say(message)
        return cls(kind, identity, settings, bench, records, expected)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Treat Ctrl-C as a request to stop, also between two runs. During a run it ends the run, which leaves its record.

        Raises TunemarkError when another command of this user runs the same points into the same folder: both would disturb
        each other.
        """
        folder = self.bench.out.resolve() if self.bench.out else ""
        name = hashlib.sha256(f"{getpass.getuser()} {self.settings_sha256} {folder}".encode()).hexdigest()
        lock = FileLock(Path(tempfile.gettempdir()) / f"tunemark-{name[:16]}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            fix = "another command runs this series now; wait until it has ended, or stop it with Ctrl-C and the next run resumes it"
            raise TunemarkError(self.kind, self.study_id, fix) from None
        try:
            with stop_signals() as self._stopped:
                yield
        finally:
            lock.release()

    def run(self, point: str, resolved: Resolved) -> Done:
        """Return the record of a point: the earlier one, or that of a new run. Raises Stopped when the user stopped it.

        An interrupted run leaves its record, and the next command runs it again.
        """
        records = [record for record in self.earlier if record.study.point == point and record.submission.outcome.status not in TRIED_AGAIN]
        if records:
            done = Done(point, records[-1], earlier=True)
        elif self._stopped.is_set():
            raise Stopped(point)
        else:
            last = max((record.study.position for record in self.earlier), default=0)
            position = last + sum(not done.earlier for done in self.done) + 1
            study = Study(kind=self.kind, study_id=self.study_id, point=point, position=position, settings_sha256=self.settings_sha256)
            submission, path = self.bench.runner(resolved, study)
            if submission.outcome.status is Status.INTERRUPTED:
                raise Stopped(point)
            done = Done(point, Record(submission, path), earlier=False)
        self.done.append(done)
        total = f"/{self.expected}" if self.expected else ""
        say(f"{len(self.done)}{total} {done.point}: {'done before, ' if done.earlier else ''}{in_short(done.record.submission)}")
        return done


def in_short(submission: Submission) -> str:
    """Return status, step time, rate and memory of a run in one line."""
    derived, outcome = derive(submission), submission.outcome
    parts = [outcome.status.value]
    if outcome.message and outcome.status is not Status.OK:
        parts.append(outcome.message.splitlines()[0][:120])
    if derived.step_time and derived.tokens_per_s:
        parts += [f"{formats.duration(derived.step_time.p50)} per step", f"{formats.significant(derived.tokens_per_s.value)} tokens/s"]
    if derived.peak_memory.peak_bytes:
        parts.append(formats.gib(derived.peak_memory.peak_bytes))
    return ", ".join(parts)
