"""A claim that one way of training is faster than another, or needs less memory: methods, software, kernels, compilation, fp8 or recomputed blocks.

Both ways are of the same model on the same device. Rates are those predicted, and memory is that of the memory model, in all settings that the
text leaves open: only what holds in none of them is doubted.
"""

import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

from tunemark.collector.audit.claim_comparison import (
    AGAINST,
    BASE_FIRST,
    FROM_TO,
    OF_COST,
    OF_SPEED,
    OPEN,
    USUAL_MODEL,
    Side,
    changes_of,
    distance,
    in_words,
    is_comparison,
    overlap,
    placed,
    ratio_of,
    ratios_of,
    states_rates,
)
from tunemark.collector.audit.claim_text import CLAIMS, PAIR, ClaimText, Stated, pattern_of
from tunemark.collector.audit.interval import GB_OR_GIB, Interval
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import significant
from tunemark.schema.option_rates import Evidence
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.stacks import STACKS, USUAL_STACK, on_stack
from tunemark.schema.plan_search import Asked, step_on
from tunemark.schema.throughput import Range
from tunemark.schema.vocabulary import METHODS, Checkpointing, Dtype, Method, SoftwareLevel

USUAL_DEVICES = ("nvidia-h100-80gb-sxm", "nvidia-a100-80gb-sxm", "nvidia-rtx-4090", "nvidia-t4")
"""Devices of a comparison that names none."""
LENGTHS, ROWS = (512, 2048, 8192), (1, 2)
"""Sequence lengths and micro-batches of a comparison that states none."""
FAR = 1.5
"""Factor between a change of memory and the nearest predicted one from which a claim is suspicious: settings may be unusual."""
OPEN_LEVELS: tuple[SoftwareLevel, ...] = ("plain", "tuned")
"""Levels of software that a text may mean which names none."""
PLAIN = ("hf", "trl", "llama-factory")
"""Software stacks whose speed is that of plain software."""
OF_MEMORY = re.compile(r"\b(?:memory|v?ram)\b", re.IGNORECASE)
LESS_MEMORY = re.compile(r"\b(?:less|lower|smaller|fewer|saves?|reduces?)\b[^.;,]{0,16}\b(?:memory|v?ram)\b", re.IGNORECASE)
HALF_MEMORY = re.compile(
    r"\bhal(?:f|ves?)\b[^.;,]{0,16}\b(?:memory|v?ram)\b|\b(?:memory|v?ram)\b[^.;,]{0,24}\bhal(?:f|ves?)\b", re.IGNORECASE
)
MORE = re.compile(r"\b(?:more|higher)\b", re.IGNORECASE)
WITHOUT = re.compile(r"\b(?:without|no|not using|disabl\w+|(?:turn|switch)\w* off)\s+(?:\w+\s+){0,2}$", re.IGNORECASE)
THAN = re.compile(r"\b(?:than|vs\.?|versus|compared (?:to|with)|relative to|over|against)\s+(?:\w+\s+){0,2}$", re.IGNORECASE)
"""What stands before the way that is not the subject of a comparison; both together cancel."""
CLAUSE = re.compile(r"[.;,]| and | with | while ")


@dataclass(frozen=True, slots=True)
class Way:
    """One way of a training step."""

    name: str
    method: Method | None = None
    """None for those that the text leaves open, as for the stack and the level of software."""
    stack: str | None = None
    level: SoftwareLevel | None = None
    given: dict[str, Any] = field(default_factory=dict)
    """Fields of the step."""


def _software(name: str) -> Way:
    return Way(
        "transformers" if name == USUAL_STACK["plain"] else name,
        stack=name,
        level="plain" if name in PLAIN else "vendor" if name == USUAL_STACK["vendor"] else "tuned",
    )


USUAL = {
    "software": _software(USUAL_STACK["plain"]),
    "flash": Way("eager attention", given={"attention": "eager"}),
    "checkpointing": Way("keeping activations", given={"checkpointing": Checkpointing.NONE}),
    "compile": Way("eager execution", stack=USUAL_STACK["plain"], level="plain"),
    "fp8": Way("bf16"),
}
"""Kind of way -> the one that a text means which names no other."""
NAMED = {
    "flash": Way("FlashAttention", given={"attention": "sdpa"}),
    "checkpointing": Way("gradient checkpointing", given={"checkpointing": Checkpointing.FULL}),
    "compile": Way("torch.compile", stack=USUAL_STACK["plain"], level="tuned", given={"compiled": True}),
    "fp8": Way("fp8", given={"block_format": Dtype.FP8}),
}
ADAPTED = {Method.LORA: Method.FULL, Method.QLORA: Method.LORA}
"""Method that a text is about -> the one that it saves something of, if no other is named."""


