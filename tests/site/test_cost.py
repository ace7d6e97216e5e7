"""Costs: the script and Python agree, both agree with the database, and the page works with and without JavaScript."""

import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixture_database import AS_OF, ENTRY, H100, HOSTILE
from playwright.sync_api import Browser, Page, Route
from test_browser import NARROW, Visit

from tunemark.schema.facts.cards import PriceBasis, PriceRow
from tunemark.schema.owned_hardware import HOURS_PER_YEAR, OwnedHardware
from tunemark.site import cost_over_time, costs
from tunemark.site.page import Page as SitePage
from tunemark.site.queries import Catalogue
from tunemark.site.recommend_data import columnar
from tunemark.site.render import markdown

BASES, RESULTS, MACHINES = 100, 120, 100
CHIPS, PROVIDERS, RANKED = tuple(f"chip-{letter}" for letter in "abcd"), ("aws", "gcp", "runpod", "vast"), ("gcp", "aws")
KINDS, COUNTS, FIRST_DAY = ("on_demand", "spot", "marketplace"), (0.5, 1, 2, 4, 8), date(2025, 1, 1)
COMPARED = [f"{name}{ending}" for name in costs.RATES for ending in ("", "_low", "_high")] + [*costs.TIMES, costs.SPEED, "usd_per_hour"]


def made_up_prices(draw: random.Random) -> list[costs.Row]:
    """Return prices of every kind with several days, newest first, some of the same price and day."""
    prices = [
        {
            "accelerator": chip, "provider": provider, "rank": RANKED.index(provider) + 1 if provider in RANKED else None,
            "instance": f"{count:g}x-{chip}", "region": draw.choice((None, "east", "west")), "kind": kind, "accelerators": count,
            "usd_per_hour": draw.choice((count, round(count * draw.uniform(0.2, 9), 3))),
            "effective_on": str(FIRST_DAY + timedelta(days=draw.randint(0, 20))), "fabric": draw.random() < 0.4,
        }
        for chip in CHIPS for provider in PROVIDERS for kind in KINDS for count in COUNTS for _ in range(2) if draw.random() < 0.5
    ]  # fmt: skip
    return sorted(prices, key=lambda row: row["effective_on"], reverse=True)


def made_up_results(draw: random.Random) -> list[costs.Row]:
    """Return results with and without rates, intervals and durations, on one node or several."""

    def maybe(value: float) -> float | None:
        return draw.choice((None, value, value))

    return [
        {
            "result_id": f"{number:03}-{draw.randint(1, 999):03}", "accelerator": draw.choice(CHIPS), "devices": None, "nodes": nodes,
            "units": draw.choice((0.25, 1, 3, 4, 8)) * nodes, "model_name": draw.choice(("Alpha", "Beta", None)), "trust": "published",
            "method": draw.choice(("full", "lora")), "sequence_length": 512, "trust_label": "published",
            **{name: maybe(draw.lognormvariate(3, 2)) for name in costs.NUMBERS},
        }
        for number in range(RESULTS) for nodes in (draw.choice((1, 1, 1, 2, 3)),)
    ]  # fmt: skip


def made_up_basis(draw: random.Random) -> costs.Basis:
    own = {chip: draw.uniform(0.1, 5) for chip in CHIPS if draw.random() < 0.7}
    day = draw.choice((None, str(FIRST_DAY + timedelta(days=draw.randint(-1, 21)))))
    return costs.Basis(draw.choice((*KINDS, costs.OWN)), draw.choice((None, None, *PROVIDERS)), day, own)


@pytest.fixture(scope="module")
def script(script_alone: Callable[[str], Page]) -> Page:
    return script_alone("cost.js")


def test_script_and_python_agree_on_one_hundred_random_bases(script: Page) -> None:
    draw = random.Random(14)  # noqa: S311 - repeatable bases
    prices, results, bases = made_up_prices(draw), made_up_results(draw), [made_up_basis(draw) for _ in range(BASES)]
    answers = script.evaluate(
        """([prices, results, bases]) => {
            const decoded = [prices, results].map(tunemarkCost.decoded);
            return bases.map((basis) => tunemarkCost.priced(decoded[1], decoded[0], basis));
        }""",
        [columnar(prices), columnar(results), [asdict(basis) for basis in bases]],
    )
    kinds = set()
    for basis, theirs in zip(bases, answers, strict=True):
        ours = costs.priced(results, prices, basis)
        kinds |= {basis.kind} if ours else set()
        assert [row["result_id"] for row in ours] == [row["result_id"] for row in theirs]
        for row, other in zip(ours, theirs, strict=True):
            assert row["offer"] == other["offer"]
            assert all(map(partial(math.isclose, rel_tol=1e-12), _known(other, COMPARED), _known(row, COMPARED)))
    assert kinds == {*KINDS, costs.OWN}


