"""The machines that a script is for: from the price book and the accelerator cards, never from the machine that plans."""

import math
from dataclasses import dataclass, replace

from tunemark.harness.devices.generations import FORMATS
from tunemark.harness.machine import OF_VENDORS, PACKAGES, Machine, detect
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, PriceRow
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend

BACKENDS = {"NVIDIA": Backend.CUDA, "AMD": Backend.ROCM, "AWS": Backend.NEURON, "Intel": Backend.XPU}
"""Device family of a vendor's accelerators that batch systems and clouds have."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked of a batch system or cloud."""

    card: AcceleratorCard
    per_node: int
    """Devices used in a machine; on Neuron each core is one."""
    nodes: int
    instance: str | None = None
    provider: str | None = None
    vcpus: int | None = None
    memory_gib: float | None = None

    @property
    def text(self) -> str:
        """Return the machines in words."""
        return f"{self.nodes} x {self.instance or 'machine'} with {self.accelerators} x {self.card.name}"

    @property
    def devices(self) -> int:
        """Return the devices of all machines."""
        return self.per_node * self.nodes

    @property
    def accelerators(self) -> int:
        """Return the accelerators that a machine is asked for."""
        return math.ceil(self.per_node / devices_in(self.card))

    @property
    def backend(self) -> Backend:
        """Return the device family."""
        return BACKENDS[self.card.vendor]

    def machine(self) -> Machine:
        """Return one of these machines as planning sees it, with all packages: the script installs them."""
        memory = None if self.card.memory_gib is None else int(self.card.memory_gib * GIB)
        device = DeviceFacts(name=self.card.name, memory_bytes=memory)
        return replace(
            detect(),
            backend=self.backend,
            backend_reason=f"{self.card.name} was asked for",
            devices=(device,) * self.per_node,
            compute_dtypes=FORMATS[self.backend],
            target=None,
            packages=dict.fromkeys((*PACKAGES, *OF_VENDORS) if self.backend is Backend.NEURON else PACKAGES, "to be installed"),
        )


def target_of(facts: FactBase, accelerator: str | None, instance: str | None, devices: int | None, nodes: int) -> Target:
    """Return the machines of an accelerator or instance; without `devices`, one in each machine, or all of the instances.

    Raises
    ------
    TunemarkError
        For names that are not in data/, and for more devices than the instances hold.

    """
    if devices is not None and devices % nodes:
        raise TunemarkError("--devices", devices, f"is for all {nodes} nodes together; give a multiple of {nodes}")
    if instance is None:
        if accelerator is None:
            raise TunemarkError("--accelerator", "", "a script is for another machine: name its --accelerator or its --instance")
        return Target(_supported(facts.accelerator(accelerator)), (devices or nodes) // nodes, nodes)
    row = instance_row(facts, instance)
    card = _supported(facts.accelerators[row.accelerator])
    if accelerator is not None and facts.accelerator(accelerator).key != card.key:
        raise TunemarkError("--accelerator", accelerator, f"{row.instance} has {card.key}; leave one of the two out")
    held = int(row.accelerator_count * devices_in(card))
    per_node = held if devices is None else devices // nodes
    if per_node > held:
        raise TunemarkError("--devices", devices, f"{nodes} x {row.instance} have {held * nodes} devices; give {held * nodes} or less")
    return Target(card, per_node, nodes, row.instance, row.provider, row.vcpus, row.memory_gib)


def devices_in(card: AcceleratorCard) -> int:
    """Return how many devices one accelerator is: a process trains on each NeuronCore, and on a whole GPU."""
    return card.cores_per_unit or 1 if BACKENDS.get(card.vendor) is Backend.NEURON else 1


def instance_row(facts: FactBase, name: str) -> PriceRow:
    """Return a row of the price book about an instance; raises TunemarkError with a suggestion for an unknown one."""
    rows = [row for row in facts.prices if row.instance.lower() == name.lower()]
    if not rows:
        raise TunemarkError(
            "--instance", name, f"not in data/prices/prices.csv; {did_you_mean(name, {row.instance for row in facts.prices})}"
        )
    return max(rows, key=lambda row: (row.vcpus is not None, row.effective_on))


def _supported(card: AcceleratorCard) -> AcceleratorCard:
    if card.vendor not in BACKENDS:
        known = ", ".join(sorted(BACKENDS))
        raise TunemarkError("--accelerator", card.key, f"scripts are for accelerators of {known}, not of {card.vendor}")
    return card
