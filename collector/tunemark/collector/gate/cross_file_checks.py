"""Checks that need several submissions or their checkout: repeated runs, copies, superseded results, peers, commits, changed facts."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import sqrt
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from tunemark.collector.gate.read import SUBMISSIONS
from tunemark.schema.derive import Derived
from tunemark.schema.files import git_or_none
from tunemark.schema.formats import GIB
from tunemark.schema.records.reading import Problem
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.vocabulary import Status

FEWEST_STEPS = 16
"""Steps from which two runs of a clock with coarse ticks can be told apart by the times that they share."""
FEWEST_EQUAL = 4
"""Steps from which a run is the same as another one if all of its times are."""
SAME_VALUES = 0.45
"""Share of the step times, to the nanosecond, that a copy in another order has in common."""
SAME_MARKS, MOST_LIKELY = 3, 5
"""Times of phases, rates of the probe and other readings with many digits that a copy has in common."""
LARGE = 1e6  # Smaller values have digits beyond the third decimal place, larger ones below the thousands.


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies a measurement."""

    values: tuple[int, ...] = ()
    """All step times in nanoseconds: two measurements share almost none, in whatever order."""
    marks: frozenset[float] = frozenset()
    """Readings with many digits: the times of the phases and of the whole run, the rates of the probe, power and energy."""


def identity_of(submission: Submission) -> Identity:
    """Return the fingerprints of the measurement of a submission."""
    times = np.round(np.asarray(submission.trace.step_times_s) * 1e9).astype(int).tolist()
    return Identity(tuple(times), readings(submission))


def readings(submission: Submission) -> frozenset[float]:
    """Return the readings that no two runs share."""
    probe, use, process = submission.probe, submission.utilisation, submission.process
    found = {mark.at_s for mark in submission.timeline} | {process.wall_s}
    if probe is not None:
        found |= {probe.before_flop_per_s, probe.after_flop_per_s or 0.0}
    if use is not None:
        energy = (use.energy.joules, use.energy.window_s, use.energy.idle_w) if use.energy else ()
        each = (reading for device in use.devices for reading in (device.power_mean_w, device.clock_mean_mhz, device.busy_mean))
        found |= {value or 0.0 for value in (*energy, *each, use.cpu_busy_mean, use.foreign_cpu_busy_mean)}
    # Those with few digits can be equal by chance.
    return frozenset(value for value in found if value != round(value, 3 if value < LARGE else -3))


def _same_steps(one: Sequence[int], other: Sequence[int], shared: int) -> bool:
    """Return True if two runs have all step times in common, or more of them than runs seldom share where a clock has coarse ticks.

    Equal times within the runs tell the number of ticks that their times cover: b = (n^2 + m^2) / (2 x equal), and of n and m times
    n x m / b are shared on average. Both are taken with five standard deviations.
    """
    n, m = len(one), len(other)
    equal = n + m - len(set(one)) - len(set(other))
    expected = 2 * n * m * (equal + 4 * sqrt(equal) + 8) / (n * n + m * m)
    by_chance = max(SAME_VALUES * n, expected + 5 * sqrt(expected))
    return n >= FEWEST_EQUAL if one == other else n >= FEWEST_STEPS and shared > by_chance


def copies(identities: Iterable[tuple[str, Identity]]) -> Iterator[tuple[str, str]]:
    """Yield (name, earlier name) of each measurement that is a copy of an earlier one in the list."""
    known, timed, marked = dict[str, Identity](), defaultdict[int, list[str]](list), defaultdict[float, list[str]](list)
    for name, identity in identities:
        in_times = Counter(other for value in set(identity.values) for other in timed.get(value, ()))
        in_marks = Counter(other for mark in identity.marks for other in marked.get(mark, ()))
        originals = [
            *(other for other, count in in_times.most_common(MOST_LIKELY) if _same_steps(identity.values, known[other].values, count)),
            *(other for other, count in in_marks.most_common(1) if count >= SAME_MARKS),
        ]
        if originals:
            yield name, originals[0]
            continue
        known[name] = identity
        for value in set(identity.values):
            timed[value].append(name)
        for mark in identity.marks:
            marked[mark].append(name)


