"""The explorer: exact filters, words, sorting, columns and CSV; its address; a phone; and the page without JavaScript."""

import csv
import io
import json
import math
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fixture_database import HOSTILE
from playwright.sync_api import Browser, Locator, Page
from test_browser import NARROW, Visit

PAGE = "results/index.html"
FAILED, IMPOSSIBLE = 1, 2
TIMES = "\N{MULTIPLICATION SIGN}"
ACTION_MS = 500
"""Far above the goal of 50 ms, so that a busy machine does not fail the tests."""


def row(result: str, rate: float | None, **others: Any) -> dict[str, Any]:
    """Return a row of the explorer. Fields that are not given are unknown."""
    return {"id": result, "tokens_per_s": rate, "flags": 0, "trust": "published", "source": "900", "status": "ok"} | others


TABLES = tomllib.loads(Path(__file__).with_name("explorer.toml").read_text(encoding="utf-8").replace("HOSTILE", json.dumps(HOSTILE)[1:-1]))
ROWS = [row(each.pop("id"), each.pop("tokens_per_s", None), **each) for each in TABLES["rows"]]
TITLES = {"900": "A document"}
OF_900 = [each["id"] for each in ROWS[:6]]
ALL = [each["id"] for each in ROWS]


@contextmanager
def opened(
    browser: Browser, address: str, query: str = "", rows: list[dict[str, Any]] = ROWS, titles: dict[str, str] = TITLES, **more: Any
) -> Iterator[Page]:
    """Open the page of results with these rows. It must not complain."""

    def changed(data: dict[str, Any]) -> dict[str, Any]:
        return data | {"titles": titles, "columns": {key: [each.get(key) for each in rows] for key in data["columns"]}}

    with Visit(browser, address, PAGE + query, explorer=changed, **more) as visit:
        visit.page.wait_for_selector(".tm-explorer[data-ready]")
        yield visit.page
        assert visit.complaints == []


@pytest.fixture
def explorer(browser: Browser, address: str) -> Iterator[Page]:
    with opened(browser, address) as page:
        yield page


def shown(page: Page) -> list[str]:
    return page.locator(".tm-explorer-table tbody th small").all_inner_texts()


def labels(page: Page, facet: str) -> Locator:
    page.locator(f"[data-facet={facet}]").evaluate("node => { node.open = true; }")
    page.locator(f"[data-facet={facet}] label").first.wait_for(state="attached")
    return page.locator(f"[data-facet={facet}] label:not([hidden])")


def choose(page: Page, facet: str, value: str) -> None:
    labels(page, facet).get_by_text(value, exact=True).click()


def counts(page: Page, facet: str) -> dict[str, int]:
    """Return the counts of the values of a facet that are offered."""
    cells = labels(page, facet).evaluate_all(
        "nodes => nodes.map(({ children: [_, name, count] }) => [name.textContent, count.textContent])"
    )
    return {name: int(number) for name, number in cells}


def column(page: Page, key: str) -> list[str]:
    return page.locator(f".tm-explorer-table tbody td[data-key={key}]").all_inner_texts()


def test_every_result_is_listed_and_failed_and_impossible_ones_are_marked_below_the_others(explorer: Page) -> None:
    """So the counts of facets are those of the pages of accelerators, models and documents."""
    assert shown(explorer) == ALL
    assert explorer.locator(".tm-explorer-status output").inner_text() == "9 of 9 results"
    assert explorer.locator(".tm-explorer-table tr[data-last] .tm-mark").all_inner_texts() == ["impossible", "oom"]


def test_a_bar_is_a_share_of_the_largest_figure_of_the_same_work_that_is_neither_impossible_nor_doubted(
    browser: Browser, address: str
) -> None:
    same: dict[str, Any] = {"devices": 8, "model": "Llama 3.1 8B", "method": "LoRA", "row_length": 2048}
    others = {"902-001": (6000.0, {}), "902-002": (12000.0, {"doubted": "suspicious"}), "902-003": (99999.0, {"flags": IMPOSSIBLE})}
    rows = [*ROWS[:2], *(row(name, rate, **same, **more) for name, (rate, more) in others.items())]
    with opened(browser, address, rows=rows) as page:
        cells = page.locator("td[data-key=tokens_per_s]")
        bars = cells.evaluate_all("nodes => nodes.map(node => node.style.getPropertyValue('--bar'))")
        assert page.locator("tr[data-id='902-002'] .tm-mark").inner_text() == "suspicious"
    assert [float(bar.rstrip("%") or "nan") for bar in bars] == pytest.approx([100, math.nan, 100 * 6 / 9, math.nan, math.nan], nan_ok=True)


