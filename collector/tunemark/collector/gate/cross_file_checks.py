"""Checks that need several submissions or their checkout: repeated runs, superseded results, facts that have changed."""

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from tunemark.collector.gate.read import SUBMISSIONS
from tunemark.schema.records.upgrade import Problem

FileProblems = list[tuple[str, Problem]]
"""Problems, each with its file."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checked file, in the form that the cross-file checks use."""

    file: str
    problems: tuple[Problem, ...]
    run_id: str = ""
    """Empty for a file that is not a submission."""
    result_id: str = ""
    supersedes: str | None = None
    subject: dict[str, str] = field(default_factory=dict)
    """Properties that a superseded result must share, by name."""
    outdated: tuple[Problem, ...] = ()
    """Changes of the facts since the run: notes for a committed file, problems for any other."""


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)


@dataclass(frozen=True, slots=True)
class Accepted(Generic[AnyCandidate]):
    """The verdict of the cross-file checks."""

    kept: list[AnyCandidate]
    """Submissions without a problem, in the order of files."""
    problems: FileProblems
    """Reasons why the others are rejected."""
    notes: FileProblems
    """Notes on the submissions that are kept."""


def accept(
    candidates: Iterable[AnyCandidate], committed: frozenset[str], find: Callable[[str], Candidate | None] = lambda _: None
) -> Accepted[AnyCandidate]:
    """Return the submissions that are kept, and the problems of the others.

    `candidates` were each checked on their own already. `committed` holds the paths, as `Candidate.file`, that git tracks.
    `find` returns the submission with a result id that is not among the candidates, or None. A committed file comes before any
    other, so that a copy of its run under an earlier name cannot displace it.
    """
    runs: dict[str, AnyCandidate] = {}
    results: dict[str, AnyCandidate] = {}
    problems: FileProblems = []
    listed = list(candidates)
    for candidate in sorted(listed, key=lambda each: each.file not in committed):
        own = [*candidate.problems, *(() if candidate.file in committed else candidate.outdated)]
        same_run, same_result = runs.get(candidate.run_id), results.get(candidate.result_id)
        if not own and same_run is not None:
            own = [Problem("run_id", repr(candidate.run_id), f"is the run of {same_run.file} already; a run is submitted once")]
        elif not own and same_result is not None:
            own = [Problem("file", candidate.result_id, f"is the id of {same_result.file} already; two results cannot share an id")]
        problems.extend((candidate.file, problem) for problem in own)
        if not own and candidate.run_id:
            runs[candidate.run_id] = results[candidate.result_id] = candidate
    kept = []
    for candidate in (each for each in listed if runs.get(each.run_id) is each):
        replacing = list(_superseding(candidate, results.get(candidate.supersedes or ""), find))
        problems.extend((candidate.file, problem) for problem in replacing)
        if not replacing:
            kept.append(candidate)
    return Accepted(kept, problems, [(candidate.file, note) for candidate in kept for note in candidate.outdated])


def committed_files(root: Path) -> frozenset[str]:
    """Return the submissions that git tracks in a checkout, as paths from its root; empty without git."""
    git = shutil.which("git")
    if git is None:
        return frozenset()
    command = [git, "-C", str(root), "ls-files", "-z", "--", SUBMISSIONS]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)  # noqa: S603 - fixed arguments
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(done.stdout.decode(errors="replace").split("\0")) - {""}


def _superseding(candidate: Candidate, target: Candidate | None, find: Callable[[str], Candidate | None]) -> Iterator[Problem]:
    """Yield a problem if the superseded result does not exist or has another workload or device."""
    if candidate.supersedes is None:
        return
    target = target or find(candidate.supersedes)
    if target is None:
        fix = "there is no valid result of this id in submissions; name one, or write null"
        yield Problem("supersedes", repr(candidate.supersedes), fix)
        return
    for name, value in candidate.subject.items():
        replaced = target.subject.get(name)
        if replaced != value:
            fix = f"its {name} is {replaced!r}, but this run has {value!r}; only a run of the same workload on the same device replaces a result"
            yield Problem("supersedes", repr(candidate.supersedes), fix)
