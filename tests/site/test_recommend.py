"""The home page answers: its script and the Python engine agree, and the form, the address and the page without JavaScript work."""

import json
import random
import re
import tomllib
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from factories import FACTS
from playwright.sync_api import Browser, Page
from test_browser import NARROW, Visit

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.any_model import any_model, config_fields, fields_of, limits
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import validated
from tunemark.schema.option_rates import LOOPS, Evidence, KnownRate, cautions, rates_for, rates_on_stack
from tunemark.schema.recommendation import OBJECTIVES, OWN, TRUSTS, Answer, Offer, Question, Rate, recommend
from tunemark.schema.recommendation_words import with_software, with_stack
from tunemark.schema.throughput import FACTORS, Effects, architecture_of, generation_of, prior_of
from tunemark.site import recommend_data
from tunemark.site.answer import answer_html
from tunemark.site.database import Database
from tunemark.site.recommend_data import DERIVED, columnar
from tunemark.site.time_and_cost import front

METHODS, SOFTWARE = ("full", "lora", "qlora"), ("plain", "tuned", "vendor")
KINDS, PROVIDERS = ("on_demand", "spot"), ("aws", "gcp", "runpod")
MODELS = (
    *("llama-3.1-8b", "qwen2.5-7b", "gemma-2-9b", "gemma-3-4b", "mixtral-8x7b", "bert-base-uncased", "gpt2"),
    *("deepseek-v2-lite", "llama-4-scout", "qwen3.5-9b", "qwen3.5-35b-a3b", "gemma-4-26b-a4b", "command-r7b"),
    *("modernbert-base", "deberta-v3-base", "lfm2-350m", "granite-4.0-h-tiny"),
)
GPUS = ("nvidia-h100-80gb-sxm", "nvidia-v100-16gb", "amd-mi300x", "apple-m3-max", "nvidia-rtx-4090")
COUNTS, CONFIG, UNKNOWN = (1, 2, 8), "config.json", "no such model"
KINDS_OF_ANSWER = ("ranked", "may_exceed", "exceeding", "unpriced", "too_large", "no_data")


def made_up_offers(draw: random.Random) -> list[Offer]:
    """Return offers of every provider and kind, some with a fabric."""
    return [
        Offer(
            *(gpu, FACTS.accelerators[gpu].name, count, provider, f"{count}x-{gpu}", kind, round(count * draw.uniform(0.2, 9), 3)),
            *("east", "2026-11-01", draw.random() < 0.2, provider.title(), draw.choice((None, 72.0, 700.0))),
        )
        for gpu, count, provider, kind in product(GPUS, COUNTS, PROVIDERS, KINDS)
        if draw.random() < 0.3
    ]


def made_up_evidence(draw: random.Random) -> Evidence:
    """Return a fitted model with correlated parameters, and results on every second accelerator."""
    names = [
        *(f"factor: {term}" for term in FACTORS),
        *("level: plain", "slope: devices doubled", f"accelerator: {GPUS[0]}"),
    ]
    loads = [[draw.gauss(0, 0.1) for _ in names] for _ in names]
    covariance = tuple(tuple(sum(a * b for a, b in zip(one, other, strict=True)) for other in loads) for one in loads)
    means = tuple(prior_of(name).mean + draw.gauss(0, 0.2) for name in names)
    results = [
        KnownRate(
            *(f"{model}-{gpu}-{method}-{level}", architecture_of(FACTS.models[model]), model.startswith("bert"), method),
            *(draw.choice((128, 512, 2048)), gpu, FACTS.accelerators[gpu].vendor, generation_of(FACTS.accelerators[gpu])),
            *(draw.choice((1, 8)), level, draw.uniform(1e3, 1e5)),
            trust=draw.choice(("published", "measured")),
            suspicious=draw.random() < 0.2,
        )
        for model, gpu, method, level in product(MODELS[::2], GPUS[::2], METHODS, SOFTWARE)
        if draw.random() < 0.7
    ]
    return Evidence(Effects({name: place for place, name in enumerate(names)}, means, covariance), tuple(results))


