"""Checks of accelerator cards: physics, and the cards beside them.

A check yields problems; the caller knows the file. Every limit leaves room for hardware that is not in data/ yet. Where a value is
compared with the other cards of its architecture, `notes` may explain it: name the field there.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from difflib import SequenceMatcher

from tunemark.collector.gate.fact_checks import FIRST_TENSOR_CORES, Neighbours, name_problems, skeleton, source_problems
from tunemark.schema.facts.cards import AcceleratorCard, CoreCluster, CpuFacts
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import BEFORE_AMPERE

CLOCKS = 1.25
"""Vector and matrix units have different clocks and numbers of active units: ratios are off their step by up to a quarter."""


@dataclass(frozen=True)
class Relation:
    """Two fields of a card whose ratio is bounded by physics, and near that of another card of the architecture."""

    of: str
    over: str
    steps: tuple[float, ...] = ()
    """Possible ratios, within `off`; none: anything from `low` to `high`."""
    low: float = 0.0
    high: float = float("inf")
    peers: float = CLOCKS
    """Largest factor from the nearest card of the architecture."""
    because: str = ""
    off: float = CLOCKS
    """Largest factor from the nearest step."""

    def holds(self, ratio: float) -> bool:
        """Return True if a ratio is possible."""
        near = not self.steps or any(1 / self.off <= ratio / step <= self.off for step in self.steps)
        return near and self.low <= ratio <= self.high


_WIDER = "units of half the width do twice the work of a cycle, and matrix units multiply that by a power of two"
_MATRIX = (1, 2, 4, 8, 16, 32)
OFF_MATRIX = 1.2
"""Matrix units are off their step by up to 15% (H100 NVL, whose fp32 peak is that of another clock)."""
ONE_UNIT = 1.1
"""Formats of one matrix unit share its clock: ratios are off their step by rounding, and by up to 7% on Trainium."""
ROUNDED = 1.04
"""The ratio of two formats of one matrix unit is the same on all cards of an architecture, but for printed digits."""
RELATIONS = (
    Relation("peak_tflops.tf32", "peak_tflops.fp32", steps=(1, 2, 4, 8, 16), because=_WIDER),
    Relation("peak_tflops.bf16", "peak_tflops.fp32", steps=_MATRIX, off=OFF_MATRIX, because=_WIDER),
    Relation("peak_tflops.fp16", "peak_tflops.fp32", steps=_MATRIX, off=OFF_MATRIX, because=_WIDER),
    Relation("peak_tflops.bf16", "peak_tflops.tf32", steps=(1, 2, 4), off=ONE_UNIT, peers=ROUNDED, because=_WIDER),
    Relation("peak_tflops.fp16", "peak_tflops.bf16", steps=(0.25, 0.5, 1, 2), off=ONE_UNIT, peers=ROUNDED, because="both have 16 bits"),
    Relation("peak_tflops.fp8", "peak_tflops.bf16", steps=(1, 2, 4), off=ONE_UNIT, peers=ROUNDED, because="half the width, dense"),
    # Newer parts keep a sixteenth of their integer units only.
    Relation("peak_tflops.int8", "peak_tflops.bf16", steps=(1 / 16, 1, 2, 4), off=ONE_UNIT, peers=ROUNDED, because="half the width, dense"),
    Relation("peak_tflops.int8", "peak_tflops.fp16", steps=(1 / 16, 1, 2, 4), off=ONE_UNIT, peers=ROUNDED, because="half the width, dense"),
    # From 0.07 (vector units of 2016) and 0.15 (Gaudi of 2019) to 2.3 (2025); each process generation brings less than 2x.
    Relation("peak_tflops.bf16", "tdp_w", low=0.06, high=4, peers=1.8, because="TFLOP/s per watt of dense 16-bit products"),
    Relation("peak_tflops.fp16", "tdp_w", low=0.06, high=4, peers=1.8, because="TFLOP/s per watt of dense 16-bit products"),
    # Reading all memory once takes 10 ms (HBM) to 0.7 s (large unified memory).
    Relation("memory_bandwidth_gb_s", "memory_gib", low=1, high=100, peers=2.2, because="GB/s per GiB: memory is read once in 0.01 to 1 s"),
    # FLOP per byte of memory traffic, from graphics chips (36) to accelerators of large matrices (560).
    Relation(
        "peak_tflops.bf16", "memory_bandwidth_gb_s", low=0.02, high=1.5, peers=2.5, because="TFLOP/s per GB/s: matrix units need data"
    ),
    Relation(
        "peak_tflops.fp16", "memory_bandwidth_gb_s", low=0.02, high=1.5, peers=2.5, because="TFLOP/s per GB/s: matrix units need data"
    ),
    # From 1.7 Gbit/s (HBM2) to 32 (GDDR7), an eighth of it in bytes.
    Relation(
        "memory_bandwidth_gb_s", "memory_bus_bits", low=0.12, high=5, peers=1.7, because="GB/s per bit of the bus: an eighth of Gbit/s"
    ),
    Relation("interconnect_gb_s", "memory_bandwidth_gb_s", low=0.01, high=0.75, peers=3, because="links are slower than memory"),
    Relation("msrp_usd", "peak_tflops.fp16", low=1, high=300, peers=4, because="US dollars per TFLOP/s"),
)
BOUNDS: dict[str, tuple[float, float, str]] = {
    "memory_gib": (4, 2048, "smaller memories hold no model, larger ones do not exist"),
    "memory_bandwidth_gb_s": (50, 40_000, "from one channel of DDR to eight stacks of HBM4; GB/s, not TB/s"),
    "peak_clock_mhz": (500, 4_500, "a clock in MHz"),
    "memory_bus_bits": (64, 32_768, "from one channel of DDR to sixteen stacks of HBM4"),
    "tdp_w": (15, 4000, "watts of one chip or board"),
    "interconnect_gb_s": (8, 8000, "from PCIe 3.0 x8 to the next NVLink, both directions together"),
    "msrp_usd": (100, 100_000, "US dollars of one device"),
}
CPU_BOUNDS: dict[str, tuple[float, float, str]] = {
    "tdp_w": (15, 800, "watts of one socket"),
    "cores": (1, 512, "cores of one kind in a socket"),
    "clock_ghz": (0.8, 5.5, "a base or all-core clock in GHz"),
    "boost_clock_ghz": (1, 7, "a clock in GHz"),
    "vector_bits": (64, 2048, "NEON has 128, AVX-512 has 512"),
    "fma_units": (1, 8, "units of one core"),
    "bf16_flop_per_cycle": (8, 8192, "AMX has 2,048"),
    "memory_channels": (1, 32, "64-bit channels of a socket"),
    "memory_mt_s": (800, 20_000, "from DDR3 to MRDIMM, in millions per second"),
}
STACK_BITS, STACK_GIB, KEPT_BACK = 1_024, (1, 4, 8, 16, 24, 32, 36, 48, 64), 0.08
CHANNEL_BITS, CHANNEL_GIB = 32, (0.5, 1, 1.5, 2, 3, 4, 6, 8)
"""Sizes of a stack of HBM, and of a chip of GDDR; a channel of GDDR has one or two chips."""
FIRST_YEAR = {"bf16": 2017, "tf32": 2020, "fp8": 2022}
"""Launch of the first devices with a format: the second TPU, A100, and H100, Gaudi 2 and Trainium. No earlier device has it."""
FIRST_CPU_YEAR = (("vector_bits", 512, 2017), ("bf16_flop_per_cycle", 1, 2020))
"""Launch of the first server CPUs with AVX-512 (Skylake), and with instructions for bf16 (Cooper Lake): the field, its value and the year."""
WIDEST = 1024
"""Bits that a core multiplies per cycle: two units of AVX-512, or four of 256 bits, are the widest."""
NEAREST_YEARS = 3
"""A vendor uses the name of an architecture for chips whose launches follow each other within three years."""
FEW_PEERS = 3
"""With fewer cards, a format that all others have may be missing by chance."""
CPU_FLOP_PER_WATT = (0.003, 0.1)
"""fp32 TFLOP/s per watt: 0.0074 (2018) to 0.035 (2023) so far, with a factor of about three on both sides."""
MODULE_W = 450
"""Devices above this power are modules with links of their own, but for graphics cards."""
MORE_CLOCK, LESS_POWER = 1.02, 0.9
SAME_CHIP, SAME_LINKS = 0.01, 0.15
"""Largest difference between the peaks of devices with one chip, and of modules whose chips have the same links."""
LIKE_A_NAME, WORD = 0.85, 5
"""Share of common letters (difflib) from which the name of an architecture is taken for a misspelling, in words of at least five letters."""
SLOWER_MEMORY = 0.8
"""Smaller CPUs of an architecture are sold with memory that is up to a fifth slower."""
PCIE_GB_S = {16, 32, 64, 128, 256}
"""Both directions of sixteen lanes of PCIe 2 to 6, nominally."""
STACK_GBIT_S = ((2019, 2.4), (2021, 3.6), (2023, 6.6), (9999, 12.8))
"""Fastest pins of stacked memory by launch year of the device, in Gbit/s: HBM2, HBM2E, HBM3, and HBM3E to HBM4."""
CHANNEL_GBIT_S = ((2017, 12.0), (2019, 16.0), (2024, 24.0), (9999, 40.0))
"""The same of channels of 32 bits: GDDR5X, GDDR6, GDDR6X, and GDDR7."""
GB_PER_GIB = 1.073741824
OWN_MEMORY = 0.01
PRINTED_MEMORY = re.compile(r"(?i)(?<![\d.])(\d+(?:\.\d+)?)\s?-?g(?:i)?b\b")
PRINTED_CORES = re.compile(r"(?i)\b(\d+)-core\b(?! gpu)")


def accelerator_problems(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield all problems of an accelerator card."""
    yield from name_problems(card, beside)
    yield from source_problems(card)
    for check in (
        _ranges,
        _relations,
        _formats,
        _first_formats,
        _clocks,
        _links,
        _launch,
        _printed,
        _unverified,
        _identity,
        _architecture,
        _cpu,
        _vectors,
        _channels,
    ):
        yield from check(card, beside)


