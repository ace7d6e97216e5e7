"""Does a plan fit into the memory of a machine, by the memory model? Shown by `doctor` and `plan`, and checked by `run`."""

from dataclasses import dataclass, replace

from tunemark.harness.vendors.protocol import vendor_of
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.memory import CONTEXT, estimate_memory
from tunemark.schema.physics.memory_states import state_lines
from tunemark.schema.physics.training_shape import shape_of_plan, shape_problem
from tunemark.schema.plan.capabilities import Feature, Machine
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Checkpointing, Method


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
    def too_large(self) -> bool:
        """True if more is needed than there is; False if it fits or either is unknown."""
        return self.needed is not None and self.has is not None and self.needed > self.has

    @property
    def words(self) -> str:
        """The two amounts in words; empty where the model does not apply."""
        has = "memory of an unknown size" if self.has is None else formats.gib(self.has)
        return "" if self.needed is None else f"needs about {formats.gib(self.needed)} {self.place}, and {self.owner} has {has}"

    @property
    def problem(self) -> str | None:
        """The two amounts in words if more is needed than there is, else None."""
        return self.words if self.too_large else None


def step_memory(plan: Plan, card: ModelCard, machine: Machine) -> StepMemory:
    """Return the memory of a step on each device, or in host memory if the step fits the devices and its offloaded states do not fit there.

    Processes on the CPU share the host's memory, and states that they offload stay in it.
    """
    processes, host = plan.device.count // plan.device.nodes, machine.memory_bytes
    share = host and host // processes
    shape = None if shape_problem(plan, card) else shape_of_plan(plan, card)
    if machine.family.on_host:
        # Without the buffers of NCCL: gloo keeps none.
        needed = estimate_memory(replace(shape, offload=False)).peak_allocated + CONTEXT if shape else None
        words = ("in each process", f"each of the {processes} processes") if processes > 1 else ("on each device", "each device")
        return StepMemory(needed, share, *words, _less_memory(plan, machine))
    needed = estimate_memory(shape).needed if shape else None
    memory = machine.devices[0].memory_bytes or share
    # Of a machine that is planned for, the host is unknown.
    usable = memory and vendor_of(machine.backend).usable_bytes(memory, host is not None)
    on_device = StepMemory(
        needed, usable, owner="each device" if usable == memory else "a process of each device", fix=_less_memory(plan, machine)
    )
    if shape is None or not shape.offload or on_device.too_large:
        return on_device
    # Parameters, gradients and optimizer states that a device keeps in host memory.
    kept, offloaded = (sum(line.bytes for line in state_lines(replace(shape, offload=there))) for there in (False, True))
    fewer = "choose method=lora or qlora, or a smaller model"
    on_host = StepMemory(processes * (kept - offloaded), host, "of host memory", "the host", fewer)
    return on_host if on_host.too_large else on_device


def _less_memory(plan: Plan, machine: Machine) -> str:
    """Return the settings that would lower the memory of a plan's step."""
    rows = "--micro-batch or " if plan.batch.micro_batch > 1 else ""
    leaner = {Method.FULL: ("lora", "qlora"), Method.LORA: ("qlora",)}.get(plan.method, ())
    methods = [method for method in leaner if method != "qlora" or Feature.QLORA not in machine.family.cannot]
    smaller = f", choose --method {' or '.join(methods)} or a smaller --model" if methods else ", choose a smaller --model"
    recompute = ", use --checkpointing full" if plan.model.gradient_checkpointing is Checkpointing.NONE else ""
    return f"lower {rows}--seq{smaller}{recompute}"


def refuse_too_large(plan: Plan, card: ModelCard, machine: Machine) -> None:
    """Raise TunemarkError if the plan needs more memory than each device has, or more for offloaded states than the host has."""
    memory = step_memory(plan, card, machine)
    if memory.problem:
        fix = f"a step {memory.problem} by the memory model; {memory.fix}, or try it anyway with --force"
        raise TunemarkError("memory", plan.workload, fix, exit_code=Exit.OUT_OF_MEMORY)
