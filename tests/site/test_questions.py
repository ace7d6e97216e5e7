"""A reader finds the answer to each question of `questions.toml` in at most two clicks from the home page, in the site of the committed data."""

import gzip
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixture_database import served
from playwright.sync_api import Browser
from test_browser import Visit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MAX_CLICKS = 2
QUESTIONS = tomllib.loads(Path(__file__).with_name("questions.toml").read_text(encoding="utf-8"))
PATHS: dict[tuple[str, ...], dict[str, list[str]]] = defaultdict(dict)
"""The questions of each path, with the patterns of their answers."""
for asked, row in QUESTIONS.items():
    PATHS[tuple(row["steps"])][asked] = row["answers"]
TIME_AND_COST = r"[^*]+?about \$[\d.,]+\s+\$[\d.,]+ to \$[\d.,]+\s+Time\s+about .+\s+.+ to .+"


@pytest.fixture(scope="module")
def address(whole_site: Path) -> Iterator[str]:
    """Serve the site of the committed data and return its address."""
    with served(whole_site / "site") as found:
        yield found


def take(visit: Visit, kind: str, words: str) -> None:
    """Do what a reader does with one click."""
    page = visit.page
    if kind == "field":
        (name, value), before = words.split(maxsplit=1), page.locator("#tm-answer").inner_text()
        field = page.locator(f"#tm-question [name={name}]")
        field.fill(value) if name == "model" else field.select_option(value)
        page.wait_for_function("before => document.querySelector('#tm-answer').innerText !== before", arg=before)
    elif kind == "evidence":
        page.locator("#tm-answer a[href^='results/']").first.click()
    elif kind == "tab":
        page.locator(".md-tabs").get_by_role("link", name=words, exact=True).click()
    else:
        page.locator("article").get_by_role("link", name=words).first.click()
    page.wait_for_load_state("load")
    if page.locator("#tm-compare").count():
        page.wait_for_selector("#tm-compare[data-ready]")


def test_what_home_loads_and_the_cost_page_keep_to_their_budgets(browser: Browser, address: str, whole_site: Path) -> None:
    site = whole_site / "site"
    with Visit(browser, address, "index.html") as visit:
        loaded = [(site / url.removeprefix(address)).read_bytes() for url in visit.requests]
    assert sum(len(gzip.compress(content)) for content in loaded) <= 150_000
    assert (site / "cost.html").stat().st_size <= 200_000


def test_runs_that_test_an_installation_are_in_the_data_alone(whole_site: Path) -> None:
    site = whole_site / "site"
    assert "smoke-lora" in (site / "data" / "results.csv").read_text(encoding="utf-8")
    assert not [page for page in (*site.glob("results/*.html"), *site.glob("workloads/*.html")) if "smoke-lora" in page.read_text("utf-8")]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ", ".join(path) or "home")
def test_the_answers_are_at_most_two_clicks_away(path: tuple[str, ...], browser: Browser, address: str) -> None:
    assert len(path) <= MAX_CLICKS
    with Visit(browser, address, "index.html") as visit:
        visit.page.hover("#tm-question")
        visit.page.wait_for_function("() => globalThis.tunemark?.answer")
        for step in path:
            kind, _, words = step.partition(" ")
            take(visit, kind, words)
        shown, text = visit.page.locator("#tm-answer" if all(step.startswith("field") for step in path) else "article"), ""
        # Tables are laid out after a page has loaded.
        while text != (text := shown.inner_text()):
            visit.page.wait_for_timeout(250)
        for question, answers in PATHS[path].items():
            for answer in answers:
                pattern = answer.replace("TIME_AND_COST", TIME_AND_COST)
                assert re.search(pattern, text, re.MULTILINE), f"{question}: {answer} is not in: {text[:4000]}"
        assert visit.complaints == []
