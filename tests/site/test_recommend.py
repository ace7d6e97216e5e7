"""The home page answers: its script and the Python engine agree, and the form, the address and the page without JavaScript work."""

import json
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product

import pytest
from factories import FACTS
from playwright.sync_api import Browser, Page
from test_browser import NARROW, Visit

from tunemark.schema.errors import TunemarkError
from tunemark.schema.option_rates import Evidence, KnownRate, option_rates
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.recommendation import NODES, OBJECTIVES, OWN, TRUSTS, DisputedRate, Offer, Question, Rate, recommend
from tunemark.schema.throughput import FACTORS, Effects, architecture_of, generation_of, prior_of
from tunemark.site.answer import answer_html
from tunemark.site.time_and_cost import front

METHODS, SOFTWARE, LENGTHS = ("full", "lora", "qlora"), ("plain", "tuned"), (512, 2048)
CHIPS, COUNTS = tuple(f"chip-{letter}" for letter in "abcdef"), (1, 2, 8)
KINDS, PROVIDERS = ("on_demand", "spot"), ("aws", "gcp", "runpod")
QUESTIONS = 200
KINDS_OF_ANSWER = ("ranked", "may_exceed", "exceeding", "unpriced", "too_large", "no_data", "other_methods")


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


def test_script_and_python_answer_two_hundred_random_questions_alike(script: Page) -> None:
    draw = random.Random(14)  # noqa: S311 - repeatable questions
    rates, offers = made_up_rates(draw), made_up_offers(draw)
    names = {offer.accelerator: offer.name for offer in offers}
    questions = [made_up_question(draw) for _ in range(QUESTIONS)]
    script.evaluate(
        """([rates, offers]) => {
            const { DisputedRate, Offer, Rate } = tunemark.recommendation, { make } = tunemarkPython;
            window.rates = rates.map((row) => make(Rate, [], { ...row, disputed: row.disputed.map((each) => make(DisputedRate, [], each)) }));
            window.offers = offers.map((row) => make(Offer, [], row));
        }""",
        [json.loads(json.dumps([asdict(each) for each in rows])) for rows in (rates, offers)],
    )
    answers = script.evaluate(
        """([questions, names, cards]) => questions.map((row) => {
            const { Offer, Question, recommend } = tunemark.recommendation, { dict, make } = tunemarkPython;
            const question = make(Question, [], { ...row, own: row.own.map((each) => make(Offer, [], each)) });
            const [answer, tuned] = [question.software, "tuned"].map((software) => recommend(make(Question, [], { ...question, software }), rates, offers));
            return tunemark.answer.answer_html(question, answer, tuned, dict(Object.entries(names)), cards, true);
        })""",
        [[json.loads(json.dumps(asdict(question))) for question in questions], names, CARDS],
    )
    kinds = set()
    for question, theirs in zip(questions, answers, strict=True):
        ours, tuned = (recommend(replace(question, software=software), rates, offers) for software in (question.software, "tuned"))
        assert answer_html(question, ours, tuned, names, CARDS, every=True) == theirs
        kinds |= {name for name in KINDS_OF_ANSWER if getattr(ours, name)}
    assert kinds == set(KINDS_OF_ANSWER)


MODELS = ("llama-3.1-8b", "qwen2.5-7b", "gemma-2-9b", "mixtral-8x7b", "bert-base-uncased", "gpt2")
GPUS = ("nvidia-h100-80gb-sxm", "nvidia-v100-16gb", "amd-mi300x", "apple-m3-max", "nvidia-rtx-4090")


def made_up_evidence(draw: random.Random) -> Evidence:
    """Return a fitted model with correlated parameters, and results on every second accelerator."""
    names = [
        *(f"factor: {term}" for term in FACTORS),
        "level: plain",
        "level, method: tuned, lora",
        "slope: devices doubled",
        f"accelerator: {GPUS[0]}",
    ]
    loads = [[draw.gauss(0, 0.1) for _ in names] for _ in names]
    covariance = tuple(tuple(sum(a * b for a, b in zip(one, other, strict=True)) for other in loads) for one in loads)
    effects = Effects(
        {name: place for place, name in enumerate(names)}, tuple(prior_of(name).mean + draw.gauss(0, 0.2) for name in names), covariance
    )
    results = [
        KnownRate(
            f"{model}-{gpu}-{method}-{level}", architecture_of(FACTS.models[model]), FAMILIES[FACTS.models[model].family].encoder, method,
            draw.choice((128, 512, 2048)), 2048, gpu, FACTS.accelerators[gpu].vendor, generation_of(FACTS.accelerators[gpu]), draw.choice((1, 8)),
            level, draw.uniform(1e3, 1e5), suspicious=draw.random() < 0.2,
        )
        for model, gpu, method, level in product(MODELS[::2], GPUS[::2], METHODS, SOFTWARE)
    ]  # fmt: skip
    return Evidence(effects, tuple(results))


