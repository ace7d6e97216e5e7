"""What recommendations are made of: cards, offers, and the fitted throughput model with its results; as one file for the home page."""

import re
from collections.abc import Callable
from dataclasses import asdict
from itertools import product

from tunemark.schema.facts.any_model import limits
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.formats import usd
from tunemark.schema.option_rates import TRAINED, Evidence, Plans, no_training, option_rates, unsupported
from tunemark.schema.physics.stacks import USUAL_STACK
from tunemark.schema.plan_search import Asked
from tunemark.schema.recommendation import ANY, Offer, Option, Question, Rate, offers_of, places_of, recommend
from tunemark.schema.recommendation_words import hardware, place
from tunemark.schema.throughput import architecture_of
from tunemark.schema.vocabulary import Checkpointing, Dtype, PriceKind
from tunemark.site.page import Row
from tunemark.site.render import compact_json

DATA_PATH = "data/recommend.json"
MODELS = """
    select model as key, * exclude (model, matrix_parameters, hub_id, gated, source, read_on, notes)
    from models order by lower(name), key
"""
ACCELERATORS = """
    select accelerator as key, name, vendor, architecture, unit, devices_per_unit, trains, memory_gib, inline_ecc, caution,
        memory_bandwidth_gb_s, interconnect_gb_s, bridged, tdp_w,
        columns('peak_(.*)_tf?l?ops') as '\\1'
    from accelerators where unit <> 'cpu' order by vendor, name, accelerator
"""
OFFERS = "from listed_prices where newest order by accelerator, provider, accelerator_count, instance, kind, region"
DERIVED = ("usable_bytes", "why_no_training", "remarks")
"""Properties of a card that the script reads."""
USUAL = Asked(stack=USUAL_STACK["plain"])
SMALLEST = Asked({"micro_batch": 1, "checkpointing": Checkpointing.FULL}, USUAL.stack)
"""One row at a time, with every block recomputed."""
Read = Callable[..., list[Row]]
"""Returns the rows of a query with its parameters."""


def data_file(read: Read) -> str:
    """Return the file of the home page."""
    evidence = Evidence.of_database(read)
    content = {
        "accelerators": {
            row["key"]: row | {name: getattr(AcceleratorCard.model_construct(**row), name) for name in DERIVED}
            for row in accelerator_rows(read)
        },
        "models": {row["key"]: row for row in read(MODELS)},
        "limits": limits(),
        "offers": [asdict(offer) for offer in offers(read)],
        # A covariance is written once; the script completes the other half.
        "effects": asdict(evidence.effects) | {"covariance": [row[: place + 1] for place, row in enumerate(evidence.effects.covariance)]},
        "results": columnar([asdict(each) for each in evidence.results]),
    }
    return compact_json(content)


def accelerator_rows(read: Read) -> list[Row]:
    """Return the facts that rates depend on, of each accelerator but CPUs."""
    rows = read(ACCELERATORS)
    peaks = [{peak.value: peaked for peak in Dtype if (peaked := row.pop(peak.value, None)) is not None} for row in rows]
    return [row | {"peak_tflops": peak} for row, peak in zip(rows, peaks, strict=True)]


def accelerators(read: Read) -> dict[str, AcceleratorCard]:
    """Return the accelerators as cards, with only these facts."""
    return {row["key"]: AcceleratorCard.model_construct(**row) for row in accelerator_rows(read)}


def models(read: Read) -> dict[str, ModelCard]:
    """Return the models as cards with only their names and numbers."""
    return {row["key"]: ModelCard.model_construct(**row | {"aliases": tuple(row["aliases"])}) for row in read(MODELS)}


def offers(read: Read) -> list[Offer]:
    """Return all offers in force."""
    return offers_of(read(OFFERS), accelerators(read))


def columnar(rows: list[Row]) -> dict[str, object]:
    """Return rows as columns: lists of numbers, and codes into lists of values for text."""
    columns: dict[str, object] = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        if all(value is None or isinstance(value, str) for value in values):
            known = list(dict.fromkeys(values))
            code = {value: number for number, value in enumerate(known)}
            columns[name] = {"values": known, "codes": [code[value] for value in values]}
        else:
            columns[name] = values
    return {"length": len(rows), "columns": columns}


# Tables of pages ----------------------------------------------------------------------------------------

