"""Estimates before anything runs: the accelerators that a step fits on, its predicted speed, and the time and cost of a whole job.

A prediction always has an interval, a label and the results that it is based on, or a reason why there is none.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunemark.schema import VERSION
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import OVERSIZED, AcceleratorCard, ModelCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import product_of
from tunemark.schema.files import data_folder, is_checkout, write_atomically
from tunemark.schema.formats import HOUR_S
from tunemark.schema.option_rates import EVIDENCE_TABLES, Evidence, KnownRate, Place, no_training, option_rates, usual_level
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.memory import MemoryLedger, estimate_memory
from tunemark.schema.physics.stacks import STACKS, USUAL_STACK, on_stack
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.plan_search import Asked, best_plan, division_of, step_on
from tunemark.schema.recommendation import LEVELS, NODES, Rate, fitting_methods
from tunemark.schema.throughput import ISSUING, Range, architecture_of, generation_of
from tunemark.schema.vocabulary import FITS, Method, SoftwareLevel
from tunemark.terminal import say

# Evidence ------------------------------------------------------------------------------------------

EVIDENCE_FILE = "evidence.json"
"""The tables of `EVIDENCE_TABLES`: beside the facts of an installed package (hatch_build.py), and in `build/` of a checkout."""
INPUTS = "inputs_sha256"


def inputs_sha256(root: Path) -> str:
    """Return a hash of the version, and of the names and contents of all files that results and facts come from."""
    digest = hashlib.sha256(VERSION.encode())
    for folder in (data_folder(root), root / "submissions"):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(f"{path.relative_to(folder)}\0".encode(errors="surrogateescape"))
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def keep_evidence(path: Path, inputs: str, tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    """Write the tables of the fitted model, with the hash of what they were computed from."""
    write_atomically(path, json.dumps({INPUTS: inputs} | in_order(tables), separators=(",", ":")).encode())


def in_order(tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the tables of a recommendation, sorted as they are stored."""
    return {name: sorted(tables[name], key=lambda row: tuple(row.values())[:2]) for name in EVIDENCE_TABLES}


def read_evidence(root: Path, facts: FactBase, tell: Callable[[str], None] = lambda _: None) -> Evidence:
    """Return the fitted model: that of an installed package, else the one that `collect` kept. If data has changed since, it is fitted and kept.

    The answer to a question does not depend on the folder: outside of a checkout, the results are those beside the facts.
    """
    root = root if is_checkout(root) else facts.root.parent
    shipped, kept = facts.root / EVIDENCE_FILE, root / "build" / EVIDENCE_FILE
    if shipped.is_file():
        return Evidence.of_tables(json.loads(shipped.read_bytes()))
    inputs, tables = inputs_sha256(root), json.loads(kept.read_bytes()) if kept.is_file() else {}
    if tables.get(INPUTS) != inputs:
        from tunemark.collector.predict.cross_validation import evidence_rows  # noqa: PLC0415 - imports the audit

        tell("Fitting the throughput model to all results, which takes some seconds; build/ keeps it until data changes ...")
        tables = in_order(evidence_rows(root, facts))
        with suppress(OSError):
            kept.parent.mkdir(exist_ok=True)
            keep_evidence(kept, inputs, tables)
    return Evidence.of_tables(tables)


# Throughput ----------------------------------------------------------------------------------------

NO_PRICE = "the price book has no on-demand price; give --usd-per-hour"


def tell_levels(cards: Iterable[AcceleratorCard], results: Sequence[KnownRate], model: ModelCard | None) -> None:
    """Say the level of the usual software on those of some devices of which it is not plain."""
    encoder = model is not None and FAMILIES[model.family].encoder
    for name, level in dict.fromkeys((card.name, usual_level(card, results, encoder=encoder)) for card in cards):
        if level != "plain":
            say(f"tunemark: {name}: no result is of plain software, so its figures are of {level} software")


