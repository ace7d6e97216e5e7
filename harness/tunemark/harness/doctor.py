"""Says what this machine has, which workloads it can run, and what is missing."""

import os
from dataclasses import asdict, dataclass
from typing import Any

from tunemark.harness.devices.generations import generation_of
from tunemark.harness.machine import PACKAGES, Machine
from tunemark.harness.planning import Options, resolve
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts import FactBase

REQUIRED = ("torch", "transformers", "peft", "accelerate")


@dataclass(frozen=True, slots=True)
class Runnable:
    """A workload, and why it cannot be run here if it cannot."""

    workload: str
    title: str
    reason: str | None


def runnable(facts: FactBase, machine: Machine) -> list[Runnable]:
    """Return each workload with the reason why this machine cannot run it, or None."""
    rows = []
    for key, card in facts.workloads.items():
        try:
            reason = resolve(key, facts, machine, Options()).unsupported
        except TunemarkError as error:
            reason = str(error)
        rows.append(Runnable(key, card.title, reason))
    return rows


def report(facts: FactBase, machine: Machine) -> dict[str, Any]:
    """Return everything as plain data: the machine, missing packages, hub access, workloads."""
    card = facts.recognise_accelerator(machine.devices[0].name)
    generation = generation_of(machine.backend, machine.target, card.architecture if card else None)
    formats = generation.formats(machine.compute_dtypes) if generation else machine.compute_dtypes
    return {
        "machine": {key: value for key, value in asdict(machine).items() if key != "devices"}
        | {"devices": [device.model_dump() for device in machine.devices], "compute_dtypes": formats},
        "accelerator": card.key if card else None,
        "missing_required": [package for package in REQUIRED if package not in machine.packages],
        "missing_optional": [package for package in PACKAGES if package not in machine.packages and package not in REQUIRED],
        "offline": os.environ.get("HF_HUB_OFFLINE", "0").lower() in {"1", "true", "yes", "on"},
        "workloads": [asdict(row) for row in runnable(facts, machine)],
    }