RATES = """
    model varchar, method varchar, sequence_length integer, software varchar, accelerator varchar, devices integer, evidence varchar,
    tokens_per_s double, tokens_per_s_low double, tokens_per_s_high double, memory varchar, needed_bytes bigint, memory_bytes bigint,
    micro_batch integer, checkpointing varchar, sharding varchar, result_ids varchar[]
"""
RATE = re.findall(r"(\w+) \w+\W", RATES)[1:]
"""Columns of a rate after its model."""
MEMORY = "model varchar, method varchar, accelerator varchar, memory varchar, needed_bytes bigint, device_bytes bigint"
OPTIONS = """
    job bigint, model_name varchar, method varchar, accelerator varchar, devices integer, hardware varchar, place varchar, hourly varchar,
    instance varchar, usd double, usd_low double, usd_high double, seconds double, result_ids varchar[]
"""


def rates(read: Read, questions: list[Row], devices: int | None = None) -> list[Row]:
    """Return the rates of plain software on its usual stack for models and row lengths: of each accelerator with a number of devices, or of those offers that have results."""
    evidence, cards, known = Evidence.of_database(read), accelerators(read), models(read)
    question = Question(ANY, 1, 1, kinds=tuple(PriceKind))
    offered = [(cards[key], count) for key, count in places_of(question, offers(read))] if devices is None else []
    used = {(result.architecture, result.accelerator) for result in evidence.results}
    made = []
    for row in questions:
        model = known[row["model"]]
        places = [(card, count) for card, count in offered if (architecture_of(model), card.key) in used]
        if devices is not None:
            places = [(card, devices) for card in cards.values() if card.memory_gib is not None]
        found = option_rates(model, row["sequence_length"], places, evidence, ("plain",), USUAL)
        made += [{"model": model.key} | {name: getattr(rate, name) for name in RATE} for rate in found if rate.memory is not None]
    return made


def memory(read: Read, questions: list[Row], devices: int) -> list[Row]:
    """Return the memory that the smallest step of plain software on its usual stack needs on each accelerator, sharded over the devices of a chip, and whether it fits."""
    effects, cards, known = Evidence.of_database(read).effects, accelerators(read), models(read)
    made = []
    for row in questions:
        plans = Plans(known[row["model"]], row["sequence_length"], effects, SMALLEST)
        for card, method in product(cards.values(), TRAINED):
            if no_training(card, devices) or unsupported(plans.model, card, method):
                continue
            plan = min(plans.on(card, devices, method, "plain")[0], key=lambda each: each.needed_bytes)
            step = {"model": plans.model.key, "method": method.value, "accelerator": card.key, "memory": plan.fit_on(card.usable_bytes)}
            made.append(step | {"needed_bytes": plan.needed_bytes, "device_bytes": card.usable_bytes})
    return made


def recommended(read: Read, questions: list[Row], rates: str, tokens: float, sequence_length: int) -> list[Row]:
    """Return the options that the recommendation gives for questions, of those in the table `rates`.

    A question has a `job`, which its options share, a model, a method or NULL for any, `budget_usd` and `most_devices`.
    """
    known: dict[str, list[Rate]] = {asked["model"]: [] for asked in questions}
    for row in read(f"from {rates} where list_contains($models, model)", models=list(known)):
        known[row["model"]].append(Rate(**{name: value for name, value in row.items() if name != "model"}))
    offered, options = offers(read), []
    for asked in questions:
        limits = {"budget_usd": asked["budget_usd"], "most_devices": asked["most_devices"]}
        question = Question(asked["method"] or ANY, tokens, sequence_length, **limits)
        options += [
            {"job": asked["job"], "model_name": asked["model_name"]} | _option_row(option)
            for option in recommend(question, known[asked["model"]], offered).ranked
        ]
    return options


def _option_row(option: Option) -> Row:
    """Return an option as columns."""
    return {
        "method": option.rate.method,
        "accelerator": option.offer.accelerator,
        "devices": option.devices,
        "hardware": hardware(option),
        "place": place(option),
        "hourly": f"{usd(option.offer.usd_per_hour * option.instances)}/h, {option.offer.effective_on}",
        "instance": option.offer.instance,
        "usd": option.usd,
        "usd_low": option.usd_low,
        "usd_high": option.usd_high,
        "seconds": option.seconds,
        "result_ids": list(option.rate.result_ids),
    }


Function = Callable[..., list[Row]]
TABLES: dict[str, tuple[Function, str]] = {"rates": (rates, RATES), "memory": (memory, MEMORY), "recommended": (recommended, OPTIONS)}
"""Functions of the database and the rows of a query that return rows, and the types of the columns of these rows."""
