"""The verdict on one file: read, validated, re-derived, and checked against the fact base. Never raises for bad content."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from tunemark.collector.gate import card_checks
from tunemark.collector.gate.checks import evidence_problems, from_the_future, impossible, lenient
from tunemark.collector.gate.cross_file_checks import Candidate, FileProblems, accept, committed_files
from tunemark.collector.gate.fact_files import document_problems, fact_problems
from tunemark.collector.gate.read import SUBMISSIONS, RecordFiles, over_files, shown_path
from tunemark.schema.derive import Derived, derive
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.privacy import identity_leaks
from tunemark.schema.records.base import canonical_json, content_id
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import InvalidRecord, Problem, read_record

LARGEST_FILE_BYTES = 16 * 2**20
"""A quarter of a million steps; more than that is no submission."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found in a file."""

    problems: tuple[Problem, ...]
    """Why it is refused; empty when it is valid."""
    record: BaseModel | None = None
    """The record, upgraded to the newest format; null when it could not be read."""
    derived: Derived | None = None
    """Headline numbers of a submission; null when they cannot be derived."""
    result_id: str = ""
    """First digits of the hash of the file's bytes."""
    sha256: str = ""
    """Hash of the file's bytes."""
    outdated: tuple[Problem, ...] = ()
    """What the facts have changed since a submission was measured; a reason to refuse a new one."""


def judge(path: Path, facts: FactBase) -> Verdict:
    """Return the verdict on a file; whatever its bytes are, they are judged and not raised."""
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE_BYTES:
            return Verdict((Problem("file", f"{size} bytes", f"larger than {LARGEST_FILE_BYTES} bytes; a record is one run"),))
        content = path.read_bytes()
    except OSError as error:
        return Verdict((Problem("file", "", f"cannot be read: {error.strerror}"),))
    return judge_bytes(content, path, facts)


def judge_bytes(content: bytes, path: Path, facts: FactBase) -> Verdict:
    """Return the verdict on the bytes of a file at a path."""
    try:
        record = read_record(content)
    except InvalidRecord as error:
        return Verdict(tuple(error.problems))
    except (ValueError, TypeError, RecursionError) as error:
        # Infinite numbers written as 1e999 and the like get past the JSON parser.
        return Verdict((Problem("file", "", f"cannot be read as a record: {error}"),))
    problems: list[Problem] = []
    derived = None
    outdated: tuple[Problem, ...] = ()
    if isinstance(record, Submission):
        derived, problems = _submission(record, content, path, facts)
        outdated = tuple(card_checks.outdated(record, facts))
    elif isinstance(record, PublishedResult | ConvertedResult):
        problems = [*card_checks.published_problems(record, facts)]
    return Verdict(tuple(problems), record, derived, content_id(content), hashlib.sha256(content).hexdigest(), outdated)


def _submission(record: Submission, content: bytes, path: Path, facts: FactBase) -> tuple[Derived | None, list[Problem]]:
    problems = [
        *_canonical(record, content),
        *_file_name(record, content, path),
        *(
            Problem(field, repr(value), f"looks like {what}; a submission names no machine and no person")
            for field, value, what in identity_leaks(record.model_dump(mode="json"))
        ),
        *card_checks.submission_problems(record, facts),
        *impossible(record),
        *lenient(record),
        *evidence_problems(record, facts),
        *from_the_future(record, datetime.now(tz=UTC)),
    ]
    derived, failed = rederive(record)
    return derived, [*problems, *failed]


def rederive(submission: Submission) -> tuple[Derived | None, list[Problem]]:
    """Return the headline numbers, or the problem that they cannot be derived from the raw log."""
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            return derive(submission), []
    except (ArithmeticError, ValueError, IndexError, MemoryError) as error:
        return None, [Problem("trace", "", f"the headline numbers cannot be derived from it: {error}")]


def _same(raw: object, as_read: object) -> bool:
    """Return whether a file says what was read from it; fields that came into the format after it may be missing."""
    if isinstance(raw, dict) and isinstance(as_read, dict):
        return all(name in as_read and _same(value, as_read[name]) for name, value in raw.items())
    if isinstance(raw, list) and isinstance(as_read, list):
        return len(raw) == len(as_read) and all(_same(one, other) for one, other in zip(raw, as_read, strict=True))
    return json.dumps(raw) == json.dumps(as_read)