CLOCK = timedelta(days=1)
"""Clocks are often wrong by hours but seldom by days."""
FileProblems = list[tuple[str, Problem]]
"""Problems, each with its file."""
CONFIRMED_BY = "the record stays valid, and a second run can confirm it"
"""How an accepted submission that is unlikely is marked."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking one file."""

    problems: tuple[Problem, ...] = ()
    """Reasons to reject the file; empty if it is valid."""
    record: BaseModel | None = None
    """The record; null if it could not be read."""
    derived: Derived | None = None
    """Headline numbers of a submission; null if they cannot be derived."""
    result_id: str = ""
    """First digits of the hash of the file's bytes."""
    sha256: str = ""
    outdated: tuple[Problem, ...] = ()
    """Changes of the facts since a submission was measured: notes for a committed file, problems for any other."""
    doubts: tuple[Problem, ...] = ()
    """Why an accepted submission needs a second run."""
    file: str = ""
    identity: Identity = field(default_factory=Identity)

    def candidate(self, file: str) -> "Verdict":
        """Return the verdict in the form that the cross-file checks use: a submission without its steps, and no other record."""
        if not isinstance(self.record, Submission):
            return Verdict(self.problems, file=file)
        without_steps = self.record.model_copy(update={"trace": StepTrace(), "ranks": ()})
        return replace(self, record=without_steps, derived=None, file=file, identity=identity_of(self.record))

    @property
    def run(self) -> Submission:
        """The submission of a file that was accepted."""
        if not isinstance(self.record, Submission):
            raise TypeError(self.file)
        return self.record


@dataclass(frozen=True, slots=True)
class Accepted:
    """The verdict of the cross-file checks."""

    kept: list[Verdict]
    """Submissions without a problem, in the order of files."""
    problems: FileProblems
    """Reasons why the others are rejected."""
    notes: FileProblems
    """Changes of the facts since submissions that are kept."""
    doubts: FileProblems
    """Why submissions that are kept need a second run."""


def accept(candidates: Sequence[Verdict], committed: frozenset[str], others: Sequence[Verdict] = (), root: Path | None = None) -> Accepted:
    """Return the submissions that are kept, and the problems of the others.

    `candidates` were each checked on their own already. `committed` holds the paths, as `Verdict.file`, that git tracks, and
    `others` the valid submissions of the checkout that are not among the candidates. A committed file comes before any other, so
    that a copy of its run under an earlier name cannot displace it. With `root`, commits are looked up in the history of that checkout.
    """
    ordered = [*others, *sorted(candidates, key=lambda each: each.file not in committed)]
    settled = committed | {each.file for each in others}
    copied = dict(copies([(each.file, each.identity) for each in ordered if each.record and not each.problems]))
    seen, valid, problems = dict[str, Verdict](), list[Verdict](), list[tuple[str, Problem]]()
    for candidate in ordered:
        new = candidate.file not in settled
        own = [*candidate.problems, *(candidate.outdated if new else ())]
        if candidate.record is not None and not own:
            own = _seen_before(candidate, seen, copied.get(candidate.file) if new else None)
            if not own:
                seen[candidate.run.run_id] = seen[candidate.result_id] = candidate
                valid.append(candidate)
        problems.extend((candidate.file, problem) for problem in own)
    wrong = [(candidate, problem) for candidate, problem in _studies(valid) if candidate.file not in settled]
    wrong += _replacing(valid)
    problems += [(candidate.file, problem) for candidate, problem in wrong]
    refused = {candidate.file for candidate, _ in wrong}
    kept = [each for each in candidates if each.record and seen.get(each.run.run_id) is each and each.file not in refused]
    doubts = [(candidate.file, doubt) for candidate in kept for doubt in candidate.doubts]
    doubts += [] if root is None else _unknown_commits(kept, root)
    return Accepted(kept, problems, [(candidate.file, note) for candidate in kept for note in candidate.outdated], doubts)


def _seen_before(candidate: Verdict, seen: Mapping[str, Verdict], original: str | None) -> list[Problem]:
    """Return the reason for which a run is one that was seen already, as a problem; `original` is the file of which it is a copy."""
    if same := seen.get(run_id := candidate.run.run_id):
        return [Problem("run_id", repr(run_id), f"is the run of {same.file} already; a run is submitted once")]
    if same := seen.get(candidate.result_id):
        return [Problem("file", candidate.result_id, f"is the id of {same.file} already; two results cannot share an id")]
    fix = f"its readings are those of {original}; submit a measurement of your own"
    return [] if original is None else [Problem("trace.completed_at_s", "a copy", fix)]