def test_script_and_python_compute_the_same_rates(script: Page) -> None:
    evidence, places = made_up_evidence(random.Random(3)), list(product(GPUS, (1, 8)))  # noqa: S311 - repeatable evidence
    cards = {key: FACTS.accelerators[key].model_dump(mode="json") for key in GPUS}
    models = {key: FACTS.models[key].model_dump(mode="json") for key in MODELS}
    script.evaluate(
        """([effects, results, cards]) => {
            const { Evidence, KnownRate } = tunemark.option_rates, { Effects } = tunemark.throughput, { dict, make } = tunemarkPython;
            const places = dict(Object.entries(effects.places)), rows = results.map((row) => make(KnownRate, [], row));
            for (const card of Object.values(cards)) card.peak_tflops = dict(Object.entries(card.peak_tflops));
            Object.assign(window, { cards, evidence: make(Evidence, [], { effects: make(Effects, [], { ...effects, places }), results: rows }) });
        }""",
        [asdict(evidence.effects), [asdict(each) for each in evidence.results], cards],
    )
    kinds = set()
    for model, length in product(MODELS, (128, 700, 4096)):
        asked = [models[model], length, places]
        theirs = script.evaluate(
            """([model, length, places]) => {
                try { return tunemark.option_rates.option_rates(model, length, places.map(([key, devices]) => [cards[key], devices]), evidence); }
                catch (error) { return error.message; }
            }""",
            asked,
        )
        ours: list[Rate] | str
        try:
            ours = option_rates(FACTS.models[model], length, [(FACTS.accelerators[key], devices) for key, devices in places], evidence)
        except TunemarkError as error:
            ours = error.fix
        if isinstance(ours, str):
            assert theirs == ours
            continue
        for mine, other in zip(ours, theirs, strict=True):
            expected = json.loads(json.dumps(asdict(mine)))
            close = {name: pytest.approx(value, rel=1e-12) for name, value in expected.items() if isinstance(value, float)}
            assert {name: other.get(name) for name in expected} == expected | close
            kinds.add((mine.evidence, mine.memory))
    assert {("direct", "fits"), ("near", "fits"), ("predicted", "fits"), ("none", "no")} <= kinds


def test_the_front_has_no_option_that_another_beats() -> None:
    draw = random.Random(6)  # noqa: S311 - repeatable options
    ranked = recommend(Question("any", 1e7, 512), made_up_rates(draw), made_up_offers(draw)).ranked
    best = front(ranked)
    assert len(best) > 1
    for option in best:
        assert not [other for other in ranked if other.seconds < option.seconds and other.usd < option.usd]


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


RIGHT = {"size": "10M", "deadline": "", "length": "512", "epochs": "2", "own_devices": "2", "startup": "0"}


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("size", "10X", 'The size of the data is "10X"; it must be a whole number'),
        ("deadline", "2", 'The deadline is "2"; it must be a time above 0 with its unit'),
        ("length", "999999", "reads rows of at most 131,072 tokens"),
        ("epochs", "1.5", "whole number"),
        ("own_devices", "0.5", "whole number"),
        ("startup", "", 'The start-up time is ""; it must be'),
    ],
)
def test_a_wrong_input_says_what_to_do(browser: Browser, address: str, name: str, value: str, complaint: str) -> None:
    with Visit(browser, address, f"index.html?{name}={value}&kind=on_demand&own=nvidia-h100-80gb-sxm") as visit:
        visit.page.wait_for_selector(f"[role=alert]:has-text('{complaint}')")
        assert visit.page.get_attribute(f"[name={name}]", "aria-invalid") == "true"
        visit.page.fill(f"[name={name}]", RIGHT[name])
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
        visit.page.evaluate("document.querySelector('[name=own_usd]').closest('details').open = true")
        visit.page.fill("[name=own_usd]", "-1")
        visit.page.wait_for_selector("[role=alert]:has-text('it must be a number of 0 or more')")


def test_an_accelerator_without_data_is_linked_to_its_page(browser: Browser, address: str) -> None:
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
