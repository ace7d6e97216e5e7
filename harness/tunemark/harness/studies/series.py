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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from tunemark.harness.plan.resolve import SETTINGS, Options, Resolved, detect, refuse_missing_devices, resolve
from tunemark.harness.run.record import environment, source_content, submissions, tries
from tunemark.schema import formats
from tunemark.schema.derive import derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.plan.capabilities import Machine
from tunemark.schema.plan.resolve import ALIASES, apply_overrides, similar_settings
from tunemark.schema.records.base import canonical_json, content_id, flattened
from tunemark.schema.records.reading import InvalidRecord, read_record
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Study
from tunemark.schema.vocabulary import Status
from tunemark.terminal import Table, say

# What a series varies

Settings = dict[str, str]
"""What a run of a series changes: field of the card -> value as it is written in `--set`."""
AS_GIVEN = "as given"
"""Name of the point without a changed setting."""


def named(settings: Settings) -> str:
    """Return the name of a point in records, tables and messages, by its settings."""
    return ", ".join(f"{field}={value}" for field, value in settings.items()) or AS_GIVEN


def applied(settings: Settings, options: Options) -> Options:
    """Return the options of a run of a point, whose settings override those that the user set for all."""
    return options.setting(f"{field}={value}" for field, value in settings.items())


def field_named(name: str, option: str, card: WorkloadCard) -> str:
    """Return the card's field for a name or alias. Raises TunemarkError with the nearest names when there is none."""
    field = ALIASES.get(name.strip().lower(), name.strip())
    if field in SETTINGS:
        return field
    known = dict(flattened(card.model_dump(mode="json", exclude={"axes", "points"})))
    if field not in known:
        raise TunemarkError(option, name, f"not a setting of {card.key}; {similar_settings(name, [*known, *ALIASES])}")
    return field


def grid(overs: Sequence[str], card: WorkloadCard) -> list[Settings]:
    """Return every combination of the values of `--over field=v1,v2`, or `--over field` for the card's own axis; the last varies fastest."""
    axes = dict[str, list[str]]()
    for text in overs:
        name, equals, listed = text.partition("=")
        field = field_named(name, "--over", card)
        own = (written(value) for axis in card.axes if axis.field == field for value in axis.values)
        values = (value.strip() for value in listed.split(",") if value.strip()) if equals else own
        if field in axes:
            raise TunemarkError("--over", field, "is given twice; give all of its values in one --over")
        axes[field] = list(dict.fromkeys(values))
        if not axes[field]:
            raise TunemarkError("--over", text, "give a setting and its values, such as batch_size=8,16,32")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def star_of_card(card: WorkloadCard) -> list[Settings]:
    """Return the points that the card lists: the card itself, each value of its axes with the rest unchanged, and its points.

    Axes are varied one at a time, as their source did; all combinations would be thousands. The card itself is named by its value of
    the first setting that varies.
    """
    along = [*({**axis.at, axis.field: value} for axis in card.axes for value in axis.values), *card.points]
    own, fields = dict(flattened(card.model_dump(mode="json"))), {field: None for settings in along for field in settings}
    itself = [{field: own[field]} for field in fields if own.get(field) is not None][:1]
    return [{field: written(value) for field, value in settings.items()} for settings in (*itself, *along)]


def written(value: object) -> str:
    """Return a value as it is written in `--set`."""
    return value if isinstance(value, str) else json.dumps(value)


def settings_of(text: str, option: str, card: WorkloadCard) -> Settings:
    """Return the settings of `field=value,field=value`. Raises TunemarkError for one without a value."""
    settings = Settings()
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise TunemarkError(option, text, "give field=value, separated by commas, such as compile=blocks,lr=1e-3")
        settings[field_named(name, option, card)] = value.strip()
    return settings


def short(options: Options, *sets: str, **changes: Any) -> Options:  # noqa: ANN401 - of any field
    """Return the options of a try, which only trains; `sets` are declared as overrides."""
    changes |= {"until_ci": None, "probe": False, "gates": False, "save": False}
    return options.having(overrides=("data.evaluation_rows=0", *sets, *options.overrides), **changes)


# Run a series