def _replacing(accepted: Iterable[Verdict]) -> Iterator[tuple[Verdict, Problem]]:
    """Yield results that take the place of another one without the right to."""
    results = {candidate.result_id: candidate for candidate in accepted}
    replaced: dict[str, Verdict] = {}
    for candidate in results.values():
        replaces = candidate.run.supersedes
        if replaces is not None:
            problems = list(_superseding(candidate.run, results.get(replaces), replaced))
            yield from ((candidate, problem) for problem in problems)
            if not problems:
                replaced[replaces] = candidate


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


def known_commits(root: Path) -> dict[str, datetime] | None:
    """Return the commits of the repository with their times, or None without its whole history."""
    log = git_or_none(root, "log", "--all", "--format=%H %ct") if _has_whole_history(root) else None
    pairs = map(str.split, (log or "").splitlines())
    return None if log is None else {commit: datetime.fromtimestamp(int(time), UTC) for commit, time in pairs}


def _superseding(run: Submission, replaced: Verdict | None, known: dict[str, Verdict]) -> Iterator[Problem]:
    """Yield each reason why a run cannot take the place of a result; `known` holds the results that others replace."""
    shown = repr(run.supersedes)
    if replaced is None:
        yield Problem("supersedes", shown, "there is no valid result of this id in submissions; name one, or write null")
        return
    target = replaced.run
    for name, of in SUBJECT.items():
        value, other = of(run), of(target)
        if value != other:
            what = f"its {name} is {other!r}, but this run has {value!r}" if name != "plan" else "its plan has other settings"
            yield Problem("supersedes", shown, f"{what}; only a run of the same plan on the same machine replaces a result")
    if target.outcome.status is Status.OK and run.outcome.status is not Status.OK:
        yield Problem("supersedes", shown, "it succeeded, and this run did not; only a run that got at least as far can replace a result")
    if run.started_at <= target.started_at:
        yield Problem("supersedes", shown, f"it began later, at {target.started_at:%Y-%m-%d %H:%M}; only a newer run replaces a result")
    if replaced.result_id in known:
        fix = f"{known[replaced.result_id].file} supersedes it already; supersede that one"
        yield Problem("supersedes", shown, fix)
    if not (run.supersedes_reason or "").strip():
        yield Problem("supersedes_reason", "null", "say why the earlier result is replaced")


def _machine(run: Submission) -> str:
    e = run.environment
    devices = ", ".join(f"{device.name} {(device.memory_bytes or 0) / GIB:.0f} GiB" for device in e.devices)
    return f"{e.cpu}, {e.cpu_physical_cores} of {e.cpu_logical_cores} cores, {e.memory_bytes / GIB:.0f} GiB, {devices}"


SUBJECT: dict[str, Callable[[Submission], object]] = {
    "workload": lambda run: run.plan.workload,
    "device": lambda run: run.environment.devices[0].name,
    "machine": _machine,
    "plan": lambda run: run.plan.settings,
}
"""What a result and the one that it supersedes share."""


def _studies(accepted: Iterable[Verdict]) -> Iterator[tuple[Verdict, Problem]]:
    """Yield runs that contradict an earlier run of the same study, which has one request."""
    first: dict[str, tuple[str, tuple[str, ...]]] = {}
    for candidate in sorted(accepted, key=lambda each: each.run.started_at):
        if (study := candidate.run.study) is None:
            continue
        request = (study.kind, study.settings_sha256, candidate.run.plan.workload)
        file, known = first.setdefault(study.study_id, (candidate.file, request))
        if request != known:
            fix = f"{file} is of the same study, with another kind or other settings; a study has one of each"
            yield candidate, Problem("study.settings_sha256", study.settings_sha256, fix)


def _unknown_commits(kept: Sequence[Verdict], root: Path) -> Iterator[tuple[str, Problem]]:
    """Yield commits of the harness that the repository does not have, or that were made after the run."""
    known = known_commits(root)
    if known is None:
        return
    for candidate in kept:
        commit, started_at = candidate.run.harness.commit, candidate.run.started_at
        if commit is not None and commit not in known:
            yield candidate.file, Problem("harness.commit", repr(commit), "is not in the history of this repository")
        elif commit is not None and known[commit] > started_at + CLOCK:
            fix = f"was made on {known[commit]:%Y-%m-%d}, after the run on {started_at:%Y-%m-%d}"
            yield candidate.file, Problem("harness.commit", repr(commit), fix)
