"""The comparison page: its arithmetic, its data, and the same arithmetic in a browser."""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixture_database import H100, MEASURED, STRANGE
from playwright.sync_api import Browser, Page, Route, expect
from test_browser import NARROW

from tunemark.site.comparison import READINGS, TIMES, Estimate, Json, Knowledge, Objection, Subject, card_view, factors, ratio_of, view
from tunemark.site.pages import compare
from tunemark.site.queries import Catalogue

SEED, PAIRS = 20261122, 50
CARDS = {
    key: {
        "name": f"Card {key.upper()}",
        "vendor": "Acme",
        "architecture": None,
        "memory_gib": 80,
        "memory_bandwidth_gb_s": bandwidth,
        "peak_bf16_tflops": bf16,
        "peak_fp8_tflops": fp8,
        "usd_per_hour": price,
        "launch_year": 2023,
        "offer": "on demand, acme one, 2026-01-01",
        "unverified": ["memory_gib"] if key == "c" else [],
    }
    for key, bandwidth, bf16, fp8, price in (("a", 2000, 312.5, None, 1.125), ("b", 3350, 989, 1979, 2.675), ("c", None, None, None, None))
}
KNOWN = Knowledge(
    cards=CARDS,
    effects={
        "level: plain": Estimate(1.15, 0.9, 1.48),
        "level: vendor": Estimate(0.86, 0.66, 1.12),
        "slope: devices doubled": Estimate(1.015, 1.006, 1.024),
    },
    figures=[
        {"key": "tokens_per_s", "label": "Tokens/s", "kind": "rate", "interval": True},
        {"key": "samples_per_s", "label": "Samples/s", "kind": "rate", "interval": True},
        {"key": "step_time_s", "label": "Step time", "kind": "duration", "interval": False},
        {"key": "mfu", "label": "MFU", "kind": "percent", "interval": False},
        {"key": "peak_memory_bytes", "label": "Peak memory", "kind": "gib", "interval": False},
        {"key": "cost_per_1m_tokens_usd", "label": "Cost per 1M tokens", "kind": "usd", "interval": True},
    ],
    conditions={
        "model": "Model",
        "method": "Method",
        "accelerator": "Accelerator",
        "accelerator_count": "Device count",
        "sequence_length": "Sequence length",
        "precision": "Precision",
        "gradient_checkpointing": "Gradient checkpointing",
        "level": "Software level",
        "work": "FLOPs per token",
        "dataset": "Dataset",
        "packages.torch": "Package: torch",
    },
    card_rows=[
        {"key": "vendor", "label": "Vendor", "kind": "text", "unit": ""},
        {"key": "memory_gib", "label": "Memory", "kind": "number", "unit": " GiB"},
        {"key": "peak_bf16_tflops", "label": "Dense bf16 peak", "kind": "number", "unit": " TFLOP/s"},
        {"key": "launch_year", "label": "Launched", "kind": "whole", "unit": ""},
        {"key": "usd_per_hour", "label": "Price per device and hour", "kind": "usd", "unit": ""},
    ],
)


def make_subject(name: str = "r-1", **overrides: Any) -> Subject:
    """Return a result on one card A at 1,000 tokens/s with 1 GFLOP per token."""
    made: dict[str, Any] = {
        "id": name,
        "title": f"Title of {name}",
        "trust": "published",
        "impossible": False,
        "runs": "",
        "accelerator": "a",
        "count": 1,
        "precision": "bf16",
        "level": "plain",
        "flop_per_s": 1e12,
        "recompute": None,
        "figures": {"tokens_per_s": Estimate(1_000.0)},
        "conditions": {"model": "M", "accelerator": "Card A", "precision": "bf16", "level": "plain"},
    }
    return Subject(**(made | overrides))


def explained(first: Subject, other: Subject) -> dict[str, float]:
    return {", ".join(item["conditions"]): item["value"] for item in factors(first, other, "tokens_per_s", KNOWN)}


# Arithmetic ----------------------------------------------------------------------------------------


def test_an_interval_of_a_ratio_adds_both_intervals_on_a_logarithmic_scale() -> None:
    ratio = ratio_of(Estimate(100, 90, 110), Estimate(150, 140, 160))
    below = math.sqrt(math.log(150 / 140) ** 2 + math.log(110 / 100) ** 2)
    above = math.sqrt(math.log(160 / 150) ** 2 + math.log(100 / 90) ** 2)
    assert ratio == {
        "value": 1.5,
        "low": pytest.approx(1.5 * math.exp(-below)),
        "high": pytest.approx(1.5 * math.exp(above)),
        "verdict": "differs",
    }


