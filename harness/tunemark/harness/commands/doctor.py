"""Says what this machine has, which workloads it can run, and what is missing."""

import os
from dataclasses import asdict, dataclass
from typing import Any

from tunemark.harness.plan.capabilities import generation_of
from tunemark.harness.plan.machine import PACKAGES, Machine
from tunemark.harness.plan.resolve import Options, Resolved, resolve
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.training_shape import shape_of_plan, shape_problem

REQUIRED = ("torch", "transformers", "peft", "accelerate")


@dataclass(frozen=True, slots=True)
class Runnable:
    """A workload, and why it cannot be run here if it cannot."""

    workload: str
    title: str
    reason: str | None
    """None where it can run."""
    needed_bytes: int | None = None
    """Memory of one device that a step needs, as the memory model has it; None where nothing is predicted."""
    memory_bytes: int | None = None
    """Memory of one device here, or the part of the host's that one process has."""

    @property
    def too_large(self) -> bool:
        """Return whether it would run out of memory, as far as the memory model knows."""
        return self.needed_bytes is not None and self.memory_bytes is not None and self.needed_bytes > self.memory_bytes


def memory_of(resolved: Resolved, facts: FactBase, machine: Machine) -> tuple[int | None, int | None]:
    """Return the memory that one device of a plan needs and that which it has, in bytes; None where one is not known."""
    card, device = facts.model(resolved.plan.model.key), machine.devices[0]
    has = device.memory_bytes or machine.memory_bytes // (resolved.plan.device.count // resolved.plan.device.nodes)
    needed = None if shape_problem(resolved.plan, card) else estimate_memory(shape_of_plan(resolved.plan, card)).needed
    return needed, has


def runnable(facts: FactBase, machine: Machine) -> list[Runnable]:
    """Return each workload with the reason why this machine cannot run it, or None."""
    rows = []
    for key, card in facts.workloads.items():
        try:
            resolved = resolve(key, facts, machine, Options())
        except TunemarkError as error:
            rows.append(Runnable(key, card.title, str(error)))
        else:
            rows.append(Runnable(key, card.title, resolved.unsupported, *memory_of(resolved, facts, machine)))
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
        "workloads": [asdict(row) | {"too_large": row.too_large} for row in runnable(facts, machine)],
    }
