"""The two sides that a claim compares, accelerators or ways of training, and how many times as fast, as cheap or as lean it says that one is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tunemark.collector.audit.claim_text import CLAIMS, PAIR, SENTENCE, ClaimText, Stated, Variants, pattern_of, words
from tunemark.collector.audit.interval import GB_OR_GIB, Interval
from tunemark.collector.audit.published_shape import ENUMS
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.vocabulary import METHODS, Method, SoftwareLevel

OPEN = 1e3
"""Times that `faster` without a number may mean."""
EQUAL = 0.1
"""Share by which devices may differ that are `as fast as` another."""
ONE = Interval.exact(1.0)
ADAPTED = {Method.LORA: Method.FULL, Method.QLORA: Method.LORA}
"""Method that a text is about -> the one that it saves something of, if no other is named."""


@dataclass(frozen=True, slots=True)
class Side:
    """A step on one side of a comparison. A field that is None has one value on both sides, or the text does not state it."""

    name: str
    card: AcceleratorCard | None = None
    devices: int | None = None
    method: Method | None = None
    stack: str = ""
    level: SoftwareLevel | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the step."""


Sides = tuple[Side, Side]


def sides_of(claim: ClaimText) -> Sides | None:
    """Return the two sides that a text compares in speed, cost or memory, its subject first; None if it compares nothing, or states rates, which are judged instead."""
    if any(claim.stated(f"{kind}{each}") for kind in ("tokens_per_s", "samples_per_s") for each in ("", "_each")):
        return None
    base_first = claim.says("base_first")
    if len(claim.devices) == PAIR and len(claim.methods) < PAIR:
        joined = bool(words("against").search(claim.between) or base_first or claim.says("equal_speed"))
        counts = claim.counts if len(claim.counts) == PAIR else (None, None)
        first, second = (Side(cards[0].name, cards[0], count) for cards, count in zip(claim.devices, counts, strict=True))
        backwards, changed = base_first or bool(words("reached").search(claim.between)), changes_of(claim)
        subject = subject_of(claim, changed[0]) if changed and not claim.stated("train_time_s") else None
        if not joined and subject:
            joined, backwards = True, subject[0] == second.card
        return ((second, first) if backwards else (first, second)) if joined and _speeds(claim, changes_of(claim)) else None
    ways = _ways(claim, base_first=base_first) if len(claim.devices) < PAIR else None
    return ways if ways and ratios(claim, ways) else None


def subject_of(claim: ClaimText, figure: Stated) -> Variants | None:
    """Return the device that a figure is of: the one named alone before it in its part of a sentence, or in the text; None if that is open."""
    part = figure.place - len(re.split(r"[.;,] ", claim.text[: figure.place])[-1])
    for begin in (part, 0):
        if named := {cards[0].key: cards for place, _, cards in claim.places if begin <= place < figure.place}:
            return next(iter(named.values())) if len(named) == 1 else None
    return None


def of_subject(claim: ClaimText) -> ClaimText:
    """Return a claim of one rate and two devices with the one that the rate is of: the one that it is `on`, or the subject of the text; both if that is open."""
    rates = [each for kind in ("tokens_per_s", "samples_per_s") for each in (*claim.stated(kind), *claim.stated(f"{kind}_each"))]
    if not len(rates) == len(claim.devices) - 1 == 1:
        return claim
    [rate] = rates
    behind = rate.place + len(rate.printed)
    on = [cards for place, _, cards in claim.places if place > behind and words("on").search(SENTENCE.split(claim.text[behind:place])[0])]
    device = on[0] if on else subject_of(claim, rate)
    if device not in claim.devices:
        return claim
    place = claim.devices.index(device)
    return replace(claim, devices=(device,), counts=claim.counts[place:][:1] if len(claim.counts) == PAIR else claim.counts)


def _ways(claim: ClaimText, *, base_first: bool) -> Sides | None:
    """Return the way of training that a text is about and the one that it compares with it."""
    methods, software = methods_of(claim), [each for row in CLAIMS["ways"] if row["kind"] == "software" for each in _found(claim, row)]
    software.sort(key=lambda each: each[0])
    pairs = zip(methods, software, strict=True) if len(methods) == len(software) == PAIR else ()
    both = [
        (min(a, c), max(b, d), replace(way, name=f"{one.name} with {way.name}", method=one.method)) for (a, b, one), (c, d, way) in pairs
    ]
    for found in (both, methods, software):
        if len(found) == PAIR:
            (_, end, first), (begin, _, second) = found
            between = claim.text[end:begin]
            if base_first or words("against").search(between):
                return (second, first) if base_first or words("reached").search(between) else (first, second)
    for row in (row for row in CLAIMS["ways"] if "usual" in row and not (row["kind"] == "software" and claim.says("repacked"))):
        if row["kind"] != "software" and len({match[0].lower() for match in pattern_of(row["words"]).finditer(claim.text)}) > 1:
            return None  # of two versions, or two words
        usual, named = _side(row["usual"]), software if row["kind"] == "software" else _found(claim, row)
        if named and named[0][2] != usual:
            begin, _, way = named[0]
            # The other way may be the subject: without this one, or faster than it.
            turned = bool(words("without").search(claim.text[:begin])) != bool(words("than").search(claim.text[:begin]))
            return (usual, way) if turned else (way, usual)
    # Of a method that is the subject of a sentence.
    subject = [way for begin, _, way in methods if not claim.text[:begin].strip() or claim.text[:begin].rstrip()[-1] in ".;:,"]
    if len(methods) == len(subject) == 1 and not claim.says("more_trained") and (other := ADAPTED.get(subject[0].method or Method.FULL)):
        return subject[0], Side(METHODS[other], method=other)
    return None


