"""The home page: the question as a form, an answer to a usual question, and the ways in. Its script answers other questions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from tunemark.schema import formats, recommendation_words
from tunemark.schema.formats import counted
from tunemark.schema.recommendation import Answer, Offer, Option, Question, recommend
from tunemark.schema.vocabulary import SoftwareLevel
from tunemark.site import recommend_data, tables, wording
from tunemark.site.front_chart import HINT, time_and_cost_svg
from tunemark.site.page import Page, accelerator_path, result_path
from tunemark.site.pages.mlperf import rounds
from tunemark.site.queries import Catalogue
from tunemark.site.tables import Cell, Column, Row, Table

TITLE = "Which accelerator should I fine-tune this model on?"
USUAL = "llama-3.1-8b"
"""Model of the question that is answered first."""
MEMORY_SIZES_GIB = (16, 24, 48, 80)
TOKENS, LENGTH = 10_000_000, 2_048
SHOWN, CITED = 10, 3


@dataclass(frozen=True)
class FirstAnswer:
    """The answer to the usual question, in words and as a table."""

    model: str
    headline: str
    best: Option
    evidence: str
    disputed: str
    memory: str
    cards: list[tuple[str, Option]]
    chart: str
    """SVG."""
    table: Table
    number: int
    changes: list[str]
    unknown: list[str]
    remark: str


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the home page."""
    models, offers = recommend_data.models(catalogue), recommend_data.offers(catalogue)
    context = {
        "counts": _counts(catalogue),
        "models": models,
        "chosen": next((row["key"] for row in models if row["key"] == USUAL), models[0]["key"] if models else None),
        "accelerators": sorted(recommend_data.rentable(catalogue).items(), key=lambda pair: pair[1]),
        "providers": sorted({(offer.provider_name, offer.provider) for offer in offers}),
        "offered": sorted({(offer.name, offer.accelerator) for offer in offers}),
        "sizes": MEMORY_SIZES_GIB,
        "kinds": [(kind, wording.words(kind)) for kind in ("on_demand", "spot", "reserved", "marketplace")],
        "answer": _first_answer(catalogue, models, offers),
        "words": recommendation_words,
        "usd": formats.usd,
        "duration": formats.duration,
        "days": sorted({row["effective_on"] for row in catalogue.prices if row["newest"]})[-1:],
        "errors": _errors_by_level(catalogue),
        "findings": len(catalogue.findings),
        "hint": HINT,
    }
    yield Page("index", TITLE, "home.md.j2", context)


def _first_answer(catalogue: Catalogue, models: list[Row], offers: list[Offer]) -> FirstAnswer | None:
    """Return the answer to the usual question; None if nothing can be recommended, as with an empty database."""
    model = next((row for row in models if row["key"] == USUAL), None)
    if model is None:
        return None
    question = Question("lora", TOKENS, LENGTH)
    rates = recommend_data.rates(catalogue, USUAL)
    answer = recommend(question, rates, offers)
    if answer.best is None:
        return None
    tuned = recommend(Question("lora", TOKENS, LENGTH, software="tuned"), rates, offers)
    words = recommendation_words
    return FirstAnswer(
        model["name"],
        words.headline(question, answer),
        answer.best,
        words.evidence(answer.best),
        words.disputed(answer.best),
        f"Memory {words.memory(answer.best)} ({words.configuration(answer.best)}).",
        [(words.PICKS[pick], answer.ranked[number]) for pick, number in answer.picks.items()],
        time_and_cost_svg(answer.ranked),
        _table(answer),
        len(answer.ranked),
        [line for line in (*words.changes(question, answer), words.with_tuned(answer, tuned)) if line],
        [line for line in (words.not_fitting(answer), words.unknown(answer)) if line],
        f"{words.startup(question)} {words.NOT_INCLUDED}",
    )


def _table(answer: Answer) -> Table:
    """Return the first options as a table."""
    words = recommendation_words
    columns: list[Column[Option]] = [
        Column(
            "Hardware",
            lambda option: tables.text(words.hardware(option), href=accelerator_path(option.rate.accelerator), small=words.place(option)),
        ),
        Column("Cost", lambda option: _ranged(option.usd, option.usd_low, option.usd_high, "usd"), numeric=True),
        Column("Time", lambda option: _ranged(option.seconds, option.seconds_low, option.seconds_high, "duration"), numeric=True),
        Column("Price", lambda option: tables.text(words.hourly(option), small=option.offer.effective_on or ""), numeric=True),
        Column("Memory", lambda option: tables.text(option.rate.memory, small=words.memory(option).partition(": ")[2])),
        Column("Evidence", _evidence),
        Column("Rank", lambda option: tables.text(words.rank(option))),
    ]
    return tables.table("Options, best first", columns, answer.ranked[:SHOWN], searchable=False, stacked=True)


def _ranged(value: float, low: float, high: float, kind: str) -> Cell:
    show = formats.usd if kind == "usd" else formats.duration
    return tables.text(show(value), small=f"{show(low)} to {show(high)}")


def _evidence(option: Option) -> Cell:
    ids = option.rate.result_ids
    href = result_path(ids[0]) if ids else None
    more = f" and {option.rate.results - CITED} more" if option.rate.results > CITED else ""
    not_used = [f"not direct evidence: {option.rate.disputed}"] if option.rate.disputed else []
    return tables.text(
        recommendation_words.KINDS_OF_EVIDENCE[option.rate.evidence],
        href=href,
        small="; ".join(filter(None, [", ".join(ids[:CITED]) + more, *not_used])),
    )


def _errors_by_level(catalogue: Catalogue) -> str:
    """Return the median error of predictions for sources that were left out, by software level; empty without any."""
    rows = {row["stack"]: row["median_error"] for row in catalogue.predictions["throughput_accuracy"] if row["left_out"] == "source"}
    known = [(level, rows.get(level)) for level in get_args(SoftwareLevel)]
    return ", ".join(f"{formats.percent(error)} with {level} software" for level, error in known if error is not None)


def _counts(catalogue: Catalogue) -> list[tuple[str, str]]:
    """Return the text and the link of each count."""
    number = len(rounds(catalogue))
    return [
        (counted(len(catalogue.results), "result"), "results/index"),
        (f"{counted(len({row['accelerator'] for row in catalogue.results} - {None}), 'accelerator')} with results", "accelerators/index"),
        (f"{counted(len({row['model'] for row in catalogue.results} - {None}), 'model')} with results", "models/index"),
        (f"{counted(len(catalogue.sources) - number, 'source document')} and {counted(number, 'MLPerf round')}", "documents/index"),
        (counted(len(catalogue.prices), "dated price"), "prices"),
    ]