def test_a_ratio_whose_interval_includes_1_is_not_separated() -> None:
    assert ratio_of(Estimate(100, 95, 105), Estimate(103, 99, 107))["verdict"] == "not separated"


@pytest.mark.parametrize("other", [Estimate(150), Estimate(150, None, 160)])
def test_without_both_intervals_the_significance_is_not_known(other: Estimate) -> None:
    assert ratio_of(Estimate(100, 90, 110), other) == {"value": 1.5, "low": None, "high": None, "verdict": "not known"}


def test_accelerator_and_format_together_are_the_ratio_of_the_peaks_used() -> None:
    other = make_subject(accelerator="b", precision="fp8")
    assert explained(make_subject(), other) == {"accelerator": pytest.approx(989 / 312.5), "precision": pytest.approx(1979 / 989)}


def test_a_card_without_a_peak_has_no_expected_effect() -> None:
    assert explained(make_subject(), make_subject(accelerator="c")) == {}
    assert explained(make_subject(), make_subject(accelerator=None)) == {}


def test_devices_scale_with_the_loss_per_doubling() -> None:
    assert explained(make_subject(), make_subject(count=8)) == {"accelerator_count": pytest.approx(8 / 1.015**3)}


def test_flops_per_token_explain_model_and_method_together() -> None:
    other = make_subject(
        flop_per_s=3e12, figures={"tokens_per_s": Estimate(1_500.0)}, conditions={"model": "N", "method": "LoRA"}, level="plain"
    )
    first = make_subject(conditions={"model": "M", "method": "full"})
    assert explained(first, other) == {"model, method": pytest.approx(0.5)}


def test_recomputed_flops_explain_checkpointing() -> None:
    first, other = make_subject(recompute=1.0), make_subject(recompute=4 / 3)
    assert explained(first, other) == {"gradient_checkpointing": pytest.approx(0.75)}


def test_the_software_level_has_an_interval() -> None:
    (item,) = factors(make_subject(), make_subject(level="vendor"), "tokens_per_s", KNOWN)
    assert item["value"] == pytest.approx(1.15 / 0.86)
    assert item["low"] < item["value"] < item["high"]
    assert factors(make_subject(level=None), make_subject(level="vendor"), "tokens_per_s", KNOWN) == []


def test_what_is_left_is_the_observed_ratio_over_all_expected_effects() -> None:
    other = make_subject("r-2", accelerator="b", count=2, figures={"tokens_per_s": Estimate(5_000.0)}, flop_per_s=5e12)
    (reason,) = view([make_subject(), other], KNOWN)["reasons"]
    assert reason["left"] == pytest.approx(5 / (989 / 312.5 * 2 / 1.015))
    assert [item["conditions"] for item in reason["items"]] == [["accelerator"], ["accelerator_count"]]


def test_an_interval_of_one_run_is_called_so() -> None:
    first = make_subject(figures={"tokens_per_s": Estimate(100, 99, 101)}, runs="10 runs")
    other = make_subject("r-2", figures={"tokens_per_s": Estimate(120, 119, 121)}, runs="one run")
    made = view([first, other], KNOWN)
    assert made["figures"][0]["cells"][1]["ratio_text"] == f"1.20{TIMES} (1.18 to 1.22), differs, single run"
    assert "The single runs differ" in made["reasons"][0]["sentence"]
    assert made["reasons"][0]["caveat"] == "An interval here covers one run only; repeats of a run vary more."


def test_differing_conditions_stand_first_and_equal_ones_fold_away() -> None:
    first = make_subject(conditions={"model": "M", "accelerator": "Card A", "dataset": "x", "packages.torch": "2.1"})
    other = make_subject("r-2", accelerator="b", conditions={"model": "M", "accelerator": "Card B", "dataset": "y"})
    made = view([first, other], KNOWN)
    assert [(row["label"], [cell["small"] for cell in row["cells"]]) for row in made["differing"]] == [
        ("Accelerator", ["", f"expected 3.16{TIMES}"]),
        ("Dataset", ["", "effect not known"]),
    ]
    assert [(row["label"], [cell["text"] for cell in row["cells"]]) for row in made["partly"]] == [
        ("Package: torch", ["2.1", "not stated"])
    ]
    assert made["equal"] == [{"label": "Model", "text": "M"}]


