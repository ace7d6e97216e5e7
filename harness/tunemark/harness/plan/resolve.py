"""The options that plan, run and the studies share, the plan that they give on this machine, and refusals of what cannot run here.

The fields of the options, their types and bounds are those of the record's `Requested`. What is rarely asked for has no option of its own:
`--set name=value` sets it, like a setting of the card. Paths are read here; everything else about a plan is `tunemark.schema.plan`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml
from pydantic import Field, SkipValidation, ValidationError

from tunemark.harness.vendors.protocol import vendor_of
from tunemark.harness.worker.sample_files import check_file, describe_file
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError, must_be
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.memory import CONTEXT, estimate_memory
from tunemark.schema.physics.memory_states import state_lines
from tunemark.schema.physics.training_shape import TrainingShape, shape_of_plan, shape_problem
from tunemark.schema.plan import resolve as schema_plan
from tunemark.schema.plan.capabilities import Feature, Machine, missing_devices
from tunemark.schema.plan.resolve import ALIASES
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import LOCAL_WEIGHTS, OPTIONS, SET_NAMES, Override, Plan, Requested, RunOptions
from tunemark.schema.vocabulary import Checkpointing, DataSource, Method

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Write the submissions there. Default: submissions/ of the checkout.")
]
Workload = Annotated[str, typer.Argument(help="A name of `tunemark workloads`, your card (.toml), or options (.yml).")]


def count(text: str | int, read: Callable[[str], int] = formats.whole_number) -> int:
    """Return a whole number of 1 or more, such as `500`, `2k` or `10M`, for typer, which also gives the default."""
    try:
        return read(str(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}") from error


def row_length(text: str | int) -> int:
    """Return the tokens of a row: `8k` is 8,192."""
    return count(text, formats.tokens_in_row)


def fraction(option: str, text: str) -> float:
    """Return a fraction given as `1%` or `0.01`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise TunemarkError(option, text, "is not a fraction between 0 and 1; give 1% or 0.01")
    return value


DATA = "Use card, synthetic, file:PATH (.txt, .csv or .jsonl, or a folder with train and test files), or hub:NAME."


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
                options = _valid({**dict(options), field: value}, {field: f"--set {name}"})
        return options.having(overrides=tuple(sets))


def _valid(content: dict[str, Any], names: Mapping[str, str]) -> Options:
    """Return options with this content. Raises TunemarkError for a wrong value, by the name of its field."""
    try:
        return Options.model_validate(content)
    except ValidationError as error:
        raise _refused(error, names) from error


def _refused(error: ValidationError, names: Mapping[str, str]) -> TunemarkError:
    """Return the first wrong value as an error, by the name of its field."""
    wrong = error.errors()[0]
    name = str(wrong["loc"][0])
    fix = "give the name of a workload; `tunemark workloads` lists them" if name == "workload" else must_be(wrong["msg"])
    return TunemarkError(names.get(name, name), wrong["input"], fix)


RARE = {SET_NAMES.get(name, name): name for name in Options.model_fields if name not in {*OPTIONS, "data_sha256", "facts"}}
"""Settings of a run that only `--set` sets -> field of Options."""
SETTINGS = RARE | {"devices.count": "devices", "devices.strategy": "strategy", "devices.offload": "offload"}
"""All settings that are the run's and not the card's. A series varies the devices by the names of the card."""
SET = f"Change a setting: of the card, such as compile=blocks, which leaves the standard division, or of the run: {', '.join(RARE)}."


class Shared(NamedTuple):
    """An option of all commands that plan or run a workload."""

    name: str
    help_text: str
    metavar: str
    kind: Any = str | None
    setting: str | None = None
    """The setting of the card that it stands for; None for a field of the request."""
    parser: Callable[[str | int], int] | None = None


SHARED: dict[str, Shared] = {
    "method": Shared("--method", "Use full, lora or qlora.", "METHOD", setting="method"),
    "rank": Shared("--rank", "Rank of the adapters.", "N", int | None, "lora.rank", count),
    "seq": Shared("--seq", "Tokens in a row.", "N", int | None, "data.sequence_length", row_length),
    "micro_batch": Shared("--micro-batch", "Rows of one forward pass on one device.", "N", int | None, "batch.micro_batch", count),
    "checkpointing": Shared("--checkpointing", "Use none, selective or full.", "KIND", setting="gradient_checkpointing"),
    "overrides": Shared("--set", SET, "NAME=VALUE", list[str] | None),
    "weights": Shared("--weights", "Use card, random, pretrained, or pretrained:HUB_ID_OR_DIRECTORY.", "WEIGHTS", str),
    "model": Shared("--model", "Train another model: a name, hub id, size, folder or config.json.", "MODEL"),
    "data": Shared("--data", DATA, "DATA", str),
    "max_steps": Shared("--steps", "Run exactly N optimizer steps.", "N", int | None, parser=count),
    "devices": Shared("--devices", "Train on N devices, over all machines.", "N", int | None, parser=count),
    "strategy": Shared("--sharding", "Use ddp, fsdp2, zero1, zero2 or zero3.", "NAME"),
}
"""Parameter of a command, which for the request is a field of Options, and its option."""