def test_a_word_of_a_title_finds_rows_unless_another_field_has_it(browser: Browser, address: str) -> None:
    titles = {"900": "LoRA and QLoRA measured anew"}
    for words, results in (("qlora", ["900-003", "900-004"]), ("anew", OF_900)):
        with opened(browser, address, f"?text={words}", titles=titles) as page:
            assert shown(page) == results


def test_unknown_values_of_the_address_are_named(browser: Browser, address: str) -> None:
    with opened(browser, address, "?accelerator=H1000&model=Llama+3.1+8B&bar=1") as page:
        assert shown(page) == ["900-001", "900-002", "900-004"]
        assert page.get_by_text('no result has: accelerator "H1000". The address has "bar", which this page does not').is_visible()
    with opened(browser, address, "?sort=-zzz&columns=yyy") as page:
        assert page.get_by_text('no result has: column "zzz", column "yyy".').is_visible()
        assert page.locator(".tm-explorer-table th").count() > 2


def test_a_facet_matches_exactly_and_a_count_is_the_number_of_rows_that_a_choice_would_show(explorer: Page) -> None:
    assert list(counts(explorer, "method").items()) == [("full", 3), ("DoRA", 2), ("LoRA", 2), ("QLoRA", 2)]
    choose(explorer, "method", "LoRA")
    assert shown(explorer) == ["900-001", "900-002"]
    choose(explorer, "method", "LoRA")
    choose(explorer, "devices", "8")
    assert shown(explorer) == ["900-001", "900-004", "900-005"]
    assert counts(explorer, "method") == {"LoRA": 1, "QLoRA": 1, "full": 1}
    assert counts(explorer, "devices") == {"1": 3, "8": 3, "3": 2, "64": 1}
    assert counts(explorer, "year") == {"2024": 1, "not stated": 2}


def test_free_text_matches_words_and_the_example_of_the_search_finds_results(explorer: Page) -> None:
    search = explorer.get_by_label("Search results", exact=True)
    for words, results in TABLES["searches"].items():
        search.fill(words)
        assert shown(explorer) == results, words
    search.fill(search.get_attribute("placeholder") or "")
    assert 0 < len(shown(explorer)) < len(ALL)


def test_a_click_on_a_heading_sorts_and_the_unknown_and_the_failed_stay_last(explorer: Page) -> None:
    explorer.get_by_role("button", name="Tokens/s").click()
    assert shown(explorer) == ["900-003", "900-001", "900-005", "900-002", "900-006", "901-001", "900-004", "901-002", "901-003"]
    assert explorer.locator("th[aria-sort=descending]").inner_text().strip() == "Tokens/s"
    explorer.get_by_role("button", name="Tokens/s").click()
    assert shown(explorer) == ["901-001", "900-006", "900-002", "900-005", "900-001", "900-003", "900-004", "901-002", "901-003"]
    explorer.get_by_role("button", name="Tokens/s").click()
    assert explorer.locator("th[aria-sort]").count() == 0
    explorer.get_by_label("Sort", exact=True).select_option("-devices")
    assert shown(explorer)[0] == "900-003"


def test_the_address_keeps_the_state_and_the_back_button_restores_it(explorer: Page) -> None:
    choose(explorer, "method", "LoRA")
    choose(explorer, "row_length", "4,096")
    explorer.get_by_label("Search results", exact=True).fill("h100")
    explorer.get_by_role("button", name="Tokens/s").click()
    explorer.locator(".tm-explorer-columns summary").click()
    explorer.locator(".tm-explorer-columns").get_by_label("Status").check()
    choose(explorer, "kind", "not stated")
    before = (explorer.url, shown(explorer), explorer.locator(".tm-explorer-table thead").inner_text())
    explorer.reload()
    explorer.wait_for_selector(".tm-explorer[data-ready]")
    assert (explorer.url, shown(explorer), explorer.locator(".tm-explorer-table thead").inner_text()) == before
    assert explorer.get_by_label("Search results", exact=True).input_value() == "h100"
    explorer.go_back()
    assert "kind=" not in explorer.url
    explorer.get_by_role("button", name="Clear all").click()
    assert shown(explorer) == ALL
    assert "?" not in explorer.url


