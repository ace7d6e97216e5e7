"""Relations between the fields of an accelerator card, and between a card and its siblings: one table of ratios, `card_relations.toml`.

What a field can say about itself is a bound of the field (`schema.facts.cards`). Where a value is compared with those of the other
cards of its architecture, `notes` may explain it: name the field there.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from tunemark.collector.gate.fact_checks import Neighbours, name_problems, skeleton
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.records.reading import Problem

OF_FORMATS = "units of half the width do twice the work of a cycle, and matrix units multiply that by a power of two; figures are dense"
OF_OTHERS = "the known cards are within these limits"


@dataclass(frozen=True)
class Relation:
    """A row of the table: a field, or its ratio to another one, which physics bounds, and which is near that of a sibling."""

    of: str
    over: str = ""
    low: float = 0.0
    high: float = inf
    steps: Sequence[float] = ()
    off: float = 1.0
    siblings: float = inf
    because: str = ""
    cpu: bool = False

    def holds(self, ratio: float) -> bool:
        """Return True if a ratio is possible."""
        near = not self.steps or any(_factor(ratio, step) <= self.off for step in self.steps)
        return near and self.low <= ratio <= self.high


RELATIONS = [
    Relation(**row) for row in tomllib.loads(Path(__file__).with_name("card_relations.toml").read_text(encoding="utf-8"))["relations"]
]
FIRST_YEAR = {"bf16": 2017, "tf32": 2020, "fp8": 2022}
"""Launch of the first devices with a format: the second TPU, A100, and H100, Gaudi 2 and Trainium. No earlier device has it."""
LINES = ("GeForce", "RTX", "Radeon")
"""Lines of graphics cards. A line keeps its ratios over generations: GeForce halves products with fp32 sums, server cards do not."""
PRINTED_MEMORY = re.compile(r"(?i)(?<![\d.])(\d+(?:\.\d+)?)\s?-?g(?:i)?b\b")
KEPT_BY_DRIVER = 1.01


def accelerator_problems(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield all problems of an accelerator card."""
    yield from name_problems(card, beside)
    yield from _identity(card, beside)
    siblings = _siblings(card, beside)
    for relation in RELATIONS:
        yield from _relation_problems(relation, card, siblings)
    for name, year in FIRST_YEAR.items() if card.cpu is None else ():
        value = card.value(f"peak_tflops.{name}")
        if value is not None and card.launch_year is not None and card.launch_year < year:
            yield Problem(f"peak_tflops.{name}", f"{value:g}", f"no device had {name} in {card.launch_year}; it began in {year}")
    # Superchips also print the memory of their CPU.
    printed = [float(size) for name in (card.key, card.name, *card.aliases) for size in PRINTED_MEMORY.findall(name.replace("-", " "))]
    if card.memory_gib and printed and all(_factor(size, card.memory_gib) > KEPT_BY_DRIVER for size in printed):
        yield Problem("memory_gib", f"{card.memory_gib:g}", f"the names of the card say {printed[0]:g}; a name and its card agree")


def _factor(one: float, other: float) -> float:
    return max(one / other, other / one)


def _identity(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a key that begins with another vendor, and for another vendor's architecture."""
    if skeleton(card.key.split("-")[0]) != skeleton(card.vendor.split()[0]):
        yield Problem("vendor", repr(card.vendor), f"the key is {card.key}; a key begins with its vendor")
    others = [other for other in beside.accelerators.values() if other.key != card.key]
    written = {other.vendor for other in others if other.key.split("-")[0] == card.key.split("-")[0]}
    if written and card.vendor not in written:
        yield Problem("vendor", repr(card.vendor), f"other cards have {' and '.join(sorted(written))}; write it the same")
    owners = {other.vendor for other in others if other.architecture == card.architecture and card.architecture and card.cpu is None}
    if owners and card.vendor not in owners:
        yield Problem("architecture", repr(card.architecture), f"is one of {' and '.join(sorted(owners))}; correct it")


def _siblings(card: AcceleratorCard, beside: Neighbours) -> list[AcceleratorCard]:
    """Return the other cards that are built alike: of the same line of graphics cards, else of the same architecture."""

    def kind(of: AcceleratorCard) -> tuple[str, str | None, bool]:
        line = next((line for line in LINES if line in of.name.split()), "")
        return of.vendor, line or of.architecture, of.cpu is not None

    alike = kind(card)
    return [other for other in beside.accelerators.values() if other.key != card.key and alike[1] is not None and kind(other) == alike]


def _ratio(relation: Relation, card: AcceleratorCard) -> float | None:
    of, over = card.value(relation.of), card.value(relation.over) if relation.over else 1.0
    return None if of is None or over is None or (card.cpu is not None) != relation.cpu else of / over


def _relation_problems(relation: Relation, card: AcceleratorCard, siblings: list[AcceleratorCard]) -> Iterator[Problem]:
    """Yield a problem for a ratio that is impossible, or unlike that of all siblings."""
    ratio = _ratio(relation, card)
    if ratio is None:
        return
    # What a CPU does follows from its cores.
    field, what = relation.over if relation.cpu and relation.over else relation.of, " / ".join(filter(None, (relation.of, relation.over)))
    if not relation.holds(ratio):
        wanted = f"near {', '.join(f'{step:g}' for step in relation.steps)}" if relation.steps else f"{relation.low:g} to {relation.high:g}"
        fix = f"{what} is {ratio:.3g}, but must be {wanted}: {relation.because or (OF_FORMATS if relation.steps else OF_OTHERS)}; use figures of one table, and check the unit"
        yield Problem(field, f"{card.value(field):g}", fix)
        return
    # A card that is wrong by itself makes no other card wrong.
    known = [other for sibling in siblings if (other := _ratio(relation, sibling)) is not None and relation.holds(other)]
    nearest = min(known, key=lambda other: _factor(ratio, other), default=ratio)
    explained = any(name and name.removeprefix("cpu.") in (card.notes or "") for name in (relation.of, relation.over))
    if _factor(ratio, nearest) > relation.siblings and not explained:
        fix = f"{what} is {ratio:.3g}, and the nearest card of its kind has {nearest:.3g}; correct it, or explain the field in notes"
        yield Problem(field, f"{card.value(field):g}", fix)
