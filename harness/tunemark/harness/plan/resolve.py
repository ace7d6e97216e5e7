"""The plan of a request on this machine or on another one: the options as given, the machine that is found, and refusals of what cannot run.

The fields of the options, their types and bounds are those of the record's `Requested`. What is rarely asked for has no option of its own:
`--set name=value` sets it, like a setting of the card. Paths are read here; everything else about a plan is `tunemark.schema.plan`.
The facts of this machine are a fixed list that does not identify it, and are found without torch.

`python -m tunemark.harness.plan.resolve` writes data/support.json, which the gate plans with and the site shows.
"""

import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
from pydantic import BaseModel, Field, SkipValidation, ValidationError

from tunemark.harness.run.run_log import SOURCE, CacheState
from tunemark.harness.vendors.cpu import cpu_model
from tunemark.harness.vendors.protocol import DeviceUnavailable, FoundDevice, Vendor, all_vendors, vendor_of
from tunemark.harness.vendors.vendor_tools import hides_all
from tunemark.harness.worker.sample_files import check_file, describe_file
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError, must_be
from tunemark.schema.facts.cards import APPLE, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import product_of
from tunemark.schema.files import project_root, usable_cores, write_atomically
from tunemark.schema.physics.memory import CONTEXT, SHARDED, estimate_memory, state_lines
from tunemark.schema.physics.training_shape import TrainingShape, shape_of_plan, shape_problem
from tunemark.schema.plan import resolve as schema_plan
from tunemark.schema.plan.capabilities import Feature, Machine, SupportMatrix, missing_devices
from tunemark.schema.plan.resolve import ALIASES
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.plan import LOCAL_WEIGHTS, OPTIONS, SET_NAMES, Override, Plan, Requested, RunOptions
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.records.trace import Study
from tunemark.schema.vocabulary import PACKAGES, VENDOR_PACKAGES, Backend, Checkpointing, DataSource, Method


def fraction(option: str, text: str) -> float:
    """Return a fraction given as `1%` or `0.01`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise TunemarkError(option, text, "is not a fraction between 0 and 1; give 1% or 0.01")
    return value


class Options(RunOptions):
    """What the user asked for, of every command that plans or runs a workload: the request, and what no record holds."""

    weights: str = "card"
    """As in the record, but with the path of a directory."""
    data: str = "card"
    """As in the record, but with the path of a file."""
    node_rank: Annotated[int, Field(ge=0)] = 0
    """Number of this machine. Machine 0 writes the submission."""
    rendezvous: str | None = None
    """HOST:PORT of the first of several machines."""
    force: bool = False
    """Start although the memory model says that nothing fits, or the model hub does not answer."""
    facts: Annotated[FactBase, SkipValidation] = Field(default_factory=FactBase.of_project)
    """The facts of the project, with cards of the user's own."""

    def having(self, **changes: Any) -> "Options":  # noqa: ANN401 - of any field
        """Return them with other values of some fields."""
        return self.model_copy(update=changes)

    def setting(self, assignments: Iterable[str]) -> "Options":
        """Return them with further `name=value`: of the run by the name of its option or in SETTINGS, and else of the card."""
        options, sets = self, list(self.overrides)
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            field = SETTINGS.get(ALIASES.get(name, name)) if equals else None
            if field is None:
                sets.append(assignment)
            else:
                value = fraction(f"--set {name}", text) if name == "until_ci" else text
                options = valid({**dict(options), field: value}, {field: f"--set {name}"})
        return options.having(overrides=tuple(sets))


def valid(content: dict[str, Any], names: Mapping[str, str]) -> Options:
    """Return options with this content. Raises TunemarkError for a wrong value, by the name of its field."""
    try:
        return Options.model_validate(content)
    except ValidationError as error:
        raise refused(error, names) from error


def refused(error: ValidationError, names: Mapping[str, str]) -> TunemarkError:
    """Return the first wrong value as an error, by the name of its field."""
    wrong = error.errors()[0]
    name = str(wrong["loc"][0])
    fix = "name a workload of `tunemark workloads`; a model's config.json goes to --model" if name == "workload" else must_be(wrong["msg"])
    return TunemarkError(names.get(name, name), wrong["input"], fix)


RARE = {SET_NAMES.get(name, name): name for name in Options.model_fields if name not in {*OPTIONS, "data_sha256", "facts"}}
"""Settings of a run that only `--set` sets -> field of Options."""
SETTINGS = RARE | {"devices.count": "devices", "devices.strategy": "strategy", "devices.offload": "offload"}
"""All settings that are the run's and not the card's. A series varies the devices by the names of the card."""
# This machine