def test_without_a_known_effect_the_whole_ratio_is_unexplained() -> None:
    made = view([make_subject(accelerator=None), make_subject("r-2", accelerator="c")], KNOWN)
    assert made["reasons"][0]["left"] is None
    assert made["reasons"][0]["summary"] == "No expected effect is known, so the whole ratio is unexplained."


def test_results_without_a_common_rate_have_no_explanation() -> None:
    made = view([make_subject(figures={"step_time_s": Estimate(1.0)}), make_subject("r-2")], KNOWN)
    assert made["reasons"][0]["observed"] is None
    assert made["reasons"][0]["sentence"].startswith("No rate to compare")


INCONSISTENT = Objection("inconsistent", "identity", refuses=True)
SUSPICIOUS = Objection("suspicious", "far-from-siblings", refuses=False)
AMBIGUOUS = Objection("ambiguous", READINGS, refuses=True)
FROM_IMPOSSIBLE = Objection("impossible", "", refuses=True)


@pytest.mark.parametrize(
    ("first", "other", "why"),
    [
        ([], [INCONSISTENT], "the audit calls it inconsistent"),
        ([INCONSISTENT, SUSPICIOUS], [], "the audit calls that of A inconsistent"),
        ([], [SUSPICIOUS, AMBIGUOUS], "it is ambiguous"),
        ([FROM_IMPOSSIBLE], [], "that of A follows from an impossible figure"),
    ],
)
def test_a_figure_that_the_audit_refutes_is_not_compared(first: list[Objection], other: list[Objection], why: str) -> None:
    subjects = [
        make_subject("r-1", objections={"tokens_per_s": first}),
        make_subject("r-2", accelerator="b", objections={"tokens_per_s": other}),
    ]
    made = view(subjects, KNOWN)
    cell = made["figures"][0]["cells"][1]
    assert (cell["ratio"], cell["ratio_text"]) == (None, f"not compared: {why}")
    (reason,) = made["reasons"]
    assert reason["sentence"] == f"Tokens/s not compared: {why}."
    assert (reason["observed"], reason["items"], reason["left"], reason["summary"]) == (None, [], None, "")


def test_a_suspicious_figure_is_compared_and_marked() -> None:
    made = view([make_subject(), make_subject("r-2", objections={"tokens_per_s": [SUSPICIOUS]})], KNOWN)
    first, other = made["figures"][0]["cells"]
    assert (first["mark"], other["mark"], other["ratio"]["value"]) == ("", "suspicious", 1)
    assert made["warnings"] == [{"id": "r-2", "label": "Tokens/s", "text": "suspicious, far-from-siblings"}]


def test_the_explanation_uses_a_rate_without_objection() -> None:
    figures = {"tokens_per_s": Estimate(1_000.0), "samples_per_s": Estimate(2.0)}
    made = view([make_subject(figures=figures, objections={"tokens_per_s": [AMBIGUOUS]}), make_subject("r-2", figures=figures)], KNOWN)
    assert made["reasons"][0]["rate"] == "samples_per_s"


def test_figures_have_the_objections_of_findings_readings_and_the_figures_they_follow_from(catalogue: Catalogue) -> None:
    def finding(verdict: str, rule: str, *records: str) -> Json:
        return {
            "finding": 1,
            "verdict": verdict,
            "rule": rule,
            "record_ids": list(records),
            "quantities": ["samples_per_s"],
            "conditions": [],
        }

    known = replace(
        catalogue,
        findings=[
            finding("suspicious", "far-from-siblings", MEASURED),
            finding("inconsistent", "identity", MEASURED, STRANGE),
            finding("impossible", "utilisation", STRANGE, MEASURED),
        ],
        readings={MEASURED: [{"quantity": "peak_memory_bytes"}, {"quantity": "peak_memory_bytes"}]},
        facts={MEASURED: [{"topic": "derived", "name": "tokens_per_s", "reason": "samples per second x row length"}]},
    )
    follows = [Objection("inconsistent", "", refuses=True)]
    assert compare._objections(known, MEASURED, dict.fromkeys(("tokens_per_s", "samples_per_s", "mfu"), Estimate(1.0))) == {
        "tokens_per_s": follows,
        "samples_per_s": [INCONSISTENT, SUSPICIOUS],
        "mfu": follows,
        "peak_memory_bytes": [AMBIGUOUS],
    }


