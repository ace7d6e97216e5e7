"""Check a pull request as data: its files are read from git objects by the code of the base, and never checked out.

A pull request may add submissions. Every other change needs a maintainer, and a change of an existing submission is refused.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tunemark.collector.gate.check import LARGEST_FILE_BYTES, judge, validate_all
from tunemark.collector.gate.cross_file_checks import FileProblems
from tunemark.collector.gate.read import SUBMISSIONS, records_in, shown_path, submission_id
from tunemark.collector.store.result_rows import measured_rows
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import git, git_text
from tunemark.schema.formats import MIB, counted
from tunemark.schema.records.reading import Problem
from tunemark.schema.records.submission import Submission
from tunemark.schema.safe_text import terminal

PLACE = re.compile(rf"{SUBMISSIONS}/[a-z0-9][a-z0-9._-]{{0,99}}/[0-9]{{8}}-[a-z0-9][a-z0-9._-]{{0,99}}-[0-9a-f]{{12}}\.json")
"""Path of a submission, as `tunemark run` writes it."""
NOTHING = "nothing to check"
FILE_MODE = "100644"
MODES = {"120000": "a symbolic link", "100755": "an executable", "160000": "a submodule", "000000": "a removed file"}
MOST_FILES = 100
"""Submissions in a pull request. A person has to look at them."""
MOST_BYTES = 64 * MIB
"""Of all submissions of a pull request together."""
MOST_CHANGES = 2_000
"""Changes that are listed one by one."""


@dataclass(frozen=True, slots=True)
class Change:
    """A changed path of a pull request, from git's own list."""

    path: str
    status: str
    """Git's letter: A added, M modified, D deleted, T another type."""
    mode: str
    """Mode in the head, such as 100644."""
    blob: str
    """Hash of the content in the head."""


def check(root: Path, base: str, head: str, facts: FactBase, remarks: Callable[[list[Path]], Iterable[tuple[Path, str]]]) -> dict[str, Any]:
    """Return the report on the changes between two commits of a repository, as JSON values. `root` is a checkout of the base.

    `remarks` gives those of the audit on files. The verdict is `accepted`, `refused`, `needs a maintainer`, which people decide, or `nothing to check` without any change.
    """
    changed = changes(root, base, head)
    looked_at, place = changed[:MOST_CHANGES], f"{SUBMISSIONS}/"
    maintainer = [{"path": terminal(each.path), "reason": "is not a submission"} for each in looked_at if not each.path.startswith(place)]
    if len(changed) > MOST_CHANGES:
        maintainer.append({"path": f"{len(changed) - MOST_CHANGES:,} further paths", "reason": "were not looked at"})
    added, problems = _sorted_out(root, [change for change in looked_at if change.path.startswith(place)])
    with TemporaryDirectory() as folder:
        written = {_write(root, change, Path(folder)): change.path for change in added}
        # The results of the base are compared with, and not checked again.
        done = validate_all(sorted(written), root, facts)
        names = {shown_path(path, root): change for path, change in written.items()}
        invalid = [(names[file], problem) for file, problem in done.problems if file in names] if done.judged else done.problems
        bad = {file for file, _ in invalid}
        accepted = [path for path, name in written.items() if done.judged and name not in bad]
        doubts: dict[str, list[str]] = defaultdict(list)
        said = [(names.get(file, file), note.text) for file, note in done.notes]
        for file, text in (*said, *((written[path], text) for path, text in remarks(accepted))):
            doubts[file].append(text)
        files = [{"path": written[path], "notes": doubts[written[path]], **_headline(path, facts)} for path in accepted]
    refused = [{"path": file, **asdict(problem)} for file, problem in (*problems, *invalid)]
    verdict = "refused" if refused else "needs a maintainer" if maintainer else "accepted" if files else NOTHING
    return {
        "format": "tunemark.pull-request/1",
        "verdict": verdict,
        "base": base,
        "head": head,
        "changes": len(changed),
        "compared_with": len(records_in(root / SUBMISSIONS).files),
        "files": files,
        "refused": refused,
        "maintainer": maintainer,
    }


# Changes, from git ------------------------------------------------------------------------------------


