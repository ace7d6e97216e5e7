"""What a series varies, and the engine of all series: run a point unless it is done, report it, and stop on request.

Points have their settings by the card's field names or their aliases. The same command, with the same source on the same
machine, resumes the runs it began. Runs that another source or other libraries measured are named, and never mixed with new ones.
"""

import getpass
import itertools
import json
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from tunemark.harness.plan.machine import detect
from tunemark.harness.plan.options import SETTINGS, Options
from tunemark.harness.plan.resolve import Resolved, refuse_missing_devices, resolve
from tunemark.harness.run.process import stop_signals
from tunemark.harness.run.record import environment, source_content
from tunemark.harness.run.show import say
from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.files import project_root
from tunemark.schema.plan.machine import Machine
from tunemark.schema.plan.overrides import ALIASES, apply_overrides, similar_settings
from tunemark.schema.records.base import canonical_json, content_id, flattened
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.reading import InvalidRecord, read_record
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Study
from tunemark.schema.vocabulary import Status

# What a series varies

Axis = tuple[str, tuple[str, ...]]
"""A setting and its values, as they are written in `--set`."""
AS_GIVEN = "as given"
"""Name of the point without a changed setting."""


@dataclass(frozen=True, slots=True)
class Point:
    """Settings of one run of a series."""

    settings: tuple[tuple[str, str], ...]
    """Field of the card and value as it is written in `--set`."""

    @property
    def text(self) -> str:
        """Return the point's name in records, tables and messages."""
        return ", ".join(f"{field}={value}" for field, value in self.settings) or AS_GIVEN

    def applied(self, options: Options) -> Options:
        """Return the options of a run of this point. The point's settings override those that the user set for all."""
        return options.setting(f"{field}={value}" for field, value in self.settings)


def field_named(name: str, option: str, card: WorkloadCard) -> str:
    """Return the card's field for a name or alias. Raises TunemarkError with the nearest names when there is none."""
    field = ALIASES.get(name.strip().lower(), name.strip())
    if field in SETTINGS:
        return field
    known = dict(flattened(card.model_dump(mode="json", exclude={"axes", "points"})))
    if field not in known:
        raise TunemarkError(option, name, f"not a setting of {card.key}; {similar_settings(name, [*known, *ALIASES])}")
    return field


def axis_of(text: str, card: WorkloadCard) -> Axis:
    """Return field and values of `--over field=v1,v2`; for `--over field`, the values of the card's own axis."""
    name, equals, listed = text.partition("=")
    field = field_named(name, "--over", card)
    own = tuple(dict.fromkeys(written(value) for axis in card.axes if axis.field == field for value in axis.values))
    values = tuple(value.strip() for value in listed.split(",") if value.strip()) if equals else own
    if not values:
        raise TunemarkError("--over", text, "give a setting and its values, such as batch_size=8,16,32")
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise TunemarkError("--over", text, f"{', '.join(repeated)} is given twice; name each value once, and repeat with --repeats")
    return field, values


def star_of_card(card: WorkloadCard) -> list[Point]:
    """Return the points that the card lists: the card itself, each value of its axes with the rest unchanged, and its points.

    Axes are varied one at a time, as their source did; all combinations would be thousands. The card itself is named by its value of
    the first setting that varies.
    """
    along = [*({**axis.at, axis.field: value} for axis in card.axes for value in axis.values), *card.points]
    own, fields = dict(flattened(card.model_dump(mode="json"))), {field: None for settings in along for field in settings}
    itself = [{field: own[field]} for field in fields if own.get(field) is not None][:1]
    return [Point(tuple((field, written(value)) for field, value in settings.items())) for settings in (*itself, *along)]


def written(value: object) -> str:
    """Return a value as it is written in `--set`."""
    return value if isinstance(value, str) else json.dumps(value)


def grid(axes: Sequence[Axis]) -> list[Point]:
    """Return every combination of the axes' values, the last axis varying fastest."""
    fields = [field for field, _ in axes]
    for name in fields:
        if fields.count(name) > 1:
            raise TunemarkError("--over", name, "is given twice; give all of its values in one --over")
    return [Point(tuple(zip(fields, values, strict=True))) for values in itertools.product(*(values for _, values in axes))]


def settings_of(text: str, option: str, card: WorkloadCard) -> Point:
    """Return the point of `field=value,field=value`. Raises TunemarkError for a setting without a value."""
    settings = []
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise TunemarkError(option, text, "give field=value, separated by commas, such as compile=blocks,lr=1e-3")
        settings.append((field_named(name, option, card), value.strip()))
    return Point(tuple(settings))


def card_with(card: WorkloadCard, options: Options) -> WorkloadCard:
    """Return the card as `--set` changes it for the whole series."""
    return apply_overrides(card, options.overrides)[0]


# Run a series

Kind = Literal["sweep", "frontier", "ab", "repeat", "tune"]
Runner = Callable[[Resolved, Study], tuple[Submission, Path]]
"""Runs a plan once and writes its submission. Tests use a scripted one."""
TRIED_AGAIN = (Status.INTERRUPTED, Status.CRASH, Status.TIMEOUT)
"""Endings that are not a result of the point: the next command runs it again."""


