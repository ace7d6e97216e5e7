"""A pull request is data from a stranger: what the workflows say about a good, a bad and a hostile one, and what they never do."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import rehearse_pull_requests as rehearsal
import yaml
from factories import CHECKOUT, Tunemark
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tunemark.collector.gate.github import annotation, read_report, report_markdown
from tunemark.collector.gate.pull_request import changes

WORKFLOWS = sorted((CHECKOUT / ".github" / "workflows").glob("*.yml"))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["verdict", "files", "refused", "maintainer", "path", "notes", "id", "checks", "fix"]), inner),
    ),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, rehearsal.Played]:
    return {each.name: each for each in rehearsal.play(tmp_path_factory.mktemp("rehearsal"))}


def test_a_good_pull_request_is_accepted_with_the_speed_of_each_result(played: dict[str, rehearsal.Played]) -> None:
    good = played["good"]
    assert good.exit_code == 0
    assert "::error" not in good.log
    assert "**Accepted.**" in good.comment
    assert re.search(r"- result `[0-9a-f]{12}`: `[\w-]+` on 1 x .+, status `ok`, [\d,.]+ tokens/s", good.comment)
    assert "is listed, but not ranked: it did not finish" in good.comment
    assert good.summary == f"{good.comment}\n"


def test_a_bad_pull_request_is_refused_with_a_fix_for_each_file(played: dict[str, rehearsal.Played]) -> None:
    bad = played["bad"]
    assert bad.exit_code == 3
    for word in ("`changed`", "`removed`", "`file name`", "`trace`"):
        assert word in bad.comment
    assert len(re.findall(r"^::error file=submissions/[^:,]*,line=1,title=", bad.log, re.MULTILINE)) == 4


def test_a_hostile_pull_request_is_refused_and_nothing_of_it_is_obeyed(played: dict[str, rehearsal.Played]) -> None:
    hostile = played["hostile"]
    assert hostile.exit_code == 3
    for word in ("a symbolic link", "an executable", "a submodule", "environment.os", "file name", "not valid JSON"):
        assert word in hostile.comment
    for path in (".gitattributes", ".github/workflows/validate.yml", "README.md"):
        assert f"| `{path}` |" in hostile.comment
    # Each command of the log is one of ours, and names a path of the pull request as a property.
    commands = [line for line in hostile.log.splitlines() if line.lstrip().startswith("::")]
    assert all(re.match(r"::(?:error|notice) file=[^:,]+,line=1,title=[^:,]+::", line) for line in commands)
    assert len(commands) >= 10
    assert all(character == "\n" or character.isprintable() for character in hostile.log + hostile.comment)
    tokens = MarkdownIt("commonmark").enable("table").parse(hostile.comment.partition("\n")[2])
    inside = {child.type for token in tokens for child in token.children or ()} | {token.type for token in tokens}
    assert not inside & {"html_inline", "html_block", "link_open", "image"}


@given(JSON)
def test_a_comment_comes_of_any_report_and_holds_no_markup_of_it(report: object) -> None:
    text = report_markdown(report if isinstance(report, dict) else {})
    tokens = MarkdownIt("commonmark").enable("table").parse(text.partition("\n")[2])
    inside = {child.type for token in tokens for child in token.children or ()} | {token.type for token in tokens}
    assert not inside & {"html_inline", "html_block", "link_open", "image"}
    assert len(text) < 65_536


def test_a_report_that_is_large_or_a_link_or_no_json_is_not_used(tmp_path: Path) -> None:
    large, link, wrong = (tmp_path / name for name in ("large.json", "link.json", "wrong.json"))
    large.write_text(json.dumps({"verdict": "accepted", "note": "x" * 600_000}))
    wrong.write_text("[" * 100_000)
    link.symlink_to(CHECKOUT / "data" / "support.json")
    assert [dict(read_report(path)) for path in (large, link, wrong, tmp_path / "none.json")] == [{}, {}, {}, {}]
    assert "**No verdict.**" in report_markdown({})


def test_the_comment_needs_only_the_standard_library(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text('{"verdict": "accepted"}')
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": "schema:collector"}
    command = [sys.executable, "-S", "-m", "tunemark.collector.gate.github", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=CHECKOUT, env=environment)
    assert "**Accepted.**" in done.stdout


def test_changes_are_those_since_the_head_left_the_base(tmp_path: Path) -> None:
    base = rehearsal.make_base(tmp_path / "base")
    head = rehearsal.make(tmp_path, base, "late", lambda fork: (fork / "new.txt").write_text("x"))
    (base / "later.txt").write_text("x")
    rehearsal.commit(base, "Later")
    assert [(change.path, change.status) for change in changes(base, "main", head)] == [("new.txt", "A")]


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit on its branch main; the current directory and TUNEMARK_ROOT point at it."""
    made = rehearsal.make_base(tmp_path / "base")
    monkeypatch.setenv("TUNEMARK_ROOT", str(made))
    monkeypatch.chdir(made)
    return made


@pytest.mark.usefixtures("base")
def test_a_branch_without_changes_has_nothing_to_check(tunemark: Tunemark) -> None:
    said = tunemark("validate", "--pull-request", "main..HEAD")
    assert (said.code, said.out) == (0, "nothing to check: HEAD changes no file since it left main\n")
    assert "**Nothing to check.**" in report_markdown(json.loads(tunemark("validate", "--pull-request", "main..HEAD", "--json").out))


def test_an_annotation_is_escaped_as_github_reads_it() -> None:
    assert annotation("a,b:c%.json", "a field", "50%\nmore") == "::error file=a%2Cb%3Ac%25.json,line=1,title=a field::50%25%0Amore"


def test_workflows_pin_actions_by_hash_and_ask_for_the_least_rights() -> None:
    assert {path.stem for path in WORKFLOWS} >= {"validate", "comment", "pages", "test", "release"}
    for path in WORKFLOWS:
        content = yaml.safe_load(path.read_text())
        assert content["permissions"] in ({}, {"contents": "read"}), path.name
        for uses in re.findall(r"uses: (\S+)", path.read_text()):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", uses), f"{path.name}: {uses}"
        for job in content["jobs"].values():
            assert job["timeout-minutes"] <= 60
            # Text of an event reaches the shell only through the environment.
            assert not [step for step in job["steps"] if "${{" in step.get("run", "")]


def test_the_validating_workflow_has_no_secret_and_never_checks_out_the_head() -> None:
    text = (CHECKOUT / ".github" / "workflows" / "validate.yml").read_text()
    assert "${{ secrets" not in text
    assert "pull_request_target" not in text
    assert "ref: ${{ github.event.pull_request.base.sha }}" in text
    # The commands are the rehearsed ones.
    assert '-m tunemark validate --pull-request "$BASE..$HEAD" --github --out report/report.json' in text
