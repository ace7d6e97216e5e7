"""The home page answers: its script and the Python engine agree, and the form, the address and the page without JavaScript work."""

import json
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Browser, Page
from test_browser import NARROW, Visit

from tunemark.schema import recommendation_words as words
from tunemark.schema.recommendation import NODES, OBJECTIVES, OWN, TRUSTS, DisputedRate, Offer, Question, Rate, recommend
from tunemark.site.home import front, time_and_cost_svg, with_links
from tunemark.site.recommend_data import columnar

METHODS, SOFTWARE, LENGTHS = ("full", "lora", "qlora"), ("plain", "tuned"), (512, 2048)
CHIPS, COUNTS = tuple(f"chip-{letter}" for letter in "abcdef"), (1, 2, 8)
KINDS, PROVIDERS = ("on_demand", "spot"), ("aws", "gcp", "runpod")
QUESTIONS = 200
COMPARED = ("seconds", "seconds_low", "seconds_high", "usd", "usd_low", "usd_high", "rank_low", "rank_high", "instances")


def made_up_rates(draw: random.Random) -> list[Rate]:
    """Return rates of a model: every kind of evidence, verdict and trust."""
    devices = sorted({count * nodes for count in COUNTS for nodes in NODES})
    return [_rate(draw, *row) for row in product(METHODS, SOFTWARE, LENGTHS, CHIPS, devices)]


def _rate(draw: random.Random, method: str, software: str, length: int, chip: str, devices: int) -> Rate:
    evidence = draw.choice(("direct", "near", "predicted", "predicted", "none"))
    speed = float(f"{devices * draw.lognormvariate(8, 1):.6g}")
    known = evidence != "none"
    ids = tuple(f"{chip}-{number}" for number in range(draw.randint(1, 5))) if evidence in {"direct", "near"} else ()
    memory = draw.choice(("fits", "fits", "probably", "tight", "ran")) if known else draw.choice(("no", None))
    return Rate(
        method, length, software, chip, devices, evidence,
        *((speed, speed * 0.8, speed * 1.3) if known else (None, None, None)),
        memory, None if memory is None else 2**34, None if memory is None else 2**35, 2, "none", "ddp" if devices > 1 else "single",
        draw.choice(("published", "measured", "converted")) if ids else None, ids, len(ids), None if known else f"reason {memory}",
        draw.choice(((), (), (DisputedRate("a-1", 12.0, length), DisputedRate("a-2", 3.4, 2 * length)))),
        weight_format=draw.choice((None, "bf16", "fp16", "fp32")),
    )  # fmt: skip


CARDS = [("long-lora", "lora", 4096), ("short-lora", "lora", 512), ("any-lora", "lora", 512), ("whole", "full", 2048)]
"""Workload cards of the made-up model."""


def made_up_offers(draw: random.Random) -> list[Offer]:
    """Return offers of every provider and kind, some with a fabric."""
    return [
        Offer(chip, chip.upper(), count, provider, f"{count}x-{chip}", kind, round(count * draw.uniform(0.2, 9), 3), "east", "2026-11-01", draw.random() < 0.3, provider.title(), draw.choice((None, 72.0, 700.0)))
        for chip in CHIPS
        for count in COUNTS
        for provider in PROVIDERS
        for kind in KINDS
        if draw.random() < 0.6
    ]  # fmt: skip


def made_up_question(draw: random.Random) -> Question:
    """Return a question with some of the limits."""
    own = Offer("chip-a", "CHIP-A", 2, OWN, "CHIP-A", "owned", draw.choice((0.0, draw.uniform(0.1, 2), draw.uniform(0.1, 2))))
    return Question(
        draw.choice((*METHODS, "any")),
        round(draw.lognormvariate(17, 2)) + 1,
        draw.choice((128, 512, 700, 2048)),
        draw.choice(SOFTWARE),
        draw.choice(OBJECTIVES),
        draw.choice((None, draw.lognormvariate(9, 1.5))),
        draw.choice((None, draw.lognormvariate(2, 1.5))),
        draw.choice(((), ("aws",), ("gcp", "runpod"))),
        draw.choice((("on_demand",), KINDS)),
        draw.choice(((), (), ("chip-a", "chip-b"), ("chip-c",))),
        draw.choice((None, 1, 8)),
        draw.choice(TRUSTS),
        draw.choice((0.0, 300.0)),
        draw.choice(((), (own,))),
    )


@pytest.fixture(scope="module")
def script(script_alone: Callable[[str], Page]) -> Page:
    return script_alone("recommend.js")