def _value(card: AcceleratorCard, name: str) -> float | None:
    section, _, part = name.partition(".")
    found = getattr(card, section)
    return {kind.value: value for kind, value in found.items()}.get(part) if part else found


def _peers(card: AcceleratorCard, beside: Neighbours) -> list[AcceleratorCard]:
    """Return the other cards that are built alike: of the same line of graphics cards, else of the same architecture.

    A line keeps its ratios over generations: GeForce halves products with fp32 sums, which workstation and server cards do not.
    CPUs have none: their peaks follow from their cores.
    """
    line = _line_of(card)
    if card.unit == "cpu" or not line:
        return [] if card.unit == "cpu" else [other for other in _same_architecture(card, beside) if not _line_of(other)]
    return [
        other for other in beside.accelerators.values() if other.key != card.key and (other.vendor, _line_of(other)) == (card.vendor, line)
    ]


def _same_architecture(card: AcceleratorCard, beside: Neighbours) -> list[AcceleratorCard]:
    """Return the other devices, or CPUs, of the vendor and architecture."""
    same = (card.vendor, card.architecture, card.unit == "cpu")
    others = (other for other in beside.accelerators.values() if other.key != card.key and card.architecture)
    return [other for other in others if (other.vendor, other.architecture, other.unit == "cpu") == same]