def detect(requested: Backend | None = None) -> Machine:
    """Return the facts of this machine. Takes well under a second and imports no torch.

    Raises TunemarkError when the requested device family is not here, or when a device mask selects none of its devices.
    """
    here: list[tuple[Vendor, list[FoundDevice]]] = []
    possible, problems = all_vendors(here=True), ""
    for vendor in possible:
        try:
            here += [(vendor, devices)] if (devices := vendor.find()) else []
        except DeviceUnavailable as error:
            problems += f"; {error}"
        except TunemarkError:
            # A wrong mask matters only where these devices would be used.
            if requested in {None, vendor.backend}:
                raise
    chosen = next(((vendor, devices) for vendor, devices in here if requested in {None, vendor.backend}), None)
    missing = hidden = ""
    if chosen is None or chosen[0].on_host:
        # The tools without which a vendor's devices cannot be found here, and the variables that hide all devices.
        missing = problems
        masks = ((name, os.environ[name]) for vendor in possible for name in vendor.masks if name in os.environ)
        hidden = "".join(f"; {name}={value!r} hides all devices" for name, value in masks if hides_all(value))
    if chosen is None:
        names = ", ".join(vendor.backend.value for vendor, _ in here)
        raise TunemarkError("--set backend", str(requested), f"this machine has {names}{missing}", exit_code=Exit.UNSUPPORTED)
    vendor, devices = chosen
    release = platform.release().split("-")[0].split(".")
    installed = {name: next(iter(importlib.metadata.distributions(name=name)), None) for name in (*PACKAGES, *VENDOR_PACKAGES)}
    return Machine(
        backend=vendor.backend,
        family=vendor.family,
        backend_reason=f"{vendor.found_by}{missing}{hidden}",
        devices=tuple(device.facts for device in devices),
        # More of a kernel's release may name its builder or owner.
        os=f"{platform.system()} {'.'.join(release[:2])} {platform.machine()}",
        python=platform.python_version(),
        packages={name: found.version for name, found in installed.items() if found},
        cpu=cpu_model(),
        cpu_physical_cores=psutil.cpu_count(logical=False),
        cpu_logical_cores=psutil.cpu_count() or 1,
        cpu_usable_cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        swap_bytes=psutil.swap_memory().total,
        free_disk_bytes=shutil.disk_usage(Path.cwd()).free,
        indexes=tuple(device.index for device in devices if device.index is not None),
        container=container(),
    )


CONTAINER_FILES = Path("/run/.containerenv"), Path("/.dockerenv")
"""Written by Podman, with the name of the image, and by Docker, without."""


def container() -> str | None:
    """Return the image of this process's container without its registry, or else the kind of container; None outside."""
    podman, docker = CONTAINER_FILES
    named = re.search(r'^image="(.+)"', podman.read_text(encoding="utf-8") if podman.is_file() else "", re.MULTILINE)
    image = os.environ.get("TUNEMARK_IMAGE") or (named and named[1])
    if image:
        return image.rsplit("/", 1)[-1].partition("@")[0]
    if "NVIDIA_PYTORCH_VERSION" in os.environ:
        return f"nvidia pytorch:{os.environ['NVIDIA_PYTORCH_VERSION']}"
    return "docker" if docker.exists() else "podman" if podman.exists() else None


HUB_LIMIT_S = 3.0
"""Seconds in which the hub must answer: a page takes well under one."""


def hub() -> str:
    """Return the state of the model hub in words: it must answer within a few seconds."""
    from tunemark.schema.facts.any_model import hub_address  # noqa: PLC0415 - only for weights and data of the hub

    address = hub_address()
    if address is None:
        return "offline (HF_HUB_OFFLINE is set)"
    try:
        with urlopen(Request(address, method="HEAD"), timeout=HUB_LIMIT_S):  # noqa: S310 - the address that the user's own hub library asks
            return f"reachable ({address})"
    except HTTPError as error:
        return f"reachable ({address}, which answers {error.code})"
    except (OSError, ValueError) as error:
        return f"NOT reachable ({address}: {getattr(error, 'reason', error)}); set HF_HUB_OFFLINE=1 to save the retries"


# Another machine to plan for: that of an accelerator card, never the local one


