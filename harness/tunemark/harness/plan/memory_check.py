"""Does a plan fit into the memory of a machine, by the memory model? Shown by `doctor`, and checked by `run`."""

from tunemark.harness.plan.machine import Machine
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.training_shape import shape_of_plan, shape_problem
from tunemark.schema.records.plan import Plan


def step_memory(plan: Plan, card: ModelCard, machine: Machine) -> tuple[int | None, int | None]:
    """Return the bytes that a step needs on each device by the memory model, and those that each has; None where unknown.

    Processes on the CPU share the host's memory.
    """
    has = machine.devices[0].memory_bytes or machine.memory_bytes // (plan.device.count // plan.device.nodes)
    return None if shape_problem(plan, card) else estimate_memory(shape_of_plan(plan, card)).needed, has


def too_large(plan: Plan, card: ModelCard, machine: Machine) -> tuple[str, str] | None:
    """Return two texts: the memory that the plan needs, and the memory of each device with the fix. None if it fits or is unknown."""
    needed, has = step_memory(plan, card, machine)
    if needed is None or has is None or needed <= has:
        return None
    fix = f"each device has {formats.gib(has)}; lower batch.micro_batch or data.sequence_length with --set, choose method=lora or qlora"
    return f"about {formats.gib(needed)} for {plan.workload}", fix


def refuse_too_large(plan: Plan, card: ModelCard, machine: Machine) -> None:
    """Raise TunemarkError if the plan needs more memory than each device has."""
    words = too_large(plan, card, machine)
    if words is not None:
        needed, fix = words
        raise TunemarkError("memory", needed, f"{fix}, or try it anyway with --force", exit_code=Exit.OUT_OF_MEMORY)