def ways_of(claim: ClaimText) -> tuple[Way, Way] | None:
    """Return the way that a text is about and the one that it compares with it; None if it compares none, or states a rate of each."""
    stated = any(_ratios(claim, kind) for kind in ("speed", "memory"))
    if not stated or states_rates(claim) or is_comparison(claim) or len(claim.devices) >= PAIR:
        return None
    stacks = {name: pattern for name, pattern in CLAIMS["ways"].items() if name in STACKS}
    methods = _methods(claim)
    software = _found(claim, stacks, _software)
    both = [
        (min(one[0], other[0]), max(one[1], other[1]), replace(other[2], name=f"{one[2].name} with {other[2].name}", method=one[2].method))
        for one, other in (zip(methods, software, strict=True) if len(methods) == len(software) == PAIR else ())
    ]
    for found in (both, methods, software):
        if len(found) == PAIR:
            (_, end, first), (begin, _, second) = found
            between = claim.text[end:begin]
            if AGAINST.search(between) or BASE_FIRST.search(claim.text):
                return (second, first) if BASE_FIRST.search(claim.text) or FROM_TO.search(between) else (first, second)
    for kind, usual in USUAL.items():
        if kind != "software" and len({match[0].lower() for match in pattern_of(CLAIMS["ways"][kind]).finditer(claim.text)}) > 1:
            return None  # of two versions, or two words
        named = software if kind == "software" else _found(claim, {kind: CLAIMS["ways"][kind]}, NAMED.__getitem__)
        if named and named[0][2] != usual:
            begin, _, way = named[0]
            # The other way may be the subject: without this one, or faster than it.
            turned = bool(WITHOUT.search(claim.text[:begin])) != bool(THAN.search(claim.text[:begin]))
            return (usual, way) if turned else (way, usual)
    # Of a method that is the subject of a sentence.
    subject = [way for begin, _, way in methods if not claim.text[:begin].strip() or claim.text[:begin].rstrip()[-1] in ".;:,"]
    if len(methods) == len(subject) == 1 and (other := ADAPTED.get(subject[0].method or Method.FULL)):
        return subject[0], Way(METHODS[other], method=other)
    return None


def _methods(claim: ClaimText) -> list[tuple[int, int, Way]]:
    return _found(claim, {name: CLAIMS["methods"][name] for name in METHODS}, lambda name: Way(METHODS[name], method=Method(name)))


def methods_in_order(claim: ClaimText) -> list[Method]:
    """Return the methods that a text names, in its order."""
    return [way.method for _, _, way in _methods(claim) if way.method]


def _found(claim: ClaimText, patterns: dict[str, str], way: Callable[[str], Way]) -> list[tuple[int, int, Way]]:
    """Return the ways whose words are in a text, with the place of the first of them, in order."""
    matches = ((match, name) for name, pattern in patterns.items() if (match := pattern_of(pattern).search(claim.text)))
    return sorted(((match.start(), match.end(), way(name)) for match, name in matches), key=lambda each: each[0])


def _kind(claim: ClaimText, change: Stated) -> str:
    """Return the quantity that changes, `speed` or `memory`, by the words beside it in its clause; "" for other things."""
    behind = CLAUSE.split(claim.text[change.place + len(change.printed) :])[0][:24]
    before = CLAUSE.split(claim.text[: change.place])[-1][-40:]
    for words in (change.printed, behind, before):
        kinds = {"memory": OF_MEMORY, "": OF_COST, "speed": OF_SPEED}
        if kind := [name for name, pattern in kinds.items() if pattern.search(words)]:
            return kind[0]
    return "speed" if change.kind == "speedup" else ""


def _ratios(claim: ClaimText, kind: str) -> list[Interval]:
    """Return the stated ratios of one way to the other: of speeds, or of memory, above 1 for less."""
    changes = [each for each in changes_of(claim) if _kind(claim, each) == kind]
    one = Interval.exact(1.0)
    if kind == "memory":
        found = [
            one / ratio if each.kind == "gained" or MORE.search(each.printed) else ratio for each in changes if (ratio := ratio_of(each))
        ]
        if changes:
            return found
        half = [one.widened(GB_OR_GIB) * 2.0] if HALF_MEMORY.search(claim.text) else []
        return half or ([Interval(1.0, 1.0, OPEN)] if LESS_MEMORY.search(claim.text) else [])
    return [ratio for each in changes if (ratio := ratio_of(each))] or ([] if changes_of(claim) else in_words(claim))


