"""Decide whether a plan can run on a machine, before any time is spent: one table of features, checked for each family.

Families list what their devices cannot do. This module knows which feature a plan uses; `plan.conflicts` knows which settings
exclude each other.
"""

from collections.abc import Iterator

from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.features import USED, Feature
from tunemark.schema.plan.conflicts import by_trainer, conflicting_settings, conflicts_with_model, device_conflicts, torch_conflict
from tunemark.schema.plan.families import Generation, Need
from tunemark.schema.plan.machine import Machine
from tunemark.schema.records.plan import DeviceChoice, Plan
from tunemark.schema.vocabulary import Backend

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


def _device_count_problems(device: DeviceChoice, machine: Machine) -> Iterator[str]:
    yield from device_conflicts(device)
    missing = missing_devices(device.count, device.nodes, machine)
    if missing is not None:
        yield f"{device.count} devices{f' on {device.nodes} nodes' * (device.nodes > 1)}: {missing}"


def missing_devices(count: int, nodes: int, machine: Machine) -> str | None:
    """Return the number of devices that a machine has, with the option to give, if it has fewer than its part of all; else None."""
    on_host, here = machine.family.on_host, len(machine.devices)
    most = PROCESSES_PER_CORE * machine.cpu_usable_cores if on_host else here
    if count // nodes <= most:
        return None
    has = f"{machine.cpu_usable_cores} cores" if on_host else f"{here} {machine.backend.value} device{'s' * (here != 1)}"
    limit = f", with at most {PROCESSES_PER_CORE} processes per core" if on_host else ""
    return f"this machine has {has}{limit}; give --devices {most * nodes} or less"


def shared_cores(device: DeviceChoice, machine: Machine) -> str | None:
    """Return a warning if the processes of a machine share its cores, which then run one after the other; None if they do not."""
    processes, cores = device.count // device.nodes, machine.cpu_usable_cores
    if not machine.family.on_host or processes <= cores:
        return None
    most = cores * device.nodes
    return f"{processes} processes share {cores} cores and wait for each other, so they do not measure {processes} devices; give --devices {most} or less"


def _missing_features(plan: Plan, machine: Machine, generation: Generation | None) -> Iterator[str]:
    backend = plan.device.backend
    used = [feature for feature, uses in USED.items() if uses(plan)]
    family = machine.family.cannot
    yield from (f"{feature.value} on {backend.value}: {family[feature]}" for feature in used if feature in family)
    if generation:
        yield from (
            f"{feature.value} on {generation.name}: {generation.cannot[feature]}" for feature in used if feature in generation.cannot
        )
    if plan.precision.compute not in machine.family.formats:
        formats = ", ".join(dtype.value for dtype in machine.family.formats)
        yield f"compute format {plan.precision.compute.value}: this device has {formats}"


def _missing_packages(plan: Plan, machine: Machine) -> Iterator[str]:
    on_neuron = plan.device.backend is Backend.NEURON
    needs = NEURON_LOOP_NEEDS if on_neuron and not by_trainer(plan) else machine.family.needs
    if "torch" not in machine.packages:
        yield "training needs torch, which is not installed; the README describes how to install it"
    too_old = torch_conflict(plan, machine.packages)
    if too_old is not None:
        yield too_old
    for feature, uses in USED.items():
        if uses(plan) and feature in needs and needs[feature].package not in machine.packages:
            yield f"{feature.value} needs {needs[feature].package}, which is not installed: {needs[feature].install}"
