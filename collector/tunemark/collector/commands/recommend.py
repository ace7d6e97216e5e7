"""The command `recommend`: what to rent or use for a fine-tuning job, with time, cost and evidence."""

import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from difflib import get_close_matches
from math import inf
from typing import Annotated, get_args

import typer

from tunemark.collector.commands.terminal import (
    OPTIONS,
    Accelerators,
    AsJson,
    Length,
    ModelName,
    Samples,
    Settings,
    Tokens,
    chosen,
    cited,
    date_option,
    job_tokens,
    named_accelerators,
    named_as,
    named_settings,
    parse_count,
    parse_seconds,
    price_kind,
    print_json,
    print_table,
    row_length,
    say,
    training_method,
)
from tunemark.collector.predict.estimate import read_evidence
from tunemark.collector.store.database import OLD_PRICE_DAYS
from tunemark.collector.store.fact_rows import price_rows
from tunemark.schema import formats, recommendation_words
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.any_model import any_model
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, current_prices
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.option_rates import beyond_context, rates_for
from tunemark.schema.physics.stacks import STACKS
from tunemark.schema.recommendation import (
    ALL_METHODS,
    ANY,
    OBJECTIVES,
    OWN,
    TRUSTS,
    Answer,
    Offer,
    Option,
    Question,
    offers_of,
    provider_name,
)
from tunemark.schema.recommendation import recommend as best_options
from tunemark.schema.vocabulary import SoftwareLevel

SHOWN = 10
"""Options in each table; JSON has all of them."""
REALLY_SIMILAR = 0.75
"""Minimum difflib ratio of a suggested provider: their names are short, and a wrong one gives a wrong answer."""
OPTIONS_OF_QUESTION = {
    "tokens": "--tokens",
    "deadline_s": "--deadline",
    "budget_usd": "--budget",
    "most_devices": "--max-devices",
    "startup_s": "--set start_up",
}
"""Fields of the question and the options that set them."""
SETTINGS = {"trust": "predicted", "max_memory": "", "start_up": "5min", "stack": ""}
"""Rare settings and their defaults."""


