"""What identifies a series: the same command, with the same source on the same machine, resumes the runs it began.

Runs that another source or other libraries measured are named, and never mixed with new ones.
"""

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
SOFTWARE = ("packages", "python", "os", "runtime")
"""Fields of the environment that may change on the same machine."""


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


def settings_sha256(kind: Kind, plan: Plan, points: Sequence[str]) -> str:
    """Return the hash of the request. It uses the plan, since options may hold paths, and a file's content counts, not its path."""
    content = {"kind": kind, "plan": plan.model_dump(mode="json", exclude={"reasons"}), "points": list(points)}
    return sha256(canonical_json(content)).hexdigest()


def study_id(settings: str, plan: Plan, machine: Machine, attempt: int) -> str:
    """Return the id of a series, from the request, machine and software, the measuring source, and the number of restarts."""
    facts = environment(machine, plan.device.count).model_dump(mode="json")
    return content_id(canonical_json({"settings": settings, "environment": facts, "source": source_content(), "attempt": attempt}))


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


def records_of(identity: str, workload: str, out: Path | None) -> list[Record]:
    """Return the submissions of a series in a folder, in the order in which they ran."""
    records = [record for record in records_with(identity, workload, out) if record.study.study_id == identity]
    return sorted(records, key=lambda record: record.study.position)


def records_with(text: str, workload: str, out: Path | None) -> list[Record]:
    """Return the submissions of any series whose file contains a text, such as an id."""
    records = []
    for path in sorted(((out or project_root() / "submissions") / workload).glob("*.json")):
        content = path.read_bytes()
        submission = read_submission(path, content) if text.encode() in content else None
        if submission is not None and submission.study is not None:
            records.append(Record(submission, path))
    return records


def read_submission(path: Path, content: bytes) -> Submission | None:
    """Return the submission in a file's content, or None for another record. Raises TunemarkError for an invalid record."""
    try:
        record = read_record(content)
    except InvalidRecord as error:
        raise TunemarkError("submission", str(path), f"is not valid ({error}); fix or remove it", exit_code=Exit.INVALID) from error
    return record if isinstance(record, Submission) else None


def other_software_message(same_settings: list[Record], plan: Plan, machine: Machine, new_id: str) -> str | None:
    """Return a message about the newest series of the same settings on this machine that is not resumed; None without one.

    `new_id` is the series that begins instead.
    """
    here = environment(machine, plan.device.count)
    hardware = here.model_dump(exclude=set(SOFTWARE))
    there = [record for record in same_settings if record.submission.environment.model_dump(exclude=set(SOFTWARE)) == hardware]
    if not there:
        return None
    last = max(there, key=lambda record: record.submission.started_at)
    runs = sum(record.study.study_id == last.study.study_id for record in there)
    before, now = last.submission.harness, harness_version()
    differences = "; ".join(_software_changes(last.submission, now, here))
    back = f"check out commit {_commit(before)}" if before.commit not in {None, now.commit} else "restore what differs"
    return (
        f"{last.study.kind} {last.study.study_id} has the same settings and {runs} runs, but other software measured them "
        f"({differences or 'uncommitted source'}). All points are measured again as {new_id}. "
        f"To resume the earlier runs, {back} and give the same command"
    )


def _commit(harness: Harness) -> str:
    return harness.commit[:10] if harness.commit else f"unknown, version {harness.version}"


def _software_changes(earlier: Submission, now: Harness, here: Environment) -> Iterator[str]:
    """Yield the differences in source and libraries between an earlier run and a run that would start now."""
    then, there = earlier.harness, earlier.environment
    if then.commit != now.commit or then.version != now.version:
        yield f"harness commit {_commit(then)} then, {_commit(now)} now"
    elif then.dirty or now.dirty:
        yield f"harness commit {_commit(now)} with other uncommitted changes"
    for name in sorted(there.packages.keys() | here.packages.keys()):
        before, after = there.packages.get(name, "none"), here.packages.get(name, "none")
        if before != after:
            yield f"{name} {before} then, {after} now"
    if (there.python, there.os) != (here.python, here.os):
        yield f"Python {there.python} on {there.os} then, {here.python} on {here.os} now"