class Stopped(Exception):
    """The series ends here, at the request of the user or because going on is useless. Finished runs are kept."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The machine that a series runs on, and its output folder."""

    facts: FactBase
    machine: Machine
    out: Path | None
    runner: Runner
    """Runs in a fresh process."""

    @classmethod
    def here(cls, options: Options, out: Path | None) -> "Bench":
        """Return the bench of this machine: fresh processes, and submissions in a folder.

        Raises TunemarkError if `--devices` asks for more than it has. A point with too many is a result of the series.
        """
        from tunemark.harness.run.launch import run_once  # noqa: PLC0415 - scripted benches start no process

        facts, machine = FactBase.of_project(), detect(options.backend)
        refuse_missing_devices(options, machine)
        return cls(facts, machine, out, lambda resolved, study: run_once(resolved, facts, machine, out, study=study))

    def plan(self, workload: str, options: Options) -> Resolved:
        """Return the plan of a run of the series."""
        return resolve(workload, self.facts, self.machine, options)

    def plan_of(self, point: Point, workload: str, options: Options, option: str) -> Resolved:
        """Return the plan of a point. Call after `plan`: any error is then the point's, and names the option that it was given with."""
        try:
            return self.plan(workload, point.applied(options))
        except TunemarkError as error:
            raise TunemarkError(option, point.text, error.fix, exit_code=error.exit_code) from error


@dataclass(frozen=True, slots=True)
class Record:
    """A submission of a series and its file."""

    submission: Submission
    path: Path

    @property
    def study(self) -> Study:
        """The series that it belongs to."""
        if self.submission.study is None:
            msg = f"{self.path} is no record of a series"
            raise ValueError(msg)
        return self.submission.study


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
    ended: str | None = None
    """Why the series ended early; None while it runs and when it is complete."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def find(cls, kind: Kind, base: Resolved, points: Sequence[str], bench: Bench, *, again: bool, expected: int | None = None) -> "Series":
        """Return the series of these points: the newest of the same settings by this source and software on this machine, or a new one."""
        settings, identity, records = find_series(kind, base.plan, points, bench.machine, bench.out, again=again)
        return cls(kind, identity, settings, bench, records, expected)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Treat Ctrl-C as a request to stop, also between two runs. During a run it ends the run, which leaves its record.

        `ended` then names the point where it stopped. Raises TunemarkError when another command of this user runs the same
        points into the same folder: both would disturb each other.
        """
        folder = self.bench.out.resolve() if self.bench.out else ""
        name = sha256(f"{getpass.getuser()} {self.settings_sha256} {folder}".encode()).hexdigest()
        lock = FileLock(Path(tempfile.gettempdir()) / f"tunemark-{name[:16]}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            fix = "another command runs this series now; wait until it has ended, or stop it with Ctrl-C and the next run resumes it"
            raise TunemarkError(self.kind, self.study_id, fix) from None
        try:
            with stop_signals() as self._stopped:
                yield
        except Stopped as stopped:
            self.ended = f"stopped at {stopped}"
        finally:
            lock.release()

    def finished(self, point: str) -> Record | None:
        """Return the last earlier record of a point that is a result of it, or None if the point must be run."""
        records = (record for record in reversed(self.earlier) if record.study.point == point)
        return next((record for record in records if record.submission.outcome.status not in TRIED_AGAIN), None)

    def run(self, point: str, resolved: Resolved) -> Done:
        """Return the record of a point: the earlier one, or that of a new run. Raises Stopped when the user stopped it.

        An interrupted run leaves its record, and the next command runs it again.
        """
        record = self.finished(point)
        if record is not None:
            done = Done(point, record, earlier=True)
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
        parts.append(textwrap.shorten(outcome.message.splitlines()[0], 120, placeholder=" ..."))
    if derived.step_time and derived.tokens_per_s:
        parts += [f"{formats.duration(derived.step_time.p50)} per step", f"{formats.significant(derived.tokens_per_s.value)} tokens/s"]
    if derived.peak_memory.peak_bytes:
        parts.append(formats.gib(derived.peak_memory.peak_bytes))
    return ", ".join(parts)


# What identifies a series


def find_series(
    kind: Kind, plan: Plan, points: Sequence[str], machine: Machine, out: Path | None, *, again: bool
) -> tuple[str, str, list[Record]]:
    """Return the hash of a request, and id and records of the newest series of it by this source and software on this machine.

    With `again`, the id is that of a new series. The request is hashed as a plan, since options may hold paths, and a file's content
    counts, not its path.
    """
    request = {"kind": kind, "plan": plan.model_dump(mode="json", exclude={"reasons"}), "points": list(points)}
    settings = sha256(canonical_json(request)).hexdigest()
    facts = environment(machine, plan.device.count).model_dump(mode="json")
    here = {"settings": settings, "environment": facts, "source": source_content()}
    newest, records, attempt = "", list[Record](), 0
    while True:
        identity = content_id(canonical_json({**here, "attempt": attempt}))
        later = records_of(identity, plan.workload, out)
        if not later:
            return (settings, identity, []) if again or not attempt else (settings, newest, records)
        newest, records, attempt = identity, later, attempt + 1


def records_of(identity: str, workload: str, out: Path | None) -> list[Record]:
    """Return the submissions of a series in a folder, in the order in which they ran."""
    contents = {path: path.read_bytes() for path in sorted(((out or project_root() / "submissions") / workload).glob("*.json"))}
    found = {path: read_submission(path, content) for path, content in contents.items() if identity.encode() in content}
    records = [Record(submission, path) for path, submission in found.items() if submission is not None and submission.study is not None]
    return sorted((record for record in records if record.study.study_id == identity), key=lambda record: record.study.position)


def read_submission(path: Path, content: bytes) -> Submission | None:
    """Return the submission in a file's content, or None for another record. Raises TunemarkError for an invalid record."""
    try:
        record = read_record(content)
    except InvalidRecord as error:
        raise TunemarkError("submission", str(path), f"is not valid ({error}); fix or remove it", exit_code=Exit.INVALID) from error
    return record if isinstance(record, Submission) else None