@named_as(OPTIONS | OPTIONS_OF_QUESTION)
def recommend(
    model: ModelName,
    tokens: Tokens = None,
    samples: Samples = None,
    method: Annotated[str, typer.Option("--method", help="full, lora, qlora or any.")] = "lora",
    sequence_length: Length = None,
    *,
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the data.")] = 1,
    objective: Annotated[str, typer.Option("--objective", help="cheapest, fastest or value: near both.")] = "cheapest",
    deadline: Annotated[str | None, typer.Option("--deadline", help="Maximum time, such as 90min or 2h.")] = None,
    budget: Annotated[float | None, typer.Option("--budget", help="Maximum cost in US dollars.")] = None,
    software: Annotated[str, typer.Option("--software", help="plain (transformers, peft), tuned (fused kernels) or vendor.")] = "plain",
    provider: Annotated[list[str] | None, typer.Option("--provider", help="A cloud provider; repeatable. Default: all.")] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", help="on_demand, spot, reserved or marketplace; repeatable. Default: on_demand.")
    ] = None,
    accelerator: Accelerators = None,
    most_devices: Annotated[int | None, typer.Option("--max-devices", help="Maximum number of accelerators.")] = None,
    own: Annotated[
        list[str] | None, typer.Option("--own", help="Your own accelerators, such as '2 x RTX 4090' or 'M4 Max 64GB'; repeatable.")
    ] = None,
    owned: Annotated[str | None, typer.Option("--owned", metavar="FIGURES", help="What they cost; else only their time is given.")] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Recommend what to rent or use for a fine-tuning job: options with time, cost, memory and evidence, best first.

    Each rate is a prediction for the plan that is shown, by a model of all accepted results, with a 90% interval. Recommended
    options meet the limits at the pessimistic end of the interval. If nothing similar was measured, the answer is "no data".

    Settings are trust=published for options with results of their own, max_memory=24 (GiB of one accelerator), start_up=5min, assumed and
    billed, and stack=axolotl, the software whose memory counts (see `tunemark estimate`). FIGURES are `usd_per_hour=0.20` for all of your accelerators together, `electricity=0.30` for a kWh at their board power, or those of one of them:
    `purchase=2000,years=3,utilisation=0.5,watts=450,electricity=0.30`.

    Exit codes: 0 answered, even if nothing can be recommended; 2 unknown value.

    Examples
    --------
    - `tunemark recommend -m llama-3.1-8b --tokens 10M`

    - `tunemark recommend -m qwen3-8b --tokens 100M --deadline 2h --budget 60`

    - `tunemark recommend -m llama-3.1-8b --tokens 10M --own "RTX 4090"`

    - `tunemark recommend -m llama-2-70b --tokens 100M --objective fastest --json`
    """
    facts = FactBase.of_project()
    card = any_model(facts, model)
    length = row_length(card, sequence_length)
    more = SETTINGS | named_settings(settings, SETTINGS)
    size = job_tokens(tokens, samples, length, epochs)
    if size is None:
        raise TunemarkError("--tokens", tokens, "give the size of the data with either --tokens or --samples")
    if owned is not None and len(own or ()) != 1:
        raise TunemarkError("--owned", owned, "is the cost of one machine; name its accelerator with --own once")
    machines = [_own(facts, each, owned) for each in own or ()]
    cards = facts.accelerators | {card.key: card for _, card in machines}
    offers = read_offers(facts)
    question = Question(
        training_method(method, (*ALL_METHODS, ANY)),
        size,
        length,
        chosen("--software", software, get_args(SoftwareLevel)),
        chosen("--objective", objective, OBJECTIVES),
        None if deadline is None else parse_seconds("--deadline", deadline),
        budget,
        _providers(provider or (), offers),
        tuple(price_kind(word).value for word in kind or ("on_demand",)),
        _accelerators(facts, accelerator, more["max_memory"]),
        most_devices,
        chosen("--set trust", more["trust"], TRUSTS),
        0.0 if more["start_up"] == "0" else parse_seconds("--set start_up", more["start_up"]),
        tuple(offer for offer, _ in machines),
    )
    evidence = read_evidence(project_root(), facts, say)
    rates = rates_for(question, card, cards, offers, evidence, more["stack"] and chosen("--set stack", more["stack"], STACKS))
    answer = best_options(question, rates, offers)
    tuned = best_options(replace(question, software="tuned"), rates, offers) if question.software == "plain" else None
    words = recommendation_words
    changes = [*words.changes(question, answer), *filter(None, [words.with_tuned(question, answer, tuned)])]
    if as_json:
        said = {"headline": words.headline(question, answer), "alternatives": words.alternatives(question, answer), "changes": changes}
        print_json({"question": {"model": card.key} | asdict(question)} | said | asdict(answer))
        return
    workloads = [(each.key, each.method.value, each.data.sequence_length) for each in facts.workloads.values() if each.model == card.key]
    remarks = [*changes, words.not_fitting(answer), words.unknown(answer), words.fill_gap(answer, words.workload_for(workloads, question))]
    if answer.best is None and not answer.may_exceed and card.key in facts.models:
        query = f"from results select result_id, method, accelerator, accelerator_count, tokens_per_s where model = '{card.key}'"
        remarks.append(f'Results of this model, if there are any: tunemark query "{query}"')
    if caution := beyond_context(card, length):
        typer.echo(f"{caution}\n")
    _print(card, question, answer, remarks)


def _accelerators(facts: FactBase, names: list[str] | None, most_memory_gib: str) -> tuple[str, ...]:
    """Return the keys of the accelerators to choose from; empty for all."""
    keys = [card.key for card in named_accelerators(facts, names or ())]
    if not most_memory_gib:
        return tuple(keys)
    most = parse_count("--set max_memory", most_memory_gib)
    known = [card for card in facts.accelerators.values() if card.unit != "cpu" and (not keys or card.key in keys)]
    within = tuple(card.key for card in known if card.memory_gib and card.memory_gib <= most)
    if not within:
        raise TunemarkError("--set max_memory", most, "no accelerator to choose from has this little memory; give a larger value")
    return within


OWN_DEVICES = re.compile(r"([0-9]+)\s*[xX*]\s*")
HOURLY = "usd_per_hour"


def _own(facts: FactBase, own: str, figures: str | None) -> tuple[Offer, AcceleratorCard]:
    """Return the reader's own accelerators as an offer, with the card."""
    from tunemark.schema.owned_hardware import EXAMPLE, parse_owned  # noqa: PLC0415 - not needed for --help

    counted = OWN_DEVICES.match(own)
    devices, name = (int(counted[1]), own[counted.end() :]) if counted else (1, own)
    (card,), watts, hourly = named_accelerators(facts, [name], "--own"), None, 0.0
    if devices < 1:
        raise TunemarkError("--own", own, "must be 1 accelerator or more")
    if figures is not None:
        figure, _, cost = figures.partition("=")
        if figure.strip() == HOURLY:
            hourly = _usd(figures, cost)
        elif figure.strip() == "electricity" and "," not in cost and card.tdp_w:
            hourly = devices * card.tdp_w / 1000 * _usd(figures, cost)
        else:
            owned = parse_owned(figures, f"{HOURLY}=0.20, or {EXAMPLE}")
            hourly, watts = devices * owned.usd_per_hour(), owned.watts
        if not 0 < hourly < inf:
            raise TunemarkError("--owned", figures, "must be a cost above 0 US dollars per hour")
    offer = Offer(
        card.key, card.name, devices, OWN, card.name, "owned", hourly, provider_name=OWN, watts=watts or card.tdp_w, caution=card.caution
    )
    return offer, card


