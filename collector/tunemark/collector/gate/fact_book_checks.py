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

from tunemark.collector.gate.fact_checks import FIRST_TENSOR_CORES, Neighbours, missing, name_problems, printed_sizes, skeleton
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.workloads import GoldenLosses, WorkloadCard
from tunemark.schema.facts.world_facts import WorldFacts
from tunemark.schema.physics.architecture import FAMILIES, count_parameters, targets_in
from tunemark.schema.plan.overrides import apply_overrides
from tunemark.schema.records.reading import Problem
from tunemark.schema.vocabulary import Strategy, Task, Weights

# Models ----------------------------------------------------------------------------------------------

NAME_FACTOR = 1.7
"""Names round: `1B` may have 1.67e9 parameters (Falcon 3), `8x7B` shares its attention (0.83 of the product), `7B` may leave out embeddings (8.5e9)."""


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
    """Yield a problem where the stated parameters, to their last digit that is not zero, are not those counted from the shapes.

    A size in the names agrees within `NAME_FACTOR` with the count, or with that of the parameters that a token uses (Llama 4 17B 16E).
    """
    count = count_parameters(card)
    counted, used = count.total, count.total - count.feed_forward + count.active_feed_forward
    if card.parameters is not None:
        unit = 10 ** (len(digits := str(card.parameters)) - len(digits.rstrip("0")))
        if abs(card.parameters - counted) > unit / 2:
            yield Problem("parameters", str(card.parameters), f"the shapes on this card have {counted}; correct one of them")
    for where, name in (
        ("key", card.key),
        ("name", card.name),
        *(("aliases", alias) for alias in card.aliases),
        ("hub_id", card.hub_id or ""),
    ):
        # A name may hold another number too: the active parameters of a mixture, or a length of context.
        sizes = [printed for _, printed in printed_sizes(name)]
        if sizes and not any(1 / NAME_FACTOR <= number / printed <= NAME_FACTOR for printed in sizes for number in (counted, used)):
            fix = f"the shapes on this card have {counted / 1e9:.3g}e9 parameters; correct the name or the shapes"
            yield Problem(where, repr(name), fix)


# Workloads -------------------------------------------------------------------------------------------

STRETCH = 4
"""Models with rotary or linear positions are trained at up to four times their context; learned positions end with the table."""
MOST_ROWS, HIGHEST_RATE = 4096, 1.0
"""Rows that one device holds at once, and peak learning rate (of fine-tuning about 1e-6 to 1e-2), on a card. A run may have more, to see it fail."""
LARGEST_STEP = 2**28
"""Tokens of one optimizer step: the largest pretraining runs use 2^24."""
NEAR_LN = 0.15
"""Untrained weights guess: their loss is the logarithm of the number of choices, a few percent above it for finite initial scales."""