def with_own_cards(workload: str, model: str | None, options: Options) -> tuple[str, Options]:
    """Return a workload's key, and options with the facts that it needs: `workload` may be a card's file, `model` as in `any_model`.

    Without that model's weights, its shape is trained from random ones. A file with options holds `workload`, and the names of options or
    settings; what the command line gives counts more.
    """
    facts = options.facts
    if workload.endswith((".yml", ".yaml")):
        content = _options_in(Path(workload))
        for name in ("workload", "model", "weights", "data"):
            value = str(content.get(name) or "")
            # A known name is no folder, unless it is a path.
            other = name == "model" and ("/" in value or value.lower() not in facts.model_keys)
            if value.endswith(".toml") or name in {"weights", "data"} or other:
                content |= {name: _beside(Path(workload), value)} if value else {}
        workload, model = str(content.pop("workload", "")), model or content.pop("model", None)
        given = {name: value for name, value in dict(options).items() if value != Options.model_fields[name].get_default()}
        named = {option.name.removeprefix("--"): option.setting or name for name, option in SHARED.items()}
        read = {named.get(name, name): str(value) for name, value in content.items()}
        request = {name: read.pop(name) for name in list(read) if name in Options.model_fields}
        asked = _valid(request, OPTIONS).setting(f"{name}={value}" for name, value in read.items())
        options = asked.having(**given | {"overrides": (*asked.overrides, *options.overrides)})
    if workload.endswith(".toml"):
        if not Path(workload).is_file():
            raise TunemarkError("workload", workload, "no such file; name a card of yours, or one that `tunemark workloads` lists")
        facts, workload = replace(facts, own_workloads=(Path(workload),)), Path(workload).stem
    if model is not None:
        from tunemark.schema.facts.any_model import any_model  # noqa: PLC0415 - only for a model that was asked for

        card = any_model(facts, str(model))
        if facts.models.get(card.key) != card:
            card = card.model_copy(update={"key": f"own-{card.key}" if card.key in facts.models else card.key})
            facts = replace(facts, own_models=(card,))
        options = options.having(overrides=(f"model={card.key}", *options.overrides))
    return workload, options.having(facts=facts)


def _beside(file: Path, value: str) -> str:
    """Return a value of an options file with a path that is there beside the file, such as `file:texts`, as a path from here."""
    kind, colon, place = value.rpartition(":")
    return f"{kind}{colon}{file.parent / place}" if place and (file.parent / place).exists() else value


def _options_in(path: Path) -> dict[str, Any]:
    """Return the options in a YAML file. Raises TunemarkError for a file that holds none."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TunemarkError("workload", str(path), f"cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or "workload" not in content:
        raise TunemarkError("workload", str(path), "name the workload and options, such as `workload: lora-8b` and `seq: 2048`")
    # Settings may stand below `set`, and their parts below one another.
    below = content.pop("set", {})
    if not isinstance(below, dict):
        raise TunemarkError("set", below, f"write each setting as `name: value` below `set:` in {path}")
    return dict(flattened({**below, **content}))


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the options above, which it receives as its parameter `options`. Its own ones of the same name stay its own.

    Its errors name options and settings as the user typed them.
    """
    parameters = inspect.signature(command, eval_str=True).parameters
    shared = {name: option for name, option in SHARED.items() if name not in parameters}

    def run(**arguments: Any) -> None:  # noqa: ANN401 - what typer read
        given = {name: arguments.pop(name) for name in shared}
        assigned, model = given.pop("overrides") or (), given.pop("model")
        typed, sets, request = dict[str, str](), list[str](), dict[str, Any]()
        for name, value in given.items():
            setting = shared[name].setting
            if setting is None:
                request[name] = value
            elif value is not None:
                typed[setting] = shared[name].name
                sets.append(f"{setting}={value}")
        for name in (assignment.partition("=")[0] for assignment in assigned):
            setting = ALIASES.get(name, name)
            typed[OPTIONS.get(SETTINGS.get(setting, ""), setting)] = f"--set {name}"
        try:
            options = _valid(request, OPTIONS).setting((*sets, *assigned))
            arguments["workload"], options = with_own_cards(arguments["workload"], model, options)
            command(**arguments, options=options)
        except TunemarkError as error:
            raise _as_typed(error, typed, command.__name__) from error
        except ValidationError as error:
            # Of the request: an empty text, which no record may hold.
            raise _refused(error, OPTIONS) from error

    own = [parameters[name] for name in parameters if name != "options"]
    for name, (option, text, metavar, kind, _, parser) in shared.items():
        info = typer.Option(option, help=text, metavar=metavar, parser=parser, rich_help_panel="What is run", show_default=False)
        default = (Options.model_fields[name].default or None) if name in Options.model_fields else None
        own.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]))
    run.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _as_typed(error: TunemarkError, typed: Mapping[str, str], command: str) -> TunemarkError:
    """Return an error that names the options that were typed; `typed` is by the setting, or by the option that has the same meaning."""
    field, value, fix = error.field, error.value, error.fix
    if field == "--set" and value in typed and typed[str(value)] != f"--set {value}":
        field, value = str(value), None
    if field == "--set" and fix.endswith("with its settings"):
        fix += f", and `tunemark {command} --help` those of a run"
    # One rule may be about several settings: `--set method, lora`.
    first, *others = field.removeprefix("--set ").split(", ")
    names = (typed.get(first, field.split(", ")[0]), *(typed.get(name, f"--set {name}") for name in others))
    return type(error)(", ".join(dict.fromkeys(names)), value, fix, exit_code=error.exit_code)


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