def test_the_site_knows_of_accelerators_what_the_command_line_knows(database: Path) -> None:
    with Database(database) as opened:
        cards = recommend_data.accelerators(opened.rows)
    fields = ("memory_gib", "memory_bandwidth_gb_s", "interconnect_gb_s", "tdp_w", "unit", "architecture", "peak_tflops")
    assert cards
    assert all(getattr(card, field) == getattr(FACTS.accelerators[key], field) for key, card in cards.items() for field in fields)


def made_up_model(draw: random.Random) -> str | dict[str, Any]:
    """Return the name of a model, a size, or a configuration, some of which are no model."""
    card = FACTS.models[draw.choice((*MODELS, draw.choice(sorted(FACTS.models))))]
    kind = draw.random()
    if kind < 0.5:
        return draw.choice((card.key, card.name, *card.aliases, f"someone/Tuned-2-{card.name.replace(' ', '-')}-bnb-4bit"))
    if kind < 0.7:
        return draw.choice(("13B", "7b", " 0.5B", "70 B", "500M", "0B", "1000000B", UNKNOWN))
    config = {
        theirs: getattr(card, ours)
        for theirs, ours in fields_of(card.family).items()
        if not theirs.startswith(("n_e", "n_h", "n_l", "n_p", "n_i"))
    }
    config |= {"model_type": card.family, "num_hidden_layers": draw.randint(1, 2 * card.layers), "hidden_size": 64 * draw.randint(1, 99)}
    if draw.random() < 0.3:
        kinds = draw.choice((["sliding_attention"] * 5 + ["full_attention"], ["sliding_attention"], 3))
        config |= {"sliding_window": 4096, "layer_types": kinds}
    for _ in range(draw.randint(0, 3)):
        config.pop(draw.choice(sorted(config)), None)
    if draw.random() < 0.2:
        config[draw.choice(sorted(config))] = draw.choice((0, 10**15, -1, 7, "many", True, None, 1.5, [1]))
    return {"model_type": "gemma3", "text_config": config} if draw.random() < 0.1 else config


def made_up_question(draw: random.Random) -> dict[str, Any]:
    """Return the fields of a question with some of the limits."""
    own = Offer("nvidia-rtx-4090", "RTX", 2, OWN, "RTX", "owned", draw.choice((0.0, draw.uniform(0.1, 2))), priced=draw.random() < 0.5)
    return {
        "method": draw.choice((*METHODS, "any")),
        "tokens": draw.choice((round(draw.lognormvariate(17, 2)) + 1, 10**15)),
        "sequence_length": draw.choice((64, 128, 512, 700, 2048, 4096, 40_000)),
        "software": draw.choice(("plain", *SOFTWARE)),
        "objective": draw.choice(OBJECTIVES),
        "deadline_s": draw.choice((None, None, draw.lognormvariate(9, 1.5))),
        "budget_usd": draw.choice((None, None, draw.lognormvariate(2, 1.5))),
        "providers": draw.choice(((), (), ("aws",), ("gcp", "runpod"))),
        "kinds": draw.choice((("on_demand",), KINDS)),
        "accelerators": draw.choice(((), (), GPUS[:2], GPUS[2:3])),
        "most_devices": draw.choice((None, None, 1, 8)),
        "trust": draw.choice(("predicted", *TRUSTS)),
        "startup_s": draw.choice((0.0, 300.0)),
        "own": draw.choice(((), (own,))),
    }


def model_of(named: str | dict[str, Any]) -> ModelCard:
    """Return the card of a model as the command line does."""
    if isinstance(named, str):
        return any_model(FACTS, named)
    made = {"key": CONFIG, "name": CONFIG, "source": "test"} | config_fields(named, CONFIG, limits())
    return validated(ModelCard, made, CONFIG)