def unseen(results: Sequence[KnownRate], card: AcceleratorCard, model: ModelCard, level: SoftwareLevel) -> tuple[str, ...]:
    """Return the properties that no result has."""
    seen = {
        "generation": any(row.generation == generation_of(card) for row in results),
        "accelerator": any(row.accelerator == product_of(card) for row in results),
        "accelerator with this software": any((row.accelerator, row.level) == (product_of(card), level) for row in results),
    }
    # The widest of the hardware implies the others.
    missing = next((name for name, known in seen.items() if not known), None)
    known_model = any(row.architecture == architecture_of(model) for row in results)
    return (*([missing] if missing else []), *([] if known_model else ["model"]))


# Memory by software stack ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StackedMemory:
    """The memory of a step on a stack, and what it would be on others."""

    stack: str
    shape: TrainingShape
    """The step on this stack."""
    ledgers: dict[str, MemoryLedger]
    """Its memory on every stack that could be meant: only this one if it was chosen."""

    @property
    def ledger(self) -> MemoryLedger:
        """Its memory on this stack."""
        return self.ledgers[self.stack]

    @property
    def needed_interval(self) -> tuple[int, int]:
        """The 90% interval of the needed bytes of a device; without a chosen stack, from that of the leanest to room for the heaviest."""
        ledgers, chosen = self.ledgers.values(), len(self.ledgers) == 1
        most = max(each.needed_high if chosen else each.fit_limits["fits"] for each in ledgers)
        return min(each.needed_low for each in ledgers), most

    def measured_as(self, device_bytes: int) -> dict[str, tuple[int, int, int]]:
        """Return the bytes on a device that each way to measure shows, with the ends of the 90% interval: the peaks of torch, and what the driver says.

        What is reserved is more than needed, up to the memory of a device on which it fits (less of a cache that has no room there), and most with rows of
        varied lengths. Without a chosen stack the intervals are those of all.
        """
        ledger, each_stack, outside = self.ledger, self.ledgers.values(), self.ledger.outside
        fewest = min(each.needed_low - each.outside for each in each_stack)
        reserved, cached = ledger.reserved_on(device_bytes), min(each.reserved_interval[0] for each in each_stack)
        least = max(fewest, cached) if cached <= reserved else fewest
        high = max(each.needed_high - each.outside for each in each_stack)
        most = max(reserved, high, min(max(each.reserved_interval[1] for each in each_stack), device_bytes - outside))
        return {
            "torch.cuda.max_memory_allocated": (ledger.peak_allocated, fewest, max(ledger.peak_allocated, high)),
            "torch.cuda.max_memory_reserved": (reserved, least, most),
            "nvidia-smi or rocm-smi": (reserved + outside, least + outside, most + outside),
        }


def memory_on(
    shape: TrainingShape, stack: str | None, fixed: tuple[str, ...] = (), level: SoftwareLevel = "plain", vendor: str = "NVIDIA"
) -> StackedMemory:
    """Return the memory of a step on a stack, or if none is chosen on the usual one of a level, with that on all others for a vendor's devices."""
    name = stack or USUAL_STACK[level]
    others = [each for each, known in STACKS.items() if each == name or known.runs(shape, vendor)]
    ledgers = {each: estimate_memory(on_stack(shape, each, fixed)) for each in ([stack] if stack else others)}
    return StackedMemory(name, on_stack(shape, name, fixed), ledgers)


