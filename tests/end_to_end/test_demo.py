"""`tunemark demo` as `make demo` calls it: three real runs, a built site, and a second time that is quick."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def demo(checkout):
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tunemark.cli", "demo", "--no-serve"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=checkout,
        env={**os.environ, "TUNEMARK_ROOT": str(checkout)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, time.monotonic() - began_s


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_ends_with_three_runs_and_the_path_of_the_site_and_is_quick_the_second_time(tmp_path):
    (tmp_path / "data").mkdir()
    for facts in (ROOT / "data").iterdir():
        # One source is enough here: test_whole_way builds the pages of all sources.
        if facts.name not in {"converted", "published", "workloads"}:
            (tmp_path / "data" / facts.name).symlink_to(facts)
    shutil.copytree(ROOT / "data" / "workloads", tmp_path / "data" / "workloads")
    for card in (tmp_path / "data" / "workloads").glob("smoke-*.toml"):
        # The figures of a demo are not the subject, so its runs train only a few steps after warm-up.
        card.write_text(
            re.sub(r"^max_steps = .*$", "max_steps = 50", card.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8"
        )
    shutil.copytree(ROOT / "data" / "published" / "001", tmp_path / "data" / "published" / "001")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    output, first_s = demo(tmp_path)
    for workload in ("smoke-lora", "smoke-full", "smoke-bert"):
        (path,) = (tmp_path / "submissions" / workload).glob("*.json")
        assert path.name in output
    index = tmp_path / "build" / "site" / "index.html"
    assert output.splitlines()[-1] == f"site: {index}"
    assert index.is_file()
    _, second_s = demo(tmp_path)
    assert len(list((tmp_path / "submissions").rglob("*.json"))) == 3
    assert second_s < first_s / 2
