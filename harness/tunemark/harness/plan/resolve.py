"""Resolve what a user asked for on this machine, and refuse what cannot run here, also for lack of memory by the memory model.

Paths are read here; everything else about a plan is `tunemark.schema.plan`.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from tunemark.harness.plan.options import Options
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.harness.worker.sample_files import check_file, describe_file
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.memory import CONTEXT, estimate_memory
from tunemark.schema.physics.memory_states import state_lines
from tunemark.schema.physics.training_shape import TrainingShape, shape_of_plan, shape_problem
from tunemark.schema.plan import resolve as schema_plan
from tunemark.schema.plan.capabilities import Feature, Machine
from tunemark.schema.plan.conflicts import missing_devices
from tunemark.schema.records.division import Override
from tunemark.schema.records.plan import LOCAL_WEIGHTS, Plan, Requested, RunOptions
from tunemark.schema.vocabulary import Checkpointing, DataSource, Method


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request and its plan, with facts that the worker needs and a submission must not hold, such as paths of this machine."""

    requested: Requested
    plan: Plan
    overrides: tuple[Override, ...]
    weights_from: str | None
    """Hub id or directory of pretrained weights."""
    data_from: str | None
    """Hub id or path of the samples."""
    unsupported: str | None
    """Why this machine cannot run it, decided before any time is spent."""
    node_rank: int = 0
    """Number of this machine among several."""
    rendezvous: str | None = None
    """HOST:PORT of the first of several machines; None for one."""
    limit_memory_bytes: int | None = None
    """Host memory that each worker process may use; None for all of it."""

    def measured_with(self, **options: float) -> "Resolved":
        """Return it with other options of its measurement, which request and plan name alike: `seed` or `timeout_s`."""
        measurement = self.plan.measurement.model_copy(update=options)
        requested, plan = self.requested.model_copy(update=options), self.plan.model_copy(update={"measurement": measurement})
        return replace(self, requested=requested, plan=plan)


def resolve(name: str, facts: FactBase, machine: Machine, options: Options) -> Resolved:
    """Return the plan of a workload on a machine. Raises TunemarkError, with a suggestion, for an unknown name or value."""
    if options.rendezvous is not None and options.nodes == 1:
        raise TunemarkError("--set rendezvous", options.rendezvous, "is for several machines; give --set nodes=N, the same on each machine")
    if options.node_rank >= options.nodes:
        fix = f"machines are numbered from 0 to {options.nodes - 1}; give --set nodes=N, the same on each machine"
        raise TunemarkError("--set node_rank", options.node_rank, fix)
    requested = request(name, options)
    plan, overrides, unsupported = schema_plan.resolve(requested, facts, machine)
    directory = options.weights.partition(":")[2]
    data = options.data.partition(":")[2] or plan.data.name
    if plan.data.source is DataSource.FILE:
        try:
            check_file(data, plan.model.labels, plan.data.evaluation_rows, plan.data.template)
        except ValueError as error:
            raise TunemarkError("--data", f"file:{data}", str(error)) from error
    return Resolved(
        requested,
        plan,
        overrides,
        directory if plan.model.local else plan.model.hub_id,
        None if plan.data.source is DataSource.SYNTHETIC else data,
        unsupported,
        options.node_rank,
        options.rendezvous,
    )


WEIGHT_FILES = ("config.json", "*.safetensors")
"""Files of a directory with pretrained weights."""


