"""Relations between the fields of an accelerator card, and between a card and its siblings: one table of ratios.

What a field can say about itself is a bound of the field (`schema.facts.cards`). Where a value is compared with those of the other
cards of its architecture, `notes` may explain it: name the field there.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from tunemark.collector.gate.fact_checks import FIRST_TENSOR_CORES, Neighbours, name_problems, skeleton
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.records.reading import Problem


@dataclass(frozen=True)
class Relation:
    """A field, or its ratio to another one, which physics bounds, and which is near that of a sibling."""

    of: str
    over: str = ""
    low: float = 0.0
    high: float = inf
    steps: tuple[float, ...] = ()
    """Possible ratios, within `off`."""
    off: float = 1.0
    siblings: float = inf
    """Largest factor from the nearest card of the architecture."""
    because: str = ""
    cpu: bool = False
    """True for CPUs, whose other peaks follow from their cores; False for devices."""

    def holds(self, ratio: float) -> bool:
        """Return True if a ratio is possible."""
        near = not self.steps or any(_factor(ratio, step) <= self.off for step in self.steps)
        return near and self.low <= ratio <= self.high


WIDTH = "units of half the width do twice the work of a cycle, and matrix units multiply that by a power of two; figures are dense"
MATRIX, HALF = (1, 2, 4, 8, 16, 32), (1 / 16, 1, 2, 4)
RELATIONS = (
    # Vector and matrix units have different clocks and numbers of active units: up to a quarter off the step, 15% on H100 NVL.
    Relation("peak_tflops.tf32", "peak_tflops.fp32", steps=MATRIX, off=1.25, siblings=1.25, because=WIDTH),
    Relation("peak_tflops.bf16", "peak_tflops.fp32", steps=MATRIX, off=1.2, siblings=1.25, because=WIDTH),
    Relation("peak_tflops.fp16", "peak_tflops.fp32", steps=MATRIX, off=1.2, siblings=1.25, because=WIDTH),
    # Formats of one unit share its clock: rounding, and 7% on Trainium; newer parts keep a sixteenth of their integer units.
    Relation("peak_tflops.bf16", "peak_tflops.tf32", steps=(1, 2, 4), off=1.1, siblings=1.04, because=WIDTH),
    Relation("peak_tflops.fp16", "peak_tflops.bf16", steps=(0.25, 0.5, 1, 2), off=1.1, siblings=1.04, because=WIDTH),
    Relation("peak_tflops.fp8", "peak_tflops.bf16", steps=HALF, off=1.1, siblings=1.04, because=WIDTH),
    Relation("peak_tflops.int8", "peak_tflops.bf16", steps=HALF, off=1.1, siblings=1.04, because=WIDTH),
    Relation("peak_tflops.int8", "peak_tflops.fp16", steps=HALF, off=1.1, siblings=1.04, because=WIDTH),
    # From 0.07 (vector units of 2016) and 0.15 (Gaudi of 2019) to 2.3 (2025).
    Relation("peak_tflops.bf16", "tdp_w", low=0.06, high=4, siblings=1.8, because="TFLOP/s per watt of dense 16-bit products"),
    Relation("peak_tflops.fp16", "tdp_w", low=0.06, high=4, siblings=1.8, because="TFLOP/s per watt of dense 16-bit products"),
    # CPUs have 0.0074 (2018) to 0.035 (2023), with a factor of about three on both sides.
    Relation("peak_tflops.fp32", "tdp_w", low=0.003, high=0.1, because="TFLOP/s per watt; check cores, clock and power", cpu=True),
    # Reading all memory once takes 10 ms (HBM) to 0.7 s (large unified memory).
    Relation("memory_bandwidth_gb_s", "memory_gib", low=1, high=100, siblings=2.2, because="memory is read once in 0.01 to 1 s"),
    # FLOP per byte of memory traffic, from graphics chips (36) to accelerators of large matrices (560).
    Relation("peak_tflops.bf16", "memory_bandwidth_gb_s", low=0.02, high=1.5, siblings=2.5, because="matrix units need data"),
    Relation("peak_tflops.fp16", "memory_bandwidth_gb_s", low=0.02, high=1.5, siblings=2.5, because="matrix units need data"),
    # From 1.7 Gbit/s (HBM2) to 32 (GDDR7), an eighth of it in bytes; siblings are sold with two kinds of memory.
    Relation("memory_bandwidth_gb_s", "memory_bus_bits", low=0.12, high=5, siblings=1.7, because="an eighth of the Gbit/s of a pin"),
    Relation("interconnect_gb_s", "memory_bandwidth_gb_s", low=0.01, high=0.75, siblings=3, because="links are slower than memory"),
    Relation("msrp_usd", "peak_tflops.fp16", low=1, high=300, siblings=4, because="US dollars per TFLOP/s"),
    # Smaller CPUs of an architecture are sold with memory that is up to a fifth slower.
    Relation("cpu.memory_mt_s", siblings=1.25, cpu=True),
    Relation("cpu.vector_bits", siblings=1.0, cpu=True),
    Relation("cpu.bf16_flop_per_cycle", siblings=1.0, cpu=True),
)
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
    generation = beside.known.generation(card.architecture) if card.vendor == "NVIDIA" else None
    for name, year in FIRST_YEAR.items() if card.cpu is None else ():
        value = card.value(f"peak_tflops.{name}")
        if value is not None and card.launch_year is not None and card.launch_year < year:
            yield Problem(f"peak_tflops.{name}", f"{value:g}", f"no device had {name} in {card.launch_year}; it began in {year}")
        elif value is not None and generation is not None and generation < FIRST_TENSOR_CORES[name]:
            fix = f"{card.architecture} has tensor cores of generation {generation}; {name} began with {FIRST_TENSOR_CORES[name]}"
            yield Problem(f"peak_tflops.{name}", f"{value:g}", fix)
    # Superchips also print the memory of their CPU.
    printed = [float(size) for name in (card.key, card.name, *card.aliases) for size in PRINTED_MEMORY.findall(name.replace("-", " "))]
    if card.memory_gib and printed and all(_factor(size, card.memory_gib) > KEPT_BY_DRIVER for size in printed):
        yield Problem("memory_gib", f"{card.memory_gib:g}", f"the names of the card say {printed[0]:g}; a name and its card agree")


def _factor(one: float, other: float) -> float:
    return max(one / other, other / one)


def _identity(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a key that begins with another vendor, an alias that names no single device, and another vendor's architecture."""
    if skeleton(card.key.split("-")[0]) != skeleton(card.vendor.split()[0]):
        yield Problem("vendor", repr(card.vendor), f"the key is {card.key}; a key begins with its vendor")
    others = [other for other in beside.accelerators.values() if other.key != card.key]
    written = {other.vendor for other in others if other.key.split("-")[0] == card.key.split("-")[0]}
    if written and card.vendor not in written:
        yield Problem("vendor", repr(card.vendor), f"other cards have {' and '.join(sorted(written))}; write it the same")
    general = {skeleton(name) for name in (card.architecture or "", *card.vendor.split(), "gpu", "cpu", "accelerator")}
    for alias in (alias for alias in card.aliases if skeleton(alias) in general):
        yield Problem("aliases", repr(alias), "is no name of one device; every device that reports this word would get this card")
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
        fix = f"{what} is {ratio:.3g}, but must be {wanted}: {relation.because}; use figures of one table, and check the unit"
        yield Problem(field, f"{card.value(field):g}", fix)
        return
    # A card that is wrong by itself makes no other card wrong.
    known = [other for sibling in siblings if (other := _ratio(relation, sibling)) is not None and relation.holds(other)]
    nearest = min(known, key=lambda other: _factor(ratio, other), default=ratio)
    explained = any(name and name.removeprefix("cpu.") in (card.notes or "") for name in (relation.of, relation.over))
    if _factor(ratio, nearest) > relation.siblings and not explained:
        fix = f"{what} is {ratio:.3g}, and the nearest card of its kind has {nearest:.3g}; correct it, or explain the field in notes"
        yield Problem(field, f"{card.value(field):g}", fix)