def answered(
    asked: dict[str, Any], named: str | dict[str, Any], evidence: Evidence, offers: list[Offer]
) -> tuple[str, list[Rate], Answer] | str:
    """Return the answer as HTML, the rates and the answer; or the message of an error."""
    try:
        question, model = Question(**asked), model_of(named)
        asked = (model, FACTS.accelerators, offers, evidence)
        rates = rates_for(question, *asked)
    except TunemarkError as error:
        unknown = error.fix.startswith("not a known model")
        return "choose one from the list, or give a size such as 13B or its config.json" if unknown else error.fix
    answer = recommend(question, rates, offers)
    names = {key: FACTS.accelerators[key].name for key in GPUS}
    page = f"models/{model.key}.html" if getattr(FACTS.models.get(model.key), "name", None) == model.name else ""
    said = {"caution": cautions(model, question.sequence_length, question.tokens)}

    def rates_with(stack: str, asking: Question) -> list[Rate]:
        return rates_on_stack(stack, asking, *asked)

    said |= {"with_stack": with_stack(question, answer, offers, rates_with)}
    software = with_software(question, answer, rates, offers, LOOPS, rates_with)
    return answer_html(question, answer, software, names, every=True, model_page=page, **said), rates, answer


@pytest.mark.parametrize("count", [60, pytest.param(500, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
def test_page_and_python_answer_random_questions_alike(script_alone: Callable[[str], Page], count: int) -> None:
    draw = random.Random(17)  # noqa: S311 - repeatable questions
    evidence, offers = made_up_evidence(draw), made_up_offers(draw)
    data = {
        "accelerators": {
            key: FACTS.accelerators[key].model_dump(mode="json") | {name: getattr(FACTS.accelerators[key], name) for name in DERIVED}
            for key in GPUS
        },
        "models": {key: card.model_dump(mode="json") for key, card in FACTS.models.items()},
        "limits": limits(),
        "offers": [asdict(offer) for offer in offers],
        "effects": asdict(evidence.effects) | {"covariance": [row[: place + 1] for place, row in enumerate(evidence.effects.covariance)]},
        "results": columnar([asdict(each) for each in evidence.results]),
    }
    script = script_alone("recommend.js")
    script.evaluate(
        """(data) => {
            const { answered, modelOf, prepared } = tunemarkHome, { make } = tunemarkPython, { Offer, Question } = tunemark.recommendation;
            const index = prepared(data);
            window.answerTo = ([asked, named]) => {
                try {
                    const question = make(Question, [], { ...asked, own: asked.own.map((each) => make(Offer, [], each)) });
                    const model = typeof named === "string" ? modelOf(index, named, "") : modelOf(index, "", JSON.stringify(named));
                    const rates = tunemark.option_rates.rates_for(question, model, index.cards, index.offers, index.evidence);
                    const figures = rates.flatMap((rate) => [rate.tokens_per_s, rate.tokens_per_s_low, rate.tokens_per_s_high, rate.needed_bytes]);
                    return [answered(index, model, question, rates), figures.map((value) => value ?? 0)];
                } catch (error) { return error.message; }
            };
        }""",
        data,
    )
    questions = [(made_up_question(draw), made_up_model(draw)) for _ in range(count)]
    plain = [[{**asked, "own": [asdict(each) for each in asked["own"]]}, named] for asked, named in questions]
    kinds: set[object] = set()
    for (asked, named), theirs in zip(questions, script.evaluate("(questions) => questions.map(answerTo)", plain), strict=True):
        ours = answered(asked, named, evidence, offers)
        if isinstance(ours, str):
            assert theirs.endswith(ours), (named, asked)
            kinds.add("error of a configuration" if isinstance(named, dict) else "error")
            continue
        html, rates, answer = ours
        assert isinstance(theirs, list), theirs
        assert theirs[0] == html, (named, asked)
        figures = [(rate.tokens_per_s, rate.tokens_per_s_low, rate.tokens_per_s_high, rate.needed_bytes) for rate in rates]
        assert theirs[1] == pytest.approx([value or 0.0 for each in figures for value in each], rel=1e-12)
        kinds |= {name for name in KINDS_OF_ANSWER if getattr(answer, name)} | {(rate.evidence, rate.memory) for rate in rates}
    assert {*KINDS_OF_ANSWER, "error", "error of a configuration"} <= kinds
    assert {("direct", "fits"), ("near", "fits"), ("predicted", "fits"), ("predicted", "unsure"), ("none", "no")} <= kinds


def test_the_front_has_no_option_that_another_beats() -> None:
    draw = random.Random(6)  # noqa: S311 - repeatable options
    question, offers = Question("any", 1e9, 512), made_up_offers(draw)
    rates = rates_for(question, FACTS.models[MODELS[0]], FACTS.accelerators, offers, made_up_evidence(draw))
    ranked = recommend(question, rates, offers).ranked
    best = front(ranked)
    assert len(best) > 1
    for option in best:
        assert not [other for other in ranked if other.seconds < option.seconds and other.usd < option.usd]


def test_the_page_answers_before_any_input_and_without_javascript_with_the_evidence_of_each_card(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html", scripts=False) as visit:
        assert visit.page.locator("#tm-answer .tm-headline").inner_text().startswith("Rent ")
        assert visit.page.locator("#tm-answer tbody tr").count() >= 2
        assert "The form needs JavaScript" in visit.page.inner_text("noscript >> p")
        cards = visit.page.locator(".tm-card").all_inner_texts()
        assert re.search(r"predicted, within a factor of \d\.\d|\d+ (similar )?(published|measured) result", cards[0])
        assert all(len(re.findall(r"about .+\n.+ to .+", card)) == 2 for card in cards)
        assert "measured with our harness on an accelerator" in visit.page.inner_text("article")


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
        visit.page.go_back()
        visit.page.wait_for_function("(before) => document.querySelector('.tm-headline').innerText === before", arg=before)
        assert visit.page.input_value("[name=size]") == "10M"
        assert not visit.complaints


def test_a_budget_that_nothing_keeps_recommends_nothing(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html?size=900B&budget=1&kind=on_demand") as visit:
        visit.page.wait_for_selector("text=No option meets all limits")
        assert visit.page.locator("#tm-answer dl").count() == 0
        assert visit.page.locator("summary:has-text('Over a limit')").count() == 1
        assert visit.page.inner_text("#tm-question summary span") == "Set: budget"


TYPED = tomllib.loads(Path(__file__).with_name("typed.toml").read_text(encoding="utf-8"))


def test_own_hardware_is_ranked_by_its_electricity_in_any_currency_and_a_wrong_input_says_what_to_do(
    browser: Browser, address: str
) -> None:
    with Visit(
        browser, address, "index.html?kind=on_demand&own=nvidia-h100-80gb-sxm&own_devices=2&kwh=0.5&currency=EUR&exchange=0.9"
    ) as visit:
        # At its board power, since no power is given.
        visit.page.wait_for_selector(".tm-headline:has-text('own hardware, EUR\u00a00.700/h')")
        assert "$" not in visit.page.inner_text("#tm-answer")
        visit.page.evaluate("document.querySelectorAll('#tm-question details').forEach((each) => { each.open = true; })")
        for name, value, complaint, right in TYPED["wrong"]:
            visit.page.fill(f"[name={name}]", value)
            # While the name of a model is typed, it is not an error that it is incomplete.
            visit.page.dispatch_event(f"[name={name}]", "change")
            visit.page.wait_for_selector(f"[role=alert]:has-text('{complaint}')")
            assert visit.page.get_attribute(f"[name={name}]", "aria-invalid") == "true"
            visit.page.fill(f"[name={name}]", right)
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


def test_an_accelerator_without_data_is_linked_to_its_page(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html?trust=measured&kind=on_demand") as visit:
        visit.page.wait_for_selector("#tm-answer li:has-text('No answer')")
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
            "[...document.querySelectorAll('#tm-question :is(input:not([type=hidden]), select)')].filter((e) => !e.labels.length).length"
        )
        assert unnamed == 0


def test_the_model_is_found_by_words_of_its_name_with_the_keyboard_on_a_phone(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html", width=NARROW, dark=True) as visit:
        box = visit.page.get_by_role("combobox", name="Fine-tune")
        box.focus()
        box.press("ControlOrMeta+a")
        box.press_sequentially("70b lla")
        options = visit.page.get_by_role("listbox", name="Models").get_by_role("option")
        options.first.wait_for()
        visit.page.wait_for_function("() => document.querySelectorAll('#tm-models [role=option]').length === 1")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= NARROW
        box.press("ArrowDown")
        chosen = options.first.inner_text()
        assert (
            visit.page.evaluate("document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).innerText") == chosen
        )
        assert options.first.evaluate("(e) => getComputedStyle(e).color !== getComputedStyle(e).backgroundColor")
        box.press("Enter")
        visit.page.wait_for_function("(name) => new URLSearchParams(location.search).get('model') === name", arg=chosen)
        visit.page.wait_for_selector("#tm-answer .tm-headline:not([role])")
        assert (box.input_value(), box.get_attribute("aria-expanded"), visit.complaints) == (chosen, "false", [])


def test_a_model_can_be_a_variant_an_alias_or_a_size(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html?kind=on_demand") as visit:
        for text, read in TYPED["read"].items():
            visit.page.fill("[name=model]", text)
            visit.page.wait_for_selector(f"#tm-model-read:text-is('Computed as {read}.')")
            visit.page.wait_for_selector("#tm-answer .tm-headline:not([role])")


def test_the_method_is_the_usual_one_of_the_model_until_the_reader_chooses_one(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html?model=tiny-bert") as visit:
        for model, usual in (("Llama 2 70B", "lora"), ("tiny-bert", "full")):
            visit.page.wait_for_function("(before) => document.querySelector('[name=method]').value !== before", arg=usual)
            visit.page.fill("[name=model]", model)
        visit.page.wait_for_function("() => document.querySelector('[name=method]').value === 'full'")
        assert "method=" not in visit.page.url
        visit.page.select_option("[name=method]", "qlora")
        visit.page.wait_for_function("() => location.search.includes('method=qlora')")
        visit.page.reload()
        visit.page.fill("[name=model]", "Llama 2 70B")
        visit.page.wait_for_function("() => location.search.includes('70B')")
        assert visit.page.input_value("[name=method]") == "qlora"


LLAMA = {"model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24}
LLAMA |= {"num_key_value_heads": 8, "vocab_size": 128_256, "max_position_embeddings": 131_072, "_name_or_path": "own/<b>llama</b>"}


def choose_config(page: Page, text: str) -> None:
    """Choose a file with a configuration, as the reader does."""
    page.set_input_files("#tm-question input[type=file]", files=[{"name": CONFIG, "mimeType": "application/json", "buffer": text.encode()}])


def test_a_configuration_is_computed_with_and_stays_in_the_address_until_another_model_is_named(browser: Browser, address: str) -> None:
    with Visit(browser, address, "index.html") as visit:
        choose_config(visit.page, json.dumps(LLAMA))
        read = "Read from config.json: 28 blocks of 3072/8192, 24/8 heads of 128."
        for again in (False, True):
            if again:
                visit.page.reload()
            visit.page.wait_for_function("(read) => document.getElementById('tm-model-read').innerText === read", arg=read)
            assert visit.page.input_value("[name=model]") == "own/<b>llama</b>"
            assert "config=" in visit.page.url
        visit.page.fill("[name=model]", "llama-2-70b")
        visit.page.wait_for_function("() => !location.search.includes('config=') && location.search.includes('70b')")
        pasted = "(text) => { const data = new DataTransfer(); data.setData('text', text); document.querySelector('[name=model]').dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })); }"
        visit.page.evaluate(pasted, json.dumps(LLAMA | {"num_hidden_layers": 14}, indent=1))
        visit.page.wait_for_function(
            "() => document.getElementById('tm-model-read').innerText.startsWith('Read from config.json: 14 blocks')"
        )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "config.json: is no JSON; give the configuration that lies beside the weights."),
        (json.dumps(LLAMA | {"num_key_value_heads": 7}), "config.json: key_value_heads is 7, which does not divide attention_heads, 24."),
    ],
)
def test_a_wrong_configuration_is_refused_by_its_key(browser: Browser, address: str, content: str, complaint: str) -> None:
    """Other messages are those of Python, to which random configurations are compared above."""
    with Visit(browser, address, "index.html") as visit:
        choose_config(visit.page, content)
        visit.page.wait_for_selector("#tm-answer [role=alert]")
        assert visit.page.inner_text("#tm-answer [role=alert]").startswith(complaint)
        assert visit.page.get_attribute("[name=model]", "aria-invalid") == "true"
