"""Checks of model cards, of workloads with their golden losses, and of known facts.

Shapes are compared with parameters, settings with the model and its dataset; facts are stated once, and names exist.

A check yields problems; the caller knows the file and the line.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from tunemark.collector.gate.fact_checks import Neighbours, missing, name_problems, printed_sizes, skeleton
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.workloads import GoldenLosses, WorkloadCard
from tunemark.schema.facts.world_facts import WorldFacts
from tunemark.schema.physics.architecture import count_parameters, targets_in
from tunemark.schema.plan.overrides import apply_overrides
from tunemark.schema.records.reading import Problem
from tunemark.schema.vocabulary import Task, Weights

# Models ----------------------------------------------------------------------------------------------


def model_problems(card: ModelCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield all problems of a model card."""
    yield from name_problems(card, beside)
    yield from _parameters(card)
    owner, owners = _owner(card), {_owner(other) for other in beside.models.values() if other.key != card.key} - {""}
    alike = {name for name in owners if skeleton(name) == skeleton(owner) and name != owner}
    if owner and alike:
        yield Problem(
            "hub_id", repr(card.hub_id), f"its owner looks like {' and '.join(sorted(alike))}; write an owner the same on all cards"
        )


def _owner(card: ModelCard) -> str:
    return (card.hub_id or "").partition("/")[0]


def _parameters(card: ModelCard) -> Iterator[Problem]:
    """Yield a problem where the stated parameters, to their last digit that is not zero, are not those counted from the shapes."""
    counted = count_parameters(card).total
    if card.parameters is not None:
        unit = 10 ** (len(digits := str(card.parameters)) - len(digits.rstrip("0")))
        if abs(card.parameters - counted) > unit / 2:
            yield Problem("parameters", str(card.parameters), f"the shapes on this card have {counted}; correct one of them")


# Workloads -------------------------------------------------------------------------------------------

NAME_FACTOR = 1.7
"""Titles round: `1B` may have 1.67e9 parameters (Falcon 3), `8x7B` shares its attention (0.83 of the product), `7B` may leave out embeddings (8.5e9)."""
MOST_ROWS, HIGHEST_RATE = 4096, 1.0
"""Rows that one device holds at once, and peak learning rate (of fine-tuning about 1e-6 to 1e-2), on a card. A run may have more, to see it fail."""
NEAR_LN = 0.15
"""Untrained weights guess: their loss is the logarithm of the number of choices, a few percent above it for finite initial scales."""


