"""The verdict on many files: each by itself, then all together."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tunemark.collector.judging import judge
from tunemark.collector.loading import Loaded, refuse_repeats
from tunemark.collector.pool import over_files
from tunemark.collector.record_files import Found, shown_path
from tunemark.schema.facts import FactBase
from tunemark.schema.history import Problem
from tunemark.schema.submission import Submission


@dataclass(frozen=True, slots=True)
class Validated:
    """What validation found."""

    files: int
    """Files that were judged."""
    problems: list[tuple[str, Problem]]
    """Each problem with its file, in the order of files."""

    @property
    def invalid(self) -> int:
        """Files with a problem."""
        return len({file for file, _ in self.problems})


def validate_files(found: Found, root: Path, facts: FactBase, advance: Callable[[], object]) -> Validated:
    """Judge all files; `advance` is called after each."""
    judged = []
    for one in over_files(partial(_judge, root=root, facts=facts), found.files):
        judged.append(one)
        advance()
    _, repeats = refuse_repeats(one for one in judged if one.run_id)
    problems = [(one.file, problem) for one in judged if not one.run_id for problem in one.problems]
    return Validated(len(found.files), sorted([*problems, *repeats], key=lambda pair: pair[0]))


def _judge(path: Path, root: Path, facts: FactBase) -> Loaded:
    verdict = judge(path, facts)
    run_id = verdict.record.run_id if isinstance(verdict.record, Submission) else ""
    return Loaded(shown_path(path, root), verdict.problems, run_id)