def changes(root: Path, base: str, head: str) -> list[Change]:
    """Return the changes of a head since it left the base. Nothing of the head is run, filtered or written."""
    first, last = _commit(root, base), _commit(root, head)
    fork_point = git(root, "merge-base", first, last).decode().strip()
    listed = git(root, "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-ext-diff", "--no-textconv", fork_point, last)
    parts = listed.decode(errors="surrogateescape").split("\0")
    found = []
    for entry, path in zip(parts[::2], parts[1::2], strict=False):
        _, mode, _, blob, status = entry.removeprefix(":").split(" ")
        found.append(Change(path, status[:1], mode, blob))
    return found


def _commit(root: Path, name: str) -> str:
    try:
        return git_text(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except TunemarkError as error:
        raise TunemarkError("--pull-request", name, "is no commit of this repository; give the commits as BASE..HEAD") from error


def _sorted_out(root: Path, changed: Sequence[Change]) -> tuple[list[Change], FileProblems]:
    """Return the submissions to check, and the first problem of each other change under submissions/."""
    added: list[Change] = []
    problems: FileProblems = []
    total = 0
    for change in changed:
        size = int(git(root, "cat-file", "-s", change.blob)) if change.mode in {FILE_MODE, "100755", "120000"} else 0
        total += size
        problem = next(starmap(Problem, _place_problems(change, size, total, len(added))), None)
        if problem is None:
            added.append(change)
        else:
            problems.append((terminal(change.path), problem))
    return added, problems


def _place_problems(change: Change, size: int, total: int, before: int) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value, fix) for what is wrong with a change under submissions/, without reading its content."""
    if change.status != "A":
        words = {"M": "changed", "D": "removed", "T": "replaced by another type"}.get(change.status, "changed")
        yield "change", words, "a submission is never edited or removed; restore it, and run again with --supersedes to replace it"
    if change.mode != FILE_MODE:
        yield "mode", MODES.get(change.mode, change.mode), "a submission is a regular file that is not executable; run `git add` again"
    if PLACE.fullmatch(change.path) is None:
        yield "file name", "", "a submission has the path that `tunemark run` gives it, submissions/WORKLOAD/DATE-DEVICE-ID.json"
    if before >= MOST_FILES:
        yield "number of files", str(before + 1), f"a pull request holds at most {MOST_FILES} submissions; open another one"
    if total > MOST_BYTES:
        yield "size", f"{total} bytes", f"the submissions of a pull request hold at most {MOST_BYTES} bytes together; open another one"
    if size > LARGEST_FILE_BYTES:
        yield "size", f"{size} bytes", f"larger than {LARGEST_FILE_BYTES} bytes; a record is one run"


def _write(root: Path, change: Change, folder: Path) -> Path:
    """Write the content of a submission as data into a temporary folder; its name has been checked."""
    path = folder / change.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(git(root, "cat-file", "blob", change.blob))
    return path


def _headline(path: Path, facts: FactBase) -> dict[str, Any]:
    """Return the identity, device and speed of an accepted submission."""
    verdict = judge(path, facts)
    if not isinstance(verdict.record, Submission) or verdict.derived is None:
        return {}
    tables = measured_rows(verdict.record, verdict.derived, facts, submission_id(path), path.name, verdict.sha256)
    row = tables["result_rows"][0]
    ranked = row["rankable"] and row.get("tokens_per_s")
    return {
        "id": row["result_id"],
        "workload": row["workload"],
        "status": row["status"],
        "tokens_per_s": row.get("tokens_per_s"),
        "device": row["accelerator"] or row["accelerator_printed"],
        "devices": row["accelerator_count"],
        "note": "" if ranked else "is listed, but not ranked: it did not finish, or has too few steady steps",
    }


def summary(report: dict[str, Any]) -> str:
    """Return the report in one sentence."""
    if report["verdict"] == NOTHING:
        return f"{NOTHING}: {report['head']} changes no file since it left {report['base']}"
    parts = [counted(len(report["files"]), "submission") + " accepted", f"{len(report['refused'])} refused"]
    return f"{report['verdict']}: {', '.join(parts)}, {counted(len(report['maintainer']), 'other change')}"