def _line_of(card: AcceleratorCard) -> str:
    return next((line for line in ("GeForce", "RTX", "Radeon") if line in card.name.split()), "")


def _ranges(card: AcceleratorCard, _: Neighbours) -> Iterator[Problem]:
    """Yield a problem for each value outside of what devices for training have had and will have for years."""
    for name, (low, high, meaning) in (BOUNDS if card.unit != "cpu" else {"tdp_w": CPU_BOUNDS["tdp_w"]}).items():
        value = _value(card, name)
        if value is not None and not low <= value <= high:
            yield Problem(name, f"{value:g}", f"must be {low:g} to {high:g}: {meaning}; check the unit")
    if card.memory_gib and card.memory_bus_bits and card.unit != "cpu":
        stacked = card.memory_bus_bits >= STACK_BITS
        parts = card.memory_bus_bits / (STACK_BITS if stacked else CHANNEL_BITS)
        each, sizes = card.memory_gib / parts, STACK_GIB if stacked else CHANNEL_GIB
        # A part of a stack may be kept back for error correction and yield.
        if not any((1 - KEPT_BACK * stacked) * size <= each <= size for size in sizes):
            what = "stack of HBM" if stacked else "channel of 32 bits"
            fix = f"is {each:.4g} GiB for each {what} of a bus of {card.memory_bus_bits} bits; they have {', '.join(f'{size:g}' for size in sizes)}"
            yield Problem("memory_gib", f"{card.memory_gib:g}", fix)
        pin_gbit_s = 8 * (card.memory_bandwidth_gb_s or 0) / card.memory_bus_bits
        fastest = next(most for year, most in (STACK_GBIT_S if stacked else CHANNEL_GBIT_S) if (card.launch_year or date.max.year) <= year)
        if pin_gbit_s > fastest:
            fix = (
                f"is {pin_gbit_s:.3g} Gbit/s for each of {card.memory_bus_bits} bits; in {card.launch_year} memory had {fastest:g} at most"
            )
            yield Problem("memory_bandwidth_gb_s", f"{card.memory_bandwidth_gb_s:g}", fix)
    whole_gb = (card.memory_gib or 0) * GB_PER_GIB
    if card.memory_gib and not card.memory_gib.is_integer() and abs(whole_gb / 8 - round(whole_gb / 8)) * 8 < whole_gb * 1e-3:
        fix = f"looks like {whole_gb:.0f} GB converted; the capacity of a device is sold in units of 2^30: write {whole_gb:.0f}"
        yield Problem("memory_gib", f"{card.memory_gib:g}", fix)


