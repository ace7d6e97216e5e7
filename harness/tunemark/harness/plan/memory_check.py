"""Does a plan fit into the memory of a machine, by the memory model? Shown by `doctor`, and checked by `run`."""

from dataclasses import dataclass, replace

from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.memory import CONTEXT, estimate_memory
from tunemark.schema.physics.memory_states import state_lines
from tunemark.schema.physics.training_shape import TrainingShape, shape_of_plan, shape_problem
from tunemark.schema.plan.machine import Machine
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Checkpointing, Method

FEWER_STATES = "choose method=lora or qlora, or a smaller model"


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The memory that a training step needs by the memory model, and the memory that there is."""

    needed: int | None
    """Bytes; None where the model does not apply."""
    has: int | None
    """Bytes; None where unknown."""
    place: str = "on each device"
    owner: str = "each device"
    fix: str = ""

    @property
    def shortage(self) -> tuple[int, int] | None:
        """Needed and available bytes if more is needed than there is; None if it fits or either is unknown."""
        if self.needed is None or self.has is None or self.needed <= self.has:
            return None
        return self.needed, self.has

    @property
    def problem(self) -> str | None:
        """Return the two amounts in words if more is needed than there is, else None."""
        if self.shortage is None:
            return None
        needed, has = map(formats.gib, self.shortage)
        return f"needs about {needed} {self.place}, and {self.owner} has {has}"


def step_memory(plan: Plan, card: ModelCard, machine: Machine) -> StepMemory:
    """Return the memory of a step on each device, or in host memory if the step fits the devices and its offloaded states do not fit there.

    Processes on the CPU share the host's memory, and states that they offload stay in it.
    """
    processes, host = plan.device.count // plan.device.nodes, machine.memory_bytes
    share = host and host // processes
    shape = None if shape_problem(plan, card) else shape_of_plan(plan, card)
    fix = _less_memory(plan)
    if machine.family.on_host:
        # Without the buffers of NCCL: gloo keeps none.
        needed = estimate_memory(replace(shape, offload=False)).peak_allocated + CONTEXT if shape else None
        if processes == 1:
            return StepMemory(needed, share, fix=fix)
        return StepMemory(needed, share, "in each process", f"each of the {processes} processes", fix)
    on_device = StepMemory(estimate_memory(shape).needed if shape else None, machine.devices[0].memory_bytes or share, fix=fix)
    if shape is None or not shape.offload or on_device.shortage:
        return on_device
    on_host = StepMemory(processes * offloaded_bytes(shape), host, "of host memory", "the host", FEWER_STATES)
    return on_host if on_host.shortage else on_device


def _less_memory(plan: Plan) -> str:
    """Return the settings that would lower the memory of a plan's step."""
    rows = "batch.micro_batch or " if plan.batch.micro_batch > 1 else ""
    smaller = {Method.FULL: ", choose method=lora or qlora", Method.LORA: ", choose method=qlora"}.get(plan.method, "")
    recompute = ", use gradient_checkpointing=full" if plan.model.gradient_checkpointing is Checkpointing.NONE else ""
    return f"lower {rows}data.sequence_length{smaller}{recompute} (with --set)"


def offloaded_bytes(shape: TrainingShape) -> int:
    """Return the bytes of parameters, gradients and optimizer states that a device keeps in host memory."""
    kept, offloaded = (sum(line.bytes for line in state_lines(replace(shape, offload=there))) for there in (False, True))
    return kept - offloaded


def too_large(plan: Plan, card: ModelCard, machine: Machine) -> tuple[str, str] | None:
    """Return two texts: the memory that the plan needs, and the available memory with the fix. None if it fits or is unknown."""
    memory = step_memory(plan, card, machine)
    if memory.shortage is None:
        return None
    needed, has = map(formats.gib, memory.shortage)
    place = f" {memory.place}" if memory.fix == FEWER_STATES else ""
    return f"about {needed}{place} for {plan.workload}", f"{memory.owner} has {has}; {memory.fix}"


def memory_note(plan: Plan, card: ModelCard, machine: Machine) -> str | None:
    """Return a sentence if a step of the plan needs more memory than there is, else None."""
    words = too_large(plan, card, machine)
    return words and f"by the memory model, a step needs {words[0]}; {words[1]}. `tunemark run` refuses this plan without --force"


def refuse_too_large(plan: Plan, card: ModelCard, machine: Machine) -> None:
    """Raise TunemarkError if the plan needs more memory than each device has, or more for offloaded states than the host has."""
    words = too_large(plan, card, machine)
    if words is not None:
        needed, fix = words
        raise TunemarkError("memory", needed, f"{fix}, or try it anyway with --force", exit_code=Exit.OUT_OF_MEMORY)
