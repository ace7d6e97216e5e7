"""Another machine to plan for: that of an accelerator card, never the local one."""

import math
from dataclasses import replace

from tunemark.harness.plan.machine import detect
from tunemark.harness.vendors.protocol import Vendor, all_vendors
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.plan.machine import Machine
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import PACKAGES, VENDOR_PACKAGES, Backend


def machine_with(facts: FactBase, accelerator: str, devices: int, nodes: int) -> Machine:
    """Return one of the machines that together have some devices of an accelerator, with all packages. On Neuron each core is a device.

    Raises TunemarkError for a name that is not in data/, and for a number of devices that the machines cannot share.
    """
    if devices % nodes:
        raise TunemarkError("--devices", devices, f"is for all {nodes} nodes together; give a multiple of {nodes}")
    card = _card(facts, accelerator)
    vendor = _vendor(card)
    memory = None if card.memory_gib is None else int(card.memory_gib * GIB) // _devices_in(card, vendor)
    names = (*PACKAGES, *VENDOR_PACKAGES) if vendor.backend is Backend.NEURON else PACKAGES
    return replace(
        detect(),
        backend=vendor.backend,
        family=vendor.family,
        backend_reason=f"{card.name} was requested",
        devices=(DeviceFacts(name=card.name, memory_bytes=memory),) * (devices // nodes),
        memory_bytes=None,
        packages=dict.fromkeys(names, "to be installed"),
    )


def too_large(facts: FactBase, accelerator: str, devices: int, nodes: int) -> str | None:
    """Return a note if no instance has this number of accelerators, else None."""
    card = _card(facts, accelerator)
    each = math.ceil(devices / nodes / _devices_in(card, _vendor(card)))
    most = max((row.accelerator_count for row in facts.prices if row.accelerator == card.key), default=math.inf)
    if each <= most:
        return None
    fix = f"use --set nodes={math.ceil(each * nodes / most)} to split them"
    return f"no instance in data/prices has {each} x {card.name} (at most {most:g}); {fix}"


def _devices_in(card: AcceleratorCard, vendor: Vendor) -> int:
    """Return the number of devices in one accelerator: each NeuronCore is a device, and so is a whole GPU."""
    return card.cores_per_unit or 1 if vendor.backend is Backend.NEURON else 1


def _card(facts: FactBase, name: str) -> AcceleratorCard:
    """Return the card of an accelerator. Raises TunemarkError with the candidates for a name such as `h100`, which several share."""
    sharing = [key for key in facts.accelerators if set(name.lower().split()) <= set(key.split("-"))]
    if facts.recognise_accelerator(name) is None and len(sharing) > 1:
        raise TunemarkError("--accelerator", name, f"may be {' or '.join(sharing)}; give one of them")
    try:
        return facts.accelerator(name)
    except TunemarkError as error:
        raise TunemarkError("--accelerator", name, error.fix) from error


def _vendor(card: AcceleratorCard) -> Vendor:
    known = {vendor.card_vendor: vendor for vendor in all_vendors() if vendor.card_vendor}
    if card.unit == "cpu":
        raise TunemarkError("--accelerator", card.key, "is a CPU; plan on the CPU itself, without this option")
    if card.vendor not in known:
        raise TunemarkError("--accelerator", card.key, f"plans are for accelerators of {', '.join(sorted(known))}, not of {card.vendor}")
    return known[card.vendor]