def test_the_data_list_disputed_figures_only() -> None:
    subjects = [
        make_subject(),
        make_subject("r-2", objections={"mfu": [INCONSISTENT, AMBIGUOUS]}),
        make_subject("r-3", objections={"mfu": [AMBIGUOUS]}),
    ]
    assert json.loads(compare.encoded(subjects, KNOWN))["objections"] == {
        "kinds": [["inconsistent", "identity", 1], ["ambiguous", READINGS, 1]],
        "rows": [[1, 3, 0, 1], [2, 3, 1]],
    }


@pytest.mark.parametrize("number", [0, 1, 5])
def test_two_to_four_results_are_compared(number: int) -> None:
    with pytest.raises(ValueError, match="choose 2 to 4"):
        view([make_subject(f"r-{place}") for place in range(number)], KNOWN)
    with pytest.raises(ValueError, match="choose 2 to 4"):
        card_view(["a"] * number, KNOWN)


def test_cards_are_compared_with_the_first_and_unknown_stays_unknown() -> None:
    rows = {row["label"]: row["cells"] for row in card_view(["a", "b", "c"], KNOWN)["rows"]}
    assert [cell["text"] for cell in rows["Dense bf16 peak"]] == ["312.5 TFLOP/s", "989 TFLOP/s", "not known"]
    assert [cell["ratio_text"] for cell in rows["Dense bf16 peak"]] == ["", f"3.16{TIMES}", ""]
    assert rows["Memory"][2]["small"] == "unverified"
    assert [cell["ratio_text"] for cell in rows["Launched"]] == ["", "", ""]


def test_every_finished_result_can_be_compared(catalogue: Catalogue) -> None:
    assert {subject.id for subject in compare.compared(catalogue)} == {row["result_id"] for row in catalogue.results if not row["failed"]}


def test_the_data_are_the_same_in_every_build(catalogue: Catalogue, built: Path) -> None:
    assert (built / "site" / compare.DATA_PATH).read_text(encoding="utf-8") == compare.compare_json(catalogue)


# In a browser --------------------------------------------------------------------------------------


def random_subject(place: int, chance: random.Random) -> Subject:
    """Return a result with some unknown figures and conditions."""

    def maybe(value: Any, share: float = 0.8) -> Any:
        return value if chance.random() < share else None

    def estimate(low: float, high: float, *, interval: bool) -> Estimate:
        value = float(f"{math.exp(chance.uniform(math.log(low), math.log(high))):.6g}")
        return Estimate(value, value * 0.97, value * chance.choice([1.001, 1.2])) if interval else Estimate(value)

    figures = {
        "tokens_per_s": maybe(estimate(10, 1e6, interval=chance.random() < 0.6)),
        "samples_per_s": maybe(estimate(0.01, 1e3, interval=chance.random() < 0.6)),
        "step_time_s": maybe(estimate(0.001, 2e4, interval=False)),
        "mfu": maybe(Estimate(chance.choice([0.125, 0.12345, 0.4]))),
        "peak_memory_bytes": maybe(Estimate(chance.choice([12.25, 12.35, 80.5]) * 2**30)),
        "cost_per_1m_tokens_usd": maybe(estimate(0.001, 9e3, interval=chance.random() < 0.5)),
    }
    accelerator, count = maybe(chance.choice("abc")), maybe(chance.choice([1, 2, 3, 8]))
    precision, level = maybe(chance.choice(["bf16", "fp8", "fp16/bf16"])), maybe(chance.choice(["plain", "vendor", "tuned"]))
    conditions = {
        "model": chance.choice("MN"),
        "method": maybe(chance.choice(["full", "LoRA"])),
        "accelerator": accelerator and f"Card {accelerator.upper()}",
        "accelerator_count": count and str(count),
        "precision": precision,
        "level": level,
        "gradient_checkpointing": maybe(chance.choice(["yes", "no"])),
        "dataset": maybe(chance.choice("xyz")),
        "packages.torch": maybe(chance.choice(["2.1", "<b>2.2</b>"])),
    }
    return make_subject(
        f"r-{place}",
        title=f"Result {place}",
        impossible=chance.random() < 0.1,
        runs=chance.choice(["", "one run", "10 runs"]),
        accelerator=accelerator,
        count=count,
        precision=precision,
        level=level,
        flop_per_s=maybe(chance.choice([1e12, 3.3e13, 5.25e14])),
        recompute=maybe(chance.choice([1.0, 1.3333])),
        figures={key: figure for key, figure in figures.items() if figure},
        conditions={key: value for key, value in conditions.items() if value},
        objections={key: chance.sample(DOUBTS, chance.choice([1, 2])) for key in figures if chance.random() < 0.2},
    )


