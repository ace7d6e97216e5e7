"""Other machines to plan for: those of an accelerator card or of an instance in the price book, never the local one."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tunemark.harness.plan.machine import detect
from tunemark.harness.vendors.protocol import Vendor, all_vendors
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.plan.machine import Machine
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import PACKAGES, VENDOR_PACKAGES, Backend


@dataclass(frozen=True, slots=True)
class Target:
    """Machines of a batch system or cloud."""

    card: AcceleratorCard
    vendor: Vendor
    per_node: int
    """Devices used in each machine; on Neuron each core is one."""
    nodes: int
    row: PriceRow | None = None
    """The instance type, if one was given."""

    @property
    def accelerators(self) -> int:
        """Return the accelerators of each machine."""
        return math.ceil(self.per_node / _devices_in(self.card, self.vendor))

    def machine(self) -> Machine:
        """Return one of these machines, with all packages."""
        memory = None if self.card.memory_gib is None else int(self.card.memory_gib * GIB) // _devices_in(self.card, self.vendor)
        host_gib = self.row.memory_gib if self.row else None
        names = (*PACKAGES, *VENDOR_PACKAGES) if self.vendor.backend is Backend.NEURON else PACKAGES
        return replace(
            detect(),
            backend=self.vendor.backend,
            family=self.vendor.family,
            backend_reason=f"{self.card.name} was requested",
            devices=(DeviceFacts(name=self.card.name, memory_bytes=memory),) * self.per_node,
            memory_bytes=None if host_gib is None else int(host_gib * GIB),
            packages=dict.fromkeys(names, "to be installed"),
        )

    def notes(self, facts: FactBase) -> Iterator[str]:
        """Yield a note if no instance has this number of accelerators."""
        known = [row.accelerator_count for row in facts.prices if row.accelerator == self.card.key]
        if known and self.accelerators > max(known):
            nodes = math.ceil(self.accelerators * self.nodes / max(known))
            most = f"{self.accelerators} x {self.card.name} (at most {max(known):g})"
            yield f"no instance in data/prices has {most}; use --set nodes={nodes} to split them"


def find_target(facts: FactBase, accelerator: str | None, instance: str | None, devices: int | None, nodes: int) -> Target:
    """Return the machines of an accelerator or instance; without `devices`, one device per machine, or all devices of the instances.

    Raises TunemarkError for names that are not in data/, and for more devices than the instances hold.
    """
    if devices is not None and devices % nodes:
        raise TunemarkError("--devices", devices, f"is for all {nodes} nodes together; give a multiple of {nodes}")
    if instance is None:
        card = facts.accelerator(accelerator or "")
        return Target(card, _vendor(card), (devices or nodes) // nodes, nodes)
    rows = [row for row in facts.prices if row.instance.lower() == instance.lower()]
    if not rows:
        fix = did_you_mean(instance, {row.instance for row in facts.prices})
        raise TunemarkError("--instance", instance, f"not in data/prices/prices.csv; {fix}")
    row = max(rows, key=lambda row: (row.vcpus is not None, row.effective_on))
    card = facts.accelerators[row.accelerator]
    if accelerator is not None and facts.accelerator(accelerator).key != card.key:
        raise TunemarkError("--accelerator", accelerator, f"{row.instance} has {card.key}; give only one of the two")
    held = int(row.accelerator_count * _devices_in(card, _vendor(card)))
    per_node = held if devices is None else devices // nodes
    if per_node > held:
        raise TunemarkError("--devices", devices, f"{nodes} x {row.instance} have {held * nodes} devices; give {held * nodes} or less")
    return Target(card, _vendor(card), per_node, nodes, row)


def _devices_in(card: AcceleratorCard, vendor: Vendor) -> int:
    """Return the number of devices in one accelerator: each NeuronCore is a device, and so is a whole GPU."""
    return card.cores_per_unit or 1 if vendor.backend is Backend.NEURON else 1


def _vendor(card: AcceleratorCard) -> Vendor:
    known = {vendor.card_vendor: vendor for vendor in all_vendors() if vendor.card_vendor}
    if card.unit == "cpu":
        raise TunemarkError("--accelerator", card.key, "is a CPU; plan on the CPU itself, without this option")
    if card.vendor not in known:
        raise TunemarkError("--accelerator", card.key, f"plans are for accelerators of {', '.join(sorted(known))}, not of {card.vendor}")
    return known[card.vendor]