def methods_of(claim: ClaimText) -> list[tuple[int, int, Side]]:
    """Return the methods that a text names, in its order, with their places."""
    rows = [{"words": CLAIMS["methods"][name], "name": METHODS[name], "method": Method(name)} for name in METHODS]
    return sorted((each for row in rows for each in _found(claim, row)), key=lambda each: each[0])


def _found(claim: ClaimText, row: dict[str, Any]) -> list[tuple[int, int, Side]]:
    """Return the way of a row with its first place in a text, if its words are there."""
    match = pattern_of(row["words"]).search(claim.text)
    return [(*match.span(), _side(row))] if match else []


def _side(row: Mapping[str, Any]) -> Side:
    given = {name: ENUMS[name](value) if name in ENUMS else value for name, value in row.get("given", {}).items()}
    return Side(given=given, **{name: value for name, value in row.items() if name in {"name", "method", "stack", "level"}})


def ratios(claim: ClaimText, sides: Sides) -> dict[str, Interval]:
    """Return the quantities in which a text compares two sides, with the ratio of the first to the other: above 1 for faster, cheaper, or less memory."""
    every = changes_of(claim)
    if sides[0].card:
        compares = claim.says("of_cost", "of_speed", "equal_speed") or claim.stated("speedup")
        kind = "cost" if claim.says("of_cost") and not of_pace(claim) else "speed"
        return {kind: _speeds(claim, every)[0]} if compares and (of_pace(claim) or not claim.says("of_others")) else {}
    changes = {kind: [each for each in every if _kind(claim, each) == kind] for kind in ("speed", "memory")}
    memory = [
        ONE / ratio if each.kind == "gained" or words("more").search(each.printed) else ratio
        for each in changes["memory"]
        if (ratio := ratio_of(each))
    ]
    if not changes["memory"]:
        memory = [ONE.widened(GB_OR_GIB) * 2.0] if claim.says("half_memory") else []
        less = words("less_memory").search(claim.text)
        memory += [Interval(1.0, 1 / OPEN, 1.0) if less["more"] else Interval(1.0, 1.0, OPEN)] if less else []
    speeds = _speeds(claim, changes["speed"]) if changes["speed"] or not every else []
    return {kind: stated[0] for kind, stated in (("speed", speeds), ("memory", memory)) if stated}


def of_pace(claim: ClaimText) -> bool:
    """Return True for changes of speed alone, whatever else a text says."""
    changes = changes_of(claim)
    return bool(changes) and all(words("of_pace").search(each.printed) for each in changes) and not claim.says("for_money")


def changes_of(claim: ClaimText) -> list[Stated]:
    """Return the figures that compare one thing with another."""
    return [each for kind in CLAIMS["kinds"]["changes"] for each in claim.stated(kind)]


def _kind(claim: ClaimText, change: Stated) -> str:
    """Return the quantity that changes, `speed` or `memory`, by the words beside it in its clause; "" for other things."""
    behind = words("clause").split(claim.text[change.place + len(change.printed) :])[0][:24]
    before = words("clause").split(claim.text[: change.place])[-1][-40:]
    for beside in (change.printed, behind, before):
        for kind, name in (("memory", "of_memory"), ("", "of_cost"), ("speed", "of_speed")):
            if words(name).search(beside):
                return kind
    return "speed" if change.kind == "speedup" else ""


def _speeds(claim: ClaimText, changes: list[Stated]) -> list[Interval]:
    """Return the ratios that changes state, or words without a number: `2x`, `50% faster`, `33% cheaper`, `2x slower`, `as fast as`, `beats`."""
    if changes:
        return [ratio for each in changes if (ratio := ratio_of(each))]
    in_words = (("equal_speed", ONE.widened(EQUAL)), ("slower", Interval(1.0, 1 / OPEN, 1.0)), ("faster_device", Interval(1.0, 1.0, OPEN)))
    return [] if claim.says("negated") else [ratio for kind, ratio in in_words if claim.says(kind)][:1]


def ratio_of(change: Stated) -> Interval | None:
    """Return the number of times that a change makes a step as fast, or as cheap; None for a saving of all. `50% slower` is half the rate, or half more time."""
    slower = "slow" in change.printed.lower()
    if change.kind == "gained":
        return ONE + change.value
    if change.kind == "speedup":
        return ONE / change.value if slower else change.value
    if change.value.high >= 1:
        return ONE / (ONE + change.value) if slower else None
    left = Interval(1 - change.value.value, 1 - change.value.high, 1 - change.value.low)
    return Interval(left.value, left.low, 1 / (1 + change.value.low)) if slower else ONE / left