def test_script_and_python_agree_on_two_hundred_random_questions(script: Page) -> None:
    draw = random.Random(14)  # noqa: S311 - repeatable questions
    rates, offers = made_up_rates(draw), made_up_offers(draw)
    questions = [made_up_question(draw) for _ in range(QUESTIONS)]
    rows = [asdict(rate) for rate in rates]
    script.evaluate(
        "([data, offers, cards]) => { window.rates = tunemark.decoded(data); window.offers = offers; window.cards = cards; }",
        [columnar(rows), [asdict(offer) for offer in offers], CARDS],
    )
    answers = script.evaluate(
        """(questions) => questions.map((question) => {
            const answer = tunemark.recommend(question, window.rates, window.offers);
            return {...answer, headline: tunemark.headline(question, answer), disputed: answer.ranked.map((option) => tunemark.disputed(option).map((part) => part.id ?? part).join("")), alternatives: tunemark.alternatives(question, answer), changes: tunemark.changes(question, answer), tuned: tunemark.withTuned(question, answer, tunemark.recommend({...question, software: "tuned"}, window.rates, window.offers)), energy: answer.ranked.map(tunemark.energy), configured: answer.ranked.map(tunemark.configuration), missing: [...tunemark.ownHardware(question, answer), tunemark.notFitting(answer), tunemark.unknownOf(answer), tunemark.fillGap(answer, tunemark.workloadFor(window.cards, question))]};
        })""",
        [json.loads(json.dumps(asdict(question))) for question in questions],
    )
    kinds = set()
    for question, theirs in zip(questions, answers, strict=True):
        ours = recommend(question, rates, offers)
        for group in ("ranked", "may_exceed", "exceeding", "unpriced"):
            options = getattr(ours, group)
            kinds |= {group} if options else set()
            assert [_name(option) for option in options] == [_their_name(option) for option in theirs[group]]
            for option, other in zip(options, theirs[group], strict=True):
                assert [other[name] for name in COMPARED] == pytest.approx([getattr(option, name) for name in COMPARED], rel=1e-9)
                assert [*option.limits, *option.exceeds] == [*other["limits"], *other["exceeds"]]
        for group in ("too_large", "no_data"):
            kinds |= {group} if getattr(ours, group) else set()
            assert json.loads(json.dumps([asdict(without) for without in getattr(ours, group)])) == theirs[group]
        assert (ours.picks, ours.offers) == (theirs["picks"], theirs["offers"])
        for name in ("other_methods", "other_lengths", "other_software"):
            assert list(getattr(ours, name)) == theirs[name]
        assert words.headline(question, ours) == theirs["headline"]
        assert [words.disputed(option) for option in ours.ranked] == theirs["disputed"]
        assert [words.energy(option) for option in ours.ranked] == theirs["energy"]
        assert words.alternatives(question, ours) == theirs["alternatives"]
        assert list(words.changes(question, ours)) == theirs["changes"]
        assert words.with_tuned(question, ours, recommend(replace(question, software="tuned"), rates, offers)) == theirs["tuned"]
        assert [words.configuration(option) for option in ours.ranked] == theirs["configured"]
        gap = words.fill_gap(ours, words.workload_for(CARDS, question))
        assert [*words.own_hardware(question, ours), words.not_fitting(ours), words.unknown(ours), gap] == theirs["missing"]
    assert kinds == {"ranked", "may_exceed", "exceeding", "unpriced", "too_large", "no_data"}
    assert any(answer["other_methods"] for answer in answers)


def test_script_and_python_draw_the_same_chart(script: Page) -> None:
    draw = random.Random(5)  # noqa: S311 - repeatable options
    rates, offers = made_up_rates(draw), made_up_offers(draw)
    for question in (
        Question("lora", 10_000_000, 512),
        Question("any", 3e9, 2048, startup_s=0),
        Question("full", 1e5, 512, trust="published"),
    ):
        ours = recommend(question, rates, offers)
        drawn = script.evaluate(
            """([question, data, offers]) => {
                const rates = tunemark.decoded(data);
                const chart = tunemark.chartOf(tunemark.recommend(question, rates, offers).ranked);
                return [...chart.children].map((e) => [e.tagName, Object.fromEntries([...e.attributes].map((a) => [a.name, a.value])), e.textContent]);
            }""",
            [json.loads(json.dumps(asdict(question))), columnar([asdict(rate) for rate in rates]), [asdict(offer) for offer in offers]],
        )
        svg = ET.fromstring(time_and_cost_svg(ours.ranked))  # noqa: S314 - our own text
        assert [[each.tag, dict(each.attrib), "".join(each.itertext())] for each in svg] == drawn
        assert len(svg.findall("circle")) == min(len(ours.ranked), 120)


def test_the_front_has_no_option_that_another_beats() -> None:
    draw = random.Random(6)  # noqa: S311 - repeatable options
    ranked = recommend(Question("any", 1e7, 512), made_up_rates(draw), made_up_offers(draw)).ranked
    best = front(ranked)
    assert len(best) > 1
    for option in best:
        assert not [other for other in ranked if other.seconds < option.seconds and other.usd < option.usd]


def _name(option: object) -> tuple[object, ...]:
    return option.offer.provider, option.offer.instance, option.offer.kind, option.instances, option.rate.method  # type: ignore[attr-defined]