def workload_problems(card: WorkloadCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of a workload card: settings that no run has, and those that its model, dataset or devices contradict."""
    for name, value, most in (
        ("batch.micro_batch", card.batch.micro_batch, MOST_ROWS),
        ("optimizer.learning_rate", card.optimizer.learning_rate, HIGHEST_RATE),
    ):
        if value > most:
            yield Problem(name, str(value), f"must be at most {most}")
    tokens = card.batch.micro_batch * card.batch.gradient_accumulation * card.data.sequence_length * card.devices.count
    if tokens > LARGEST_STEP:
        yield Problem("micro_batch", str(card.batch.micro_batch), f"a step would have {tokens} tokens; at most {LARGEST_STEP} make sense")
    if card.stop.max_steps is not None and card.optimizer.warmup_steps >= card.stop.max_steps:
        fix = f"the run ends after {card.stop.max_steps} steps, before its learning rate is reached"
        yield Problem("warmup_steps", str(card.optimizer.warmup_steps), fix)
    yield from _devices(card)
    if (model := beside.models.get(card.model)) is not None:
        yield from _against_model(card, model)
    rows = beside.known.dataset(card.data.name)
    if rows is None:
        return
    if rows.labels is not None and card.labels is not None and card.labels != rows.labels:
        yield Problem("labels", str(card.labels), f"{rows.key} has {rows.labels} classes")
    held_out = max(rows.validation_rows or 0, rows.test_rows or 0)
    for name, stated, most in (
        ("training_rows", card.data.training_rows or 0, rows.training_rows),
        ("evaluation_rows", card.data.evaluation_rows, held_out),
    ):
        if stated > most > 0:
            yield Problem(name, str(stated), f"{rows.key} has {most} of them")


def _devices(card: WorkloadCard) -> Iterator[Problem]:
    """Yield problems of devices that cannot share the work: one of several, or several of one."""
    devices, single = card.devices, card.devices.strategy == Strategy.SINGLE
    if (single and devices.count > 1) or (devices.count == 1 and not single and devices.strategy != "auto"):
        yield Problem("strategy", repr(str(devices.strategy)), f"devices.count is {devices.count}; write auto, or correct one of them")
    apart = devices.tensor_parallel * devices.pipeline_parallel
    if devices.count % apart:
        yield Problem("count", str(devices.count), f"is not a multiple of the {apart} devices that share one copy of the model")


def _against_model(card: WorkloadCard, model: ModelCard) -> Iterator[Problem]:
    """Yield settings that the model contradicts: its size in the title, heads, context, width and layers."""
    counted = count_parameters(model).total
    for shown, printed in printed_sizes(card.title):
        if not 1 / NAME_FACTOR <= counted / printed <= NAME_FACTOR:
            fix = f"the title says {shown}, and {card.model} has {counted / 1e9:.3g}e9 parameters; correct the title or the model"
            yield Problem("model", repr(card.model), fix)
    if model.attention_heads % card.devices.tensor_parallel:
        fix = f"does not divide the {model.attention_heads} attention heads of {model.key}"
        yield Problem("tensor_parallel", str(card.devices.tensor_parallel), fix)
    learned = FAMILIES[model.family].learned_positions and "alibi" not in (model.notes or "").lower()
    longest = model.context_length * (1 if learned else STRETCH)
    if card.data.sequence_length > longest:
        fix = f"{card.model} has a context of {model.context_length} and can be trained at {longest} at most"
        yield Problem("sequence_length", str(card.data.sequence_length), fix)
    if card.lora is None:
        return
    if card.lora.rank > model.hidden_size:
        yield Problem("rank", str(card.lora.rank), f"is above the width of the model, {model.hidden_size}; it would not be low-rank")
    try:
        targets_in(model, card.lora.target_modules)
    except TunemarkError as error:
        yield Problem("target_modules", repr(error.value), error.fix)


def setting_problems(card: WorkloadCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of the axes and points of a card: settings that a card does not have, and values that no run has.

    Each value is set on the card, and the card is checked with it.
    """
    fixed = {problem.field for problem in workload_problems(card, beside)}
    varied = [(axis.field, {**axis.at, axis.field: value}) for axis in card.axes for value in axis.values]
    varied += [("", settings) for settings in card.points]
    for name, settings in varied:
        try:
            other, _ = apply_overrides(card, tuple(f"{field}={json.dumps(value)}" for field, value in settings.items()))
        except TunemarkError as error:
            yield Problem("field", repr(error.value or name), f"{error.fix}; correct the axis or the point")
            continue
        for problem in workload_problems(other, beside):
            if problem.field not in fixed:
                yield Problem("values", repr(settings), f"{problem.field} {problem.fix}")


def golden_problems(golden: GoldenLosses, beside: Neighbours) -> Iterator[Problem]:
    """Yield problems of golden losses: not of this card, not those of a run that starts untrained and learns."""
    yield from missing("key", golden.key, beside.workloads, "workloads")
    card = beside.workloads.get(golden.key)
    if card is None:
        return
    model, sha256 = beside.models.get(card.model), beside.workload_sha256(card.key)
    if golden.workload_sha256 != sha256:
        yield Problem("workload_sha256", golden.workload_sha256, f"the card has {sha256}; record the losses again with the card as it is")
    if golden.seed != card.seed:
        yield Problem("seed", str(golden.seed), f"the card has {card.seed}; record the losses with the seed of the card")
    steps = sorted(golden.losses.items())
    choices = card.labels if card.task is Task.SEQUENCE_CLASSIFICATION else model and model.vocabulary
    if card.weights is Weights.RANDOM and choices and steps and abs(steps[0][1] / math.log(choices) - 1) > NEAR_LN:
        fix = f"random weights begin near ln({choices}) = {math.log(choices):.4f}; record the losses again"
        yield Problem(str(steps[0][0]), f"{steps[0][1]:g}", fix)
    for (_, before), (step, loss) in pairwise(steps):
        if not 0 < loss <= before * (1 + golden.tolerance):
            yield Problem(str(step), f"{loss:g}", f"follows {before:g}, and losses fall, to more than 0; check the digits")
    if not steps or steps[-1][1] >= steps[0][1] or not 1 <= steps[0][0] <= steps[-1][0] <= (card.stop.max_steps or math.inf):
        yield Problem("losses", f"{len(steps)} steps", "fall from one of the first steps of the card to one of the last; record them again")


# Known facts -----------------------------------------------------------------------------------------

AUDITED = {
    "attainable-utilisation", "clock-slack", "high-utilisation", "high-utilisation-plain", "lora-slowdown", "price-tolerance",
    "same-run", "same-work-memory", "superlinear", "tokeniser-spread", "usable-memory",
}  # fmt: skip
"""Bounds without which the audit ends. A test compares them with those that its rules read."""
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
    """Yield a problem for a fact that is stated twice, of which only one would be read, and for a bound of the audit that is missing."""
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
    for key in sorted(AUDITED - set(stated["practice"]) if known.practices else ()):
        yield Problem("practices", repr(key), "is missing, and the audit compares with it; add it again")
    for practice in known.practices:
        if practice.value <= 0 or (practice.value > 1 and re.search(r"(?i)share|relative difference", practice.meaning)):
            yield Problem("value", f"{practice.value:g}", f"{practice.key} is a share or a ratio: above 0, and not in percent")


def _references(known: WorldFacts, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a name without a card, and for a row that is not there."""
    named = [("tokenizer", lengths.tokenizer) for dataset in known.datasets for lengths in dataset.token_lengths]
    named += [("model", shared.model) for shared in known.shared_names]
    for field, model in named:
        yield from missing(field, model, beside.models, "models")
    formats: dict[str, set[str]] = {}
    for card in beside.accelerators.values():
        if card.vendor == "NVIDIA" and card.architecture:
            formats.setdefault(card.architecture, set()).update(kind.value for kind in card.peak_tflops)
    for entry in known.generations:
        if entry.architecture not in formats:
            fix = f"no card of NVIDIA has this architecture; {did_you_mean(entry.architecture, formats)}"
            yield Problem("architecture", repr(entry.architecture), fix)
        for name, first in FIRST_TENSOR_CORES.items():
            if name in formats.get(entry.architecture, ()) and entry.tensor_core_generation < first:
                fix = f"cards of {entry.architecture} have {name}, which began with generation {first}; correct the generation or the cards"
                yield Problem("tensor_core_generation", str(entry.tensor_core_generation), fix)
    for reading in known.memory_readings:
        rows = beside.results_of(reading.source) if reading.left_out else set()
        for result in sorted(set(reading.left_out) - rows if rows else ()):
            yield Problem("left_out", repr(result), f"is no result of {reading.source}; {did_you_mean(result, rows)}")
