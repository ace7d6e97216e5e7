"""The verdict on many files: each by itself, then all together."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tunemark.collector.fact_files import document_problems, fact_problems
from tunemark.collector.judging import judge
from tunemark.collector.loading import judged
from tunemark.collector.pool import over_files
from tunemark.collector.record_files import SUBMISSIONS, Found, shown_path
from tunemark.collector.together import FileProblems, Loaded, accept, committed_files
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.upgrade import Problem


@dataclass(frozen=True, slots=True)
class Validated:
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


def validate_all(found: Found, cards: Sequence[Path], root: Path, facts: FactBase, advance: Callable[[], object]) -> Validated:
    """Check files of facts first, then the records against them: wrong facts would make every record wrong."""
    wrong = [*fact_problems(cards, root), *document_problems(found.files, root)]
    try:
        facts.read_all()
        done = validate_files(found, root, facts, advance)
    except TunemarkError as error:
        # The card that stops here may be in a file that was not asked for.
        stopped = (error.field, Problem("file", repr(error.value) if error.value else "", error.fix))
        return Validated(0, wrong or [stopped], [], len(cards), judged=False)
    return Validated(done.files, [*wrong, *done.problems], done.notes, len(cards))


def validate_files(found: Found, root: Path, facts: FactBase, advance: Callable[[], object]) -> Validated:
    """Judge all files; `advance` is called after each."""
    verdicts = []
    for one in over_files(partial(_judge, root=root, facts=facts), found.files):
        verdicts.append(one)
        advance()
    done = accept(verdicts, committed_files(root), partial(_elsewhere, root=root, facts=facts))
    return Validated(len(found.files), sorted(done.problems, key=lambda pair: pair[0]), done.notes)


def _judge(path: Path, root: Path, facts: FactBase) -> Loaded:
    return judged(shown_path(path, root), judge(path, facts))


def _elsewhere(result_id: str, root: Path, facts: FactBase) -> Loaded | None:
    """Return the submission of a result id in the checkout, for it may not be among the files that are validated."""
    for path in sorted((root / SUBMISSIONS).glob(f"*/*-{result_id}.json")):
        one = _judge(path, root, facts)
        if not one.problems and one.result_id == result_id:
            return one
    return None
