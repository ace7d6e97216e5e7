"""Costs: the script chooses offers as the database does, owned hardware costs what Python says, and the page works without JavaScript."""

import json
import math
import re
from pathlib import Path
from typing import Any

from fixture_database import AS_OF, ENTRY, H100, HOSTILE
from playwright.sync_api import Browser
from test_browser import Visit

from tunemark.schema.formats import usd
from tunemark.schema.owned_hardware import OwnedHardware


def test_another_basis_changes_the_table_and_stays_in_the_address(browser: Browser, address: str) -> None:
    with Visit(browser, address, "cost.html") as visit:
        page = visit.page
        page.wait_for_selector("#tm-costs tbody tr")
        assert not page.locator("#tm-costs-plain").is_visible()
        assert f"at on-demand prices of the cheapest provider, in force on {AS_OF}" in page.inner_text("#tm-cost-status")
        assert page.locator("#tm-costs tbody th small").all_inner_texts() == [ENTRY]
        before = page.locator("#tm-costs tbody").inner_text()
        page.select_option("[name=kind]", "own")
        page.wait_for_selector("#tm-cost-status:has-text('Give the price')")
        page.fill(f"[name='own-{H100}']", "2")
        page.wait_for_selector("#tm-costs td:has-text('own price')")
        assert "kind=own" in page.url
        assert f"own-{H100}=2" in page.url
        # Sixteen accelerators at $2.
        assert page.locator("#tm-costs td[data-head='Price per hour']").first.inner_text() == "$32.00"
        after = page.locator("#tm-costs tbody").inner_text()
        assert after != before
        page.reload()
        page.wait_for_selector("#tm-costs td:has-text('own price')")
        assert page.locator("#tm-costs tbody").inner_text() == after
        page.go_back()
        page.go_back()
        page.wait_for_selector("#tm-cost-status:has-text('on-demand')")
        assert (page.input_value("[name=kind]"), page.locator("#tm-costs tbody").inner_text()) == ("on_demand", before)
        assert visit.complaints == []


def test_what_the_address_asks_for_and_the_page_does_not_have_is_named(browser: Browser, address: str) -> None:
    with Visit(browser, address, "cost.html?model=Llama+9&accelerator=h1000&sort=-zzz&bar=1&h=x") as visit:
        visit.page.wait_for_selector('text=The address asks for model "Llama 9", which is not in the list.')
        assert re.match(r'The address has "bar", which .*accelerator "h1000".*sort "-zzz"', visit.page.inner_text("#tm-cost-status"))


def test_hostile_names_are_shown_as_text(browser: Browser, address: str) -> None:
    def hostile(data: dict[str, Any]) -> dict[str, Any]:
        data["results"]["columns"]["model_name"] = [HOSTILE] * data["results"]["length"]
        data["prices"]["columns"]["instance"] = [HOSTILE] * data["prices"]["length"]
        return data | {"accelerators": dict.fromkeys(data["accelerators"], HOSTILE)}

    with Visit(browser, address, "cost.html", cost=hostile) as visit:
        visit.page.wait_for_selector("#tm-costs tbody tr")
        assert "<script>" in visit.page.inner_text("#tm-costs td[data-head=Offer]")
        assert visit.page.locator("#tm-costs :is(script, img)").count() == 0
        assert visit.page.evaluate("window.hacked") is None


def test_prices_of_an_earlier_day_count_only_from_that_day(browser: Browser, address: str) -> None:
    with Visit(browser, address, "cost.html?day=2025-05-31") as visit:
        visit.page.wait_for_selector("#tm-cost-status:has-text('No result has a cost')")
    with Visit(browser, address, "cost.html?day=2025-06-01&sort=-usd_per_training") as visit:
        visit.page.wait_for_selector("#tm-costs th[data-key=usd_per_training][aria-sort=descending]")


def test_owned_hardware_has_its_break_even(browser: Browser, address: str) -> None:
    with Visit(browser, address, f"cost.html?hardware={H100}&purchase=30000&years=4&watts=700&electricity=0.2&utilisation=60") as visit:
        visit.page.wait_for_selector("#tm-own tbody tr")
        machine = OwnedHardware(30_000, 4, 0.6, 700, 0.2)
        hours = machine.break_even_hours_per_year(3.29)
        assert f"Owned: ${machine.hourly_usd():.2f} per hour of use" in visit.page.inner_text("#tm-own .tm-headline")
        assert visit.page.inner_text("#tm-own td[data-head^=Break-even]").strip() == f"{math.ceil(hours):,}"
        visit.page.fill("[name=utilisation]", "0")
        visit.page.wait_for_selector("#tm-own [role=alert]:has-text('utilisation')")


def test_another_accelerator_brings_its_own_purchase_and_watts(browser: Browser, address: str) -> None:
    with Visit(browser, address, "cost.html") as visit:
        form = visit.page.locator("#tm-own-form")
        for key in form.locator("[name=hardware] option").evaluate_all("all => all.map((each) => each.value)"):
            form.locator("[name=hardware]").select_option(key)
            facts = form.locator(f"[name=hardware] option[value='{key}']").evaluate("option => ({...option.dataset})")
            for name in ("purchase", "watts"):
                shown = form.locator(f"[name={name}]").input_value()
                assert (float(shown) if shown else None) == (float(facts[name]) if facts[name] else None)
        form.locator("[name=purchase]").fill("")
        visit.page.wait_for_selector("#tm-own [role=alert]:has-text('Enter the purchase price in USD')")
        form.locator("[name=purchase]").fill("30000")
        form.locator("[name=watts]").fill("700")
        form.locator("[name=hardware]").select_option(H100)
        visit.page.wait_for_selector("#tm-own tbody tr")
        assert [form.locator(f"[name={name}]").input_value() for name in ("purchase", "watts")] == ["30000", "700"]


def test_the_script_and_the_database_have_the_same_offers_and_costs(browser: Browser, address: str, listed: list[dict[str, Any]]) -> None:
    with Visit(browser, address, "cost.html?kind=on_demand") as visit:
        visit.page.wait_for_selector("#tm-costs tbody tr")
        shown = {row.locator("th small").inner_text(): row.inner_text() for row in visit.page.locator("#tm-costs tbody tr").all()}
    priced = [row for row in listed if row["price_instance"] and not row["last"] and row["usd_per_training"]]
    assert priced
    for row in priced:
        assert {row["price_instance"], usd(row["usd_per_training"])} <= set(re.split(r"\s+", shown[row["result_id"]]))


def test_the_data_has_all_dated_prices_and_no_impossible_result(built: Path, listed: list[dict[str, Any]]) -> None:
    data = json.loads((built / "site" / "data/cost.json").read_text(encoding="utf-8"))
    assert data["as_of"] == AS_OF
    # Days are compared as text: with a remark, a price of this day would not be in force.
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", day) for day in data["prices"]["columns"]["effective_on"]["values"])
    found = set(data["results"]["columns"]["result_id"])
    assert found
    assert not found & {row["result_id"] for row in listed if row["last"]}
