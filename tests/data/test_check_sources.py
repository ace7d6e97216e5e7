"""Printed figures are looked up at the path and commit that a result cites."""

import json
import subprocess
from pathlib import Path

from check_sources import check


def test_a_figure_is_looked_up_in_the_cited_version_of_the_file_and_not_in_the_newest(tmp_path: Path) -> None:
    clone, published = tmp_path / "clones" / "a+b" / "repo", tmp_path / "data" / "published" / "900"
    clone.mkdir(parents=True)
    published.mkdir(parents=True)

    def git(*words: str) -> str:
        command = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "--quiet")
    commits = []
    for text in ("| 1,234.5 | 77 |", "| 999 | 77 |"):
        (clone / "README.md").write_text(text, encoding="utf-8")
        git("add", ".")
        git("commit", "--quiet", "-m", "figures")
        commits.append(git("rev-parse", "HEAD")[:12])
    for number, place in enumerate([f"github.com/a/b@{commit}: README.md" for commit in commits] + ["github.com/a/c@1234567: x"], start=1):
        claims = {"tokens_per_s": {"value": 1234.5, "printed": "1234.5 tokens/s"}, "steps": {"value": 77.0, "printed": "77"}}
        row = {"id": f"900-00{number}", "source": "900", "section": "s", "labels": {}, "status": "ok", "claims": claims}
        row |= {"origin": {"kind": "document", "reference": place}, "conditions": {"model": None, "method": "lora"}}
        (published / f"900-00{number}.json").write_text(json.dumps({"format": "tunemark.published/1", **row}), encoding="utf-8")
    outcomes, missing = check(tmp_path, tmp_path / "clones")
    assert outcomes == {("900", "found"): 3, ("900", "missing"): 1, ("900", "not read"): 2}
    assert missing == [f"900-002 tokens_per_s: '1234.5 tokens/s' is not in github.com/a/b@{commits[1]}: README.md"]
