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

from tunemark.collector.importers.suggest import agrees, suggestion
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts import FactBase

NAMES_FILE = Path(__file__).with_name("skypilot.toml")
TPU = re.compile(r"tpu-(?P<generation>v\d+\w*?)-(?P<number>\d{1,6})")
CORES_PER_CHIP = 2
TPU_FILLER_USD = 700.0
VAST_FLOOR = (32.0, 64.0)
HOST_ONLY = re.compile(r"(a2|a3|a4|g2)-", re.IGNORECASE)
LOCAL_ZONE = re.compile(r"^[a-z]{2}-[a-z]+-\d-[a-z]{3}-\d")
AWS_SIZE = re.compile(r"\.(\d+)xlarge$")
AWS_SIZES = frozenset({2, 3, 4, 6, 8, 9, 10, 12, 16, 18, 24, 32, 48, 56, 96, 112})
"""Multiples of xlarge that AWS sells."""


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


def offer_of(row: Mapping[str, str], provider: str, facts: FactBase) -> Offer:
    """Return a row as an offer; raises Drop where it is none."""
    name, instance = row["AcceleratorName"], row["InstanceType"]
    if not name:
        if provider == "gcp" and HOST_ONLY.match(instance):
            raise Drop("host only: GCP lists the machine without its accelerators, whose price is in rows of their own")
        raise Drop("no accelerator")
    _refuse_no_size(provider, instance, facts)
    notes: list[str] = []
    on_demand, spot = _usd(row["Price"], "Price"), _usd(row["SpotPrice"], "SpotPrice")
    tpu = TPU.fullmatch(name)
    if tpu:
        accelerator, count = _tpu(tpu, notes)
        if TPU_FILLER_USD in {on_demand, spot}:
            raise Drop("700.0 is a filler for TPUs without a price")
        instance = name
    else:
        count = _number(row["AcceleratorCount"], "AcceleratorCount")
        if provider == "gcp" and (not instance or HOST_ONLY.match(instance)):
            raise Drop("accelerator only: GCP's price of it does not include the machine that it needs")
        accelerator = _accelerator(name, instance, provider, row.get("GpuInfo", ""), count, facts)
    if LOCAL_ZONE.match(row.get("AvailabilityZone", "")):
        raise Drop("a local zone, priced apart from its region")
    if spot is not None and provider == "runpod" and spot == on_demand:
        notes.append("file repeats the on-demand price as SpotPrice: left blank")
        spot = None
    if on_demand is None and spot is None:
        raise Drop("no price")
    vcpus, memory = _host(row, provider, accelerator, count, facts, notes)
    return Offer(instance, accelerator, count, vcpus, memory, row["Region"].lstrip(", ") or None, on_demand, spot, tuple(notes))


def _refuse_no_size(provider: str, instance: str, facts: FactBase) -> None:
    size = AWS_SIZE.search(instance)
    if provider == "aws" and size and int(size[1]) not in AWS_SIZES:
        known = {row.instance for row in facts.prices if row.provider == provider}
        raise Drop(f"AWS has no size {size[0][1:]}; {did_you_mean(instance, known)}", refused=True)


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
    if known["names_count"] == "cores":
        notes.append(f"count = chips; the name counts TensorCores, {CORES_PER_CHIP} a chip")
        return str(known["card"]), number / CORES_PER_CHIP
    return str(known["card"]), float(number)


def _accelerator(name: str, instance: str, provider: str, gpu_info: str, count: float, facts: FactBase) -> str:
    direct = facts.recognise_accelerator(name)
    candidates = list(_names()["names"].get(name) or ([direct.key] if direct else []))
    if not candidates:
        raise Drop(f"accelerator {name!r} is not in data/accelerators; {suggestion(name, facts)}", refused=True)
    word = next(
        (
            form["word"]
            for form in _names()["forms"]
            if form.get("provider", provider) == provider and re.search(form["pattern"], instance.lower())
        ),
        None,
    )
    # A form that none of the cards has says nothing about them.
    formed = [key for key in candidates if word and word in key] or candidates
    sizes = _memory_readings(gpu_info, count)
    fitting = [key for key in formed if not sizes or any(agrees(size, facts.accelerators[key]) for size in sizes)]
    if not fitting:
        raise Drop(f"{name} with {sizes[0]:.0f} GiB a device is none of {', '.join(formed)}; add a card for it", refused=True)
    return str(fitting[0])


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