def compared_ways(facts: FactBase, claim: ClaimText, ways: tuple[Way, Way], fitted: Evidence) -> tuple[str, str, str]:
    """Return the reading of a comparison of two ways, how they compare by the models, and where the claim lies, as `compared` does."""
    model = claim.models[0] if claim.models else facts.models[USUAL_MODEL]
    cards = [claim.devices[0][0]] if claim.devices else [facts.accelerators[key] for key in USUAL_DEVICES]
    read = f"{ways[0].name} against {ways[1].name}, {model.name}{'' if claim.models else ', since no model is named'}"
    reasons, places = list[str](), list[str]()
    predictions: dict[str, Callable[..., Iterator[tuple[str, Range]]]] = {"speed": partial(_by_rates, fitted=fitted), "memory": _by_memory}
    for kind, predict in predictions.items():
        for stated in _ratios(claim, kind)[:1]:
            found = list(predict(claim, ways, model, cards))
            if not found:
                reasons.append(f"no {'rate' if kind == 'speed' else 'memory'} of the same step is predicted for both ways")
                continue
            words, likely = min(found, key=lambda each: distance(stated, each[1]))
            # Settings may be unusual.
            near = "near" if overlap(stated, Range(likely.value, likely.low / FAR, likely.high * FAR)) else "outside"
            places.append(placed(stated, likely) if kind == "speed" else "within" if overlap(stated, likely) else near)
            reasons.append(_reason(kind, ways, words, likely))
    # What cannot be compared leaves the rest.
    return read, "; ".join(reasons), max(places, key=("within", "near", "outside").index, default="")


def _reason(kind: str, ways: tuple[Way, Way], words: str, likely: Range) -> str:
    ends = f"{significant(likely.low)} to {significant(likely.high)}"
    if kind == "speed":
        return f"{ways[0].name} is {significant(likely.value)} times as fast as {ways[1].name}, {ends}, {words}"
    return f"{ways[1].name} usually needs {significant(likely.value)} times the memory of {ways[0].name}, {ends} {words}"


def _steps(claim: ClaimText, ways: tuple[Way, Way]) -> Iterator[tuple[Method, Method]]:
    """Yield the methods of both ways."""
    for method in claim.possible_methods:
        yield ways[0].method or method, ways[1].method or method


def _by_rates(
    claim: ClaimText, ways: tuple[Way, Way], model: ModelCard, cards: list[AcceleratorCard], fitted: Evidence
) -> Iterator[tuple[str, Range]]:
    """Yield the ratio of the rates of both ways with its basis, for each device, method and level of software; of results alone if there are any."""
    length, devices = next((int(each.value) for each in claim.values("sequence_length")), model.usual_length), (*claim.counts, 1)[0]
    # Loops of one level differ as loops do that no result is of.
    loops = [way.stack or "" for way in ways] if ways[0].level == ways[1].level else ["", ""]
    levels = [(ways[0].level, ways[1].level)] if ways[0].level and ways[1].level else [(level, level) for level in OPEN_LEVELS]
    sides = (
        (
            Side(card, devices, methods[0], pair[0], ways[0].given, loops[0]),
            Side(card, devices, methods[1], pair[1], ways[1].given, loops[1]),
        )
        for card, pair, methods in product(cards, levels, dict.fromkeys(_steps(claim, ways)))
    )

    def words(first: Side, _: Side) -> str:
        software = "" if ways[0].level else f" with {first.level} software"
        return f"{METHODS[first.method.value]} on {first.devices} x {first.card.name}{software}"

    found = list(ratios_of(model, length, sides, fitted, words))
    results = [each for each in found if each.by_results]
    yield from ((f"{each.basis} {each.words}", each.range) for each in results or found)


def _by_memory(claim: ClaimText, ways: tuple[Way, Way], model: ModelCard, cards: list[AcceleratorCard]) -> Iterator[tuple[str, Range]]:
    """Yield how many times the memory of the first way the other needs, in the settings that the text leaves open."""
    card, devices = cards[0], (*claim.counts, 1)[0]
    lengths = [int(each.value) for each in claim.values("sequence_length")][:1] or LENGTHS
    rows = [int(each.value) for kind in ("micro_batch", "batch") for each in claim.values(kind)][:1] or ROWS
    kept = [Checkpointing.FULL] if claim.says("checkpointing") else [Checkpointing.NONE, Checkpointing.FULL]
    stacks = [(ways[0].stack, ways[1].stack)] if ways[0].stack else [(name, name) for name in STACKS]
    found = list[float]()
    for methods, length, batch, names in product(dict.fromkeys(_steps(claim, ways)), lengths, rows, stacks):
        # Software has its own habits: with another stack, others recompute or not.
        for recomputed in product(kept, repeat=PAIR) if ways[0].stack else ((each, each) for each in kept):
            needed = list[int]()
            for way, method, stack, each in zip(ways, methods, names, recomputed, strict=True):
                given = {"micro_batch": batch, "checkpointing": each} | way.given
                shape = step_on(card, model, method, length, devices, Asked(given))
                if STACKS[str(stack)].runs(shape, card.vendor):
                    needed.append(estimate_memory(on_stack(shape, str(stack), tuple(way.given))).needed)
            found += [needed[1] / needed[0]] if len(needed) == PAIR else []
    if found:
        low, high = min(found) * (1 - GB_OR_GIB), max(found) * (1 + GB_OR_GIB)
        yield (
            f"by the memory model, with {' to '.join(dict.fromkeys(f'{each:,}' for each in (lengths[0], lengths[-1])))} tokens in a row",
            Range(statistics.median(found), low, high),
        )