# A whole job ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimate:
    """A step on one accelerator: the plan, its memory and its speed, and the job's time and cost."""

    accelerator: str
    name: str
    memory: StackedMemory
    """The memory of the plan on each device."""
    memory_bytes: int
    """Memory of a device; 0 if it is not known."""
    fit: str
    """`fits`, `probably`, `unsure` or `no`, by the interval of the estimate; `ran` if a result shows it."""
    with_stacks: tuple[str, ...]
    """Unless the step fits, the other software stacks with which it does, the leanest first."""
    fitting: tuple[str, ...]
    """Unless the step fits, the other methods that do."""
    rate: Rate
    """Its speed, as `recommend` has it, with the plan and the evidence, or the reason why none is known."""
    tokens_per_s: Range | None = None
    """Predicted rate of all devices."""
    faster: tuple[Rate, ...] = ()
    """Its speed with tuned software and with the vendor's, where it is known, for comparison."""
    unseen: tuple[str, ...] = ()
    """Properties that no result has; each makes the interval wider."""
    seconds: Range | None = None
    """Time of the whole job; None without its size."""
    usd: Range | None = None
    """Cost of the whole job; None without a price or its size."""
    price: PriceRow | None = None
    """Row of the price book used for the cost; None if a price was given."""
    instances: int = 1
    """Instances of that row."""
    no_price: str | None = None
    """Why there is a time and no cost."""

    @property
    def plan(self) -> str:
        """The plan in words."""
        shape = self.memory.shape
        division = "" if shape.world_size == shape.tensor_parallel == 1 else f", {division_of(shape)}"
        stored = f", frozen weights in {shape.block_format.value}" if shape.block_format and shape.method is Method.LORA else ""
        return f"micro-batch {shape.micro_batch}, checkpointing {shape.checkpointing.value}{division}{stored}"


def estimates(
    facts: FactBase,
    evidence: Evidence,
    places: Iterable[Place],
    *,
    model: ModelCard,
    method: Method,
    length: int,
    level: SoftwareLevel = "plain",
    asked: Asked,
    tokens: int | None = None,
    usd_per_hour: float | None = None,
) -> Iterator[Estimate]:
    """Yield the estimate for each accelerator and number of devices, smallest memory first: that of the fastest plan that fits, else of the leanest.

    The plan keeps what is asked; a card without a memory size, such as a CPU's, is refused. `usd_per_hour` is the price of all devices, by default the price book's.
    """
    if usd_per_hour is not None and not 0 < usd_per_hour < math.inf:
        raise TunemarkError("--usd-per-hour", usd_per_hour, "must be above 0, and not infinite")
    places = sorted(places, key=lambda place: (place[0].usable_bytes, place[0].key, place[1]))
    if places and not places[0][0].usable_bytes:
        raise TunemarkError("--accelerator", places[0][0].key, f"no memory of it is known; {no_training(*places[0])}")
    rates: dict[str, dict[tuple[str, str, int], Rate]] = {each: {} for each in LEVELS}
    for found in option_rates(model, length, places, evidence, LEVELS, asked):
        rates[found.software][found.method, found.accelerator, found.devices] = found
    for card, devices in places:
        own = rates[level][method.value, card.key, devices].usual_software or level
        plan, verdict = best_plan(evidence.effects, card, step_on(card, model, method, length, devices, asked), own, asked)
        memory = memory_on(plan.shape, asked.stack, plan.fixed, own, card.vendor)
        size, rate = card.usable_bytes, rates[own][method.value, card.key, devices]
        tuned, vendors = (rates[other][method.value, card.key, devices] for other in ("tuned", "vendor"))
        speed = range_of(rate)
        # Their usual software is compiled whole, and is compared with tuned software on other devices.
        faster = (tuned if tuned.tokens_per_s or card.vendor in ISSUING else rate, vendors)
        seconds = None if tokens is None or speed is None else Range(*(tokens / each for each in (speed.value, speed.high, speed.low)))
        price, nodes, no_price = offer_for(facts, card, devices) if usd_per_hour is None and speed else (None, 1, None)
        hourly = usd_per_hour if price is None else price.usd_per_hour * nodes
        per_s = None if hourly is None else hourly / HOUR_S
        usd = None if seconds is None or per_s is None else Range(seconds.value * per_s, seconds.low * per_s, seconds.high * per_s)
        yield Estimate(
            card.key,
            card.name if card.devices_per_unit == 1 else f"{card.name} ({card.devices_per_unit} devices, memory of each)",
            memory,
            size,
            rate.memory or verdict,
            () if asked.stack or verdict in FITS else plan.other_stacks(card),
            () if verdict in FITS else fitting_methods(rates[own], rate),
            rate,
            speed,
            tuple(each for each in faster if each.tokens_per_s),
            unseen(evidence.results, card, model, own),
            seconds,
            usd,
            price,
            nodes,
            no_price if seconds is not None and usd is None else None,
        )