def workload_problems(card: WorkloadCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of a workload card: settings that no run has, and those that its model or dataset contradict."""
    for name, value, most in (
        ("batch.micro_batch", card.batch.micro_batch, MOST_ROWS),
        ("optimizer.learning_rate", card.optimizer.learning_rate, HIGHEST_RATE),
    ):
        if value > most:
            yield Problem(name, str(value), f"must be at most {most}")
    if (model := beside.models.get(card.model)) is not None:
        yield from _against_model(card, model)
    rows = beside.known.dataset(card.data.name)
    if rows is None:
        return
    held_out = max(rows.validation_rows or 0, rows.test_rows or 0)
    for name, stated, most in (
        ("training_rows", card.data.training_rows or 0, rows.training_rows),
        ("evaluation_rows", card.data.evaluation_rows, held_out),
    ):
        if stated > most > 0:
            yield Problem(name, str(stated), f"{rows.key} has {most} of them")


def _against_model(card: WorkloadCard, model: ModelCard) -> Iterator[Problem]:
    """Yield settings that the model contradicts: its size in the title, and its layers."""
    counted = count_parameters(model).total
    for shown, printed in printed_sizes(card.title):
        if not 1 / NAME_FACTOR <= counted / printed <= NAME_FACTOR:
            fix = f"the title says {shown}, and {card.model} has {counted / 1e9:.3g}e9 parameters; correct the title or the model"
            yield Problem("model", repr(card.model), fix)
    try:
        targets_in(model, card.lora.target_modules if card.lora else ())
    except TunemarkError as error:
        yield Problem("target_modules", repr(error.value), error.fix)


def setting_problems(card: WorkloadCard) -> Iterator[Problem]:
    """Yield problems of the axes and points of a card: settings that a card does not have, and values that they cannot take."""
    varied = [(axis.field, {**axis.at, axis.field: value}) for axis in card.axes for value in axis.values]
    varied += [("", settings) for settings in card.points]
    for name, settings in varied:
        try:
            apply_overrides(card, tuple(f"{field}={json.dumps(value)}" for field, value in settings.items()))
        except TunemarkError as error:
            yield Problem("field", repr(error.value or name), f"{error.fix}; correct the axis or the point")


def golden_problems(golden: GoldenLosses, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of golden losses: not of this card, not those of a run that starts untrained and learns."""
    yield from missing("key", golden.key, beside.workloads, "workloads")
    card = beside.workloads.get(golden.key)
    if card is None:
        return
    model, sha256 = beside.models.get(card.model), beside.workload_sha256(card.key)
    if golden.workload_sha256 != sha256:
        yield Problem("workload_sha256", golden.workload_sha256, f"the card has {sha256}; record the losses again with the card as it is")
    steps = sorted(golden.losses.items())
    choices = card.labels if card.task is Task.SEQUENCE_CLASSIFICATION else model and model.vocabulary
    if card.weights is Weights.RANDOM and choices and steps and abs(steps[0][1] / math.log(choices) - 1) > NEAR_LN:
        fix = f"random weights begin near ln({choices}) = {math.log(choices):.4f}; record the losses again"
        yield Problem(str(steps[0][0]), f"{steps[0][1]:g}", fix)
    for (_, before), (step, loss) in pairwise(steps):
        if not 0 < loss <= before * (1 + golden.tolerance):
            yield Problem(str(step), f"{loss:g}", f"follows {before:g}, and losses fall, to more than 0; check the digits")


# Known facts -----------------------------------------------------------------------------------------

THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+")


def known_problems(known: WorldFacts, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of known facts."""
    yield from _stated_once(known)
    yield from _references(known, beside)
    for dataset in known.datasets:
        stated = {int(number.replace(",", "")) for number in THOUSANDS.findall(dataset.source)}
        if stated and dataset.training_rows not in stated:
            said = ", ".join(f"{rows:,}" for rows in sorted(stated))
            yield Problem("training_rows", str(dataset.training_rows), f"the source says {said}")


def _stated_once(known: WorldFacts) -> Iterator[Problem]:
    """Yield a problem for a fact that is stated twice, of which only one would be read."""
    stated = {
        "library": [entry.library for entry in known.libraries],
        "version": [f"{entry.library} {entry.version}" for entry in known.releases],
        "architecture": [entry.architecture for entry in known.generations],
        "family": [f"{entry.family} {entry.library}" for entry in known.architectures],
        "since": [f"{entry.library} {entry.needs} {entry.since}" for entry in known.requirements],
        "practice": [entry.key for entry in known.practices],
        "dataset": [entry.key for entry in known.datasets],
        "source": [entry.source for entry in known.memory_readings],
        "result_id": [entry.result_id for entry in known.withdrawn],
    }
    for field, keys in stated.items():
        for key, times in Counter(keys).items():
            if times > 1:
                yield Problem(field, repr(key), f"is stated {times} times; keep one entry")


def _references(known: WorldFacts, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a name without a card."""
    named = [("tokenizer", lengths.tokenizer) for dataset in known.datasets for lengths in dataset.token_lengths]
    named += [("model", shared.model) for shared in known.shared_names]
    for field, model in named:
        yield from missing(field, model, beside.models, "models")
    architectures = {card.architecture for card in beside.accelerators.values() if card.vendor == "NVIDIA" and card.architecture}
    for entry in known.generations:
        if entry.architecture not in architectures:
            fix = f"no card of NVIDIA has this architecture; {did_you_mean(entry.architecture, architectures)}"
            yield Problem("architecture", repr(entry.architecture), fix)
