"""From the database to the built site, by the two commands as a person types them."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from html import unescape
from pathlib import Path
from urllib.parse import urldefrag

import pytest
import yaml
from fixture_database import ENTRY, MEASURED, OTHER, ROOT, SLOWER, STRANGE, make_empty
from harness_making import cold, ran

from tunemark.schema.errors import TunemarkError
from tunemark.site.build import build_site

CONFIG = ROOT / "mkdocs.yml"


@pytest.fixture(scope="module")
def empty_database(database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_empty(database, tmp_path_factory.mktemp("empty") / "empty.duckdb")


def test_mkdocs_never_builds_into_our_source() -> None:
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    assert config["site_dir"] == "build/site"
    assert config["docs_dir"] == "build/docs"
    assert config["theme"]["font"] is False
    assert [[*plugin] for plugin in config["plugins"]] == [["search"]]
    assert "hooks" not in config


def test_nothing_on_a_page_is_loaded_from_elsewhere(built: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe|source|video|audio|embed|object|link(?![^>]*rel=.?canonical))\b[^>]*\b(?:src|href|data)=[\"']?(?:https?:)?//",
        re.IGNORECASE,
    )
    for path in sorted((built / "site").rglob("*.html")):
        assert not loading.search(path.read_text(encoding="utf-8")), path
    for sheet in sorted((built / "site").rglob("*.css")):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_every_link_within_the_site_has_a_target(built: Path) -> None:
    site = built / "site"
    for path in {*site.rglob("*.html")} - {site / "404.html"}:
        for target in re.findall(r'(?:href|src)="([^"]*)"', path.read_text(encoding="utf-8")):
            address = urldefrag(unescape(target))[0].partition("?")[0]
            if address and not re.match(r"[a-z]+:", address):
                assert (path.parent / address).exists(), f"{path.relative_to(site)} links to {target}"


def test_only_results_with_charts_load_the_chart_script_and_other_pages_have_drawings(built: Path) -> None:
    with_charts = [path for path in (built / "site").rglob("*.html") if "assets/charts.js" in path.read_text(encoding="utf-8")]
    assert {path.stem for path in with_charts} == {MEASURED, SLOWER, OTHER, STRANGE, ENTRY}
    assert 'class="tm-chart-phone" role="img"' in (built / "site" / "cost.html").read_text(encoding="utf-8")


def test_a_failed_build_keeps_the_previous_site(empty_database: Path, tmp_path: Path) -> None:
    (tmp_path / "site" / "assets").mkdir(parents=True)
    (tmp_path / "site" / "assets" / "tunemark.css").write_text("", encoding="utf-8")
    (tmp_path / "site" / "index.html").write_text("old", encoding="utf-8")
    broken = tmp_path / "mkdocs.yml"
    broken.write_text("site_name: x\ntheme: no-such-theme\n", encoding="utf-8")
    with pytest.raises(TunemarkError, match="mkdocs"):
        build_site(empty_database, tmp_path, broken, strict=True, progress=print)
    assert (tmp_path / "site" / "index.html").read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_that_we_did_not_build_is_never_replaced(database: Path, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "source.py").write_text("", encoding="utf-8")
    with pytest.raises(TunemarkError, match="was not built by"):
        build_site(database, tmp_path, CONFIG, strict=True, progress=print)
    assert (tmp_path / "site" / "source.py").is_file()


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.duckdb"
    path.write_text("no database at all", encoding="utf-8")
    with pytest.raises(TunemarkError, match="cannot be opened"):
        build_site(path, tmp_path / "out", CONFIG, strict=True, progress=print)


def test_an_empty_database_gives_a_site(empty_database: Path, tmp_path: Path) -> None:
    build_site(empty_database, tmp_path / "out", CONFIG, strict=True, progress=print)
    site = tmp_path / "out" / "site"
    assert "No answer can be given before results are collected" in (site / "index.html").read_text(encoding="utf-8")
    assert [path.name for path in (site / "studies").glob("*.html")] == ["index.html"]


def test_the_command_prints_the_number_of_pages_and_imports_neither_torch_nor_another_room(built_by_command: Path) -> None:
    modules = (built_by_command / "output.txt").read_text(encoding="utf-8").splitlines()[-1].split()
    assert "tunemark.site.build" in modules
    assert [name for name in modules if name.split(".")[0] == "torch" or name.startswith(("tunemark.harness", "tunemark.collector"))] == []
    output = (built_by_command / "output.txt").read_text(encoding="utf-8")
    assert "pages; view them with `tunemark site serve`" in output
    assert "\x1b" not in output
    assert (built_by_command / "site" / "index.html").is_file()


def test_an_unwritable_place_is_a_usage_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "inside"):
        done = ran(cold("tunemark", "site", "build", "--out", place), env={"TUNEMARK_ROOT": str(ROOT)})
        assert done.returncode == 2
        assert done.stderr == f"tunemark: --out: '{place}': cannot be written ({tmp_path / 'file'} is a file); name a folder of yours\n"


def test_serve_answers_on_this_machine_and_ends_with_ctrl_c(built: Path) -> None:
    # A test run in the background of a shell ignores Ctrl-C, and so would its child.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from tunemark.cli import main; main()"
    environment = {**os.environ, "TUNEMARK_ROOT": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", code, "site", "serve", "--port", "0", "--out", str(built)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            address = process.stdout.readline().split(" on ")[1].split()[0]
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address) as answer:  # noqa: S310 - our own server
                assert b"Tunemark" in answer.read()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=10)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "stopped\n", "")
