"""Decide whether a plan can run on a machine, before any time is spent: one table of features, checked for each family.

Vendors list what their devices cannot do (`VENDOR.cannot`, `generations`, `needs`). This module knows which feature a plan
uses; `tunemark.schema.plan_conflicts` knows which settings exclude each other. The support matrix of the site is generated from the same table:
`python -m tunemark.harness.plan.capabilities` writes data/support.json.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tunemark.harness.plan.machine import Machine
from tunemark.harness.vendors.protocol import Generation, Need, all_vendors, vendor_of
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.features import USED, Feature
from tunemark.schema.files import project_root, write_atomically
from tunemark.schema.plan_conflicts import by_trainer, conflicting_settings, conflicts_with_model, device_conflicts, torch_conflict
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.plan import DeviceChoice, Plan
from tunemark.schema.vocabulary import Backend

if TYPE_CHECKING:
    from tunemark.schema.facts.fact_base import SupportMatrix

PROCESSES_PER_CORE = 4
"""More processes on each core only measure waiting, and exhaust the machine's memory."""
NEURON_LOOP_NEEDS = dict.fromkeys(
    (Feature.FULL, Feature.LORA), Need("torch-xla", "install torch-neuronx of the Neuron SDK, as the README describes")
)
"""Packages that classifiers need on Neuron devices."""


def unsupported_reason(plan: Plan, model: ModelCard, machine: Machine, generation: Generation | None) -> str | None:
    """Return the first reason why a plan cannot run on this machine, or None. `generation` is what its devices lack."""
    checks = (
        _device_count_problems(plan.device, machine),
        _missing_features(plan, machine, generation),
        conflicting_settings(plan),
        _missing_packages(plan, machine),
        conflicts_with_model(plan, model, machine.packages),
    )
    return next((reason for check in checks for reason in check), None)


def generation_of(backend: Backend, target: str | None, architecture: str | None) -> Generation | None:
    """Return the generation of a device if it lacks something, else None. The card's architecture counts only without a target."""
    for generation in vendor_of(backend).generations:
        if re.fullmatch(generation.target, target) if target else architecture in generation.architectures:
            return generation
    return None


def _device_count_problems(device: DeviceChoice, machine: Machine) -> Iterator[str]:
    yield from device_conflicts(device)
    on_host, here = vendor_of(machine.backend).on_host, len(machine.devices)
    most = PROCESSES_PER_CORE * machine.cpu_usable_cores if on_host else here
    if device.count // device.nodes > most:
        has = f"{machine.cpu_usable_cores} cores" if on_host else f"{here} {machine.backend.value} device{'s' * (here != 1)}"
        nodes = f" on {device.nodes} nodes" * (device.nodes > 1)
        limit = f", with at most {PROCESSES_PER_CORE} processes per core" if on_host else ""
        yield f"{device.count} devices{nodes}: this machine has {has}{limit}; give --devices {most * device.nodes} or less"


def shared_cores(device: DeviceChoice, machine: Machine) -> str | None:
    """Return a warning if the processes of a machine share its cores, which then run one after the other; None if they do not."""
    processes, cores = device.count // device.nodes, machine.cpu_usable_cores
    if not vendor_of(machine.backend).on_host or processes <= cores:
        return None
    most = cores * device.nodes
    return f"{processes} processes share {cores} cores and wait for each other, so they do not measure {processes} devices; give --devices {most} or less"


def _missing_features(plan: Plan, machine: Machine, generation: Generation | None) -> Iterator[str]:
    backend = plan.device.backend
    used = [feature for feature, uses in USED.items() if uses(plan)]
    family = vendor_of(backend).cannot
    yield from (f"{feature.value} on {backend.value}: {family[feature]}" for feature in used if feature in family)
    if generation:
        yield from (
            f"{feature.value} on {generation.name}: {generation.cannot[feature]}" for feature in used if feature in generation.cannot
        )
    if plan.precision.compute not in machine.compute_dtypes:
        formats = ", ".join(dtype.value for dtype in machine.compute_dtypes)
        yield f"compute format {plan.precision.compute.value}: this device has {formats}"


def _missing_packages(plan: Plan, machine: Machine) -> Iterator[str]:
    on_neuron = plan.device.backend is Backend.NEURON
    needs = NEURON_LOOP_NEEDS if on_neuron and not by_trainer(plan) else vendor_of(plan.device.backend).needs
    if "torch" not in machine.packages:
        yield "training needs torch, which is not installed; the README describes how to install it"
    too_old = torch_conflict(plan, machine.packages)
    if too_old is not None:
        yield too_old
    for feature, uses in USED.items():
        if uses(plan) and feature in needs and needs[feature].package not in machine.packages:
            yield f"{feature.value} needs {needs[feature].package}, which is not installed: {needs[feature].install}"


def support_matrix() -> "SupportMatrix":
    """Return the capabilities of each device family. The scripted one measures nothing and is left out."""
    from tunemark.schema.facts.fact_base import SupportMatrix  # noqa: PLC0415 - not needed to plan

    vendors = {vendor.backend: vendor for vendor in all_vendors() if vendor.backend is not Backend.FAKE}
    return SupportMatrix(
        features=tuple(feature.value for feature in Feature),
        cannot={backend: {feature.value: reason for feature, reason in vendor.cannot.items()} for backend, vendor in vendors.items()},
        needs={
            backend: {feature.value: need.package for feature, need in vendor.needs.items() if feature not in vendor.cannot}
            for backend, vendor in vendors.items()
        },
    )


if __name__ == "__main__":
    write_atomically(project_root() / "data" / "support.json", canonical_json(support_matrix()))