def _usd(figures: str, cost: str) -> float:
    try:
        return float(cost)
    except ValueError as error:
        raise TunemarkError("--owned", figures, "give a number of US dollars") from error


def read_offers(facts: FactBase) -> list[Offer]:
    """Return today's offers."""
    today = date_option("--on", None)
    prices = price_rows(current_prices(facts.prices, today), facts.price_basis)
    for row in prices:
        age = (today - row["effective_on"]).days
        row["dated"] = f"{row['effective_on']}, {age} days old" if age > OLD_PRICE_DAYS else str(row["effective_on"])
    return offers_of(prices, facts.accelerators)


def _providers(names: Iterable[str], offers: Iterable[Offer]) -> tuple[str, ...]:
    """Return the keys of providers by their keys or their names in answers: `oci` or `Oracle Cloud`."""
    known = sorted({offer.provider for offer in offers})
    keys = {provider_name(key).lower(): key for key in known} | {key: key for key in known}
    for name in names:
        if name.lower() not in keys:
            similar = get_close_matches(name.lower(), keys, n=1, cutoff=REALLY_SIMILAR)
            question = f"did you mean {keys[similar[0]]!r}? " if similar else ""
            raise TunemarkError("--provider", name, f"{question}known: {', '.join(known)}")
    return tuple(keys[name.lower()] for name in names)


# Output ---------------------------------------------------------------------------------------------


def _print(card: ModelCard, question: Question, answer: Answer, remarks: Iterable[str]) -> None:
    """Print an answer for people. `remarks` are sentences below the tables; empty ones are left out."""
    words = recommendation_words
    size = words.tokens_in_words(question.tokens)
    typer.echo(f"{card.name}, {words.METHODS.get(question.method, 'any method')}, {size}, sequence length {question.sequence_length:,}")
    typer.echo("")
    grounds = words.grounds(answer.best) if answer.best is not None else []
    own, others = words.own_hardware(question, answer), words.alternatives(question, answer)
    for line in (*own, words.headline(question, answer), *grounds, *others):
        typer.echo(line)
    for title, options in (
        ("Options, best first", answer.ranked),
        ("May exceed a limit", answer.may_exceed),
        ("Over a limit", answer.exceeding),
    ):
        if options:
            _print_options(question, f"{title}: {min(SHOWN, len(options))} of {len(options)}", options[:SHOWN])
    shown = list(filter(None, (words.ORDER if answer.ranked else "", *remarks)))
    for line in ("", *shown) if shown else ():
        typer.echo(line)
    typer.echo(f"{words.startup(question)} {words.NOT_INCLUDED}")


def _print_options(question: Question, title: str, options: Iterable[Option]) -> None:
    words = recommendation_words
    columns = ["rank", "hardware", "where", "usd/h", "time", "90% interval", "cost", "90% interval", "memory", "evidence", "limit"]
    rows = [
        (
            words.rank(option),
            words.hardware(option) + words.with_method(question, option),
            words.place(option),
            words.hourly(option).replace("/h", ""),
            formats.estimated_duration(option.seconds),
            words.times(option),
            formats.estimated_usd(option.usd),
            words.costs(option),
            option.rate.memory,
            cited(option.rate),
            ", ".join(dict.fromkeys((*option.exceeds, *option.limits))),
        )
        for option in options
    ]
    typer.echo("")
    print_table(columns, rows, title=title)
