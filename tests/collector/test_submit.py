"""`tunemark submit`: what is sent, what is shown, and that nothing else is touched."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import rehearse_pull_requests as rehearsal
from factories import CHECKOUT, Said, Tunemark, make_submission

from tunemark.collector.commands.submit import reason_to_leave_out
from tunemark.schema.records.submission import RECOVERED
from tunemark.schema.vocabulary import Status

TRY = "smoke-full/20261124-cpu-c46c5f3ac432.json"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside any checkout with a new result and a try; git has an author."""
    empty, tools = tmp_path / "empty", tmp_path / "tools"
    (empty / "submissions" / "smoke-lora").mkdir(parents=True)
    rehearsal.write(rehearsal.new_result(), empty)
    (empty / "submissions" / "smoke-full").mkdir()
    shutil.copy(CHECKOUT / "submissions" / TRY, empty / "submissions" / TRY)
    tools.mkdir()
    (tools / "git").symlink_to(shutil.which("git") or "git")
    monkeypatch.setenv("PATH", str(tools))
    for name, value in (("NAME", "Ada Example"), ("EMAIL", "ada@example.org")):
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", value)
    monkeypatch.delenv("TUNEMARK_ROOT", raising=False)
    monkeypatch.chdir(empty)
    return empty


@pytest.fixture
def clone(folder: Path) -> Path:
    """A clone of a fork; the fork is a bare repository."""
    base, fork, clone = (folder.parent / name for name in ("base", "fork.git", "clone"))
    rehearsal.make_base(base)
    rehearsal.git(folder.parent, "clone", "--quiet", "--bare", str(base), str(fork))
    rehearsal.git(folder.parent, "clone", "--quiet", str(fork), str(clone))
    return clone


def new_file(folder: Path) -> Path:
    return next((folder / "submissions" / "smoke-lora").glob("*.json"))


def test_a_dry_run_shows_every_text_and_sends_nothing(folder: Path, tunemark: Tunemark) -> None:
    said = tunemark("submit", "--dry-run")
    assert said.code == 0, said.err
    content = json.loads(new_file(folder).read_bytes())
    shown = dict(line.split(None, 1) for line in said.out.splitlines() if len(line.split(None, 1)) == 2)
    assert shown["environment.os"] == content["environment"]["os"]
    assert shown["environment.devices.0.name"] == content["environment"]["devices"][0]["name"]
    assert shown["warnings.0.message"] == content["warnings"][0]["message"]
    assert "numbers" in shown["trace.completed_at_s"]
    for text in texts(content):
        assert text in said.out
    assert "left out" in said.err
    assert "a trial with" in said.err
    assert "Nothing was sent. The steps:" in said.out
    assert f"tunemark submit {new_file(folder)} --to FOLDER" in said.out


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        (Status.INTERRUPTED, "stopped by the user", "an interrupted run"),
        (Status.CRASH, RECOVERED, "a run whose tunemark process was killed, recovered from its log"),
        (Status.CRASH, "torch raised an error", None),
    ],
)
def test_interrupted_and_recovered_runs_are_left_out_unless_they_are_named(status: Status, message: str, reason: str | None) -> None:
    run = make_submission(20)
    outcome = run.outcome.model_copy(update={"status": status, "message": message})
    assert reason_to_leave_out(run.model_copy(update={"outcome": outcome})) == reason


def texts(node: object) -> list[str]:
    """Return every text in a JSON value."""
    if isinstance(node, dict):
        return [text for value in node.values() for text in texts(value)]
    return [text for value in node for text in texts(value)] if isinstance(node, list) else [node] if isinstance(node, str) else []


