"""The built site in a browser: nothing leaves the machine, charts are drawn, tables sort, search finds, 390 px are enough."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import pytest
from fixture_database import AB, CRASHED, ENTRY, H100, MEASURED, ROUND, STRANGE, STRANGE_ENTRY, STRANGE_STUDY
from playwright.sync_api import Browser, Page, Route

MODEL = "models/tiny-llama.html"
RESULT, CONVERTED = f"results/{MEASURED}.html", f"results/{ENTRY}.html"
NARROW, LEAST_CONTRAST = 390, 4.5
Json = dict[str, Any]


def changed(change: Callable[[Json], Json], route: Route) -> None:
    route.fulfill(json=change(route.fetch().json()))


class Visit:
    """A page of the site, with all that it asked for and complained about; `data` changes what it reads, by the name of the file."""

    def __init__(
        self,
        browser: Browser,
        address: str,
        path: str,
        *,
        width: int = 1280,
        dark: bool = False,
        scripts: bool = True,
        **data: Callable[[Json], Json],
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 844}, color_scheme="dark" if dark else "light", java_script_enabled=scripts
        )
        self.page: Page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type in {"error", "warning"} else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        for name, change in data.items():
            self.page.route(f"**/data/{name}.json", partial(changed, change))
        self.page.goto(address + path, wait_until="load")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def wait_for_chart(page: Page, name: str) -> None:
    """Scroll to each chart of a page, since charts are drawn when they come near the window, and wait for one of them."""
    for place in page.locator("[data-chart]").all():
        place.scroll_into_view_if_needed()
    page.wait_for_selector(f"[data-chart$={name}][data-drawn]")


PAGES = (
    *("index.html", "results/index.html", RESULT, "results/003-001.html", "documents/004.html", CONVERTED, f"documents/{ROUND}.html"),
    *("workloads/smoke-lora.html", "cost.html", f"accelerators/{H100}.html", "data/index.html", "studies/index.html", f"studies/{AB}.html"),
    *(f"guide/{name}.html" for name in ("index", "fields", "provenance", "support", "predictions")),
    *(f"results/{name}.html" for name in (STRANGE, STRANGE_ENTRY)),
    f"studies/{STRANGE_STUDY}.html",
)


def test_no_page_asks_elsewhere_complains_or_scrolls_sideways_on_a_phone(browser: Browser, address: str) -> None:
    with Visit(browser, address, PAGES[0], width=NARROW) as visit:
        for path in PAGES:
            visit.page.goto(address + path, wait_until="load")
            if path in {RESULT, CONVERTED}:
                wait_for_chart(visit.page, "loss")
            visit.page.wait_for_timeout(200)
            assert [url for url in visit.requests if not url.startswith((address, "data:", "blob:"))] == [], path
            assert visit.complaints == [], path
            assert visit.page.evaluate("window.hacked") is None, path
            assert visit.page.evaluate("document.scrollingElement.scrollWidth") <= NARROW, path


@pytest.mark.parametrize(
    ("path", "there", "gone", "said"),
    [
        ("results/index.html", "[data-explorer-plain]", ".tm-explorer", ENTRY),
        ("compare.html", "noscript p", "[role=combobox]", "Choosing needs JavaScript."),
        ("cost.html", "#tm-costs-plain table", "#tm-cost-form", ENTRY),
    ],
)
def test_without_javascript_a_page_has_a_table_or_says_what_it_lacks(
    browser: Browser, address: str, path: str, there: str, gone: str, said: str
) -> None:
    with Visit(browser, address, path, scripts=False) as visit:
        shown = visit.page.locator(there).first
        assert (shown.is_visible(), visit.page.locator(gone).first.is_visible()) == (True, False)
        assert said in shown.inner_text()


def test_the_first_column_stays_while_a_table_scrolls(browser: Browser, address: str) -> None:
    with Visit(browser, address, MODEL, width=NARROW) as visit:
        first = visit.page.locator(".tm-table tbody th").first
        before = first.bounding_box()
        visit.page.evaluate("document.querySelector('.tm-scroll').scrollLeft = 300")
        assert first.bounding_box() == before


def test_a_source_is_seen_on_a_phone_without_scrolling_sideways(browser: Browser, address: str) -> None:
    with Visit(browser, address, "guide/provenance.html", width=NARROW) as visit:
        edges = visit.page.locator("td[data-head=Source]").evaluate_all(
            "cells => cells.map((cell) => cell.getBoundingClientRect()).map((box) => [box.left, box.right])"
        )
        assert len(edges) > 3
        assert all(0 <= left < right <= NARROW for left, right in edges)


def rows(page: Page) -> list[str]:
    return page.locator(".tm-table tbody tr:visible th small").all_inner_texts()


def test_a_click_on_a_head_sorts_and_failures_stay_last(browser: Browser, address: str) -> None:
    with Visit(browser, address, MODEL) as visit:
        last = rows(visit.page)[-1]
        for direction in ("ascending", "descending"):
            visit.page.get_by_role("button", name="Tokens/s").click()
            assert visit.page.locator(f"th[aria-sort={direction}]").count() == 1
            cells = visit.page.locator(".tm-table tbody tr:not([data-last]) td:nth-child(5)")
            known = [float(value) for cell in cells.all() if (value := cell.get_attribute("data-sort"))]
            assert known == sorted(known, reverse=direction == "descending")
            assert len(set(known)) > 1
            assert rows(visit.page)[-1] == last == CRASHED


def test_the_filter_keeps_rows_with_all_words(browser: Browser, address: str) -> None:
    with Visit(browser, address, "guide/index.html") as visit:
        visit.page.get_by_label("Filter the rows").fill("padding TOKENS")
        visit.page.reload()
        kept = [text.lower() for text in visit.page.locator(".tm-table-box[data-interactive] tbody tr:visible").all_inner_texts()]
        assert kept
        assert all("padding" in text and "tokens" in text for text in kept)
        assert visit.page.locator(".tm-filter output").inner_text().startswith(f"{len(kept)} of ")
        visit.page.go_back()
        visit.page.wait_for_selector(".tm-filter output:has-text(' rows')")
        assert (visit.page.url, visit.page.get_by_label("Filter the rows").input_value()) == (f"{address}guide/index.html", "")


@pytest.mark.parametrize("path", ["models/index.html", "accelerators/index.html", "studies/index.html", RESULT])
def test_a_page_that_takes_no_parameters_names_those_of_its_address(browser: Browser, address: str, path: str) -> None:
    with Visit(browser, address, f"{path}?zzz=1&text=a") as visit:
        assert visit.page.inner_text("h1 + [role=status]") == 'The address has "zzz", which this page does not know.'
        assert visit.complaints == []


def test_the_index_of_the_search_is_loaded_when_the_reader_goes_to_the_search_which_finds_a_model(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html") as visit:
        before = {url.rpartition("/")[2] for url in visit.requests}
        assert {"tables.js", "search_index.json", "sitemap.xml", "recommendation.js"} & before == {"tables.js"}
        visit.page.locator("input.md-search__input").click()
        visit.page.keyboard.type("Llama 3.1 8B")
        visit.page.wait_for_selector(".md-search-result__link[href*='models/llama-3.1-8b.html']")
        assert not visit.complaints


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_each_run_of_an_entry_is_a_line_and_the_target_a_rule(browser: Browser, address: str) -> None:
    with Visit(browser, address, CONVERTED, dark=True) as visit:
        wait_for_chart(visit.page, "eval-loss")
        chart = visit.page.locator("[data-chart=eval-loss][data-drawn] svg")
        assert chart.locator(".mark-line.role-mark path").count() == 10
        assert chart.locator(".mark-rule.role-mark line").count() == 1
        paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        for colour in {line.evaluate("node => getComputedStyle(node).stroke") for line in chart.locator(".mark-line.role-mark path").all()}:
            assert contrast(colour, paper) >= 3, colour
        assert visit.page.locator(".tm-table tbody tr").filter(has_text="incomplete").last.get_attribute("data-last") is not None


@pytest.mark.parametrize("dark", [False, True])
def test_charts_are_drawn_and_they_and_the_text_are_legible(browser: Browser, address: str, *, dark: bool) -> None:
    with Visit(browser, address, RESULT, dark=dark) as visit:
        wait_for_chart(visit.page, "loss")
        assert visit.page.locator("[data-chart=step-time] svg .mark-symbol.role-mark path").count() == 150
        assert visit.page.locator("[data-chart=step-time] svg .mark-rule.role-mark line").count() == 1
        assert visit.page.locator("[data-chart=loss] svg .mark-line.role-mark path").count() == 1
        assert visit.page.locator("[data-chart=step-time] svg").bounding_box()["width"] > 600  # type: ignore[index]
        paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (luminance(paper) < 0.1) is dark
        words = [".role-axis-label text", ".role-axis-title text", ".role-legend-label text"]
        fills = [
            visit.page.locator(f"[data-chart=step-time] {word}").first.evaluate("node => getComputedStyle(node).fill") for word in words
        ]
        inks = [
            visit.page.locator(word).first.evaluate("node => getComputedStyle(node).color")
            for word in ("h1", ".tm-quiet", ".tm-facts dt", ".tm-crumbs a")
        ]
        for colour in (*fills, *inks):
            assert contrast(colour, paper) >= LEAST_CONTRAST, colour
        symbol = visit.page.locator("[data-chart=step-time] .role-legend-symbol path").first.evaluate("node => getComputedStyle(node).fill")
        assert contrast(symbol, paper) >= 3, symbol