def _canonical(record: Submission, content: bytes) -> list[Problem]:
    raw = json.loads(content)
    # A record of an older format is canonical as it was written then.
    as_read = record.model_dump(mode="json") if raw["format"] == record.format else raw
    if content == canonical_json(raw) and _same(raw, as_read):
        return []
    return [
        Problem(
            "file",
            "",
            "its bytes are not those that `tunemark run` writes (sorted keys, indent 1, one newline at the end); restore the file as it was written",
        )
    ]


def _file_name(record: Submission, content: bytes, path: Path) -> list[Problem]:
    parts = path.absolute().parts
    if SUBMISSIONS not in parts[:-1]:
        return []
    root = len(parts) - 1 - parts[::-1].index(SUBMISSIONS)
    inside = parts[root + 1 :]
    identity = content_id(content)
    if inside[:-1] == (record.workload,) and path.stem.endswith(f"-{identity}"):
        return []
    stem = path.stem.rsplit("-", 1)[0] or "run"
    return [
        Problem(
            "file name",
            repr("/".join((SUBMISSIONS, *inside))),
            f"a submission is named by its workload and content. If the content was changed, restore it or run again; if only the name was, it is {SUBMISSIONS}/{record.workload}/{stem}-{identity}.json",
        )
    ]


# MOVE: was tunemark.collector.gate.check: The verdict on many files: each by itself, then all together.


@dataclass(frozen=True, slots=True)
class Validation:
    """What validation found."""

    files: int
    """Files that were judged."""
    problems: FileProblems
    """Each problem with its file, in the order of files."""
    notes: FileProblems
    """What is to be known of valid files."""
    facts: int = 0
    """Files of facts that were checked."""
    judged: bool = True
    """False where wrong facts left nothing to judge the records against."""

    @property
    def invalid(self) -> int:
        """Files with a problem."""
        return len({re.sub(r":\d+$", "", file) for file, _ in self.problems})


def validate_all(found: RecordFiles, cards: Sequence[Path], root: Path, facts: FactBase, advance: Callable[[], object]) -> Validation:
    """Check files of facts first, then the records against them: wrong facts would make every record wrong."""
    wrong = [*fact_problems(cards, root), *document_problems(found.files, root)]
    try:
        facts.read_all()
        done = validate_files(found, root, facts, advance)
    except TunemarkError as error:
        # The card that stops here may be in a file that was not asked for.
        stopped = (error.field, Problem("file", repr(error.value) if error.value else "", error.fix))
        return Validation(0, wrong or [stopped], [], len(cards), judged=False)
    return Validation(done.files, [*wrong, *done.problems], done.notes, len(cards))


def validate_files(found: RecordFiles, root: Path, facts: FactBase, advance: Callable[[], object]) -> Validation:
    """Judge all files; `advance` is called after each."""
    verdicts = []
    for one in over_files(partial(_judge, root=root, facts=facts), found.files):
        verdicts.append(one)
        advance()
    done = accept(verdicts, committed_files(root), partial(_elsewhere, root=root, facts=facts))
    return Validation(len(found.files), sorted(done.problems, key=lambda pair: pair[0]), done.notes)


def _judge(path: Path, root: Path, facts: FactBase) -> Candidate:
    return judged(shown_path(path, root), judge(path, facts))


def _elsewhere(result_id: str, root: Path, facts: FactBase) -> Candidate | None:
    """Return the submission of a result id in the checkout, for it may not be among the files that are validated."""
    for path in sorted((root / SUBMISSIONS).glob(f"*/*-{result_id}.json")):
        one = _judge(path, root, facts)
        if not one.problems and one.result_id == result_id:
            return one
    return None


def judged(file: str, verdict: Verdict) -> Candidate:
    """Return what is to be known of a judged file when it meets the others."""
    record = verdict.record
    if not isinstance(record, Submission):
        return Candidate(file, verdict.problems)
    # The name decides the card, and is there also when the device had no card yet.
    subject = {"workload": record.workload, "device": record.environment.devices[0].name}
    return Candidate(file, verdict.problems, record.run_id, verdict.result_id, record.supersedes, subject, verdict.outdated)