def test_in_a_clone_the_branch_is_committed_and_pushed_and_nothing_else_changes(folder: Path, clone: Path, tunemark: Tunemark) -> None:
    (clone / "README.md").write_text("a change of mine\n")
    said = tunemark("submit", new_file(folder), "--to", clone, "--yes")
    assert said.code == 0, said.err
    branch = f"submit-{new_file(folder).stem.rsplit('-', 1)[-1]}"
    fork = folder.parent / "fork.git"
    place = f"submissions/smoke-lora/{new_file(folder).name}"
    assert rehearsal.git(fork, "diff", "--name-status", "main", branch) == f"A\t{place}"
    assert rehearsal.git(fork, "log", "-1", "--format=%an <%ae>", branch) == "Ada Example <ada@example.org>"
    sent = subprocess.run(["git", "-C", str(fork), "show", f"{branch}:{place}"], capture_output=True, check=True).stdout
    assert sent == new_file(folder).read_bytes()
    assert "its author from your git settings: Ada Example <ada@example.org>" in said.out
    assert f"Open the pull request from the branch {branch} of your fork." in said.out
    # The clone keeps its branch, its files and no further work tree.
    assert rehearsal.git(clone, "status", "--short") == "M README.md"
    assert rehearsal.git(clone, "branch", "--show-current") == "main"
    assert len(rehearsal.git(clone, "worktree", "list").splitlines()) == 1


def test_what_is_sent_passes_the_check_of_the_pull_request(
    folder: Path, clone: Path, tunemark: Tunemark, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = json.loads(tunemark("submit", new_file(folder), "--to", clone, "--yes", "--json").out)
    base = folder.parent / "base"
    rehearsal.git(base, "fetch", "--quiet", str(folder.parent / "fork.git"), sent["branch"])
    monkeypatch.chdir(base)
    assert tunemark("validate", "--pull-request", f"main..{sent['commit']}").out.endswith(
        "accepted: 1 submission accepted, 0 refused, 0 other changes\n"
    )


def test_in_a_clone_of_github_the_address_of_the_pull_request_is_printed(folder: Path, clone: Path, tunemark: Tunemark) -> None:
    rehearsal.git(clone, "remote", "set-url", "origin", "git@github.com:ada/tunemark.git")
    rehearsal.git(clone, "config", "remote.origin.pushurl", str(folder.parent / "fork.git"))
    sent = json.loads(tunemark("submit", new_file(folder), "--to", clone, "--yes", "--json").out)
    assert sent["steps"] == [f"Open the pull request: https://github.com/ada/tunemark/pull/new/{sent['branch']}"]


def test_a_failed_commit_leaves_no_branch(folder: Path, clone: Path, tunemark: Tunemark, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = clone / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\necho not today >&2\nexit 1\n")
    hook.chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/bin:/usr/bin")
    said = tunemark("submit", new_file(folder), "--to", clone, "--yes")
    assert said.code == 2
    assert "not today" in said.err
    assert rehearsal.git(clone, "branch", "--list", "submit-*") == ""
    assert len(rehearsal.git(clone, "worktree", "list").splitlines()) == 1


def test_an_invalid_file_is_not_sent(folder: Path, tunemark: Tunemark) -> None:
    content = rehearsal.new_result()
    content["trace"]["real_tokens"] = [2 * tokens for tokens in content["trace"]["real_tokens"]]
    path = rehearsal.write(content, folder)
    said = tunemark("submit", path, "--to", folder.parent, "--yes")
    assert said.code == 3
    assert "supervised <= real <= slots must hold" in said.err


def refused(said: Said) -> str:
    assert said.code == 2
    assert said.err.count("\n") == 1
    return said.err


def test_errors_name_the_fix(folder: Path, clone: Path, tunemark: Tunemark) -> None:
    file = new_file(folder)
    assert "add --yes to send" in refused(tunemark("submit", file, "--to", clone))
    assert "add --yes to send, or --dry-run" in refused(tunemark("submit", file, "--json"))
    assert "no such folder" in refused(tunemark("submit", file, "--to", "./none"))
    other = folder.parent / "other"
    rehearsal.git(folder.parent, "init", "--quiet", str(other))
    assert "is no clone of Tunemark" in refused(tunemark("submit", file, "--to", other))
    file.unlink()
    assert "no new result" in tunemark("submit").err
