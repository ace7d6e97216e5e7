"""Checks of one or many files: read, validate, re-derive, and compare with the facts and each other.

Invalid content never raises an exception; it becomes a problem in the verdict.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tunemark.collector.gate.cross_file_checks import CONFIRMED_BY, FileProblems, Verdict, accept, committed_files
from tunemark.collector.gate.derive import ORIGINAL, derived_problems, outdated_facts
from tunemark.collector.gate.fact_checks import Neighbours
from tunemark.collector.gate.fact_files import document_problems, fact_problems
from tunemark.collector.gate.published_checks import fact_record_problems
from tunemark.collector.gate.read import SUBMISSIONS, read_or_none, records_in, shown_path
from tunemark.collector.gate.relations import doubts, relation_problems
from tunemark.collector.gate.run_facts import Run
from tunemark.collector.gate.text_checks import text_problems
from tunemark.schema.derive import Derived, derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import data_folder
from tunemark.schema.formats import MIB
from tunemark.schema.records.base import canonical_json, content_id
from tunemark.schema.records.reading import InvalidRecord, Problem, read_record
from tunemark.schema.records.submission import LATER_FIELDS, Submission, submission_name

LARGEST_FILE_BYTES = 16 * MIB
"""About 250,000 steps, more than any submission has."""


def judge(path: Path, facts: FactBase) -> Verdict:
    """Return the verdict on a file, whatever its bytes are."""
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
        # Bounds say what a field must be, and not what to do about a record that was not written by hand.
        bounds = [each for each in error.problems if each.fix.startswith("must be") and b'"tunemark.submission/' in content]
        return Verdict(tuple(replace(each, fix=f"{each.fix}; {ORIGINAL}") if each in bounds else each for each in error.problems))
    except (ValueError, TypeError, RecursionError) as error:
        # Infinite numbers written as 1e999 and the like get past the JSON parser.
        return Verdict((Problem("file", "", f"cannot be read as a record: {error}"),))
    problems: list[Problem] = []
    derived = None
    found: tuple[Problem, ...] = ()
    outdated: tuple[Problem, ...] = ()
    if isinstance(record, Submission):
        outdated = tuple(outdated_facts(record, facts))
        try:
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                derived = derive(record)
            problems = list(_submission_problems(record, derived, content, path, facts))
        except (ArithmeticError, ValueError, IndexError, MemoryError) as error:
            problems.append(Problem("trace", "", f"the headline numbers cannot be derived from it: {error}"))
        if derived is not None and not problems:
            found = tuple(_without_raising(doubts(Run(record, facts, derived))))
    elif SUBMISSIONS in path.absolute().parts[:-1]:
        problems = [Problem("format", repr(getattr(record, "format", None)), "is not a submission; other records are in data/")]
    else:
        problems = list(_without_raising(fact_record_problems(record, content, path, facts)))
    return Verdict(tuple(problems), record, derived, content_id(content), hashlib.sha256(content).hexdigest(), outdated, found)


def _submission_problems(record: Submission, derived: Derived, content: bytes, path: Path, facts: FactBase) -> Iterator[Problem]:
    if content not in {canonical_json(record), canonical_json(record.model_dump(mode="json", by_alias=True, exclude=LATER_FIELDS))}:
        fix = "its bytes are not as `tunemark run` writes them (sorted keys, indent 1, one newline at the end); restore the original file"
        yield Problem("file", "", fix)
    parts, expected = path.absolute().parts, (record.plan.workload, submission_name(record, content_id(content)))
    if SUBMISSIONS in parts[:-1]:
        inside = parts[len(parts) - parts[::-1].index(SUBMISSIONS) :]
        if inside != expected:
            fix = "a submission is named after its workload, day, device and content. If the content was changed, restore it or run again; "
            fix += f"if only the name was changed, rename it to {'/'.join((SUBMISSIONS, *expected))}"
            yield Problem("file name", repr("/".join((SUBMISSIONS, *inside))), fix)
    yield from _without_raising(text_problems(record.model_dump(mode="json")))
    yield from _without_raising(derived_problems(record, derived, facts))
    yield from _without_raising(relation_problems(Run(record, facts, derived)))


def _without_raising(problems: Iterator[Problem]) -> Iterator[Problem]:
    """Yield problems; a check that fails refuses its file, and never stops the others."""
    try:
        with np.errstate(all="ignore"):
            yield from problems
    except TunemarkError as error:
        if error.exit_code is Exit.INVALID:
            # A fact is wrong, not this file.
            raise
        yield Problem(error.field, repr(error.value), error.fix)
    except Exception as error:  # noqa: BLE001 - whatever it is, the file is the reason
        yield Problem("file", "", f"a check could not be made: {type(error).__name__}: {error}; please report this file")


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of checking many files."""

    files: int
    """Number of records checked."""
    problems: FileProblems
    """Each problem with its file, in the order of files."""
    notes: FileProblems
    """Notes on valid files."""
    facts: int
    """Number of fact files checked."""
    judged: bool = True
    """False when wrong facts prevented checking the records."""

    @property
    def invalid(self) -> int:
        """Number of files with a problem."""
        return len({re.sub(r":\d+$", "", file) for file, _ in self.problems})


def validate_all(files: Sequence[Path], root: Path, facts: FactBase, cards: Sequence[Path] = ()) -> Validation:
    """Check the fact files `cards` first, then the records against them. Wrong facts would make every record wrong."""
    beside = Neighbours(data_folder(root))
    wrong = [*fact_problems(cards, root, beside), *document_problems(files, root, beside)]
    try:
        _ = facts.accelerators, facts.models, facts.workloads, facts.prices, facts.support, facts.known
        candidates = [judge(path, facts).candidate(shown_path(path, root)) for path in files]
        committed, given = committed_files(root), {candidate.file for candidate in candidates}
        # What a run takes the place of may not be committed yet.
        replaced = {each.record.supersedes for each in candidates if isinstance(each.record, Submission) and each.record.supersedes}
        own = records_in(root / SUBMISSIONS).files
        others = {shown_path(path, root) for path in own if replaced and content_id(path.read_bytes()) in replaced}
        unread = [root / file for file in sorted((committed | others) - given) if file.endswith(".json")]
        # Those that git tracks were checked when they were accepted.
        read = [(path, record) for path in unread if isinstance(record := read_or_none(path), Submission)]
        known = [Verdict((), record, None, content_id(path.read_bytes())).candidate(shown_path(path, root)) for path, record in read]
        accepted = accept(candidates, committed, known, root)
    except TunemarkError as error:
        # The invalid card may be in a file outside the files to check.
        stopped = (error.field, Problem("file", repr(error.value) if error.value else "", error.fix))
        return Validation(0, wrong or [stopped], [], len(cards), judged=False)
    problems = [*wrong, *sorted(accepted.problems, key=lambda pair: pair[0])]
    doubts = [(file, replace(doubt, fix=f"{doubt.fix}; {CONFIRMED_BY}")) for file, doubt in accepted.doubts]
    return Validation(len(files), problems, [*accepted.notes, *doubts], len(cards))
