"""One row of a SkyPilot catalogue: an offer that is believed, or the reason why not. Each known trap is a rule here."""

import ast
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import AWS, agrees, suggest_accelerator

NAMES_FILE = Path(__file__).with_name("skypilot.toml")
TPU = re.compile(r"tpu-(?P<generation>v\d+\w*?)-(?P<number>\d{1,6})")
CORES_PER_CHIP = 2
TPU_FILLER_USD = 700.0
VAST_FLOOR = (32.0, 64.0)
HOST_ONLY = re.compile(r"(a2|a3|a4x?|g2|g4)-(high|mega|ultra|edge|max|standard)", re.IGNORECASE)
"""GCP's machines for accelerators; no other provider has names of this form."""
LOCAL_ZONE = re.compile(r"^[a-z]{2}-[a-z]+-\d-[a-z]{3}-\d")
COUNTS = (1 / 16, 128)
"""Accelerators in one instance: the smallest share and the largest machine on sale are well within."""
USD_EACH = (0.001, 1_000)
"""US dollars an hour for one accelerator."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A row that is no price of the price book."""

    line: int
    what: str
    """Instance or accelerator of the row."""
    reason: str
    refused: bool
    """True for what a person has to look at; false for a known trap and for rows without an accelerator."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A row of the catalogue that is believed; prices in US dollars an hour, None where there is none."""

    line: int
    instance: str
    accelerator: str
    count: float
    vcpus: int | None
    memory_gib: float | None
    region: str | None
    on_demand: float | None
    spot: float | None
    notes: tuple[str, ...]


class Drop(Exception):
    """Raised within a row; says why it is dropped."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        self.reason, self.refused = reason, refused
        super().__init__(reason)


def offer_of(row: Mapping[str, str], line: int, provider: str, facts: FactBase) -> Offer:
    """Return a row as an offer; raises Drop where it is none."""
    name, instance = row["AcceleratorName"], row["InstanceType"]
    if not name:
        if HOST_ONLY.match(instance):
            raise Drop("host only: GCP lists the machine without its accelerators, whose price is in rows of their own")
        raise Drop("no accelerator")
    _refuse_foreign_instance(provider, instance, facts)
    notes: list[str] = []
    on_demand, spot = _usd(row["Price"], "Price"), _usd(row["SpotPrice"], "SpotPrice")
    tpu = TPU.fullmatch(name)
    if tpu:
        accelerator, count = _tpu(tpu, notes)
        if TPU_FILLER_USD in {on_demand, spot}:
            raise Drop("700.0 is a filler for TPUs without a price")
        instance = name
    else:
        count = _count(row["AcceleratorCount"])
        if HOST_ONLY.match(instance) or (provider == "gcp" and not instance):
            raise Drop("accelerator only: GCP's price of it does not include the machine that it needs")
        accelerator = card_of(name, instance, provider, row.get("GpuInfo", ""), count, facts)
    if LOCAL_ZONE.match(row.get("AvailabilityZone", "")):
        raise Drop("a local zone, priced apart from its region")
    if spot is not None and provider == "runpod" and spot == on_demand:
        notes.append("file repeats the on-demand price as SpotPrice: left blank")
        spot = None
    if on_demand is None and spot is None:
        raise Drop("no price")
    for column, usd in (("Price", on_demand), ("SpotPrice", spot)):
        _refuse_impossible(column, usd, count)
    vcpus, memory = _host(row, provider, accelerator, count, facts, notes)
    return Offer(line, instance, accelerator, count, vcpus, memory, row["Region"].lstrip(", ") or None, on_demand, spot, tuple(notes))


def _refuse_foreign_instance(provider: str, instance: str, facts: FactBase) -> None:
    """Refuse what AWS does not sell, and what it sells in a file of somebody else: a wrong provider would switch its traps off."""
    unknown = facts.refused_aws_size(instance) or facts.unknown_aws_family(instance)
    if unknown:
        raise Drop(unknown, refused=True)
    if provider != "aws" and AWS.fullmatch(instance.lower()):
        raise Drop(f"{instance!r} is an instance of aws, and the file is said to be of {provider}; give --provider aws", refused=True)


def _refuse_impossible(column: str, usd: float | None, count: float) -> None:
    least, most = USD_EACH
    if usd is not None and not least <= usd / count <= most:
        raise Drop(
            f"{column} is {usd:g}, so {usd / count:g} USD an hour for one accelerator; nobody asks less than {least} or more than {most:,}",
            refused=True,
        )


def _count(text: str) -> float:
    count, (least, most) = _number(text, "AcceleratorCount"), COUNTS
    if not least <= count <= most:
        raise Drop(f"AcceleratorCount is {text[:40]!r}; no instance has fewer than 1/16 or more than {most} accelerators", refused=True)
    return count


def _usd(text: str, column: str) -> float | None:
    """Return a price; blank and 0 are no price (Vast writes 0.00 for a spot price that is not known)."""
    if not text:
        return None
    value = _number(text, column, least=0.0)
    return value or None


def _number(text: str, column: str, least: float = 1e-9) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise Drop(f"{column} is {text[:40]!r}, not a number", refused=True) from error
    if not math.isfinite(value) or value < least:
        raise Drop(f"{column} is {text[:40]!r}, not an amount", refused=True)
    return value


def _tpu(name: re.Match[str], notes: list[str]) -> tuple[str, float]:
    known = _names()["tpus"].get(name["generation"])
    if known is None:
        raise Drop(
            f"TPU {name['generation']!r} is not in the catalogue; {did_you_mean(name['generation'], _names()['tpus'])}", refused=True
        )
    number = int(name["number"])
    of_cores = known["names_count"] == "cores"
    if number < 1 or (of_cores and number % CORES_PER_CHIP):
        raise Drop(
            f"{name[0]!r} names {number} {known['names_count']}; a chip has {CORES_PER_CHIP} cores, so there is no such slice", refused=True
        )
    if of_cores:
        notes.append(f"count = chips; the name counts TensorCores, {CORES_PER_CHIP} a chip")
        return str(known["card"]), number / CORES_PER_CHIP
    return str(known["card"]), float(number)


def card_of(name: str, instance: str, provider: str, gpu_info: str, count: float, facts: FactBase) -> str:
    """Return the card of a row's accelerator; raises Drop where the row leaves open which of several it is."""
    direct = facts.recognise_accelerator(name)
    candidates = list(_names()["names"].get(name) or ([direct.key] if direct else []))
    if not candidates:
        known = suggest_accelerator(name, facts.accelerators)
        raise Drop(f"accelerator {name!r} is not in data/accelerators; {known}", refused=True)
    sizes = _memory_readings(gpu_info, count)
    formed = _of_known_instance(candidates, provider, instance, facts) or _of_form(candidates, provider, instance)
    fitting = [key for key in formed if not sizes or any(agrees(size, facts.accelerators[key]) for size in sizes)]
    if not fitting:
        raise Drop(f"{name} with {sizes[0]:.0f} GiB a device is none of {', '.join(formed)}; add a card for it", refused=True)
    if len(fitting) > 1:
        fix = "neither the instance's name nor GpuInfo says which; add the instance to data/prices/prices.csv with its card"
        raise Drop(f"{name} may be {' or '.join(fitting)}: {fix}", refused=True)
    return str(fitting[0])