def machine_with(facts: FactBase, accelerator: str, devices: int, nodes: int) -> Machine:
    """Return one of the machines that together have some devices of an accelerator, with all packages.

    Raises TunemarkError for a name that is not in data/ or that no plan is for, and for a number of devices that the machines cannot share.
    """
    if devices % nodes:
        raise TunemarkError("--devices", devices, f"is for all {nodes} nodes together; give a multiple of {nodes}")
    card = facts.accelerator(accelerator, "--accelerator", usual=True)
    known = [vendor for vendor in all_vendors() if vendor.cards and card.unit != "cpu"]
    vendor = next((each for each in known if re.fullmatch(str(each.cards), f"{card.vendor} {card.architecture}")), None)
    if vendor is None:
        makers = sorted({str(each.cards).partition(" ")[0] for each in known})
        fix = f"plans are for accelerators of {', '.join(makers)}, not of {card.vendor} {card.architecture or ''}".rstrip()
        raise TunemarkError("--accelerator", card.key, fix if known else "is a CPU; plan on the CPU itself, without this option")
    # What drivers report there; of a Mac it is the memory of the host.
    memory = (card.device_bytes if card.vendor == APPLE else card.usable_bytes) or None
    return detect().model_copy(
        update={
            "backend": vendor.backend,
            "family": vendor.family,
            "backend_reason": f"{card.name} was requested",
            "devices": (DeviceFacts(name=facts.accelerators[product_of(card)].name, memory_bytes=memory),) * (devices // nodes),
            "memory_bytes": None,
            "packages": dict.fromkeys({*PACKAGES, *(need.package for need in vendor.needs.values())}, "to be installed"),
        }
    )


# The plan of a request


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


def hub_cache(resolved: Resolved) -> CacheState:
    """Return `warm` if the hub's cache on this machine holds all weights and data from the hub, else `cold`; `none` without any."""
    plan = resolved.plan
    repositories = [f"models--{plan.model.hub_id}"] if plan.model.hub_id else []
    if plan.data.source is DataSource.HUB and resolved.data_from and not Path(resolved.data_from).exists():
        repositories.append(f"datasets--{resolved.data_from}")
    if not repositories:
        return "none"
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    return "warm" if all((cache / name.replace("/", "--")).exists() for name in repositories) else "cold"


class Order(BaseModel):
    """A run of the parent process: instructions to its worker, and what `tunemark recover` needs if the parent is killed.

    It contains local paths and is not kept.
    """

    resolved: Resolved
    machine: Machine
    card: ModelCard
    out: Path = Path()
    supersedes: dict[str, str] | None = None
    study: Study | None = None
    model_cache: CacheState = Field(default_factory=lambda known: hub_cache(known["resolved"]))
    """State of the hub's cache before the run."""
    started_at: datetime = Field(default_factory=partial(datetime.now, UTC))
    spawned_at_s: float = 0.0
    parent_pid: int = Field(default_factory=os.getpid)
    parent_created_s: float = Field(default_factory=lambda: psutil.Process().create_time())
    """Start of the parent process, seconds since 1970, since numbers of processes are used again."""
    source: Path = SOURCE
    """The checkout or installation that runs. The runs of others are theirs to recover."""


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


@dataclass(frozen=True)
class StepMemory:
    """The memory that a training step needs by the memory model, and the memory that there is."""

    needed: int | None
    """Bytes; None where the model does not apply."""
    has: int | None
    """Bytes; None where unknown."""
    where: str = "on each device, and each device"
    """Where it is needed, and what has it."""
    fix: str = ""

    @property
    def too_large(self) -> bool:
        """True if more is needed than there is; False if it fits or either is unknown."""
        return self.needed is not None and self.has is not None and self.needed > self.has

    @property
    def words(self) -> str:
        """The two amounts in words; empty where the model does not apply."""
        has = "memory of an unknown size" if self.has is None else formats.gib(self.has)
        return "" if self.needed is None else f"needs about {formats.gib(self.needed)} {self.where} has {has}"


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
        where = f"in each process, and each of the {processes} processes" if processes > 1 else StepMemory.where
        return StepMemory(needed, share, where, _less_memory(plan, machine, shape, share))
    needed = estimate_memory(shape).needed if shape else None
    memory = machine.devices[0].memory_bytes or share
    # Of a machine that is planned for, the host is unknown.
    usable = memory and vendor_of(machine.backend).usable_bytes(memory, host is not None)
    where = StepMemory.where if usable == memory else "on each device, and a process of each device"
    on_device = StepMemory(needed, usable, where, _less_memory(plan, machine, shape, usable))
    if shape is None or not shape.offload or on_device.too_large:
        return on_device
    # Parameters, gradients and optimizer states that a device keeps in host memory.
    kept, offloaded = (sum(line.bytes for line in state_lines(replace(shape, offload=there))) for there in (False, True))
    fewer = "choose method=lora or qlora, or a smaller model"
    on_host = StepMemory(processes * (kept - offloaded), host, "of host memory, and the host", fewer)
    return on_host if on_host.too_large else on_device


def _less_memory(plan: Plan, machine: Machine, shape: TrainingShape | None, has: int | None) -> str:
    """Return the settings that would lower the memory of a plan's step; shorter rows are none where weights and states alone are too large."""
    if plan.device.count > 1 and shape and "parameters" not in SHARDED[shape.sharding] and plan.method is not Method.QLORA:
        return "choose --sharding fsdp2, which divides weights and states over the devices"
    leaner = {Method.FULL: ("lora", "qlora"), Method.LORA: ("qlora",)}.get(plan.method, ())
    methods = [method for method in leaner if method != "qlora" or Feature.QLORA not in machine.family.cannot]
    smaller = f"choose --method {' or '.join(methods)} or a smaller --model" if methods else "choose a smaller --model"
    if shape and has and sum(line.bytes for line in state_lines(shape)) > has:
        return f"weights and training states alone are larger: {smaller}"
    rows = "--micro-batch or " if plan.batch.micro_batch > 1 else ""
    recompute = ", use --checkpointing full" if plan.model.gradient_checkpointing is Checkpointing.NONE else ""
    return f"lower {rows}--seq, {smaller}{recompute}"


def support_matrix() -> SupportMatrix:
    """Return the capabilities of each device family."""
    return SupportMatrix(features=tuple(Feature), families={vendor.backend: vendor.family for vendor in all_vendors()})


if __name__ == "__main__":
    write_atomically(project_root() / "data" / "support.json", canonical_json(support_matrix()))
