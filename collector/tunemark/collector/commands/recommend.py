"""The command `recommend`: what to rent or use for a fine-tuning job, with time, cost and evidence."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Annotated

import typer

from tunemark.collector.commands import options as ui
from tunemark.collector.predict.estimate import read_evidence, tell_levels
from tunemark.collector.store.database import OLD_PRICE_DAYS, price_rows
from tunemark.schema import formats
from tunemark.schema import recommendation_words as words
from tunemark.schema.errors import TunemarkError, bare, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, current_prices
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.option_rates import LOOPS, cautions, rates_for, rates_on_stack, usual_startup_s
from tunemark.schema.owned_hardware import EXAMPLE, HOURS_PER_YEAR, parse_owned
from tunemark.schema.plan_search import NODE
from tunemark.schema.recommendation import (
    ALL_METHODS,
    ANY,
    COMPANIES,
    LEVELS,
    OBJECTIVES,
    OWN,
    TRUSTS,
    Answer,
    Offer,
    Option,
    Question,
    Rate,
    offers_of,
    places_of,
    provider_name,
)
from tunemark.schema.recommendation import recommend as best_options
from tunemark.schema.throughput import ISSUING
from tunemark.terminal import AsJson, print_json, print_table, say, tell

Counted = tuple[AcceleratorCard, int | None]
"""An accelerator with the number of them that its name gives."""
SHOWN = 6
"""Options in each table; JSON has all of them."""
OPTIONS_OF_QUESTION = {
    "tokens": "--tokens",
    "deadline_s": "--deadline",
    "budget_usd": "--budget",
    "most_devices": "--max-devices",
    "startup_s": "--set start_up",
}
"""Fields of the question and the options that set them."""
SETTINGS = {"trust": "predicted", "max_memory": "", "start_up": ""}
STEP = {name: field for name, field in (ui.STEP_OPTIONS | ui.STEP_SETTINGS).items() if name != "tensor_parallel"}
OPTIONS_OF_STEP = {option: f"--set {name}" for name, field in STEP.items() for option in (field, ui.OPTIONS_OF_SHAPE[field])}


@ui.named_as(ui.OPTIONS | OPTIONS_OF_QUESTION | OPTIONS_OF_STEP)
def recommend(
    model: ui.ModelName,
    tokens: Annotated[str | None, ui.option("--tokens", f"Tokens of the data. Default: {ui.USUAL_JOB}.")] = None,
    samples: ui.Samples = None,
    method: Annotated[str | None, ui.option("--method", "full, lora, qlora or any. Default: lora; full for encoders.")] = None,
    sequence_length: ui.Length = None,
    *,
    epochs: Annotated[int, ui.option("--epochs", "Passes over the data. Default: 1.")] = 1,
    objective: Annotated[str, ui.option("--objective", "cheapest (default), fastest or value.")] = "cheapest",
    deadline: Annotated[str | None, ui.option("--deadline", "Maximum time, such as 90min or 2h.")] = None,
    budget: Annotated[str | None, ui.option("--budget", "Maximum cost, such as 20 or $20.")] = None,
    currency: Annotated[str | None, ui.option("--currency", "Of costs, for 1 USD: EUR=0.92.", metavar="CODE=RATE")] = None,
    software: ui.Software = None,
    provider: Annotated[list[str] | None, ui.option("--provider", "A cloud provider; repeatable.")] = None,
    kind: Annotated[list[str] | None, ui.option("--kind", "on_demand (default), spot, reserved or marketplace; repeatable.")] = None,
    accelerator: ui.Accelerators = None,
    most_devices: Annotated[int | None, ui.option("--max-devices", "Maximum number of accelerators.")] = None,
    own: Annotated[list[str] | None, ui.option("--own", "Your own, as '2 x RTX 4090' or 'H100 at 2.49/h'; repeatable.")] = None,
    owned: Annotated[str | None, ui.option("--owned", "What they cost, as above.", metavar="FIGURES")] = None,
    stack: ui.StackName = None,
    settings: ui.Settings = None,
    as_json: AsJson = False,
) -> None:
    """Recommend what to rent or use for a fine-tuning job: options with time, cost, memory and evidence, best first.

    Each rate is a prediction for the plan that is shown, by a model of all accepted results, with a 90% interval. Recommended
    options meet the limits at the pessimistic end of the interval. If nothing similar was measured, the answer is "no data".

    Settings are trust=published for options with results of their own, max_memory=24 (GiB of one accelerator), start_up=20min, which is billed (default: 5min, or what the
    weights in 16 bits take at 1 GB/s), and those of a step, such as rank=64. FIGURES are those of the whole machine: `usd_per_hour=0.20` or 0, `electricity=0.30` for a kWh at
    its board power (`electricity=0.30,watts=60` where that is not known, as of Macs), both, or `purchase=2000,years=3,utilisation=0.5,watts=450,electricity=0.30`.

    Exit codes: 0 answered, even if nothing can be recommended; 2 unknown value.

    Examples
    --------
    - `tunemark recommend -m llama-3.1-8b`
    - `tunemark recommend -m qwen3-8b --tokens 100M --deadline 2h --budget 60`
    - `tunemark recommend -m llama-3.1-8b --tokens 10M --own "RTX 4090"`
    - `tunemark recommend -m llama-2-70b --tokens 100M --objective fastest --json`
    """
    facts = FactBase.of_project()
    card, (money, rate) = ui.named_model(facts, model), _currency(currency)
    chosen_stack, level = ui.software_of(stack, software)
    length = ui.row_length(card, sequence_length)
    more = SETTINGS | ui.named_settings(settings, SETTINGS | STEP)
    size = ui.job_tokens(tokens, samples, length, epochs)
    if owned is not None and (not own or (len(ui.listed(own)) > 1 and not re.fullmatch(r"\s*electricity\s*=[^,]*", owned))):
        fix = "is the cost of one machine; name its accelerator with --own once; only a price of electricity may be that of several"
        raise TunemarkError("--owned", owned, fix)
    if currency is not None and as_json:
        raise TunemarkError("--currency", currency, "JSON is in US dollars; leave out one of both")
    named = [*ui.named_accelerators(facts, ui.listed(accelerator)).values()]
    variants = _variants(facts, ui.listed(accelerator))
    yours = _with_costs(facts, ui.listed(own), owned)
    offers, given = [replace(offer, usd_per_hour=offer.usd_per_hour * rate) for offer in read_offers(facts)], more["start_up"]
    question = Question(
        ui.training_method(method, (*ALL_METHODS, ANY), card, model),
        size,
        length,
        level,
        ui.chosen("--objective", objective, OBJECTIVES),
        None if deadline is None else ui.read_number("--deadline", deadline, formats.seconds_of),
        None if budget is None else _amount("--budget", budget, money),
        _providers(ui.listed(provider), offers),
        tuple(ui.price_kind(word).value for word in kind or ("on_demand",)),
        _allowed(facts, [each.key for card, _ in named for each in (card, *variants.get(card.key, ()))], more["max_memory"]),
        most_devices,
        ui.chosen("--set trust", more["trust"], TRUSTS),
        usual_startup_s(card)
        if not given
        else 0.0
        if re.fullmatch(r"0+(\.0+)?\s*[a-z]*", given)
        else ui.read_number("--set start_up", given, formats.seconds_of),
    )
    step = {field: more[name] for name, field in STEP.items() if name in more}
    question = replace(question, given=ui.fields_of_step(step, question.method))
    offered = places_of(question, offers)
    named += [(each, count) for card, count in named for each in variants.get(card.key, ()) if _is_offered(each, count, offered)]
    not_yours = [each for each in named if each[0].key not in {card.key for (card, _), _ in yours}]
    others = list(_not_offered(facts, not_yours, offered, variants, most_devices))
    every = [*((machine, costs, True) for machine, costs in yours), *((each, None, False) for each in others)]
    question = replace(question, own=tuple(_own(each, costs, chosen_stack, yours=mine) for each, costs, mine in every))
    machines = [*(machine for machine, _ in yours), *others]
    cards = facts.accelerators | {card.key: card for card, _ in machines}
    evidence = read_evidence(project_root(), facts, say)
    tell_levels((each for each, _ in (*named, *machines) if level == "plain"), evidence.results, card)
    asked = {(card.key, count) for card, count in (*named, *((card, count or 1) for card, count in machines))}
    counted = {each.key for card, count in named if count and (card, None) not in named for each in (card, *variants.get(card.key, ()))}

    def of_machines(rates: Iterable[Rate]) -> list[Rate]:
        return [each for each in rates if each.accelerator not in counted or (each.accelerator, each.devices) in asked]

    options = (card, cards, offers, evidence)
    rates = of_machines(
        rate
        for each in (LEVELS if chosen_stack else LEVELS[:1])
        for rate in rates_for(replace(question, software=each), *options, chosen_stack)
    )
    answer = best_options(question, rates, offers)

    def rates_with(stack: str, asked: Question) -> list[Rate]:
        return of_machines(rates_on_stack(stack, asked, *options))

    stacked = words.with_stack(question, answer, offers, rates_with)
    with_software = words.with_software(question, answer, rates, offers, LOOPS, rates_with)
    if as_json:
        said = {
            "headline": words.headline(question, answer),
            "alternatives": words.alternatives(question, answer),
            "with_software": with_software,
            "with_stack": stacked,
        }
        print_json({"question": {"model": card.key} | asdict(question)} | said | asdict(answer))
        return
    # Who asks about machines of his own does not ask about all others.
    mine = {offer.accelerator for offer in question.own}
    large, unknown = (tuple(each for each in missing if each.accelerator in mine) for missing in (answer.too_large, answer.no_data))
    asked_of = answer if named or not mine else replace(answer, too_large=large, no_data=unknown)
    remarks = [words.not_fitting(question, asked_of), words.unknown(asked_of, counted)]
    if caution := cautions(card, length, question.tokens):
        typer.echo(f"{caution}\n")
    lines = (stacked, _break_even(owned or "", answer), *with_software)
    _print(card, question, answer, lines, remarks, "$" if money == "USD" else f"{money} ")


def _allowed(facts: FactBase, keys: Sequence[str], most_memory_gib: str) -> tuple[str, ...]:
    """Return the keys of the accelerators to choose from, by name and memory; empty for all."""
    if not most_memory_gib:
        return tuple(keys)
    most = ui.read_number("--set max_memory", most_memory_gib)
    known = [card for card in facts.accelerators.values() if card.unit != "cpu" and (not keys or card.key in keys)]
    within = tuple(card.key for card in known if card.memory_gib and card.memory_gib <= most)
    if not within:
        raise TunemarkError("--set max_memory", most, "no accelerator to choose from has this little memory; give a larger value")
    return within


def _variants(facts: FactBase, names: Iterable[str]) -> dict[str, list[AcceleratorCard]]:
    """Return, by the key of the accelerator that a name is read as, the products that differ from it in what the name leaves open: the board or the memory."""
    found = dict[str, list[AcceleratorCard]]()
    for text in names:
        # A name that is not known was complained about before.
        with suppress(TunemarkError):
            name = facts.counted(text)[1]
            card = facts.accelerator(name, usual=True)
            others = [facts.accelerators[key] for key in facts.variants_of(name) if key != card.key]
            if others and name.lower() not in {card.key, card.name.lower()}:
                found[card.key] = others
                also = " or ".join(each.name for each in others)
                say(f"tunemark: {ui.ACCELERATOR}: {name!r} may also be {also}: those that are rented are compared too")
    return found


def _is_offered(card: AcceleratorCard, count: int | None, offered: Collection[tuple[str, int]]) -> bool:
    return any(key == card.key and count in {None, devices} for key, devices in offered)


def _not_offered(
    facts: FactBase,
    named: Iterable[Counted],
    offered: Collection[tuple[str, int]],
    variants: Mapping[str, Iterable[AcceleratorCard]],
    most: int | None,
) -> Iterator[Counted]:
    """Yield the named accelerators that no provider rents so, in the numbers that other kinds of offers have, and say that their time has no cost."""
    for card, count in named:
        numbers = sorted(devices for key, devices in offered if key == card.key)
        if any(_is_offered(each, count, offered) for each in (card, *variants.get(card.key, ()))):
            continue
        rows = [row for row in facts.prices if row.accelerator == card.key]
        if not rows:
            why = f"no provider of the price book rents {card.name}"
        else:
            alone = ", without a known network between instances" if (count or 0) > max(numbers, default=0) else ""
            have = f" (they have {', '.join(map(str, numbers))}{alone})" if numbers else ""
            why = f"the price book has no offer of {f'{count} x ' if count else ''}{card.name} that the question allows{have}"
        say(f"tunemark: {ui.ACCELERATOR}: {why}; its time is given without a cost")
        rented = sorted({math.ceil(row.accelerator_count) for row in rows if most is None or row.accelerator_count <= most})
        machine = [1] if card.vendor in ISSUING else [1, NODE]
        yield from ((card, each) for each in ([count] if count else rented or machine))


QUOTE = re.compile(r"(.+?)\s*(?:\bat\b|@)\s*[$€£]?\s*(\d+(?:\.\d+)?)(?:\s*(?:/|per )\s*h(?:ou)?r?)?", re.IGNORECASE)
"""A machine with the price of an hour of it: `8 x H100 at 19.92/h`."""
SIGNS = {"$": "USD", "US$": "USD", "DOLLARS": "USD", "DOLLAR": "USD", "€": "EUR", "EURO": "EUR", "EUROS": "EUR", "£": "GBP"}
"""What people write for a currency -> its code."""
AMOUNT = re.compile(r"([^\d.,]*?)\s*(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)\s*(k?)\s*([^\d.,]*)")


def _amount(option: str, text: str, currency: str) -> float:
    """Return an amount of money from text such as `20`, `$20` or `2000 EUR`. Raises TunemarkError for one of another currency."""
    match = AMOUNT.fullmatch(text.strip())
    words = f"{match[1]}{match[4]}".upper() if match else ""
    code = SIGNS.get(words, words or currency)
    if match is None or not re.fullmatch("[A-Z]{3}", code):
        raise TunemarkError(option, text, "must be an amount of money above 0, such as 20, $20 or 1,500.50")
    if code != currency:
        give = f"give --currency {code}=RATE, with what 1 US dollar costs in it today" if code != "USD" else f"give it in {currency}"
        fix = f"is not in {currency}, as all costs are; {give}"
        raise TunemarkError(option, text, fix)
    return float(match[2].replace(",", "")) * (1000 if match[3] else 1)


def _currency(text: str | None) -> tuple[str, float]:
    """Return the code of the currency of all costs, and what a US dollar costs in it."""
    match = re.fullmatch(r"([A-Za-z]{3})=(\d+(?:\.\d+)?)", text or "USD=1")
    if match is None or not float(match[2]):
        raise TunemarkError("--currency", text, "give its code and what 1 US dollar costs in it today, as in EUR=0.92")
    return match[1].upper(), float(match[2])


def _with_costs(facts: FactBase, names: Sequence[str], owned: str | None) -> list[tuple[Counted, str | None]]:
    """Return the machines of the reader, each with the figures of its cost: the price in its name, else those of `--owned`."""
    quotes = {text: QUOTE.fullmatch(text) for text in names}
    figures = {found[1] if found else text: f"usd_per_hour={found[2]}" if found else owned for text, found in quotes.items()}
    return [(machine, figures[name]) for name, machine in ui.named_accelerators(facts, figures, "--own").items()]


def _own(machine: Counted, figures: str | None, stack: str | None, *, yours: bool) -> Offer:
    """Return a machine of the reader with its cost, or one that is named and not offered, as an offer."""
    card, count = machine
    devices, watts, hourly = count or 1, card.tdp_w, 0.0
    if figures is not None:
        owned = parse_owned(figures, f"usd_per_hour=0.20, or {EXAMPLE}", usual_watts=devices * (card.tdp_w or 0))
        hourly, watts = owned.hourly_usd(), owned.watts / devices or None
        if devices > 1:
            say(f"tunemark: --own: costs are those of the whole machine with its {devices} {card.name}")
        if owned.electricity and not watts:
            say(
                f"tunemark: --owned: the power of {card.name} is not known, so it has no cost: name it alone, with {figures.strip()},watts=W"
            )
            figures = None
    offer = Offer(card.key, card.name, devices, OWN, card.name, "owned" if yours else "named", hourly, provider_name=OWN)
    stated = "watts" in (figures or "")
    return replace(offer, watts=watts, watts_stated=stated, caution=card.remarks_on(stack), priced=figures is not None)


def _break_even(figures: str, answer: Answer) -> str:
    """Return from which use a machine that is bought costs less than the cheapest rented option for the same work; empty if one of them is missing."""
    own = next((each for each in answer.ranked if each.offer.kind == "owned"), None)
    rented = min((each for each in answer.ranked if each.offer.provider != OWN), key=lambda each: each.usd, default=None)
    if "purchase" not in figures or own is None or rented is None:
        return ""
    machine = parse_owned(figures, usual_watts=own.devices * (own.offer.watts or 0))
    hours = machine.break_even_hours_per_year(rented.usd / own.seconds * formats.HOUR_S)
    stated = machine.utilisation * HOURS_PER_YEAR
    rent = f"than renting {words.hardware(rented)} ({words.place(rented)})"
    if hours is None:
        return f"At these speeds your machine costs more {rent}, however long it is used; other software or another method may change that."
    if stated < hours:
        return f"At these speeds your machine costs more {rent}: it costs less from {hours:,.0f} hours of use a year, and you state {stated:,.0f}."
    return f"At these speeds your machine costs less {rent}, if it is used for {hours:,.0f} hours a year or more."


def read_offers(facts: FactBase) -> list[Offer]:
    """Return today's offers."""
    today = ui.date_option("--on", None)
    prices = price_rows(current_prices(facts.prices, today), facts.price_basis)
    for row in prices:
        age = (today - row["effective_on"]).days
        marks = (f"{age} days old" if age > OLD_PRICE_DAYS else "", words.UNDATED if row["dated_by"] == "catalog" else "")
        row["dated"] = ", ".join(filter(None, (str(row["effective_on"]), *marks)))
    return offers_of(prices, facts.accelerators)