def test_the_csv_holds_what_is_shown(explorer: Page) -> None:
    choose(explorer, "devices", "8")
    explorer.get_by_role("button", name="Tokens/s").click()
    explorer.locator(".tm-explorer-columns summary").click()
    explorer.locator(".tm-explorer-columns").get_by_label("Framework").check()
    with explorer.expect_download() as download:
        explorer.get_by_role("button", name="CSV").click()
    lines = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))
    assert [line["result_id"] for line in lines] == shown(explorer) == ["900-001", "900-005", "900-004"]
    assert [line["tokens_per_s"] for line in lines] == ["9000", "4000", ""]
    assert [line["devices"] for line in lines] == ["8", "8", "8"]
    assert lines[1]["framework"] == '\'=HYPERLINK("x"), y'
    heads = (
        explorer.locator(".tm-explorer-table tbody tr")
        .first.locator("[data-key]")
        .evaluate_all("nodes => nodes.map(node => node.dataset.key)")
    )
    assert set(lines[0]) == {"result_id", "devices", *heads}


def test_marks_and_hostile_text_are_shown_as_text_and_a_result_begins_a_comparison(explorer: Page) -> None:
    link = explorer.get_by_role("link", name=f"Compare H100 {TIMES} 1, 900-002")
    assert link.get_attribute("href") == "../compare.html#900-002"
    assert explorer.locator("tr[data-id='900-002'] .tm-mark").inner_text() == "ambiguous"
    assert "<script>" in explorer.locator("tr[data-id='900-006'] td[data-key=model]").inner_text()
    assert explorer.evaluate("window.hacked") is None


def test_many_rows_are_drawn_in_parts_and_filtered_quickly(browser: Browser, address: str) -> None:
    rows = [row(f"9-{n:05}", n + 1.0, accelerator=f"card {n % 90}", method=("LoRA", "QLoRA")[n % 2]) for n in range(20_000)]
    with opened(browser, address, rows=rows) as page:
        page.get_by_role("button", name="Show 200 more of 19,950").click()
        assert len(shown(page)) == 250
        assert page.evaluate("document.activeElement.closest('tr').dataset.id") == "9-00050"
        script = "() => { const start = performance.now(); document.querySelector('[data-facet=method] input').click(); document.body.offsetHeight; return performance.now() - start; }"
        assert page.evaluate(script) < ACTION_MS
        assert page.locator(".tm-explorer-status output").inner_text() == "10,000 of 20,000 results"


def test_a_phone_shows_accelerator_and_figure_first_without_sideways_scrolling(browser: Browser, address: str) -> None:
    with opened(browser, address, width=NARROW) as page:
        assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW
        assert not page.locator("[data-facet=method]").is_visible()
        card = page.locator("tr[data-id='900-001']")
        for part, text in (("th > a", f"H100 {TIMES} 8"), (".tm-explorer-figure strong", "9,000 tokens/s")):
            box = card.locator(part).bounding_box()
            assert card.locator(part).inner_text() == text
            assert box["y"] + box["height"] <= 844
            assert box["x"] + box["width"] <= NARROW
        assert page.locator("tr[data-id='900-003'] .tm-explorer-figure").inner_text() == "70,000 tokens/s $0.250 per 1M tokens"
        assert page.locator("tr[data-id='900-004'] .tm-explorer-figure").inner_text() == "12.5 samples/s cost not known"
        page.locator(".tm-explorer-drawer > summary").click()
        choose(page, "method", "QLoRA")
        assert shown(page) == ["900-003", "900-004"]
        assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW


def test_the_table_stays_when_the_data_cannot_be_loaded(browser: Browser, address: str) -> None:
    with Visit(browser, address, PAGE) as visit:
        visit.page.route("**/data/explorer.json", lambda route: route.fulfill(status=404))
        visit.page.reload()
        visit.page.get_by_text("The filters could not be loaded").wait_for()
        assert visit.page.locator("[data-explorer-plain]").is_visible()


# The data ------------------------------------------------------------------------------------------


def test_every_result_is_in_the_data_of_the_built_site_and_failed_and_impossible_ones_are_marked(
    built: Path, listed: list[dict[str, Any]]
) -> None:
    columns = json.loads((built / "site" / "data" / "explorer.json").read_text(encoding="utf-8"))["columns"]
    flags = dict(zip(columns["id"], columns["flags"], strict=True))
    assert flags == {row["result_id"]: FAILED * row["failed"] | IMPOSSIBLE * row["impossible"] for row in listed}