def _known(row: costs.Row, names: list[str]) -> list[float]:
    """Return values for a comparison; -1 where one is unknown."""
    return [-1 if row[name] is None else row[name] for name in names]


def test_the_rule_of_choice_is_that_of_the_price_basis() -> None:
    draw = random.Random(15)  # noqa: S311 - repeatable offers
    prices = made_up_prices(draw)
    fabric = {(row["provider"], row["instance"]) for row in prices if row["fabric"]}
    prices = [row | {"fabric": (row["provider"], row["instance"]) in fabric} for row in prices]
    joined = [{"provider": provider, "instance": name, "fabric": "EFA", "source": "a page"} for provider, name in sorted(fabric)]
    basis = PriceBasis.model_validate({"providers": RANKED, "reason": "a reason", "fabric": joined})
    # Of two prices of one day, the later row of the price book counts.
    book = [
        PriceRow.model_validate({name: row[name] for name in costs.PRICE if name not in {"rank", "fabric", "accelerators"}}
                                | {"accelerator_count": row["accelerators"], "source": "a page"})
        for row in reversed(prices)
    ]  # fmt: skip
    found = 0
    for chip in CHIPS:
        for devices, nodes in ((0.25, 1), (1, 1), (3, 1), (8, 1), (8, 2), (24, 3), (99, 1)):
            for day in (None, FIRST_DAY + timedelta(days=5)):
                ours = costs.choose(costs.in_force(prices, str(day) if day else None), costs.Basis(), chip, devices, nodes)
                theirs = basis.offer(book, chip, devices / nodes, nodes=nodes, on=day)
                found += ours is not None
                assert (ours and (ours["provider"], ours["instance"], ours["usd_per_hour"])) == (
                    theirs and (theirs.provider, theirs.instance, theirs.usd_per_hour)
                )
    assert found > 20


@pytest.mark.parametrize("kind", ["on_demand", "spot", "marketplace"])
def test_costs_are_those_of_the_database(catalogue: Catalogue, kind: str) -> None:
    """The views `basis_costs` and `first_offers` compute the same."""
    theirs = catalogue.basis_costs if kind == "on_demand" else catalogue.first_offers[kind]
    basis = costs.Basis(kind, day=costs.as_of(catalogue))
    ours = costs.priced(costs.result_rows(catalogue, impossible=True), costs.price_rows(catalogue), basis)
    assert ours
    for row in ours:
        cost = theirs[row["result_id"]]
        assert [row["offer"][name] for name in ("provider", "instance", "region", "effective_on")] == [
            cost[name] for name in ("provider", "instance", "region", "effective_on")
        ]
        names = [name for name in COMPARED if name in cost]
        assert _known(row, names) == pytest.approx(_known(cost, names), rel=1e-6)
    finished = {row["result_id"] for row in catalogue.results if not row["failed"]}
    assert {row["result_id"] for row in ours} == {
        key for key, cost in theirs.items() if key in finished and any(cost[name] is not None for name in costs.FIGURES)
    }


def test_the_cheapest_of_each_known_model_and_method_come_first() -> None:
    rows = [
        {"result_id": name, "model_name": model, "method": "lora", "usd_per_1k_samples": cost}
        for name, model, cost in (("a", "A", 3.0), ("b", "A", 1.0), ("c", "A", None), ("d", "B", 9.0), ("e", None, 2.0))
    ]
    assert [row["result_id"] for row in costs.in_order(rows)] == ["b", "d", "a", "c", "e"]


def test_the_front_has_no_result_that_another_one_beats() -> None:
    points = [("slow", 9, 1), ("same", 9, 1), ("worse", 9, 2), ("fast", 1, 9), ("middle", 4, 4), ("beaten", 5, 4)]
    rows = [{"result_id": name, "time": time, "cost": cost} for name, time, cost in points]
    assert costs.front(rows, "time", "cost") == {"slow", "same", "fast", "middle"}


# Owned hardware ------------------------------------------------------------------------------------