def _their_name(option: dict[str, dict[str, object]]) -> tuple[object, ...]:
    offer = option["offer"]
    return offer["provider"], offer["instance"], offer["kind"], option["instances"], option["rate"]["method"]


def test_the_page_answers_before_any_input_and_without_javascript(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html", scripts=False) as visit:
        assert visit.page.locator("#tm-answer .tm-headline").inner_text().startswith("Rent ")
        assert visit.page.locator("#tm-answer tbody tr").count() >= 2
        assert "The form needs JavaScript" in visit.page.inner_text("noscript >> p")


def test_another_question_gets_another_answer_and_stays_in_the_address(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html") as visit:
        before = visit.page.locator(".tm-headline").inner_text()
        visit.page.fill("[name=size]", "5B")
        visit.page.wait_for_function("(before) => document.querySelector('.tm-headline').innerText !== before", arg=before)
        after = visit.page.locator(".tm-headline").inner_text()
        assert "size=5B" in visit.page.url
        visit.page.reload()
        visit.page.wait_for_function("(after) => document.querySelector('.tm-headline').innerText === after", arg=after)
        assert visit.page.input_value("[name=size]") == "5B"
        assert not visit.complaints


def test_a_budget_that_nothing_keeps_recommends_nothing(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html?size=900B&budget=1&kind=on_demand") as visit:
        visit.page.wait_for_selector("text=No option meets all limits")
        assert visit.page.locator("#tm-answer dl").count() == 0
        assert visit.page.locator("summary:has-text('Over a limit')").count() == 1
        assert visit.page.inner_text("#tm-question summary span") == "Set: budget"


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [("size", "10X", "k, M or B"), ("deadline", "2", "with its unit"), ("length", "99999", "rows this long")],
)
def test_a_wrong_input_says_what_to_do(browser: Browser, address: str, name: str, value: str, complaint: str) -> None:
    with Visit(browser, address, f"index.html?{name}={value}&kind=on_demand") as visit:
        visit.page.wait_for_selector(f"[role=alert]:has-text('{complaint}')")
        assert visit.page.get_attribute(f"[name={name}]", "aria-invalid") == "true"
        visit.page.fill(f"[name={name}]", {"size": "10M", "deadline": "", "length": "512"}[name])
        visit.page.wait_for_selector("#tm-answer .tm-headline:not([role])")
        assert visit.page.get_attribute(f"[name={name}]", "aria-invalid") is None


def test_only_accelerators_with_the_memory_and_the_name_that_are_wanted_are_offered(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html") as visit:
        visit.page.click("#tm-question summary")
        offered = visit.page.locator("[name=accelerator]")
        assert offered.count() >= 1
        visit.page.check("[name=accelerator][value=nvidia-h100-80gb-sxm]")
        visit.page.wait_for_function("() => location.search.includes('accelerator=nvidia-h100-80gb-sxm')")
        visit.page.wait_for_function(
            "() => [...document.querySelectorAll('#tm-answer tbody th a')].every((a) => a.innerText.includes('H100'))"
        )
        visit.page.select_option("[name=memory]", "16")
        visit.page.wait_for_selector(".tm-headline:has-text('No offer matches these providers')")


def test_own_hardware_is_an_option_with_its_electricity(browser: Browser, address: str) -> None:
    path = "index.html?own=nvidia-h100-80gb-sxm&own_devices=1&own_usd=0.01&watts=400&kwh=0.25&kind=on_demand"
    with Visit(browser, address, path) as visit:
        visit.page.wait_for_selector(".tm-headline:has-text('own hardware, $0.110/h')")


def test_an_accelerator_without_data_is_linked_to_its_page(browser: Browser, address: str) -> None:
    names = {"gpu-80": "H100 80GB", "gpu-80-sxm": "H100 80GB SXM"}
    assert with_links("No data: H100 80GB SXM (no result).", names) == [
        ("No data: ", None),
        ("H100 80GB SXM", "accelerators/gpu-80-sxm"),
        (" (no result).", None),
    ]
    with Visit(browser, address, "index.html?trust=measured&kind=on_demand") as visit:
        visit.page.wait_for_selector("#tm-answer li:has-text('No data')")
        links = "li a[href^='accelerators/']"
        found = visit.page.eval_on_selector_all(f"#tm-answer {links}", "(all) => all.map((a) => a.getAttribute('href'))")
        assert found
        assert all(href.endswith(".html") for href in found)


def test_the_question_works_with_the_keyboard_and_fits_a_phone(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html", width=NARROW) as visit:
        visit.page.focus("[name=method]")
        visit.page.keyboard.press("ArrowDown")
        visit.page.wait_for_function("() => location.search.includes('method=qlora')")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= NARROW
        unnamed = visit.page.evaluate(
            "[...document.querySelectorAll('#tm-question input, #tm-question select')].filter((e) => !e.labels.length).length"
        )
        assert unnamed == 0
