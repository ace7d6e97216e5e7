"""Play three pull requests, a good, a bad and a hostile one, on a temporary repository, and print what each workflow says.

The commands are those of `.github/workflows/validate.yml` and `comment.yml`. Usage: `make rehearse-pr`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gate_mutations.bases import write
from gate_mutations.checkout import FACTS, git
from gate_mutations.simulated import ROOT

from tunemark.schema.facts.fact_base import FactBase

NEW_RESULT, FAILED_RESULT = (ROOT / "tests" / "collector" / "data" / f"{name}_result.json" for name in ("new", "failed"))
ATTACK = "\n::error file=README.md,line=1::owned\x1b]0;owned\x07 @everyone <script>alert(1)</script> | `x` =cmd|'/C calc'!A0"


@dataclass(frozen=True)
class Played:
    """What the workflows said about a pull request."""

    name: str
    exit_code: int
    log: str
    summary: str
    comment: str


def play(folder: Path) -> list[Played]:
    """Return the outcome of each pull request on a new repository in the folder."""
    base = make_base(folder / "base")
    return [check(folder, base, name, make(folder, base, name, change)) for name, change in PULL_REQUESTS.items()]


def make_base(folder: Path) -> Path:
    """Return a repository with the facts and submissions of this checkout."""
    for name in FACTS:
        shutil.copytree(ROOT / "data" / name, folder / "data" / name)
    shutil.copy(ROOT / "data" / "support.json", folder / "data")
    shutil.copytree(ROOT / "submissions", folder / "submissions")
    shutil.copy(ROOT / "README.md", folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "The base")
    return folder


def make(folder: Path, base: Path, name: str, change: Callable[[Path], None]) -> str:
    """Return the head of a pull request: a fork with a change, fetched into the base as data."""
    fork = folder / f"fork-{name}"
    git(folder, "clone", "--quiet", str(base), str(fork))
    change(fork)
    commit(fork, f"The {name} pull request")
    git(base, "fetch", "--quiet", "--no-tags", "--no-recurse-submodules", str(fork), "HEAD")
    return git(fork, "rev-parse", "HEAD")


def check(folder: Path, base: Path, name: str, head: str) -> Played:
    """Run the commands of both workflows on a head."""
    summary, report = folder / f"{name}-summary.md", folder / f"{name}-report.json"
    environment = os.environ | {"TUNEMARK_ROOT": str(base), "GITHUB_STEP_SUMMARY": str(summary), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tunemark", "validate", "--pull-request", f"main..{head}", "--github", "--out", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=base, env=environment)  # noqa: S603 - our own command
    comment = [sys.executable, "-m", "tunemark.collector.gate.github", str(report)]
    said = subprocess.run(comment, capture_output=True, text=True, check=True, cwd=folder, env=environment)  # noqa: S603 - as above
    return Played(name, done.returncode, done.stdout + done.stderr, summary.read_text(encoding="utf-8"), said.stdout)


def new_result(path: Path = NEW_RESULT) -> dict[str, Any]:
    """Return a real run that is not in the base, as if the workload card had not changed since."""
    content: dict[str, Any] = json.loads(path.read_bytes())
    content["plan"]["workload_sha256"] = FactBase(ROOT / "data").workload_sha256(content["plan"]["workload"])
    return content


def good(fork: Path) -> None:
    """Add one real result, and a real run that did not finish."""
    write(new_result(), fork)
    write(new_result(FAILED_RESULT), fork)


def bad(fork: Path) -> None:
    """Add a result with doubled tokens, one under another name, and edit and remove accepted ones."""
    content = new_result()
    content["trace"]["real_tokens"] = [2 * tokens for tokens in content["trace"]["real_tokens"]]
    write(content, fork)
    path = write(new_result(), fork)
    path.rename(path.with_name("my best run.json"))
    first, second, *_ = sorted((fork / "submissions").glob("*/*.json"))
    first.write_bytes(first.read_bytes().replace(b'"ok"', b'"ok" '))
    second.unlink()


def hostile(fork: Path) -> None:
    """Attack the log, the table and the machine: text in a result and in names, links, executables, a submodule, a workflow."""
    content = new_result()
    content["environment"]["os"] = f"Linux{ATTACK}"
    write(content, fork)
    folder = fork / "submissions" / "smoke-lora"
    (folder / "x\n::error file=README.md::owned.json").write_text("{}")
    (folder / "\u202egnp.json").write_text("{}")
    (folder / "20261122-cpu-0123456789ab.json").symlink_to("/etc/passwd")
    script = folder / "20261122-cpu-ba9876543210.json"
    script.write_text("#!/bin/sh\ntouch owned\n")
    script.chmod(0o755)
    (folder / "20261122-cpu-aaaaaaaaaaaa.json").write_text('{"a":' * 100_000)
    workflow = fork / ".github" / "workflows" / "validate.yml"
    workflow.parent.mkdir(parents=True)
    workflow.write_text("on: pull_request_target\n")
    (fork / ".gitattributes").write_text("* filter=owned\n")
    (fork / "README.md").write_text("owned\n")
    git(fork, "update-index", "--add", "--cacheinfo", f"160000,{git(fork, 'rev-parse', 'HEAD')},submissions/module")


PULL_REQUESTS: dict[str, Callable[[Path], None]] = {"good": good, "bad": bad, "hostile": hostile}


def commit(folder: Path, message: str) -> None:
    """Commit everything in a repository."""
    git(folder, "add", "--all", "--", ":!submissions/module")
    git(folder, "commit", "--quiet", "--message", message)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for played in play(Path(temporary)):
            print(f"\n===== the {played.name} pull request: validate.yml ends with {played.exit_code}; its log:\n\n{played.log}")
            print(f"----- validate.yml, summary of the job:\n\n{played.summary}\n----- comment.yml, the comment:\n\n{played.comment}")