DOUBTS = [INCONSISTENT, SUSPICIOUS, AMBIGUOUS, FROM_IMPOSSIBLE, Objection("impossible", "<b>utilisation</b>", refuses=True)]


Open = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Open]:
    """Return a function that opens the page with a choice, if given with these results instead of those of the database."""
    contexts = []

    def visit(choice: str = "", subjects: list[Subject] | None = None, *, width: int = 1280, scripts: bool = True) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 844}, java_script_enabled=scripts)
        contexts.append(context)
        page = context.new_page()
        if subjects:
            text = compare.encoded(subjects, KNOWN)

            def answer(route: Route) -> None:
                route.fulfill(body=text, content_type="application/json")

            page.route(f"**/{compare.DATA_PATH}", answer)
        page.goto(f"{address}compare.html{choice}")
        if scripts:
            page.wait_for_selector("#tm-compare[data-ready]")
        return page

    yield visit
    for context in contexts:
        context.close()


def shown_view(page: Page, part: str = "results") -> Json:
    return page.evaluate("part => document.querySelector(`[data-compare=${part}]`).view", part)  # type: ignore[no-any-return]


def assert_same(shown: Any, expected: Any, where: str = "") -> None:
    if isinstance(expected, dict):
        assert shown.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_same(shown[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(shown) == len(expected), where
        for place, (one, other) in enumerate(zip(shown, expected, strict=True)):
            assert_same(one, other, f"{where}[{place}]")
    elif isinstance(expected, float):
        assert shown == pytest.approx(expected, rel=1e-9), where
    else:
        assert shown == expected, where


RESULTS = [make_subject(f"r-{place}", accelerator="ab"[place % 2]) for place in range(6)]


def test_the_script_and_the_module_agree_on_random_pairs(opened: Open) -> None:
    chance = random.Random(SEED)  # noqa: S311 - test data
    subjects = {subject.id: subject for subject in (random_subject(place, chance) for place in range(40))}
    page = opened("", list(subjects.values()))
    for number in range(PAIRS):
        ids = chance.sample(sorted(subjects), 2 + number % 3)
        page.evaluate("ids => { location.hash = ids }", ",".join(ids))
        page.wait_for_function("id => document.querySelector('[data-compare=results]').view?.columns.at(-1).id === id", arg=ids[-1])
        # Through JSON, as the script sees it.
        assert_same(shown_view(page), json.loads(json.dumps(view([subjects[name] for name in ids], KNOWN))), ",".join(ids))


def test_the_script_and_the_module_agree_on_the_database(opened: Open, catalogue: Catalogue) -> None:
    subjects, known = compare.compared(catalogue), compare.knowledge(catalogue)
    first, *others = [subject for subject in subjects if "tokens_per_s" in subject.figures][:4]
    page = opened(f"#{','.join(subject.id for subject in (first, *others))}")
    assert_same(shown_view(page), json.loads(json.dumps(view([first, *others], known))))
    assert page.evaluate("window.hacked") is None


def test_cards_agree_too(opened: Open) -> None:
    assert_same(shown_view(opened("#a,b,c", RESULTS), "accelerators"), json.loads(json.dumps(card_view(["a", "b", "c"], KNOWN))))


def test_two_results_by_address_show_ratio_and_interval(opened: Open) -> None:
    fast = make_subject("r-9", figures={"tokens_per_s": Estimate(1500, 1400, 1600)}, runs="10 runs")
    slow = make_subject("r-8", figures={"tokens_per_s": Estimate(1000, 900, 1100)}, runs="10 runs")
    page = opened("#r-8,r-9", [slow, fast])
    expect(page.locator("tr[data-key=tokens_per_s] .tm-ratio")).to_have_text(f"1.50{TIMES} (1.33 to 1.70), differs")
    expect(page.locator(".tm-reason")).to_contain_text("The rates differ: the interval excludes 1.")
    expect(page.locator("summary").last).to_have_text("4 equal conditions")
    expect(page.get_by_text("No stated condition differs.")).to_be_visible()
    expect(page.locator("[data-compare=results] dl")).to_be_hidden()


def test_a_disputed_figure_has_a_warning_a_mark_and_no_ratio(opened: Open) -> None:
    page = opened(
        "#r-8,r-9", [make_subject("r-8", objections={"tokens_per_s": [INCONSISTENT, AMBIGUOUS]}), make_subject("r-9", accelerator="b")]
    )
    warning = page.locator("[data-compare-objections] p")
    expect(warning).to_have_text(f"Tokens/s of r-8: inconsistent, identity; ambiguous, {READINGS}")
    expect(warning.locator("a")).to_have_attribute("href", "results/r-8.html")
    cells = page.locator("tr[data-key=tokens_per_s] td")
    expect(cells.nth(0).locator(".tm-mark")).to_have_text("inconsistent")
    expect(cells.nth(1).locator(".tm-mark")).to_have_count(0)
    expect(cells.nth(1).locator(".tm-ratio")).to_have_text("not compared: the audit calls that of A inconsistent")
    expect(page.locator(".tm-reason p")).to_have_text("Tokens/s not compared: the audit calls that of A inconsistent.")
    assert warning.bounding_box()["y"] < cells.nth(0).bounding_box()["y"]  # type: ignore[index]


def test_a_single_run_has_no_interval(opened: Open) -> None:
    expect(opened("#r-0,r-1", RESULTS).locator("tr[data-key=tokens_per_s] .tm-ratio")).to_have_text(f"1.00{TIMES}, no interval: single run")


def test_a_wrong_id_gives_a_message_and_keeps_the_rest(opened: Open) -> None:
    page = opened("#r-0,nobody,r-1", RESULTS)
    expect(page.get_by_role("alert")).to_contain_text('No finished result and no accelerator has the id "nobody"')
    expect(page.locator(".tm-chosen").first.locator("li")).to_have_count(2)
    expect(page.locator("tr[data-key=tokens_per_s]")).to_be_visible()


def test_hostile_addresses_are_text(opened: Open) -> None:
    page = opened("#<img src=x onerror=window.hacked=1>,%E0%A4%A", RESULTS)
    expect(page.get_by_role("alert").locator("p")).to_have_count(2)
    assert page.evaluate("window.hacked") is None


def test_a_fifth_result_is_left_out(opened: Open) -> None:
    page = opened("#" + ",".join(f"r-{place}" for place in range(5)), RESULTS)
    expect(page.get_by_role("alert")).to_have_text("At most 4 results are compared; r-4 is left out.")
    expect(page.get_by_label("Add a result")).to_be_disabled()
    page.get_by_role("button", name="Remove r-0").click()
    expect(page.get_by_label("Add a result")).to_be_enabled()
    assert page.url.endswith("#r-1,r-2,r-3")


def test_one_result_asks_for_another(opened: Open) -> None:
    page = opened("#r-0", RESULTS)
    expect(page.get_by_text("Add at least one more result.")).to_be_visible()
    expect(page.locator("[data-compare=results] table")).to_have_count(0)


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


def test_accelerators_are_chosen_in_their_own_section(opened: Open) -> None:
    page = opened("#r-0,r-1", RESULTS)
    field = page.get_by_label("Add an accelerator")
    for name in ("card a", "card b"):
        field.fill(name)
        page.get_by_role("option").first.click()
    assert page.url.endswith("#r-0,r-1,a,b")
    expect(page.locator("[data-compare=accelerators] tr", has_text="Dense bf16 peak")).to_contain_text(f"3.16{TIMES}")


def test_the_cards_of_chosen_results_are_compared_by_themselves(opened: Open) -> None:
    page = opened("#r-0,r-1", RESULTS)
    assert [column["id"] for column in shown_view(page, "accelerators")["columns"]] == ["a", "b"]
    expect(page.get_by_text("The accelerators of the chosen results.")).to_be_visible()
    page.get_by_label("Add an accelerator").fill("card c")
    page.get_by_role("option").first.click()
    assert shown_view(page, "accelerators") is None


def test_whole_words_come_first_and_chosen_results_are_left_out(opened: Open) -> None:
    titles = {"r-0": "M, QLoRA, H100 x 32", "r-1": "M, LoRA, H100 x 8", "r-2": "M, LoRA, H100 x 128", "r-3": "M, LoRA, H100 x 8"}
    page = opened("#r-3", [make_subject(name, title=title, precision=None) for name, title in titles.items()])
    page.get_by_label("Add a result").fill("lora h100 x 8")
    expect(page.get_by_role("option")).to_have_text([re.compile("r-1"), re.compile("r-2")])


def test_anchors_of_the_page_are_no_choice(opened: Open) -> None:
    page = opened("#how-to-read-this-page", RESULTS)
    expect(page.get_by_role("alert")).to_be_hidden()


def test_missing_data_give_a_message(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.route(f"**/{compare.DATA_PATH}", lambda route: route.fulfill(status=404, body=""))
    page.goto(f"{address}compare.html")
    expect(page.get_by_role("alert")).to_contain_text("could not be loaded (404)")
    page.close()


def test_without_javascript_there_is_a_note_and_no_empty_chooser(opened: Open) -> None:
    page = opened(scripts=False)
    expect(page.locator("noscript p")).to_contain_text("Choosing needs JavaScript.")
    expect(page.locator("noscript p")).to_be_visible()
    expect(page.get_by_role("combobox")).to_have_count(0)


def test_the_example_compares_one_model_and_method_on_two_accelerators(catalogue: Catalogue) -> None:
    subjects = [
        make_subject(f"r-{place}", accelerator=card, figures={"tokens_per_s": figure}, conditions=conditions)
        for place, (card, figure, conditions) in enumerate(
            [
                ("a", Estimate(10, 9, 11), {"model": "M", "method": "full", "sequence_length": "8", "global_batch": "4"}),
                ("b", Estimate(30), {"model": "M", "method": "full", "sequence_length": "8", "global_batch": "4"}),
                ("b", Estimate(30, 28, 32), {"model": "M", "method": "full", "sequence_length": "8", "global_batch": "4", "dataset": "x"}),
                ("b", Estimate(30, 28, 32), {"model": "M", "method": "LoRA", "sequence_length": "8", "global_batch": "4"}),
            ]
        )
    ]
    assert [subject.id for subject in compare.example(subjects, KNOWN, Counter(subject.accelerator for subject in subjects)) or ()] == [
        "r-0",
        "r-2",
    ]
    assert compare.example(compare.compared(catalogue), KNOWN, Counter()) is None


def test_results_alone_with_their_work_are_not_in_the_search_for_an_example() -> None:
    same = {"model": "M", "method": "lora", "sequence_length": 512, "accelerator_count": 1, "impossible": False}
    rows = [
        same | {"accelerator": card} | other
        for card, other in (
            ("a", {}),
            ("b", {}),
            ("a", {"method": "full"}),
            ("b", {"impossible": True}),
            ("a", {"accelerator_count": None}),
        )
    ]
    assert compare.with_rivals(rows) == rows[:2]


@pytest.mark.parametrize("choice", ["#r-0,r-1,r-2,r-3,a,b,c", ""])
def test_a_phone_shows_cards_and_never_scrolls_sideways(opened: Open, choice: str) -> None:
    page = opened(choice, RESULTS, width=NARROW)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW
    if choice:
        cells = page.locator("tr[data-key=tokens_per_s] td")
        tops = [cells.nth(place).bounding_box()["y"] for place in range(4)]  # type: ignore[index]
        assert tops == sorted(set(tops))
        assert cells.nth(1).evaluate("node => getComputedStyle(node, '::before').content") == '"B"'


def test_inputs_and_buttons_have_names(opened: Open) -> None:
    page = opened("#r-0,r-1", RESULTS)
    assert page.locator("#tm-compare input").evaluate_all("all => all.every(node => node.labels.length === 1)")
    assert page.locator("#tm-compare button").evaluate_all("all => all.every(node => node.getAttribute('aria-label'))")


def test_the_script_is_loaded_on_this_page_only(built: Path) -> None:
    pages = [path.name for path in (built / "site").rglob("*.html") if "assets/compare.js" in path.read_text(encoding="utf-8")]
    assert pages == ["compare.html"]


def test_real_ids_of_the_database_can_be_chosen(opened: Open) -> None:
    page = opened(f"#{MEASURED},{STRANGE},{H100},nvidia-t4")
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("[data-compare=results] thead a").first).to_have_attribute("href", f"results/{MEASURED}.html")
    expect(page.locator("[data-compare=accelerators] tr", has_text="Memory bandwidth")).to_contain_text("GB/s")
