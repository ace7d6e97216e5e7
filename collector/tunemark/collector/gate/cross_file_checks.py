"""Checks that need several submissions or their checkout: repeated runs, copies, superseded results, peers, commits, changed facts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from tunemark.collector.gate.identity import Identity, copies
from tunemark.collector.gate.read import SUBMISSIONS, git_or_none
from tunemark.schema.records.reading import Problem
from tunemark.schema.records.trace import Study

CLOCK = timedelta(days=1)
"""Clocks are often wrong by hours but seldom by days."""
FileProblems = list[tuple[str, Problem]]
"""Problems, each with its file."""
CONFIRMED_BY = "the record stays valid, and a second run can confirm it"
"""How an accepted submission that is unlikely is marked."""


class Subject(NamedTuple):
    """What a result and the one that it supersedes must share, as text by name."""

    workload: str = ""
    device: str = ""
    machine: str = ""
    plan: str = ""


NOTHING, UNKNOWN, LONG_AGO = Subject(), Identity(), datetime.min.replace(tzinfo=UTC)
HARNESS = "harness"
"""Folder of the harness in a commit."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checked file, in the form that the cross-file checks use."""

    file: str
    problems: tuple[Problem, ...]
    run_id: str = ""
    """Empty for a file that is not a submission."""
    result_id: str = ""
    supersedes: str | None = None
    reason: str | None = None
    """Why it supersedes another result."""
    subject: Subject = NOTHING
    finished: bool = True
    """True if the run succeeded."""
    study: Study | None = None
    """The study that the run belongs to; None for a run of its own."""
    started_at: datetime = LONG_AGO
    commit: str | None = None
    identity: Identity = UNKNOWN
    outdated: tuple[Problem, ...] = ()
    """Changes of the facts since the run: notes for a committed file, problems for any other."""
    doubts: tuple[Problem, ...] = ()
    """Why a submission that is accepted needs a second run."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The verdict of the cross-file checks."""

    kept: list[Candidate]
    """Submissions without a problem, in the order of files."""
    problems: FileProblems
    """Reasons why the others are rejected."""
    notes: FileProblems
    """Changes of the facts since submissions that are kept."""
    doubts: FileProblems
    """Why submissions that are kept need a second run."""


def accept(
    candidates: Sequence[Candidate], committed: frozenset[str], others: Sequence[Candidate] = (), root: Path | None = None
) -> Accepted:
    """Return the submissions that are kept, and the problems of the others.

    `candidates` were each checked on their own already. `committed` holds the paths, as `Candidate.file`, that git tracks, and
    `others` the valid submissions of the checkout that are not among the candidates. A committed file comes before any other, so
    that a copy of its run under an earlier name cannot displace it. With `root`, commits are looked up in the history of that checkout.
    """
    ordered = [*others, *sorted(candidates, key=lambda each: each.file not in committed)]
    settled = committed | {each.file for each in others}
    copied = dict(copies([(each.file, each.identity) for each in ordered if each.run_id and not each.problems]))
    seen, problems = _Seen(), list[tuple[str, Problem]]()
    for candidate in ordered:
        new = candidate.file not in settled
        own = [*candidate.problems, *(candidate.outdated if new else ())]
        own = own or list(seen.problems(candidate, copied.get(candidate.file), new=new))
        problems.extend((candidate.file, problem) for problem in own)
        if not own and candidate.run_id:
            seen.add(candidate)
    wrong = [(candidate, problem) for candidate, problem in _studies(seen.runs.values()) if candidate.file not in settled]
    wrong += _replacing(seen.runs.values())
    problems += [(candidate.file, problem) for candidate, problem in wrong]
    refused = {candidate.file for candidate, _ in wrong}
    kept = [each for each in candidates if seen.runs.get(each.run_id) is each and each.file not in refused]
    doubts = [(candidate.file, doubt) for candidate in kept for doubt in candidate.doubts]
    doubts += [] if root is None else _unknown_commits(kept, root)
    return Accepted(kept, problems, [(candidate.file, note) for candidate in kept for note in candidate.outdated], doubts)


@dataclass(frozen=True)
class _Seen:
    """The runs that were accepted so far."""

    runs: dict[str, Candidate] = field(default_factory=dict)
    results: dict[str, Candidate] = field(default_factory=dict)

    def add(self, candidate: Candidate) -> None:
        """Remember an accepted run."""
        self.runs[candidate.run_id] = self.results[candidate.result_id] = candidate

    def problems(self, candidate: Candidate, original: str | None, *, new: bool) -> Iterator[Problem]:
        """Yield why a run is one that was seen already; `original` is the file of which it is a copy."""
        same_run, same_result = self.runs.get(candidate.run_id), self.results.get(candidate.result_id)
        if same_run is not None:
            yield Problem("run_id", repr(candidate.run_id), f"is the run of {same_run.file} already; a run is submitted once")
        elif same_result is not None:
            yield Problem("file", candidate.result_id, f"is the id of {same_result.file} already; two results cannot share an id")
        elif new and original is not None:
            fix = f"its readings are those of {original}; submit a measurement of your own"
            yield Problem("trace.completed_at_s", "a copy", fix)


def _replacing(accepted: Iterable[Candidate]) -> Iterator[tuple[Candidate, Problem]]:
    """Yield results that take the place of another one without the right to."""
    results = {candidate.result_id: candidate for candidate in accepted}
    replaced: dict[str, Candidate] = {}
    for candidate in results.values():
        if candidate.supersedes is not None:
            problems = list(_superseding(candidate, results.get(candidate.supersedes), replaced))
            yield from ((candidate, problem) for problem in problems)
            if not problems:
                replaced[candidate.supersedes] = candidate