def test_script_and_python_agree_on_owned_hardware(script: Page) -> None:
    draw = random.Random(16)  # noqa: S311 - repeatable figures
    machines = []
    for _ in range(MACHINES):
        purchase = draw.choice((0.0, draw.lognormvariate(9, 2)))
        machines.append(
            OwnedHardware(purchase, draw.uniform(0.5, 8), draw.uniform(0.01, 1), draw.uniform(0, 2000), draw.uniform(0, 1), purchase * draw.random())
        )  # fmt: skip
    clouds = [draw.lognormvariate(0, 1.5) for _ in machines]
    theirs = script.evaluate(
        """(pairs) => pairs.map(([machine, cloud]) => {
            const cost = tunemarkCost.owned(machine);
            return [cost.usd_per_hour, cost.electricity_usd_per_hour, tunemarkCost.breakEvenHours(cost, cloud), tunemarkCost.refusal(machine)];
        })""",
        [[_inputs(machine), cloud] for machine, cloud in zip(machines, clouds, strict=True)],
    )
    hours = [machine.break_even_hours_per_year(cloud) for machine, cloud in zip(machines, clouds, strict=True)]
    for machine, limit, answer in zip(machines, hours, theirs, strict=True):
        assert answer[:2] == pytest.approx([machine.usd_per_hour(), machine.electricity_usd_per_hour], rel=1e-12)
        assert answer[2:] == [None if limit is None else pytest.approx(limit, rel=1e-12), None]
    assert {limit is None for limit in hours} == {True, False}
    assert all(limit is None or limit <= HOURS_PER_YEAR for limit in hours)


def _inputs(machine: OwnedHardware) -> dict[str, float]:
    return {name.removesuffix("_usd").removesuffix("_usd_per_kwh"): value for name, value in asdict(machine).items()}


@pytest.mark.parametrize(
    "wrong", [{"purchase_usd": -1}, {"years": 0}, {"utilisation": 0}, {"utilisation": 1.5}, {"watts": math.inf}, {"resale_usd": 9e9}]
)
def test_script_refuses_what_python_refuses(script: Page, wrong: dict[str, float]) -> None:
    figures = {"purchase_usd": 2000, "years": 3, "utilisation": 0.5, "watts": 450, "electricity_usd_per_kwh": 0.3, "resale_usd": 0} | wrong
    with pytest.raises(ValueError, match="give"):
        OwnedHardware(**figures)
    inputs = {name.removesuffix("_usd").removesuffix("_usd_per_kwh"): value for name, value in figures.items()}
    assert script.evaluate("(machine) => tunemarkCost.refusal(machine)", inputs)


# The page ------------------------------------------------------------------------------------------


def test_without_javascript_the_default_basis_is_there(browser: Browser, address: str) -> None:
    with Visit(browser, address, "cost.html", scripts=False) as visit:
        assert visit.page.locator("#tm-costs-plain table").first.is_visible()
        assert "2 of 2 results" in visit.page.inner_text("#tm-costs-plain > p")
        assert not visit.page.locator("#tm-cost-form").is_visible()
        assert "needs JavaScript" in visit.page.inner_text("noscript >> nth=0")


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
        assert visit.complaints == []


