"""Temporary checkouts in which the gate judges: this repository's history and facts, with chosen submissions committed."""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from gate_mutations.bases import Content, write
from gate_mutations.simulated import ROOT
from tunemark import cli
from tunemark.collector.gate.check import validate_all
from tunemark.schema.facts.fact_base import FactBase

FACTS = ("accelerators", "known", "models", "workloads", "prices")
SECOND_RUN = "second run"
"""Words of a note with which a suspicious submission is accepted."""


@dataclass(frozen=True)
class Judgement:
    """What the gate says about one submission."""

    problems: tuple[str, ...] = ()
    """Reasons to refuse it, each as `field: value: fix`."""
    notes: tuple[str, ...] = ()
    crash: str = ""
    """The exception that ended the judgement."""

    @property
    def requests_second_run(self) -> bool:
        """True if it is accepted with a request for a second run."""
        return any(SECOND_RUN in note for note in self.notes)

    @property
    def refused(self) -> bool:
        """True if it is not accepted. A crash accepts nothing, but stops the others too, so that it does not count."""
        return bool(self.problems) and not self.crash


@dataclass
class Checkout:
    """A temporary checkout."""

    root: Path
    facts: FactBase = field(init=False)

    def __post_init__(self) -> None:
        self.facts = FactBase(self.root / "data")

    def judge(self, submissions: Sequence[Content], places: Sequence[Path] = ()) -> list[Judgement]:
        """Write submissions, judge them together as one pull request, remove them, and return the judgements in order."""
        paths = [write(content, self.root) for content in submissions]
        for index, place in enumerate(places):
            target = self.root / "submissions" / place
            target.parent.mkdir(parents=True, exist_ok=True)
            paths[index] = paths[index].rename(target)
        try:
            return self.judge_files(paths)
        except Exception as error:  # noqa: BLE001 - the crash is the finding
            return [Judgement(crash=repr(error))] * len(paths)
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    def judge_files(self, paths: Sequence[Path]) -> list[Judgement]:
        """Return the judgements of files in the checkout."""
        done = validate_all(sorted(set(paths)), self.root, self.facts)
        return [
            Judgement(
                tuple(str(problem) for file, problem in done.problems if path.name in file),
                tuple(str(note) for file, note in done.notes if path.name in file),
            )
            for path in paths
        ]


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int | None
    """Exit code; None if it did not end in time or ended with an exception."""
    out: str
    err: str
    crash: str = ""


def run_command(root: Path, *arguments: str) -> Answer:
    """Run a command of tunemark in this process, on a checkout, for at most a minute."""
    out, err, crash = io.StringIO(), io.StringIO(), ""

    def too_long(*_: object) -> None:
        raise TimeoutError(arguments)

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    with patch.object(sys, "argv", ["tunemark", *arguments]), patch.dict(os.environ, TUNEMARK_ROOT=str(root)), contextlib.chdir(root):
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                cli.main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException as error:  # noqa: BLE001 - the crash is the finding
            code, crash = None, repr(error)
        finally:
            signal.alarm(0)
    return Answer(code, out.getvalue(), err.getvalue(), crash)


def git(root: Path, *arguments: str) -> str:
    """Run git in a folder and return its output, without hooks and settings of the user."""
    identity = ("-c", "user.name=examiner", "-c", "user.email=examiner@example.org", "-c", "core.hooksPath=/dev/null")
    done = subprocess.run(["git", *identity, "-C", str(root), *arguments], capture_output=True, check=True)  # noqa: S603, S607 - fixed arguments
    return done.stdout.decode(errors="replace").strip()


def make_checkout(root: Path, committed: Iterable[Content] = (), folders: Iterable[str] = FACTS) -> Checkout:
    """Return a new checkout with facts of this working tree and these submissions committed.

    It has the history of this repository, so that the commit of a harness can be looked up.
    """
    if (ROOT / ".git").exists():
        git(ROOT, "clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(root))
        git(root, "read-tree", "--empty")
    else:
        root.mkdir(parents=True)
        git(root, "init", "--quiet")
    for folder in folders:
        shutil.copytree(ROOT / "data" / folder, root / "data" / folder)
    shutil.copy(ROOT / "data" / "support.json", root / "data" / "support.json")
    for content in committed:
        write(content, root)
    (root / "submissions").mkdir(exist_ok=True)
    git(root, "add", "--all", ".")
    git(root, "commit", "--quiet", "--message", "Facts and committed results")
    return Checkout(root)
