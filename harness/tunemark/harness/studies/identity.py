"""What makes two series the same: the same command on the same machine continues what it began."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from tunemark.harness.machine import Machine
from tunemark.harness.record import environment
from tunemark.schema.base import canonical_json, content_id
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.files import project_root
from tunemark.schema.history import InvalidRecord, read_record
from tunemark.schema.plan import Plan
from tunemark.schema.submission import Submission

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
    """Return the id of a series: of what was asked, the facts of the machine and software, and how often it was begun anew."""
    facts = environment(machine, plan.device.count).model_dump(mode="json")
    return content_id(canonical_json({"settings": settings, "environment": facts, "attempt": attempt}))


def records_of(identity: str, workload: str, out: Path | None) -> list[Record]:
    """Return the submissions of a series that are in a folder, in the order in which they ran."""
    folder = (out or project_root() / "submissions") / workload
    found = []
    for path in sorted(folder.glob("*.json")):
        content = path.read_bytes()
        if identity.encode() not in content:
            continue
        record = read_submission(path, content)
        if record is not None and record.study is not None and record.study.study_id == identity:
            found.append(Record(record, path))
    return sorted(found, key=lambda record: record.submission.study.position if record.submission.study else 0)


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