def request(name: str, options: Options) -> Requested:
    """Return the request in the form that a record holds: files by name and content, directories of weights without a path."""
    given = {name: getattr(options, name) for name in RunOptions.model_fields}
    kind, _, place = options.data.partition(":")
    if kind == DataSource.FILE.value and place:
        file, given["data_sha256"] = describe_file(place)
        given["data"] = f"{kind}:{file}"
    elif kind == DataSource.HUB.value and Path(place).exists():
        # A local folder read through the hub library is named without its path.
        given["data"] = f"{kind}:{Path(place).name}"
    directory = options.weights.partition(":")[2]
    here = bool(directory) and Path(directory).is_dir()
    if directory.startswith(("/", ".", "~")) and not here:
        fix = "no such directory; give one that holds config.json and the weights, or a hub id"
        raise TunemarkError("--weights", options.weights, fix)
    if here:
        missing = [name for name in WEIGHT_FILES if not any(Path(directory).glob(name))]
        if missing:
            fix = f"holds no {' and no '.join(missing)}; give a directory that holds {' and '.join(WEIGHT_FILES)}, or a hub id"
            raise TunemarkError("--weights", options.weights, fix)
        given["weights"] = LOCAL_WEIGHTS
    return Requested(workload=name, **given)


def refuse_unsupported(resolved: Resolved) -> None:
    """Raise TunemarkError with exit code 4 when the machine cannot run the plan."""
    if resolved.unsupported:
        raise TunemarkError("workload", resolved.plan.workload, resolved.unsupported, exit_code=Exit.UNSUPPORTED)


def refuse_missing_devices(options: Options, machine: Machine) -> None:
    """Raise TunemarkError if `--devices` asks for more than this machine has: a typing error is no result."""
    missing = missing_devices(options.devices, options.nodes, machine) if options.devices else None
    if missing:
        raise TunemarkError("--devices", options.devices, missing, exit_code=Exit.UNSUPPORTED)


# Does a plan fit into the memory of a machine? Shown by `doctor` and `plan`, and checked by `run`


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
        return StepMemory(needed, share, *words, _less_memory(plan, machine, shape, share))
    needed = estimate_memory(shape).needed if shape else None
    memory = machine.devices[0].memory_bytes or share
    # Of a machine that is planned for, the host is unknown.
    usable = memory and vendor_of(machine.backend).usable_bytes(memory, host is not None)
    on_device = StepMemory(
        needed,
        usable,
        owner="each device" if usable == memory else "a process of each device",
        fix=_less_memory(plan, machine, shape, usable),
    )
    if shape is None or not shape.offload or on_device.too_large:
        return on_device
    # Parameters, gradients and optimizer states that a device keeps in host memory.
    kept, offloaded = (sum(line.bytes for line in state_lines(replace(shape, offload=there))) for there in (False, True))
    fewer = "choose method=lora or qlora, or a smaller model"
    on_host = StepMemory(processes * (kept - offloaded), host, "of host memory", "the host", fewer)
    return on_host if on_host.too_large else on_device


def _less_memory(plan: Plan, machine: Machine, shape: TrainingShape | None, has: int | None) -> str:
    """Return the settings that would lower the memory of a plan's step; shorter rows are none where weights and states alone are too large."""
    leaner = {Method.FULL: ("lora", "qlora"), Method.LORA: ("qlora",)}.get(plan.method, ())
    methods = [method for method in leaner if method != "qlora" or Feature.QLORA not in machine.family.cannot]
    smaller = f"choose --method {' or '.join(methods)} or a smaller --model" if methods else "choose a smaller --model"
    if shape and has and sum(line.bytes for line in state_lines(shape)) > has:
        return f"weights and training states alone are larger: {smaller}"
    rows = "--micro-batch or " if plan.batch.micro_batch > 1 else ""
    recompute = ", use --checkpointing full" if plan.model.gradient_checkpointing is Checkpointing.NONE else ""
    return f"lower {rows}--seq, {smaller}{recompute}"


def refuse_too_large(plan: Plan, card: ModelCard, machine: Machine) -> None:
    """Raise TunemarkError if the plan needs more memory than each device has, or more for offloaded states than the host has."""
    memory = step_memory(plan, card, machine)
    if memory.too_large:
        fix = f"a step {memory.words} by the memory model; {memory.fix}, or try it anyway with --set force=true"
        raise TunemarkError("memory", plan.workload, fix, exit_code=Exit.OUT_OF_MEMORY)
