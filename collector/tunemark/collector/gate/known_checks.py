"""Checks of known facts: stated once, and names that exist.

A check yields problems; the caller knows the file and the line.
"""

import re
from collections import Counter
from collections.abc import Iterator

from tunemark.collector.gate.fact_checks import FIRST_TENSOR_CORES, Neighbours
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.world_facts import WorldFacts
from tunemark.schema.records.reading import Problem

AUDITED = {
    "clock-slack", "cross-source", "high-utilisation", "high-utilisation-plain", "lora-slowdown", "price-tolerance",
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
        if model not in beside.models:
            yield Problem(field, repr(model), f"no such card in data/models; {did_you_mean(model, beside.models)}")
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