def committed_files(root: Path) -> frozenset[str]:
    """Return the submissions that git tracks in a checkout, as paths from its root; empty without git."""
    tracked = git_or_none(root, "ls-files", "-z", "--", SUBMISSIONS)
    return frozenset((tracked or "").split("\0")) - {""}


def submitters(root: Path) -> dict[str, str]:
    """Return who added each submission, by its path from the root: the author of that commit. Empty without git or its whole history."""
    if not _has_whole_history(root):
        return {}
    log = git_or_none(root, "log", "--diff-filter=A", "--no-renames", "--name-only", "--relative", "--format=%x01%aE", "--", SUBMISSIONS)
    added: dict[str, str] = {}
    author = ""
    for line in (log or "").splitlines():
        if line.startswith("\x01"):
            author = line[1:]
        elif line:
            added[line] = author
    return added


def _has_whole_history(root: Path) -> bool:
    return git_or_none(root, "rev-parse", "--is-shallow-repository") == "false"


def changed_submissions(root: Path) -> list[str]:
    """Return the submissions of the last commit that are changed or gone in the working tree."""
    changed = git_or_none(root, "diff", "--name-only", "-z", "--no-renames", "--diff-filter=DMT", "HEAD", "--", SUBMISSIONS)
    return sorted(set((changed or "").split("\0")) - {""})


def known_commits(root: Path, commits: Sequence[str]) -> dict[str, datetime | None]:
    """Return the commits that the checkout's history has, with their times, and that hold the harness.

    Without a complete history, return all commits without times.
    """
    unknown: dict[str, datetime | None] = dict.fromkeys(commits)
    if not _has_whole_history(root):
        return unknown
    asked = "".join(f"{commit}^{{commit}}\n{commit}:{HARNESS}\n" for commit in commits)
    found = git_or_none(root, "cat-file", "--batch-check", content=asked.encode())
    if found is None:
        return unknown
    lines = found.splitlines()
    pairs = zip(commits, lines[::2], lines[1::2], strict=False)
    known = [commit for commit, line, folder in pairs if " commit " in line and " tree " in folder]
    times = git_or_none(root, "log", "--no-walk=unsorted", "--format=%ct", *known) if known else ""
    made_at = [datetime.fromtimestamp(int(time), UTC) for time in (times or "").split()]
    return dict(zip(known, made_at, strict=False))


def _superseding(candidate: Candidate, target: Candidate | None, replaced: dict[str, Candidate]) -> Iterator[Problem]:
    """Yield each reason why a result cannot take the place of another one."""
    shown = repr(candidate.supersedes)
    if target is None:
        yield Problem("supersedes", shown, "there is no valid result of this id in submissions; name one, or write null")
        return
    for name, value, replaced_value in zip(Subject._fields, candidate.subject, target.subject, strict=True):
        if replaced_value != value:
            what = f"its {name} is {replaced_value!r}, but this run has {value!r}" if name != "plan" else "its plan has other settings"
            yield Problem("supersedes", shown, f"{what}; only a run of the same plan on the same machine replaces a result")
    if target.finished and not candidate.finished:
        yield Problem("supersedes", shown, "it succeeded, and this run did not; only a run that got at least as far can replace a result")
    if candidate.started_at <= target.started_at:
        yield Problem("supersedes", shown, f"it began later, at {target.started_at:%Y-%m-%d %H:%M}; only a newer run replaces a result")
    if target.result_id in replaced:
        fix = f"{replaced[target.result_id].file} supersedes it already; supersede that one"
        yield Problem("supersedes", shown, fix)
    if not (candidate.reason or "").strip():
        yield Problem("supersedes_reason", "null", "say why the earlier result is replaced")


def _studies(accepted: Iterable[Candidate]) -> Iterator[tuple[Candidate, Problem]]:
    """Yield runs that contradict an earlier run of the same study, which has one request."""
    first: dict[str, tuple[str, tuple[str, ...]]] = {}
    in_time = sorted(((each, each.study) for each in accepted if each.study is not None), key=lambda pair: pair[0].started_at)
    for candidate, study in in_time:
        request = (study.kind, study.settings_sha256, candidate.subject.workload)
        file, known = first.setdefault(study.study_id, (candidate.file, request))
        if request != known:
            fix = f"{file} is of the same study, with another kind or other settings; a study has one of each"
            yield candidate, Problem("study.settings_sha256", study.settings_sha256, fix)


def _unknown_commits(kept: Sequence[Candidate], root: Path) -> Iterator[tuple[str, Problem]]:
    """Yield commits of the harness that the repository does not have, or that were made after the run."""
    commits = sorted({candidate.commit for candidate in kept if candidate.commit})
    known = known_commits(root, commits) if commits else {}
    for candidate in kept:
        made_at = known.get(candidate.commit or "")
        if candidate.commit and candidate.commit not in known:
            yield candidate.file, Problem("harness.commit", repr(candidate.commit), "is not in the history of this repository")
        elif made_at is not None and made_at > candidate.started_at + CLOCK:
            fix = f"was made on {made_at:%Y-%m-%d}, after the run on {candidate.started_at:%Y-%m-%d}"
            yield candidate.file, Problem("harness.commit", repr(candidate.commit), fix)