def test_hostile_names_are_shown_as_text(browser: Browser, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()

    def hostile(route: Route) -> None:
        data = route.fetch().json()
        columns = data["results"]["columns"]
        columns["model_name"] = [HOSTILE] * data["results"]["length"]
        data["accelerators"] = dict.fromkeys(data["accelerators"], HOSTILE)
        data["prices"]["columns"]["instance"] = [HOSTILE] * data["prices"]["length"]
        route.fulfill(json=data)

    page.route("**/data/cost.json", hostile)
    page.goto(f"{address}cost.html")
    page.wait_for_selector("#tm-costs tbody tr")
    assert "<script>" in page.inner_text("#tm-costs td[data-head=Offer]")
    assert page.locator("#tm-costs :is(script, img)").count() == 0
    assert page.evaluate("window.hacked") is None
    context.close()


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
        assert hours is not None
        assert f"Owned: ${machine.usd_per_hour():.2f} per hour of use" in visit.page.inner_text("#tm-own .tm-headline")
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


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_cards_with_the_figure_first(browser: Browser, address: str, *, dark: bool) -> None:
    with Visit(browser, address, "cost.html", width=NARROW, dark=dark) as visit:
        visit.page.wait_for_selector("#tm-costs tbody tr")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= NARROW
        first, name = (visit.page.locator(f"#tm-costs tbody tr:first-child {part}").bounding_box() for part in (".tm-cost-first", "th"))
        assert first is not None
        assert name is not None
        assert first["y"] < name["y"]
        unnamed = "[...document.querySelectorAll('#tm-cost-form input, #tm-cost-form select, #tm-own-form input, #tm-own-form select')].filter((e) => !e.labels.length).length"
        assert visit.page.evaluate(unnamed) == 0


def test_the_data_has_all_dated_prices_and_no_impossible_result(built: Path, catalogue: Catalogue) -> None:
    data = json.loads((built / "site" / costs.DATA_PATH).read_text(encoding="utf-8"))
    assert data["prices"]["length"] == len(catalogue.prices)
    assert data["as_of"] == AS_OF
    listed = set(data["results"]["columns"]["result_id"])
    assert listed
    assert not listed & {row["result_id"] for row in catalogue.results if row["impossible"] or row["failed"]}
    assert (built / "site" / costs.CSV_PATH).read_text(encoding="utf-8").startswith("result_id,")


# Prices over time, time and cost -------------------------------------------------------------------


def _price(day: str, usd_per_hour: float, instance: str = "box") -> costs.Row:
    return {
        "accelerator": H100, "provider": "aws", "instance": instance, "region": "us-east-1", "kind": "on_demand", "accelerator_count": 8,
        "usd_per_hour": usd_per_hour, "effective_on": day, "price": f"aws/{instance}/{day}",
    }  # fmt: skip


def test_an_offer_with_two_dated_prices_has_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_over_time, "as_of", lambda _: "2026-01-01")
    prices = [_price("2025-01-01", 80), _price("2025-07-01", 40), _price("2025-03-01", 16, "other"), _price("2027-01-01", 1)]
    catalogue = SimpleNamespace(accelerators=[{"accelerator": H100, "name": "H100"}], prices=prices)
    (found,) = cost_over_time.histories(catalogue)  # type: ignore[arg-type]
    assert found.change.startswith("$10.00, now $5.00 (")
    assert [[row.cells[0].text, row.cells[3].text, row.cells[5].text] for row in found.table.rows] == [
        ["2025-07-01", "$5.00", "-50%"],
        ["2025-01-01", "$10.00", "\N{EN DASH}"],
    ]
    assert [step.label for step in found.steps] == ["$5.00 box"]


def test_the_entries_of_a_round_are_compared_by_time_and_cost(catalogue: Catalogue, pages: dict[str, SitePage]) -> None:
    (found,) = cost_over_time.frontiers(catalogue)
    assert [line.cells[0].small for line in found.best.rows] == [ENTRY]
    row = next(row for row in catalogue.results if row["result_id"] == ENTRY)
    cost = row["time_to_target_s"] / 3600 * catalogue.basis_costs[ENTRY]["usd_per_hour"]
    assert found.best.rows[0].cells[2].sort == pytest.approx(cost)
    assert found.rest is None
    text: Any = markdown(pages["cost"])
    assert "Time and cost per workload" in text
    assert "MLPerf, unofficial" in text


def test_the_results_of_one_document_are_compared_by_the_time_and_cost_of_a_million_tokens(catalogue: Catalogue) -> None:
    base = catalogue.results_where(result_id="003-001")[0] | {"impossible": False, "model": "m", "sequence_length": 512, "source": "x"}

    def result(name: str, accelerator: str, tokens_per_s: float, **changes: object) -> costs.Row:
        return base | {"result_id": name, "accelerator": accelerator, "tokens_per_s": tokens_per_s, **changes}

    rows = [
        result("fast", H100, 2000), result("cheap", "other", 1000), result("beaten", "other", 500), result("no-offer", "none", 3000),
        result("crashed", H100, 9000, failed=True), result("longer", H100, 9000, sequence_length=1024), result("unpriced", H100, 1, source="y"),
    ]  # fmt: skip
    hourly = {"fast": 9.0, "cheap": 1.0, "beaten": 1.0, "crashed": 9.0, "longer": 9.0}
    prices = {name: catalogue.basis_costs[ENTRY] | {"usd_per_hour": usd} for name, usd in hourly.items()}
    changed = replace(catalogue, results=rows, basis_costs=prices)
    (found,) = cost_over_time.token_frontiers(changed, "m")
    assert [line.cells[0].small for line in found.best.rows] == ["fast", "cheap"]
    assert [line.cells[2].sort for line in found.best.rows] == pytest.approx([9 / 3.6 / 2, 1 / 3.6])
    assert found.rest is not None
    assert [line.cells[0].small for line in found.rest.rows] == ["beaten"]
    assert found.unpriced == 1
    assert [fact.name for fact in found.facts] == ["Cheapest", "Fastest"]
    listed = cost_over_time.token_fronts(changed)
    assert listed is not None
    assert [line.cells[2].text for line in listed.rows] == ["3"]
    # Two results are no front.
    assert cost_over_time.token_frontiers(replace(changed, results=rows[:2]), "m") == []
