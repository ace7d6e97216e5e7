"""The command `submit`: send results in a pull request."""

import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tunemark.collector.commands.options import option
from tunemark.collector.gate.read import SUBMISSIONS, find_records, read_valid, records_in, shown_path, submission_id
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import git_or_none, git_text, is_checkout, project_root, write_atomically
from tunemark.schema.formats import counted
from tunemark.schema.records.base import flattened
from tunemark.schema.records.submission import RECOVERED, Submission
from tunemark.schema.safe_text import terminal
from tunemark.schema.vocabulary import DataSource, Status
from tunemark.terminal import AsJson, print_json, print_table, say

# Modules that need numpy are imported by the command, so that --help stays fast.
# ruff: noqa: PLC0415

GITHUB = re.compile(r"github\.com[:/]([^/]+/[^/]+?)(?:\.git)?/?$")
"""Owner and name of a repository in the address of a remote."""
SHORTEST_LIST = 8
"""Numbers in a list above which only their count and range are shown."""


@dataclass(frozen=True, slots=True)
class Result:
    """A submission that is to be sent."""

    file: Path
    record: Submission

    @property
    def place(self) -> str:
        """Return its path in a checkout."""
        return f"{SUBMISSIONS}/{self.record.plan.workload}/{self.file.name}"


def submit(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Submissions, or folders of them. Default: the new ones in `submissions/`.")
    ] = None,
    *,
    to: Annotated[str | None, option("--to", "A clone of your fork. Default: the current checkout.", metavar="FOLDER")] = None,
    dry_run: Annotated[bool, option("--dry-run", "Check and show everything, and change nothing.")] = False,
    yes: Annotated[bool, option("--yes", "-y", "Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send results: check them as the pull request will, show every fact that leaves this machine, ask, and push them to your fork.

    The files go to a new branch, which is committed and pushed; your own branch and working files are not touched. The address at which
    the pull request is opened is printed. Trials with few steps, interrupted or killed runs, and runs on your own text are left out
    unless you name their files.

    Exit codes: 0 sent, or shown with --dry-run, 2 nothing to send or git failed, 3 a file is invalid.

    Examples
    --------
    - `tunemark submit --dry-run`
    - `tunemark submit submissions/lora-8b/RUN.json --to ~/FORK`
    - `tunemark submit submissions/ --yes`
    """
    if as_json and not (yes or dry_run):
        raise TunemarkError("--json", "", "cannot ask for confirmation; add --yes to send, or --dry-run to look")
    root = project_root()
    chosen, left_out = _chosen(files, root)
    _check(chosen, root, as_json=as_json)
    clone = _clone(to, root)
    # Name and e-mail address, as git writes them into the commit.
    author = None if clone is None else git_text(clone, "var", "GIT_AUTHOR_IDENT").rsplit(" ", 2)[0]
    facts = {result.place: _facts(result.record) for result in chosen}
    if not as_json:
        _show(facts, author)
    sent: dict[str, Any] = {"branch": None, "commit": None, "steps": _steps(clone, chosen)}
    if not dry_run and clone is not None:
        if not yes:
            _ask(clone, len(chosen), to or "the pull request")
        with tempfile.TemporaryDirectory(prefix="tunemark-submit-") as temporary:
            sent = _branch_and_push(clone, Path(temporary) / "work", chosen)
    if as_json:
        listed = [{"file": str(result.file), "place": result.place, "facts": facts[result.place]} for result in chosen]
        unsent = [{"file": str(path), "reason": reason} for path, reason in left_out]
        print_json({"files": listed, "left_out": unsent, "dry_run": dry_run, "commit_author": author, **sent})
        return
    for label in ("branch", "commit"):
        if sent[label]:
            typer.echo(f"{label}: {terminal(sent[label])}")
    typer.echo("Remaining steps:" if sent["commit"] else "Nothing was sent. The steps:")
    for number, step in enumerate(sent["steps"], start=1):
        typer.echo(f"  {number}. {terminal(step)}")


# The results to send ----------------------------------------------------------------------------------


def _chosen(files: Sequence[Path] | None, root: Path) -> tuple[list[Result], list[tuple[Path, str]]]:
    """Return the results to send, and those left out with the reason. A named file is never left out."""
    from tunemark.collector.gate.cross_file_checks import committed_files

    committed = committed_files(root)
    named = {path for path in files or () if path.is_file()}
    chosen: list[Result] = []
    left_out: dict[str, list[Path]] = {}
    for path in find_records(files).files if files else records_in(root / SUBMISSIONS).files:
        if path not in named and shown_path(path, root) in committed:
            continue
        record = read_valid(path)
        if not isinstance(record, Submission):
            raise TunemarkError(str(path), None, "is not a submission; `tunemark run` writes one", exit_code=Exit.INVALID)
        reason = None if path in named else reason_to_leave_out(record)
        if reason is None:
            chosen.append(Result(path, record))
        else:
            left_out.setdefault(reason, []).append(path)
    for reason, paths in left_out.items():
        shown = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files (first: {paths[0]})"
        say(terminal(f"left out {shown}: {reason}; to send a file, name it"))
    if not chosen:
        raise TunemarkError("FILES", "", "there is no new result to send; run a workload, or name a file")
    return chosen, [(path, reason) for reason, paths in left_out.items() for path in paths]


def reason_to_leave_out(record: Submission) -> str | None:
    """Return the reason for which `submit` leaves a run out unless it is named, or None."""
    if record.outcome.status is Status.INTERRUPTED:
        return "an interrupted run"
    if record.outcome.message == RECOVERED:
        return "a run whose tunemark process was killed, recovered from its log"
    if record.plan.data.source is DataSource.FILE:
        return "a run on your own text"
    if record.study and record.study.kind in {"frontier", "tune"}:
        return f"a trial of the study {record.study.study_id}"
    rules, times = record.plan.measurement, record.trace.step_times_s[record.plan.measurement.min_warmup_steps :]
    # A run that its card ended is not a try, however slow the machine.
    asked = record.requested
    short = asked.max_steps is not None or asked.epochs is not None or asked.max_train_s is not None
    if short and record.outcome.status is Status.OK and len(times) < rules.min_steady_steps and sum(times) < rules.min_steady_s:
        needed = f"a steady window needs {rules.min_steady_steps} or {rules.min_steady_s:g} s"
        return f"a trial with too few steps, {len(times)} after warm-up; {needed}"
    return None


def _check(chosen: Sequence[Result], root: Path, *, as_json: bool) -> None:
    """Check the files together with the results that this folder has. Prints the problems and exits with 3 if there are any."""
    from tunemark.collector.gate.check import validate_all

    own = {shown_path(result.file, root) for result in chosen}
    there = [path for path in records_in(root / SUBMISSIONS).files if shown_path(path, root) not in own]
    done = validate_all(sorted([*there, *(result.file for result in chosen)]), root, FactBase.of_root(root))
    problems = [(file, problem) for file, problem in done.problems if file in own or not done.judged]
    if not problems:
        return
    for file, problem in problems:
        say(terminal(f"{file}: {problem}"))
    if as_json:
        print_json({"files": [], "problems": [{"file": file} | asdict(problem) for file, problem in problems]})
    say("nothing was sent: `tunemark validate` shows the same problems")
    raise typer.Exit(Exit.INVALID)


# What leaves the machine ------------------------------------------------------------------------------


def _facts(record: Submission) -> dict[str, str]:
    """Return every fact of a submission by field, as text. Long lists of numbers are shown with their count and range."""
    return {field: _as_text(value) for field, value in flattened(record.model_dump(mode="json")) if value not in (None, [])}


def _as_text(value: Any) -> str:  # noqa: ANN401 - a leaf of JSON
    if not isinstance(value, list):
        return str(value)
    if len(value) > SHORTEST_LIST and all(isinstance(item, int | float | None) for item in value):
        known = [item for item in value if item is not None]
        return f"{len(value):,} numbers" + (f", {min(known):.6g} to {max(known):.6g}" if known else "")
    return ", ".join(map(str, value))


def _show(facts: Mapping[str, Mapping[str, str]], author: str | None) -> None:
    """Print the facts: those that all files share once, then the others of each file."""
    first, *others = facts.values()
    shared = {field: text for field, text in first.items() if others and all(other.get(field) == text for other in others)}
    tables = [("in all files", shared)] if shared else []
    tables += [(place, {field: text for field, text in rows.items() if field not in shared}) for place, rows in facts.items()]
    typer.echo("What leaves this machine; fields without a value are left out.")
    for title, rows in tables:
        typer.echo("")
        print_table(["field", "value"], [(terminal(field), terminal(text)) for field, text in rows.items()], title=title)
    typer.echo("")
    if author:
        typer.echo(f"The commit also shows its author from your git settings: {terminal(author)}")


def _ask(clone: Path, count: int, named: str) -> None:
    if not sys.stdin.isatty():
        raise TunemarkError("--yes", "", "needed, because confirmation requires a terminal; add --yes to send, or --dry-run to look")
    origin = git_or_none(clone, "remote", "get-url", "origin")
    pushed = f", and push a branch to its origin, {terminal(origin)}" if origin else ""
    typer.confirm(f"Send {counted(count, 'result')} to {terminal(named)}{pushed}?", abort=True, err=True)


# Where it goes ----------------------------------------------------------------------------------------


def _clone(to: str | None, root: Path) -> Path | None:
    """Return the clone of a fork that `--to` names; the current checkout by default, or nothing yet."""
    if to is None:
        return root if is_checkout(root) and git_or_none(root, "rev-parse") is not None else None
    folder = Path(to).expanduser()
    if folder.is_dir():
        top = git_or_none(folder, "rev-parse", "--show-toplevel")
        if top is None or not is_checkout(Path(top)):
            raise TunemarkError("--to", to, "is no clone of Tunemark; name a clone of your fork")
        return Path(top)
    raise TunemarkError("--to", to, "no such folder; clone your fork, and name its folder")


def _steps(clone: Path | None, chosen: Sequence[Result]) -> list[str]:
    if clone is None:
        files = shlex.join(str(result.file) for result in chosen)
        fork = "Fork the repository of Tunemark on GitHub."
        return [fork, "git clone ADDRESS-OF-YOUR-FORK FOLDER", f"tunemark submit {files} --to FOLDER"]
    written = [f"write {clone / result.place}" for result in chosen]
    return [*written, f"git commit on the new branch {_branch(chosen)}", *_left(_branch(chosen))]


def _branch_and_push(clone: Path, work: Path, chosen: Sequence[Result]) -> dict[str, Any]:
    """Commit the files on a new branch in a work tree of its own, so that the clone's branch and files are not touched."""
    branch = _branch(chosen)
    if git_text(clone, "branch", "--list", branch):
        fix = f"has these results on its branch {branch} already; `git push -u origin {branch}` there, or `git branch -D {branch}` first"
        raise TunemarkError("--to", str(clone), fix)
    # The newest main that is known of the original, else of the fork, else HEAD.
    known = ("upstream/main", "origin/main", "origin/HEAD")
    start = next((name for name in known if git_or_none(clone, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")), "HEAD")
    git_text(clone, "worktree", "add", "--quiet", "-b", branch, str(work), start)
    commit = None
    try:
        for result in chosen:
            write_atomically(work / result.place, result.file.read_bytes())
        git_text(work, "add", "--", *(result.place for result in chosen))
        git_text(work, "commit", "--quiet", "-m", _title(chosen))
        commit = git_text(work, "rev-parse", "HEAD")
        return {"branch": branch, "commit": commit, "steps": _pushed(work, branch)}
    finally:
        git_text(clone, "worktree", "remove", "--force", str(work))
        if commit is None:
            git_text(clone, "branch", "-D", branch)


def _pushed(work: Path, branch: str) -> list[str]:
    """Push the branch, and return the steps that are left."""
    left, origin = _left(branch), git_or_none(work, "remote", "get-url", "origin")
    if origin is None:
        return ["git remote add origin ADDRESS-OF-YOUR-FORK", *left]
    try:
        git_text(work, "push", "--quiet", "-u", "origin", branch)
    except TunemarkError as error:
        say(f"the branch is committed, and was not pushed: {error.fix}")
        return left
    fork = GITHUB.search(origin)
    return [f"Open the pull request: https://github.com/{fork[1]}/pull/new/{branch}"] if fork else left[1:]


def _left(branch: str) -> list[str]:
    return [f"git push -u origin {branch}", f"Open the pull request from the branch {branch} of your fork."]


def _branch(chosen: Sequence[Result]) -> str:
    return f"submit-{submission_id(chosen[0].file)}" + (f"-and-{len(chosen) - 1}-more" if len(chosen) > 1 else "")


def _title(chosen: Sequence[Result]) -> str:
    first, device = chosen[0].record, chosen[0].record.plan.device
    title = f"{first.plan.workload} on {device.count} x {device.accelerator or first.environment.devices[0].name}"
    return terminal(title) + (f" and {counted(len(chosen) - 1, 'more result')}" if len(chosen) > 1 else "")
