"""What shows only when submissions are seen together and in their checkout: repeats, replacements, facts that changed since."""

import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tunemark.collector.record_files import SUBMISSIONS
from tunemark.collector.rows import Row
from tunemark.schema.records.upgrade import Problem

if TYPE_CHECKING:
    import pyarrow as pa

    from tunemark.collector.audit.evidence import AuditedResult as Run
    from tunemark.collector.throughput_observed import Lesson

FileProblems = list[tuple[str, Problem]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one submission file gave."""

    file: str
    problems: tuple[Problem, ...]
    run_id: str = ""
    """Empty for what is no submission."""
    result_id: str = ""
    supersedes: str | None = None
    subject: dict[str, str] = field(default_factory=dict)
    """What a result has in common with one that it supersedes, by dotted path."""
    outdated: tuple[Problem, ...] = ()
    """What the facts have changed since: a note on a committed file, a problem of any other."""
    headline: Row = field(default_factory=dict)
    """Its row of `result_rows`."""
    tables: "dict[str, pa.Table]" = field(default_factory=dict)
    """Its rows of all other tables."""
    run: "Run | None" = None
    """The result as the audit sees it."""
    taught: "Lesson | None" = None
    """What it teaches the model of throughput."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The verdict on files together."""

    kept: list[Loaded]
    """Submissions without a problem, in the order of files."""
    problems: FileProblems
    """Why the others are refused."""
    notes: FileProblems
    """What is to be known of those that are kept."""


Find = Callable[[str], Loaded | None]


def accept(loaded: Iterable[Loaded], committed: frozenset[str], find: Find = lambda _: None) -> Accepted:
    """Return which submissions are kept.

    Parameters
    ----------
    loaded
        The files, each judged by itself.
    committed
        Paths, as `Loaded.file`, that are in the repository already.
    find
        Returns the submission of a result id that is not among the files, or None.

    """
    runs: dict[str, Loaded] = {}
    results: dict[str, Loaded] = {}
    problems: FileProblems = []
    for one in loaded:
        alone = [*one.problems, *(() if one.file in committed else one.outdated)]
        found = alone or list(_repeats(one, runs.get(one.run_id), results.get(one.result_id)))
        problems.extend((one.file, problem) for problem in found)
        if not found and one.run_id:
            runs[one.run_id] = results[one.result_id] = one
    replacing = {one.file: list(_superseding(one, results.get(one.supersedes or ""), find)) for one in runs.values()}
    kept = [one for one in runs.values() if not replacing[one.file]]
    problems.extend((file, problem) for file, found in replacing.items() for problem in found)
    return Accepted(kept, problems, [(one.file, note) for one in kept for note in one.outdated])


def committed_files(root: Path) -> frozenset[str]:
    """Return the submissions that git has of a checkout, as paths from its root; empty without git."""
    git = shutil.which("git")
    if git is None:
        return frozenset()
    command = [git, "-C", str(root), "ls-files", "-z", "--", SUBMISSIONS]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)  # noqa: S603 - fixed arguments
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(done.stdout.decode(errors="replace").split("\0")) - {""}


def _repeats(one: Loaded, run: Loaded | None, result: Loaded | None) -> Iterator[Problem]:
    """Yield a problem when the run, or another with the same id, was there before."""
    if run is not None:
        yield Problem("run_id", repr(one.run_id), f"is the run of {run.file} already; a run is submitted once")
    elif result is not None:
        yield Problem("file", one.result_id, f"is the id of {result.file} already; two results cannot share an id")


def _superseding(one: Loaded, target: Loaded | None, find: Find) -> Iterator[Problem]:
    """Yield a problem when a submission supersedes what is not there, or what is not its own kind."""
    if one.supersedes is None:
        return
    target = target or find(one.supersedes)
    if target is None:
        yield Problem("supersedes", repr(one.supersedes), "there is no valid result of this id in submissions; name one, or write null")
        return
    for name, value in one.subject.items():
        if target.subject.get(name) != value:
            fix = f"its {name} is {target.subject.get(name)!r}, that of this run {value!r}; only a run of the same workload on the same device replaces a result"
            yield Problem("supersedes", repr(one.supersedes), fix)
