"""Result pages are rendered by several processes, byte-identical to those of one process."""

import json
from pathlib import Path

import pytest
from fixture_database import ROOT

from tunemark.schema.errors import TunemarkError
from tunemark.site import charts, downloads, stamp, workers
from tunemark.site.build import build_site
from tunemark.site.kept_results import KeptResults
from tunemark.site.page import Page
from tunemark.site.pages import result_pages
from tunemark.site.queries import Catalogue


def content(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a folder, at any depth."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def always_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WORTH_IT", 0)


@pytest.mark.usefixtures("always_worth_it")
def test_two_processes_build_the_same_bytes_as_one(built: Path, database: Path, tmp_path: Path) -> None:
    build_site(database, tmp_path, ROOT / "mkdocs.yml", strict=True, progress=lambda _: None, jobs=2)
    for folder in ("site", "docs", ".charts"):
        one, two = content(built / folder), content(tmp_path / folder)
        assert one
        # DuckDB does not write the same bytes twice.
        assert {name for name in one.keys() | two.keys() if one.get(name) != two.get(name)} <= {downloads.DUCKDB_FILE}
        assert one.keys() == two.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".charts", ".results.json", "docs", "site"]


@pytest.mark.usefixtures("always_worth_it")
def test_an_error_in_a_process_is_the_error_of_the_build(catalogue: Catalogue, tmp_path: Path) -> None:
    with (
        charts.kept_in(tmp_path / ".charts") as keep,
        pytest.raises(TunemarkError, match="run `tunemark collect` first"),
        workers.working(catalogue, tmp_path / "none.duckdb", tmp_path, KeptResults(tmp_path), keep=keep, jobs=2) as work,
    ):
        list(work.pages())
    assert not (tmp_path / workers.FOLDER).exists()


def test_shares_have_every_page_once(catalogue: Catalogue, database: Path, tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        file = tmp_path / f"{number}.jsonl"
        workers.render_share(workers.Share(database, tmp_path / ".charts", file, sorted(catalogue.result_ids)[number::3]))
        paths += [json.loads(line)["path"] for line in file.read_text(encoding="utf-8").splitlines()]
    assert sorted(paths) == sorted(page.path for page in result_pages(catalogue))


def test_only_lists_and_the_guide_go_through_mkdocs(built: Path, pages: dict[str, Page]) -> None:
    laid_out = {path.relative_to(built / "docs").with_suffix("").as_posix() for path in (built / "docs").rglob("*.md")}
    assert {name for name in laid_out if not Path(name).name.startswith("shell")} == {
        page.path for page in pages.values() if not stamp.is_stamped(page)
    }
    assert {stamp.shell_path(page) for page in pages.values() if stamp.is_stamped(page)} <= laid_out
    assert not stamp.is_stamped(pages["models/index"])
    assert stamp.is_stamped(pages["audit/rules"])