def _of_known_instance(candidates: list[str], provider: str, instance: str, facts: FactBase) -> list[str]:
    """Return the card that the price book gives an instance, where it is one of the candidates."""
    known = {row.accelerator for row in facts.prices if row.provider == provider and row.instance == instance}
    return [key for key in candidates if key in known]


def _of_form(candidates: list[str], provider: str, instance: str) -> list[str]:
    word = next(
        (
            form["word"]
            for form in _names()["forms"]
            if form.get("provider", provider) == provider and re.search(form["pattern"], instance.lower())
        ),
        None,
    )
    # A form that none of the cards has says nothing about them.
    return [key for key in candidates if word and word in key] or candidates


def providers(facts: FactBase) -> frozenset[str]:
    """Return whose catalogues are known: those with a price in the book, and those that SkyPilot has."""
    return frozenset(_names()["providers"]) | {row.provider for row in facts.prices}


def _memory_readings(gpu_info: str, count: float) -> list[float]:
    """Return what GpuInfo may mean as GiB of one device: some providers give MiB of one, some of all, RunPod GiB as MiB."""
    try:
        size = float(ast.literal_eval(gpu_info)["Gpus"][0]["MemoryInfo"]["SizeInMiB"])
    except (ValueError, SyntaxError, KeyError, IndexError, TypeError, RecursionError, MemoryError):
        return []
    if not math.isfinite(size) or size <= 0:
        return []
    one_gib = 1_024
    return [size] if size < one_gib else [size / one_gib / count, size / one_gib]


def _host(
    row: Mapping[str, str], provider: str, accelerator: str, count: float, facts: FactBase, notes: list[str]
) -> tuple[int | None, float | None]:
    vcpus = _number(row["vCPUs"], "vCPUs") if row.get("vCPUs") else None
    memory = _number(row["MemoryGiB"], "MemoryGiB", least=0.0) if row.get("MemoryGiB") else None
    card = facts.accelerators[accelerator]
    if provider == "vast" and (vcpus, memory) == VAST_FLOOR:
        notes.append(
            "marketplace ask, varies by host and hour; 32 vCPU and 64 GiB are the catalogue's floor for an offer, not the machine: left blank"
        )
        return None, None
    if provider == "runpod" and memory and card.memory_gib and math.isclose(memory, card.memory_gib * count, rel_tol=0.02):
        notes.append("file gives GPU memory in the MemoryGiB column: host memory left blank")
        memory = None
    return (int(vcpus) if vcpus else None), memory or None


@cache
def _names() -> dict[str, Any]:
    return tomllib.loads(NAMES_FILE.read_text(encoding="utf-8"))