def _providers(names: Iterable[str], offers: Iterable[Offer]) -> tuple[str, ...]:
    """Return the keys of providers by their keys, their names in answers or the beginning of one: `oci`, `Oracle Cloud` or `Oracle`."""
    known = sorted({offer.provider for offer in offers})
    spelled = {key: {_stem(each) for each in (key, provider_name(key), COMPANIES.get(key, key))} for key in known}
    found = []
    for name in names:
        wanted = _stem(name)
        keys = [key for key in known if len(wanted) > 1 and any(each.startswith(wanted) for each in spelled[key])]
        if len(keys) != 1:
            meant = did_you_mean(name, known)
            raise TunemarkError("--provider", name, meant if meant.startswith("known") else f"{meant} known: {', '.join(known)}")
        if name.lower() not in {keys[0], provider_name(keys[0]).lower()}:
            say(f"tunemark: --provider: {name!r} is read as {provider_name(keys[0])}")
        found += keys
    return tuple(found)


def _stem(name: str) -> str:
    """Return the name of a provider without the endings that people add or leave out."""
    return re.sub(r"(cloud|platform|labs|ai|io|com)+$", "", bare(name))


def _print(card: ModelCard, question: Question, answer: Answer, others: Iterable[str], remarks: Iterable[str], sign: str) -> None:
    """Print an answer for people. `others` are answers with other software, with that of another stack first, and `remarks` sentences below the tables; empty ones are left out. `sign` stands before costs."""
    typer.echo(f"{words.asked_in_words(card, question.method, question.tokens, question.sequence_length)}\n")
    grounds = words.grounds(answer.best) if answer.best is not None else []
    own, best_by, (stacked, *more) = words.own_hardware(question, answer), words.alternatives(question, answer), others
    first = [stacked] if words.own_without_room(question, answer) else []
    ordered = (*own, *first, words.headline(question, answer), *grounds, *([] if first else [stacked]), *more, *best_by)
    for line in filter(None, ordered):
        tell(line.replace("$", sign))
    for title, options in (
        ("Options, best first", answer.ranked),
        ("May exceed a limit", answer.may_exceed),
        ("Over a limit", answer.exceeding),
    ):
        if options:
            # Of each named accelerator, and of each method, the first option is shown.
            named = [next((each for each in options if each.offer.accelerator == key), None) for key in question.accelerators]
            named += [next((each for each in options if each.rate.method == method), None) for method in ALL_METHODS]
            listed = [each for each in options if each in options[:SHOWN] or each in named]
            _print_options(question, f"{title}: {len(listed)} of {len(options)}", listed, sign)
    shown = list(filter(None, (words.ORDER if answer.ranked else "", *remarks)))
    for line in ("", *shown) if shown else ():
        tell(line.replace("$", sign))
    tell(f"{words.startup(question, answer)} {words.NOT_INCLUDED}")


def _print_options(question: Question, title: str, options: Iterable[Option], sign: str) -> None:
    rank, ends = words.RANKS[question.objective], "90% interval"
    columns = [rank, "hardware", "where", "per hour", "time", ends, "cost", ends, "memory", "tokens/s", "evidence", "limit"]
    rows = [
        (
            words.rank(option),
            words.hardware(option) + words.with_method(question, option.rate.method),
            words.place(option),
            words.hourly(option).replace("/h", ""),
            formats.estimated_duration(option.seconds),
            words.times(option),
            formats.estimated_usd(option.usd),
            words.costs(option),
            option.rate.memory,
            formats.significant(option.rate.tokens_per_s or 0.0),
            ui.cited(option.rate),
            ", ".join(dict.fromkeys((*option.exceeds, *option.limits))),
        )
        for option in options
    ]
    typer.echo("")
    print_table(columns, [[(cell or "").replace("$", sign) for cell in row] for row in rows], title=title)