def _relations(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for each field whose ratios to others are impossible, or unlike those of cards that are built alike.

    A wrong field breaks most of its relations, and a right one only those to wrong fields: the first is named. What breaks
    counts twice what holds, since two fields of one table are often wrong together.
    """
    peers = [] if card.cpu is not None else _peers(card, beside)
    said = {relation: _fault(card, relation, peers) for relation in RELATIONS if card.cpu is None and _ratio(card, relation) is not None}
    while any(said.values()):
        votes = Counter[str]()
        for relation, fix in said.items():
            votes.update(dict.fromkeys((relation.of, relation.over), 2 if fix else -1))
        worst = max((name for relation, fix in said.items() if fix for name in (relation.of, relation.over)), key=lambda name: votes[name])
        fix = next(fix for relation, fix in said.items() if fix and worst in {relation.of, relation.over})
        yield Problem(worst, f"{_value(card, worst):g}", fix)
        said = {relation: fix for relation, fix in said.items() if worst not in {relation.of, relation.over}}


def _fault(card: AcceleratorCard, relation: Relation, peers: Iterable[AcceleratorCard]) -> str:
    """Return the fault of a relation, or nothing."""
    ratio = _ratio(card, relation) or math.nan
    about = f"{relation.of} / {relation.over} is {ratio:.3g}"
    if not relation.holds(ratio):
        wanted = f"near {', '.join(f'{step:g}' for step in relation.steps)}" if relation.steps else f"{relation.low:g} to {relation.high:g}"
        return f"{about}, but must be {wanted}: {relation.because}; use dense figures of one table, and check the unit"
    # A card that is wrong by itself makes no other card wrong.
    others = [other for peer in peers if (other := _ratio(peer, relation)) is not None and relation.holds(other)]
    nearest = min(others, key=lambda other: max(ratio / other, other / ratio), default=ratio)
    explained = card.notes is not None and (relation.of in card.notes or relation.over in card.notes)
    # One architecture is sold with links of its own and with PCIe only.
    explained = explained or (relation.of == "interconnect_gb_s" and card.interconnect_gb_s in PCIE_GB_S and not _is_module(card))
    if max(ratio / nearest, nearest / ratio) <= relation.peers or explained:
        return ""
    return f"{about}, but the nearest card of its kind has {nearest:.3g}; correct it (dense, not sparse), or explain the field in notes"


def _ratio(card: AcceleratorCard, relation: Relation) -> float | None:
    above, below = _value(card, relation.of), _value(card, relation.over)
    return None if above is None or below is None else above / below


def _formats(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a 16- or 8-bit float format that all other cards of the architecture have, or that none of them has."""
    if card.vendor == "NVIDIA" and card.architecture in BEFORE_AMPERE and _value(card, "peak_tflops.bf16") is not None:
        yield Problem(
            "peak_tflops.bf16", f"{_value(card, 'peak_tflops.bf16'):g}", f"{card.architecture} has no bf16, which began with Ampere"
        )
    peers = [peer for peer in _same_architecture(card, beside) if len(peer.peak_tflops) > 1]
    if card.cpu is not None or len(peers) < FEW_PEERS or len(card.peak_tflops) <= 1 or "architecture" in (card.notes or ""):
        return
    for name in ("bf16", "fp8"):
        have = sum(_value(peer, f"peak_tflops.{name}") is not None for peer in peers)
        has = _value(card, f"peak_tflops.{name}") is not None
        if have == (0 if has else len(peers)):
            fix = f"{'no' if has else 'every'} other card of it has {name}; correct the architecture or the peaks, or explain it in notes"
            yield Problem("architecture", repr(card.architecture), fix)


def _first_formats(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a format that no device had in the year of the launch, or that its generation of tensor cores lacks."""
    generation = beside.known.generation(card.architecture) if card.vendor == "NVIDIA" else None
    for name, year in FIRST_YEAR.items() if card.cpu is None else ():
        value = _value(card, f"peak_tflops.{name}")
        if value is not None and card.launch_year is not None and card.launch_year < year:
            yield Problem(f"peak_tflops.{name}", f"{value:g}", f"no device had {name} in {card.launch_year}; it began in {year}")
        elif value is not None and generation is not None and generation < FIRST_TENSOR_CORES[name]:
            fix = f"{card.architecture} has tensor cores of generation {generation}; {name} began with {FIRST_TENSOR_CORES[name]}"
            yield Problem(f"peak_tflops.{name}", f"{value:g}", fix)


def _is_module(card: AcceleratorCard) -> bool:
    """Return True for a device of so much power that it is no PCIe card."""
    return (card.tdp_w or 0) > MODULE_W and not _line_of(card)


def _clocks(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a clock unlike that of devices with the same peak, and for power that falls while clock and peak rise.

    Devices of one architecture are compared, and for power those with the same memory.
    """
    peak, clock = _value(card, "peak_tflops.bf16"), card.peak_clock_mhz
    same_peak = [
        other.peak_clock_mhz
        for other in _same_architecture(card, beside)
        if other.peak_clock_mhz and peak and abs((_value(other, "peak_tflops.bf16") or 0) / peak - 1) < SAME_CHIP
    ]
    if clock and same_peak and all(max(clock / other, other / clock) > ONE_UNIT for other in same_peak):
        fix = f"other devices of {card.architecture} with this peak have {', '.join(f'{other:g}' for other in sorted(set(same_peak)))}"
        yield Problem("peak_clock_mhz", f"{clock:g}", f"{fix}; correct it")
    for other in _same_architecture(card, beside):
        if (card.memory_gib, card.memory_bus_bits) != (other.memory_gib, other.memory_bus_bits) or card.cpu is not None:
            continue
        if not (card.peak_clock_mhz and other.peak_clock_mhz and card.tdp_w and other.tdp_w) or "tdp_w" in (card.notes or ""):
            continue
        faster, slower = (card, other) if card.peak_clock_mhz > other.peak_clock_mhz else (other, card)
        more_clock = (faster.peak_clock_mhz or 0) / (slower.peak_clock_mhz or 1)
        more_work = (_value(faster, "peak_tflops.bf16") or 0) >= (_value(slower, "peak_tflops.bf16") or 0)
        if more_clock > MORE_CLOCK and more_work and (faster.tdp_w or 0) < LESS_POWER * (slower.tdp_w or 0):
            fix = f"{other.key} has {other.tdp_w:g} at {other.peak_clock_mhz:g} MHz, this card {card.peak_clock_mhz:g} MHz: a higher clock needs more power"
            yield Problem("tdp_w", f"{card.tdp_w:g}", f"{fix}; correct one of them")
            return


def _links(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a module with a whole fraction of the links that other modules with the same chip have: one direction, or one link.

    Modules for some markets have slower links, in other ratios.
    """
    peak, link = _value(card, "peak_tflops.bf16"), card.interconnect_gb_s
    if not peak or not link or not _is_module(card) or "interconnect_gb_s" in (card.notes or ""):
        return
    same_chip = [
        other.interconnect_gb_s
        for other in _same_architecture(card, beside)
        if _is_module(other) and other.interconnect_gb_s and abs((_value(other, "peak_tflops.bf16") or 0) / peak - 1) < SAME_LINKS
    ]
    ratios = [max(link / other, other / link) for other in same_chip]
    if ratios and all(round(ratio) > 1 and abs(ratio / round(ratio) - 1) < SAME_CHIP for ratio in ratios):
        fix = f"other modules with this chip have {', '.join(f'{other:g}' for other in sorted(set(same_chip)))}, all links and both directions"
        yield Problem("interconnect_gb_s", f"{link:g}", f"{fix}; correct it, or explain it in notes")


def _launch(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a launch after the day of reading, or far from the other launches of the architecture."""
    if card.launch_year is None:
        return
    if card.read_on is not None and card.launch_year > card.read_on.year:
        yield Problem("launch_year", str(card.launch_year), f"is after the facts were read, {card.read_on}; a card describes what is sold")
    years = [peer.launch_year for peer in _same_architecture(card, beside) if peer.launch_year is not None]
    if years and min(abs(card.launch_year - year) for year in years) > NEAREST_YEARS:
        fix = f"other {card.architecture} devices came in {', '.join(map(str, sorted(set(years))))}; correct the year or the architecture"
        yield Problem("launch_year", str(card.launch_year), fix)


def _printed(card: AcceleratorCard, _: Neighbours) -> Iterator[Problem]:
    """Yield a problem where a number of cores in a name, or every memory in the names, is not that of the card.

    A superchip also prints the memory of its CPU; a driver keeps up to 1% for itself.
    """
    names = (card.key.replace("-", " "), card.name, *card.aliases)
    memories = [float(printed) for name in names for printed in PRINTED_MEMORY.findall(name)]
    if card.memory_gib and memories and not any(abs(printed / card.memory_gib - 1) < OWN_MEMORY for printed in memories):
        yield Problem("memory_gib", f"{card.memory_gib:g}", f"the names of the card say {memories[0]:g}; a name and its card agree")
    for name in names:
        for printed in PRINTED_CORES.findall(name) if card.cpu is not None else ():
            if card.cpu is not None and int(printed) != card.cpu.cores:
                yield Problem("cores", str(card.cpu.cores), f"the name {name!r} says {printed}; a name and its card agree")


def _unverified(card: AcceleratorCard, _: Neighbours) -> Iterator[Problem]:
    """Yield a problem for an entry of `unverified` that is not a field with a value."""
    for name in card.unverified:
        section, _dot, part = name.partition(".")
        if section == "peak_tflops" and part:
            known = _value(card, name) is not None
        elif section == "cpu" and part:
            known = card.cpu is not None and part in {*CpuFacts.model_fields, *CoreCluster.model_fields, "cores"}
        else:
            known = name in AcceleratorCard.model_fields and getattr(card, name) is not None
        if not known:
            yield Problem("unverified", repr(name), "is not a field with a value on this card; name one, or leave it out")


def _identity(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a key that names another vendor or another device than the card, and for cores of a unit without cores."""
    vendor, *parts = card.key.split("-")
    if skeleton(vendor) != skeleton(card.vendor.split()[0]):
        yield Problem("vendor", repr(card.vendor), f"the key begins with {vendor!r}; a key begins with its vendor")
    vendors = {other.vendor for other in beside.accelerators.values() if other.key != card.key}
    looks = {skeleton(other): other for other in vendors if card.vendor not in vendors}
    if skeleton(card.vendor) in looks:
        yield Problem("vendor", repr(card.vendor), f"is written {looks[skeleton(card.vendor)]!r} on other cards; write it the same")
    words = skeleton(" ".join((card.name, *card.aliases)))
    missing = [part for part in parts if any(map(str.isdigit, part)) and skeleton(part) not in words]
    if missing:
        yield Problem("name", repr(card.name), f"neither it nor an alias has {missing[0]!r} of the key; the key abbreviates the name")
    prefixes = {other.vendor for other in beside.accelerators.values() if other.key.split("-")[0] == vendor and other.key != card.key}
    if prefixes and card.vendor not in prefixes:
        yield Problem("vendor", repr(card.vendor), f"other cards of {vendor} have {' and '.join(sorted(prefixes))}; write it the same")
    if (card.unit == "cpu") != (card.cpu is not None):
        fix = "a card of a CPU has clusters of cores and one of another unit has none; correct the unit"
        yield Problem("unit", repr(card.unit), fix)
    general = {skeleton(name) for name in (card.vendor, card.architecture or "", *card.vendor.split(), "gpu", "cpu", "accelerator")}
    for alias in card.aliases:
        if skeleton(alias) in general:
            yield Problem("aliases", repr(alias), "is no name of one device; every device that reports this word would get this card")
    if (card.cores_per_unit is not None) != (card.unit == "chip"):
        fix = f"cores_per_unit is {card.cores_per_unit}; a chip has separately addressable cores, another unit has none"
        yield Problem("unit", repr(card.unit), fix)


def _architecture(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for an architecture of another vendor, and for one that nearly has the name of another one of the vendor."""
    if card.architecture is None or _same_architecture(card, beside):
        return
    others = [other for other in beside.accelerators.values() if other.key != card.key and other.architecture]
    owners = {other.vendor for other in others if other.architecture == card.architecture and card.cpu is None}
    if owners:
        yield Problem("architecture", repr(card.architecture), f"is one of {' and '.join(sorted(owners))}; correct it")
    for name in sorted({other.architecture or "" for other in others if other.vendor == card.vendor}):
        ours, theirs = (re.findall(r"\w+", words) for words in (card.architecture, name))
        differing = [(one, two) for one, two in zip(ours, theirs, strict=False) if one != two]
        misspelt = all(min(len(one), len(two)) >= WORD and SequenceMatcher(None, one, two).ratio() >= LIKE_A_NAME for one, two in differing)
        if len(ours) == len(theirs) and differing and misspelt:
            yield Problem("architecture", repr(card.architecture), f"is nearly {name!r}; write it as on the other cards")


def _cpu(card: AcceleratorCard, _: Neighbours) -> Iterator[Problem]:
    """Yield problems of a CPU: clocks, widths and channels that no CPU has, and a peak that its power cannot pay for."""
    if card.cpu is None:
        return
    for part in (card.cpu, *card.cpu.clusters):
        for name, (low, high, meaning) in CPU_BOUNDS.items():
            value = getattr(part, name, None)
            if value is not None and not low <= value <= high:
                yield Problem(name, f"{value:g}", f"must be {low:g} to {high:g}: {meaning}; check the unit")
    for cluster in card.cpu.clusters:
        if cluster.clock_ghz and cluster.boost_clock_ghz and cluster.boost_clock_ghz < cluster.clock_ghz:
            yield Problem("boost_clock_ghz", f"{cluster.boost_clock_ghz:g}", f"is below clock_ghz, {cluster.clock_ghz:g}; swap them")
        if cluster.vector_bits and cluster.vector_bits & (cluster.vector_bits - 1):
            yield Problem("vector_bits", str(cluster.vector_bits), "is not a power of two, which vector registers are")
        flop = {kind.value: value for kind, value in cluster.flop_per_cycle().items()}
        if {"bf16", "fp32"} <= set(flop) and flop["bf16"] / flop["fp32"] not in {1, 2, 4, 8, 16}:
            fix = f"is {flop['bf16'] / flop['fp32']:g} times fp32; dot products and matrix tiles do 1 to 16 times, in powers of two"
            yield Problem("bf16_flop_per_cycle", str(flop["bf16"]), fix)
    fp32 = _value(card, "peak_tflops.fp32")
    if fp32 and card.tdp_w and not CPU_FLOP_PER_WATT[0] <= fp32 / card.tdp_w <= CPU_FLOP_PER_WATT[1]:
        low, high = CPU_FLOP_PER_WATT
        fix = f"its fp32 peak, {fp32:g} TFLOP/s, is {fp32 / card.tdp_w:.2g} per watt; CPUs have {low:g} to {high:g}; check cores, clock and power"
        yield Problem("tdp_w", f"{card.tdp_w:g}", fix)


def _vectors(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for vector units of a CPU that no other one of its microarchitecture has.

    Cores of one kind are compared: the first cluster holds the large cores. `notes` that name the field explain it.
    """
    if card.cpu is None:
        return
    cpus = [other for other in beside.accelerators.values() if other.cpu is not None and other.key != card.key]
    alike = [other for other in cpus if _microarchitecture(other) == _microarchitecture(card)]
    for number, cluster in enumerate(card.cpu.clusters):
        if (cluster.vector_bits or 0) * (cluster.fma_units or 1) > WIDEST:
            fix = (
                f"{cluster.fma_units} units of {cluster.vector_bits} bits are more than the {WIDEST} bits that a core multiplies per cycle"
            )
            yield Problem("vector_bits", str(cluster.vector_bits), fix)
        for name, least, year in FIRST_CPU_YEAR:
            value = getattr(cluster, name)
            if value is not None and value >= least and card.launch_year is not None and card.launch_year < year:
                yield Problem(name, str(value), f"no CPU had it in {card.launch_year}; it began in {year}")
        for name in ("vector_bits", "fma_units", "bf16_flop_per_cycle"):
            value, peers = getattr(cluster, name), _of_cluster(alike, number, name)
            if value is not None and peers and value not in peers and name not in (card.notes or ""):
                fix = f"other CPUs of {_microarchitecture(card)[1]} have {', '.join(map(str, sorted(peers)))}; correct it, or explain {name} in notes"
                yield Problem(name, str(value), fix)
        same_cores = [other for other in alike if other.cpu is not None and number < len(other.cpu.clusters)]
        if cluster.bf16_flop_per_cycle is not None and same_cores and not _of_cluster(same_cores, number, "bf16_flop_per_cycle"):
            fix = f"no other CPU of {_microarchitecture(card)[1]} has instructions for bf16; leave it out, or correct the architecture"
            yield Problem("bf16_flop_per_cycle", str(cluster.bf16_flop_per_cycle), fix)


def _channels(card: AcceleratorCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for memory channels, or a speed of memory, that no other CPU of an architecture has whose CPUs agree."""
    if card.cpu is None:
        return
    alike = [other.cpu for other in _same_architecture(card, beside) if other.cpu is not None]
    for name, least in (("memory_channels", 1.0), ("memory_mt_s", SLOWER_MEMORY)):
        value = getattr(card.cpu, name)
        known = [getattr(other, name) for other in alike if getattr(other, name) is not None]
        if value is None or len(known) < FEW_PEERS - 1 or len(set(known)) > 1 or name in (card.notes or ""):
            continue
        if not least <= value / known[0] <= 1 / least:
            fix = f"the other CPUs of {card.architecture} have {known[0]:g}; correct it, or explain {name} in notes"
            yield Problem(name, f"{value:g}", fix)


def _microarchitecture(card: AcceleratorCard) -> tuple[str, str]:
    """Return the vendor and the cores of a CPU: `Zen 4 (Genoa)` and `Zen 4` have the same. Several vendors build CPUs with Arm's cores."""
    cores = (card.architecture or card.key).partition(" (")[0]
    return "" if cores.startswith("Neoverse") else card.vendor, cores


def _of_cluster(cpus: Iterable[AcceleratorCard], number: int, name: str) -> set[int]:
    """Return the values of a field of the cores of one kind in several CPUs."""
    clusters = (card.cpu.clusters for card in cpus if card.cpu is not None)
    return {value for each in clusters if number < len(each) and (value := getattr(each[number], name)) is not None}
