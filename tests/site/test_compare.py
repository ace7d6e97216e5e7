"""The comparison page: its script computes ratios, intervals and expected effects, and says what it does not know."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fixture_database import H100, MEASURED, STRANGE
from playwright.sync_api import Browser, Page, expect
from test_browser import Visit

Json = dict[str, Any]
DATA_PATH = "data/compare.json"
READINGS = "several readings"
TIMES = "\N{MULTIPLICATION SIGN}"
DATA = json.loads(Path(__file__).with_name("compare_data.json").read_text(encoding="utf-8"))
"""Labels, effects and cards of the page."""
USUAL = DATA.pop("result")
INCONSISTENT = {"verdict": "inconsistent", "reason": "rows-of-a-step", "refuses": True}
AMBIGUOUS = {"verdict": "ambiguous", "reason": READINGS, "refuses": True}


def result(name: str, **others: Any) -> Json:
    """Return a result as the script reads it."""
    made = USUAL | {"id": name, "title": f"Title {name}"} | others
    stated = {"model": "M", "method": "full", "accelerator_count": str(made["count"])}
    stated |= {field: made[field] for field in ("accelerator", "precision", "level", "attention") if made.get(field)}
    return {"conditions": stated} | made


Open = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Open]:
    """Return a function that opens the page with a choice, if given with these results instead of those of the database."""
    with ExitStack() as visits:

        def visit(choice: str = "", results: list[Json] | None = None) -> Page:
            known = [{name: value for name, value in each.items() if value is not None} for each in results or ()]
            data = {"compare": lambda data: data | DATA | {"results": known}} if results else {}
            page = visits.enter_context(Visit(browser, address, f"compare.html{choice}", **data)).page
            page.wait_for_selector("#tm-compare[data-ready]")
            return page

        yield visit


def shown_view(page: Page, part: str = "results") -> dict[str, Any]:
    return page.evaluate("part => document.querySelector(`[data-compare=${part}]`).view", part)  # type: ignore[no-any-return]


RESULTS = [result(f"r-{place}", accelerator="ab"[place % 2]) for place in range(6)]


def test_two_results_by_address_show_ratio_and_interval(opened: Open) -> None:
    # The interval of a ratio adds both intervals on a logarithmic scale.
    fast = result("r-9", figures={"tokens_per_s": (1500, 1400, 1600)}, runs="10 runs")
    slow = result("r-8", figures={"tokens_per_s": (1000, 900, 1100)}, runs="10 runs")
    page = opened("#r-8,r-9", [slow, fast])
    expect(page.locator("tr[data-key=tokens_per_s] .tm-ratio")).to_have_text(f"1.50{TIMES} (1.33 to 1.70), differs")
    expect(page.locator(".tm-reason")).to_contain_text("The rates differ: the interval excludes 1.")
    expect(page.locator("summary").last).to_have_text("5 equal conditions")
    expect(page.get_by_text("No stated condition differs.")).to_be_visible()
    expect(page.locator("[data-compare=results] dl")).to_be_hidden()


def test_a_disputed_figure_has_a_warning_a_mark_and_no_ratio(opened: Open) -> None:
    page = opened("#r-8,r-9", [result("r-8", objections={"tokens_per_s": [INCONSISTENT, AMBIGUOUS]}), result("r-9", accelerator="b")])
    warning = page.locator("[data-compare-objections] p")
    expect(warning).to_have_text(f"Tokens/s of r-8: inconsistent, rows-of-a-step; ambiguous, {READINGS}")
    expect(warning.locator("a")).to_have_attribute("href", "results/r-8.html")
    cells = page.locator("tr[data-key=tokens_per_s] td")
    expect(cells.nth(0).locator(".tm-mark")).to_have_text("inconsistent")
    expect(cells.nth(1).locator(".tm-mark")).to_have_count(0)
    expect(cells.nth(1).locator(".tm-ratio")).to_have_text("not compared: the audit calls that of A inconsistent")
    expect(page.locator(".tm-reason p")).to_have_text("Tokens/s not compared: the audit calls that of A inconsistent.")
    assert warning.bounding_box()["y"] < cells.nth(0).bounding_box()["y"]  # type: ignore[index]


def test_a_cost_names_the_devices_that_are_billed_beyond_those_used_and_is_compared_within_error(opened: Open) -> None:
    cost = {"figures": {"cost_per_1m_tokens_usd": (2.0, 1.9, 2.1)}}
    page = opened("#r-8,r-9", [result("r-8", **cost, billed="bills 4 devices"), result("r-9", **cost)])
    cells = page.locator("tr[data-key=cost_per_1m_tokens_usd] td")
    expect(cells.nth(0)).to_contain_text("; bills 4 devices")
    expect(cells.nth(1)).not_to_contain_text("bills")
    expect(cells.nth(1).locator(".tm-ratio")).to_have_text(f"1.00{TIMES} (0.932 to 1.07), within error")


def test_a_wrong_id_gives_a_message_and_keeps_the_rest(opened: Open) -> None:
    page = opened("#r-0,nobody,r-1", RESULTS)
    expect(page.locator("tr[data-key=tokens_per_s] .tm-ratio")).to_have_text(f"1.00{TIMES}, no interval: single run")
    expect(page.get_by_role("alert")).to_contain_text('No finished result and no accelerator has the id "nobody"')
    expect(page.locator(".tm-chosen").first.locator("li")).to_have_count(2)
    expect(page.locator("tr[data-key=tokens_per_s]")).to_be_visible()


def test_a_fifth_result_is_left_out(opened: Open) -> None:
    page = opened("#" + ",".join(f"r-{place}" for place in range(5)), RESULTS)
    expect(page.get_by_role("alert")).to_have_text("At most 4 results are compared; r-4 is left out.")
    expect(page.get_by_label("Add a result")).to_be_disabled()
    page.get_by_role("button", name="Remove r-0").click()
    expect(page.get_by_label("Add a result")).to_be_enabled()
    assert page.url.endswith("#r-1,r-2,r-3")


def test_results_are_chosen_with_the_keyboard_and_the_back_button_undoes_it(opened: Open) -> None:
    page = opened("", RESULTS)
    field = page.get_by_label("Add a result")
    field.press_sequentially("result of r-9")
    expect(field).to_have_attribute("aria-expanded", "false")
    field.fill("TITLE r-3")
    expect(page.get_by_role("option")).to_have_count(1)
    field.press("Enter")
    expect(field).to_be_focused()
    field.fill("title")
    field.press("ArrowDown")
    expect(page.get_by_role("option", selected=True)).to_contain_text("r-1")
    assert field.get_attribute("aria-activedescendant") == page.get_by_role("option", selected=True).get_attribute("id")
    field.press("Enter")
    assert page.url.endswith("#r-3,r-1")
    expect(page.locator("tr[data-key=tokens_per_s]")).to_be_visible()
    page.go_back()
    expect(page.locator("tr[data-key=tokens_per_s]")).to_have_count(0)
    assert page.url.endswith("#r-3")
    page.go_forward()
    expect(page.locator("tr[data-key=tokens_per_s]")).to_be_visible()
    field.fill("title")
    field.press("Escape")
    expect(page.get_by_role("listbox")).to_have_count(0)


def test_the_cards_of_chosen_results_are_compared_by_themselves(opened: Open) -> None:
    page = opened("#r-0,r-1", RESULTS)
    assert [column["id"] for column in shown_view(page, "accelerators")["columns"]] == ["a", "b"]
    expect(page.get_by_text("The accelerators of the chosen results.")).to_be_visible()
    page.get_by_label("Add an accelerator").fill("card c")
    page.get_by_role("option").first.click()
    assert shown_view(page, "accelerators") is None


def test_missing_data_give_a_message(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.route(f"**/{DATA_PATH}", lambda route: route.fulfill(status=404, body=""))
    page.goto(f"{address}compare.html")
    expect(page.get_by_role("alert")).to_contain_text("could not be loaded (404)")
    page.close()


def test_real_ids_of_the_database_can_be_chosen(opened: Open) -> None:
    page = opened(f"#{MEASURED},{STRANGE},{H100}")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("[data-compare=results] thead a").first).to_have_attribute("href", f"results/{MEASURED}.html")


@pytest.mark.parametrize(
    ("other", "names", "value"),
    [
        ({"count": 16}, ["Device count"], 2 / 1.05),
        ({"level": "vendor"}, ["Software level"], 2.0),
        ({"accelerator": "b", "precision": "fp8"}, ["Accelerator", "Precision"], 1979 / 312.5),
        ({"accelerator": "c"}, [], None),
    ],
)
def test_differing_conditions_have_their_expected_effects_and_the_rest_is_unexplained(
    opened: Open, other: dict[str, Any], names: list[str], value: float | None
) -> None:
    second = {"level": "plain", "attention": "sdpa"} | other
    kernels = [result("r-0", level="plain", attention="varlen"), result("r-1", **second, figures={"tokens_per_s": (4000.0, None, None)})]
    page = opened("#r-0,r-1", kernels)
    assert "Attention" in [row["label"] for row in shown_view(page)["differing"]], "results with other kernels are marked"
    (reason,) = shown_view(page)["reasons"]
    assert sorted(item["name"] for item in reason["items"]) == names
    assert reason["observed"]["value"] == 4
    assert reason["left"] == (None if value is None else pytest.approx(4 / value))


def test_every_finished_result_can_be_compared_and_every_condition_is_named_in_words(built: Path, listed: list[dict[str, Any]]) -> None:
    """The page showed names such as `devices.0.max_memory_clock_mhz`."""
    text = (built / "site" / DATA_PATH).read_text(encoding="utf-8")
    assert all(row["result_id"] in text for row in listed if not row["failed"])
    labels = json.loads(text)["labels"]
    assert "Machine: memory" in labels.values()
    assert not [label for label in labels.values() if re.search(r"_|\.\d", label)]
