"""One database and one built site for all tests of this room, on all workers of pytest-xdist."""

import os
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from fixture_database import ROOT, make_database, served
from harness_making import ran
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as BrowserPage

from tunemark.site.build import build_site
from tunemark.site.database import Database
from tunemark.site.page import Page
from tunemark.site.pages import other_pages, result_pages
from tunemark.site.records import Catalogue
from tunemark.site.render import markdown
from tunemark.site.script import script

CHROMIUM = Path("/usr/bin/chromium")
QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
BUILD = """
import sys
from tunemark.cli import main
try:
    main()
finally:
    print(*sorted(sys.modules))
"""
"""Runs the command line and prints all modules that it imported."""
MakeOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def database(make_once: MakeOnce) -> Path:
    """Return the path of the fixture database."""
    return make_once("database", make_database) / "tunemark.duckdb"


@pytest.fixture(scope="session")
def built(database: Path, make_once: MakeOnce) -> Path:
    """Return the folder that holds `docs` and `site`, built strictly."""
    return make_once("built", lambda out: build_site(database, out, ROOT / "mkdocs.yml", strict=True, progress=lambda _: None))


@pytest.fixture(scope="session")
def built_by_command(database: Path, make_once: MakeOnce) -> Path:
    """Return a folder that `tunemark site build` built in a process of its own. Its output is in `output.txt`."""

    def build(out: Path) -> None:
        command = [sys.executable, "-c", BUILD, "site", "build", "--db", str(database), "--out", str(out)]
        done = ran(command, env={"TUNEMARK_ROOT": str(ROOT), "CI": ""})
        assert done.returncode == 0, done.stderr
        (out / "output.txt").write_text(done.stdout, encoding="utf-8")

    return make_once("built_by_command", build)


@pytest.fixture(scope="session")
def catalogue(database: Path) -> Catalogue:
    """Return the catalogue of the fixture database, open. Tests must not change it."""
    return Catalogue(Database(database))


@pytest.fixture(scope="session")
def listed(catalogue: Catalogue) -> list[dict[str, Any]]:
    """Return the rows of all results as pages show them."""
    return catalogue.results


@pytest.fixture(scope="session")
def pages(catalogue: Catalogue) -> dict[str, Page]:
    """Return the pages of the fixture database by path."""
    return {page.path: page for page in (*result_pages(catalogue), *other_pages(catalogue))}


@pytest.fixture(scope="session")
def shown(pages: dict[str, Page]) -> Callable[[str], str]:
    """Return a function that returns the Markdown of a page by its path."""
    return lambda path: markdown(pages[path])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a headless Chromium."""
    if not CHROMIUM.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{CHROMIUM} is missing, and in CI these tests must run; install it with apt-get install chromium")
        pytest.skip(f"{CHROMIUM} is missing; install it with apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=QUIET)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    """Return the address of the built site, served."""
    with served(built / "site") as found:
        yield found


@pytest.fixture(scope="module")
def script_alone(browser: Browser) -> Iterator[Callable[[str], BrowserPage]]:
    """Return a function that loads a script of the site, and what it shares with others, into an empty page."""
    opened = []

    def load(name: str) -> BrowserPage:
        page = browser.new_page()
        opened.append(page)
        page.set_content("<!doctype html><title>empty</title>")
        page.add_script_tag(content=script("recommendation.js"))
        for asset in ("common.js", name):
            page.add_script_tag(content=resources.files("tunemark.site").joinpath("assets", asset).read_text(encoding="utf-8"))
        return page

    yield load
    for page in opened:
        page.close()
