"""What makes two series the same: the same command, by the same source on the same machine, continues what it began."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from tunemark.harness.plan.machine import Machine
from tunemark.harness.run.record import environment, harness_version, source_content
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.files import project_root
from tunemark.schema.records.base import canonical_json, content_id
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import Environment, Harness, Submission
from tunemark.schema.records.trace import Study
from tunemark.schema.records.upgrade import InvalidRecord, read_record

Kind = Literal["sweep", "frontier", "ab", "repeat"]


@dataclass(frozen=True, slots=True)
class Record:
    """A submission of a series and its file."""

    submission: Submission
    path: Path


def settings_sha256(kind: Kind, plan: Plan, points: Sequence[str]) -> str:
    """Return the hash of what was asked. Of the plan, since options may hold paths of this machine, and data of a file its content."""
    content = {"kind": kind, "plan": plan.model_dump(mode="json", exclude={"reasons"}), "points": list(points)}
    return sha256(canonical_json(content)).hexdigest()


def study_id(settings: str, plan: Plan, machine: Machine, attempt: int) -> str:
    """Return the id of a series: of what was asked, machine and software, the source that measures, and how often it was begun anew."""
    facts = environment(machine, plan.device.count).model_dump(mode="json")
    return content_id(canonical_json({"settings": settings, "environment": facts, "source": source_content(), "attempt": attempt}))


def records_of(identity: str, workload: str, out: Path | None) -> list[Record]:
    """Return the submissions of a series that are in a folder, in the order in which they ran."""
    found = [record for record in records_with(identity, workload, out) if study_of(record).study_id == identity]
    return sorted(found, key=lambda record: study_of(record).position)


def records_with(text: str, workload: str, out: Path | None) -> list[Record]:
    """Return the submissions of any series whose file holds a text, such as an id."""
    found = []
    for path in sorted(((out or project_root() / "submissions") / workload).glob("*.json")):
        content = path.read_bytes()
        record = read_submission(path, content) if text.encode() in content else None
        if record is not None and record.study is not None:
            found.append(Record(record, path))
    return found


def study_of(record: Record) -> Study:
    """Return the series that a record of a series is a part of."""
    if record.submission.study is None:
        msg = f"{record.path} is no record of a series"
        raise ValueError(msg)
    return record.submission.study


def read_submission(path: Path, content: bytes) -> Submission | None:
    """Return the submission in a file's content, or None for another record; raises TunemarkError where it is no record at all."""
    try:
        record = read_record(content)
    except InvalidRecord as error:
        raise TunemarkError("submission", str(path), f"is not valid ({error}); mend or remove it", exit_code=Exit.INVALID) from error
    return record if isinstance(record, Submission) else None


def find_series(settings: str, plan: Plan, machine: Machine, out: Path | None, *, again: bool) -> tuple[str, list[Record]]:
    """Return id and records of the newest series with these settings; with `again`, those of one that has not begun."""
    attempt, newest = 0, study_id(settings, plan, machine, 0)
    records = records_of(newest, plan.workload, out)
    while records:
        attempt += 1
        following = study_id(settings, plan, machine, attempt)
        later = records_of(following, plan.workload, out)
        if not later and not again:
            break
        newest, records = following, later
    return newest, records


# MOVE: was tunemark.harness.studies.resume: Runs of the same series that another source or other libraries measured: they are named, and never mixed with those of now.

SOFTWARE = ("packages", "python", "os", "runtime")
"""What may change on a machine that stays the same."""


def other_software_message(same_settings: list[Record], plan: Plan, machine: Machine, study_id: str) -> str | None:
    """Return what to tell of the newest series of the same settings on this machine that is not gone on with, or None without one.

    `study_id` is the series that begins instead.
    """
    here = environment(machine, plan.device.count)
    there = [record for record in same_settings if _hardware(record.submission.environment) == _hardware(here)]
    if not there:
        return None
    last = max(there, key=lambda record: record.submission.started_at)
    study = study_of(last)
    runs = sum(study_of(record).study_id == study.study_id for record in there)
    before, now = last.submission.harness, harness_version()
    differ = "; ".join([*_source(before, now), *_software(last.submission.environment, here)]) or "a source that no commit holds"
    back = f"check out commit {_commit(before)}" if before.commit not in {None, now.commit} else "bring back what differs"
    return (
        f"{study.kind} {study.study_id} of the same settings has {runs} runs, measured by other software ({differ}). They are not mixed "
        f"with new ones: all points are measured anew as {study_id}. To go on with the earlier runs, {back} and give the same command"
    )


def _hardware(seen: Environment) -> dict[str, object]:
    return seen.model_dump(exclude=set(SOFTWARE))


def _source(before: Harness, now: Harness) -> Iterator[str]:
    if before.commit != now.commit or before.version != now.version:
        yield f"harness commit {_commit(before)} then, {_commit(now)} now"
    elif before.dirty or now.dirty:
        yield f"harness commit {_commit(now)} with other changes that are not committed"


def _commit(harness: Harness) -> str:
    return harness.commit[:10] if harness.commit else f"unknown, version {harness.version}"


def _software(before: Environment, now: Environment) -> Iterator[str]:
    """Yield each version that differs."""
    for name in sorted(before.packages.keys() | now.packages.keys()):
        one, other = before.packages.get(name, "none"), now.packages.get(name, "none")
        if one != other:
            yield f"{name} {one} then, {other} now"
    if (before.python, before.os) != (now.python, now.os):
        yield f"Python {before.python} on {before.os} then, {now.python} on {now.os} now"