Kind = Literal["sweep", "frontier", "ab", "repeat", "tune"]
Runner = Callable[[Resolved, Study], tuple[Submission, Path]]
"""Runs a plan once and writes its submission. Tests use a scripted one."""
TRIED_AGAIN = (Status.INTERRUPTED, Status.CRASH, Status.TIMEOUT)
"""Endings that are not a result of the point: the next command runs it again."""


class Stopped(Exception):
    """The series ends here, for the reason in its text: the user asked for it, or going on is useless. Finished runs are kept."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The machine that a series runs on, and its output folder."""

    facts: FactBase
    machine: Machine
    out: Path | None
    runner: Runner
    """Runs in a fresh process."""
    again: bool = False
    """Start a new series instead of resuming an earlier one."""
    force: bool = False
    """Start a series although nothing fits by the memory model, or the model hub does not answer."""

    @classmethod
    def here(cls, options: Options, out: Path | None, *, again: bool = False) -> "Bench":
        """Return the bench of this machine: fresh processes, and submissions in a folder.

        Raises TunemarkError if `--devices` asks for more than it has. A point with too many is a result of the series.
        """
        from tunemark.harness.run.launch import run_once  # noqa: PLC0415 - scripted benches start no process

        facts, machine = options.facts, detect(options.backend)
        refuse_missing_devices(options, machine)
        return cls(facts, machine, out, lambda resolved, study: run_once(resolved, facts, machine, out, study=study), again, options.force)

    def card(self, workload: str, options: Options) -> WorkloadCard:
        """Return the card as `--set` changes it for the whole series."""
        return apply_overrides(self.facts.workload(workload), options.overrides)[0]

    def plan(self, workload: str, options: Options, settings: Settings | None = None, option: str | None = None) -> Resolved:
        """Return the plan of a run of the series, with the settings of its point.

        Errors name the option with which a point was given. Call it without one first: any error is then the point's.
        """
        try:
            return resolve(workload, self.facts, self.machine, applied(settings or {}, options))
        except TunemarkError as error:
            if option is None:
                raise
            raise TunemarkError(option, named(settings or {}), error.fix, exit_code=error.exit_code) from error


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a series and its file."""

    submission: Submission
    study: Study
    path: Path
    earlier: bool = True
    """True if it was completed before this command started."""

    @property
    def status(self) -> Status:
        """How the run ended."""
        return self.submission.outcome.status


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """The result of a series. A command prints its fields as JSON."""

    workload: str
    kind: Kind
    study_id: str
    ended: str | None
    """Why it ended early; None if it is complete."""

    @property
    def exit_code(self) -> Exit:
        """Return 0 if it is complete."""
        return Exit.UNTRUSTWORTHY if self.ended else Exit.OK

    def shown(self) -> Iterator[Table | str]:
        """Yield its tables and sentences for the terminal."""
        raise NotImplementedError


@dataclass
class Series:
    """Runs of one study: those done before, and those that this command adds."""

    kind: Kind
    study_id: str
    settings_sha256: str
    bench: Bench
    earlier: list[Run]
    done: list[Run] = field(default_factory=list)
    ended: str | None = None
    """Why the series ended early; None while it runs and when it is complete."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def find(cls, kind: Kind, base: Resolved, points: Sequence[str], bench: Bench, *runs: Resolved) -> "Series":
        """Return the series of these points: the newest of the same settings by this source and software on this machine, or a new one.

        The request is hashed as a plan, since options may hold paths, and a file's content counts, not its path. `runs` are those that are
        known in advance. Raises TunemarkError if none of them fits into memory, or if they, or else `base`, need a hub that does not answer.
        """
        if not bench.force:
            from tunemark.harness.run.launch import refuse_hopeless  # noqa: PLC0415 - as above

            refuse_hopeless(runs or (base,), bench.facts, bench.machine, searched=not runs)
        request = {"kind": kind, "plan": base.plan.settings, "points": list(points)}
        settings = sha256(canonical_json(request)).hexdigest()
        facts = environment(bench.machine, base.plan.device.count).model_dump(mode="json")
        here = {"settings": settings, "environment": facts, "source": source_content()}

        def series(attempt: int) -> Series:
            identity = content_id(canonical_json({**here, "attempt": attempt}))
            return cls(kind, identity, settings, bench, _runs_of(identity, base.plan.workload, bench.out))

        begun = list(itertools.takewhile(lambda each: each.earlier, map(series, itertools.count())))
        return series(len(begun)) if bench.again or not begun else begun[-1]

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Treat Ctrl-C as a request to stop, also between two runs. During a run it ends the run, which leaves its record.

        `ended` then holds the reason. Raises TunemarkError when another command of this user runs the same
        points into the same folder: both would disturb each other.
        """
        from tunemark.harness.run.launch import stop_signals  # noqa: PLC0415 - as above

        folder = self.bench.out.resolve() if self.bench.out else ""
        name = sha256(f"{getpass.getuser()} {self.settings_sha256} {folder}".encode()).hexdigest()
        try:
            with FileLock(Path(tempfile.gettempdir()) / f"tunemark-{name[:16]}.lock", timeout=0), stop_signals() as self._stopped:
                yield
        except Timeout:
            fix = "another command runs this series now; wait until it has ended, or stop it with Ctrl-C and the next run resumes it"
            raise TunemarkError(self.kind, self.study_id, fix) from None
        except Stopped as stopped:
            self.ended = str(stopped)

    def finished(self, point: str) -> Run | None:
        """Return the last earlier run of a point that is a result of it, or None if the point must be run."""
        return next((run for run in reversed(self.earlier) if run.study.point == point and run.status not in TRIED_AGAIN), None)

    def run_all(self, plans: Mapping[str, Resolved], hopeless: Collection[Status] = ()) -> None:
        """Run the plans of points in turn until the user stops, or until one ends hopelessly, as a retry of the same settings would."""
        with self.stoppable():
            for point, resolved in plans.items():
                status = self.run(point, resolved, of=len(plans)).status
                if status in hopeless:
                    raise Stopped(f"stopped at {point} ({status.value}): retrying would fail the same way")

    def run(self, point: str, resolved: Resolved, of: int | None = None) -> Run:
        """Return the run of a point: the earlier one, or a new one. Raises Stopped when the user stopped it.

        An interrupted run leaves its record, and the next command runs it again. `of` is the number of runs, if it is known in advance.
        """
        run = self.finished(point)
        if run is None:
            if self._stopped.is_set():
                raise Stopped(f"stopped at {point}; the same command resumes the series")
            last = max((run.study.position for run in self.earlier), default=0)
            position = last + sum(not run.earlier for run in self.done) + 1
            study = Study(kind=self.kind, study_id=self.study_id, point=point, position=position, settings_sha256=self.settings_sha256)
            submission, path = self.bench.runner(resolved, study)
            run = Run(submission, study, path, earlier=False)
            if run.status is Status.INTERRUPTED:
                raise Stopped(f"stopped at {point}; the same command resumes the series")
        self.done.append(run)
        total = f"/{of}" if of else ""
        say(f"{len(self.done)}{total} {point}: {'done before, ' if run.earlier else ''}{_in_short(run.submission)}")
        return run


def _in_short(submission: Submission) -> str:
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


def _runs_of(identity: str, workload: str, out: Path | None) -> list[Run]:
    """Return the runs of a series in a folder, in the order in which they ran."""
    runs, folders = [], {submissions(out), tries(submissions(out))}
    files = [path for folder in folders for path in (folder / workload).glob("*.json")]
    for path in files:
        content = path.read_bytes()
        submission = read_submission(path, content) if identity.encode() in content else None
        if submission is not None and submission.study is not None and submission.study.study_id == identity:
            runs.append(Run(submission, submission.study, path))
    return sorted(runs, key=lambda run: (run.study.position, run.path.name))


def read_submission(path: Path, content: bytes) -> Submission | None:
    """Return the submission in a file's content, or None for another record. Raises TunemarkError for an invalid record."""
    try:
        record = read_record(content)
    except InvalidRecord as error:
        raise TunemarkError("submission", str(path), f"is not valid ({error}); fix or remove it", exit_code=Exit.INVALID) from error
    return record if isinstance(record, Submission) else None