LEAST_BYTES = {Method.FULL: 2.0, Method.LORA: 1.0, Method.QLORA: 0.5}
"""Bytes of a parameter that every plan of a method holds on some device: weights in 16 bits, or frozen ones in 8 or 4."""
SIZES = 4
"""Largest sizes of models that are named for a method."""
SAME_SIZE = 1.03
"""Variants of a model differ in size by less. Of models of one size, that with the longest context is named."""
MODERN_CONTEXT = 32_768
"""Tokens of context that models of today have at least: of the decoders with a card that have less, all but OLMo 2 are of 2024 or before."""


def largest_models(
    facts: FactBase, place: Place, method: Method, length: int, estimate: Callable[..., Iterator[Estimate]]
) -> list[Estimate]:
    """Return the estimates of the largest models of the hub that fit on some devices, and after them of a larger one that fits with other software."""
    fitting, beside, named = list[Estimate](), list[Estimate](), set[int]()
    least, most = max(length, MODERN_CONTEXT), (place[0].usable_bytes or math.inf) * place[1] / LEAST_BYTES[method]
    sizes = {card: int(math.log(card.parameters or 1, SAME_SIZE)) for card in facts.models.values() if card.hub_id}
    decoders = [card for card in sizes if not FAMILIES[card.family].encoder and card.context_length >= least]
    for model in sorted(decoders, key=lambda card: (-sizes[card], -card.context_length)):
        if (model.parameters or 0) > most or sizes[model] in named or len(fitting) == SIZES:
            continue
        found = next(estimate(places=[place], model=model, method=method, length=length))
        if model.experts and not found.tokens_per_s:
            continue  # Where no speed of a mixture is known, its software may not run there.
        if found.fit in FITS:
            fitting.append(found)
            named.add(sizes[model])
        elif found.with_stacks and not (fitting or model.experts):
            beside = beside or [found]
    return fitting + beside


def offer_for(facts: FactBase, card: AcceleratorCard, devices: int) -> tuple[PriceRow | None, int, str | None]:
    """Return the cheapest on-demand offer for some devices with its number of instances, or the reason why there is none.

    Instances with more than `OVERSIZED` times the devices are none: their cost would be that of devices that do nothing.
    """
    found = [(facts.price_basis.offer(facts.prices, card.key, devices / n, nodes=n), n) for n in NODES if not devices % n]
    offers = [(row, nodes) for row, nodes in found if row is not None]
    fitting = [(row, nodes) for row, nodes in offers if row.accelerator_count <= OVERSIZED * devices / nodes]
    if fitting:
        return *fitting[0], None
    least = min((row.accelerator_count for row, _ in offers), default=0)
    return None, 1, f"rented by {least:g}: ask for -a '{least:g} x {card.name}'" if least else NO_PRICE


def shown_plan(found: Sequence[Estimate]) -> Estimate:
    """Return the estimate whose memory is shown line by line: of those that fit, have a rate and whole devices, the one with the most results."""

    def known(each: Estimate) -> tuple[bool, bool, bool, int]:
        shape, devices = each.memory.shape, each.rate.devices
        return each.fit in FITS, each.tokens_per_s is not None, shape.world_size * shape.tensor_parallel == devices, each.rate.results

    return max(found, key=known)


def range_of(rate: Rate) -> Range | None:
    """Return the tokens/s of a rate with its interval; None without one."""
    if rate.tokens_per_s is None or rate.tokens_per_s_low is None or rate.tokens_per_s_high is None:
        return None
    return Range(rate.tokens_per_s, rate.tokens_per_s_low, rate.tokens_per_s_high)
