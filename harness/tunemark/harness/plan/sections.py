"""The sections of a plan, each resolved from card, options and machine, each derived value with its reason."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from tunemark.harness.plan.capabilities import FEATURE_OF, Generation
from tunemark.harness.plan.machine import Machine
from tunemark.harness.run.process import Node
from tunemark.harness.worker.sample_files import FULL_ROWS, SYNTHETIC, check_file, describe_file
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.physics.architecture import targets_in
from tunemark.schema.records.plan import (
    Batch,
    DataChoice,
    DeviceChoice,
    Launcher,
    LoraSettings,
    Measurement,
    ModelChoice,
    Offload,
    Precision,
)
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import Backend, DataSource, Dtype, Padding, Strategy, Task, Weights

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Options:
    """What the person running it asked for."""

    overrides: tuple[str, ...] = ()
    """`field=value` on the workload card."""
    weights: str = "card"
    """`card`, `random`, `pretrained` (the model card's hub id), or `pretrained:HUB_ID_OR_DIRECTORY`."""
    data: str = "card"
    """`card`, `synthetic`, `file:PATH` or `hub:NAME`."""
    max_steps: int | None = None
    epochs: int | None = None
    max_train_s: float | None = None
    timeout_s: float | None = None
    no_step_s: float | None = None
    seed: int | None = None
    devices: int | None = None
    """Processes, one a device, over all nodes."""
    strategy: str | None = None
    offload: str | None = None
    nodes: int = 1
    node: Node = field(default_factory=Node)
    launcher: Launcher = "torchrun"
    until_ci: float | None = None
    """Stop once the interval of throughput is this narrow; also for a run with a number of steps."""
    strict_timing: bool = False
    probe: bool = True
    gates: bool = True
    save: bool = False
    """Write what was trained at the end, and measure how long that takes."""
    cold: bool = False
    """Compile everything anew, in fresh cache folders."""

    def sets(self, field: str) -> bool:
        """Return whether a field is set by name, with --set."""
        return any(assignment.partition("=")[0] == field for assignment in self.overrides)


class Reasons(dict[str, str]):
    """Collects why each derived value is what it is."""

    def give(self, field: str, value: Value, why: str) -> Value:
        """Return the value and note its reason."""
        self[field] = why
        return value


def weights_choice(card: WorkloadCard, facts: FactBase, options: Options) -> tuple[Weights, str | None]:
    """Return where the first weights come from, and the hub id or directory of pretrained ones."""
    asked, _, where = options.weights.partition(":")
    kind = card.weights.value if asked == "card" else asked
    if kind == Weights.RANDOM.value:
        return Weights.RANDOM, None
    if kind != Weights.PRETRAINED.value:
        raise TunemarkError("--weights", options.weights, "give random, pretrained, or pretrained:HUB_ID_OR_DIRECTORY")
    hub_id = where or facts.model(card.model).hub_id
    if hub_id is None:
        raise TunemarkError(
            "--weights", options.weights, f"model {card.model} has no hub id; give pretrained:HUB_ID_OR_DIRECTORY, or --weights random"
        )
    if hub_id.startswith(("/", ".", "~")) and not Path(hub_id).is_dir():
        raise TunemarkError("--weights", options.weights, "no such directory; give one that holds config.json and the weights, or a hub id")
    return Weights.PRETRAINED, hub_id


def model_choice(card: WorkloadCard, facts: FactBase, weights: Weights, weights_from: str | None) -> ModelChoice:
    """Return the model and its weights."""
    local = weights_from is not None and Path(weights_from).exists()
    return ModelChoice(
        key=facts.model(card.model).key,
        task=card.task,
        labels=card.labels,
        weights=weights,
        hub_id=None if local else weights_from,
        local=local,
        attention=card.attention,
        gradient_checkpointing=card.gradient_checkpointing,
        fused_kernels=card.fused_kernels,
        compile=card.compile,
    )


def lora_choice(card: WorkloadCard, facts: FactBase, reasons: Reasons) -> LoraSettings | None:
    """Return the adapters, on layers in the names of the model's family."""
    if card.lora is None:
        return None
    model = facts.model(card.model)
    targets = targets_in(model, card.lora.target_modules)
    if targets != card.lora.target_modules:
        reasons.give("lora.target_modules", targets, f"what was asked for, in the names of {model.family}")
    return card.lora.model_copy(update={"target_modules": targets})


def data_choice(card: WorkloadCard, machine: Machine, options: Options, reasons: Reasons) -> tuple[DataChoice, str | None]:
    """Return the samples, and the hub id or path they are read from."""
    asked, colon, where = options.data.partition(":")
    if colon and not where:
        raise TunemarkError("--data", options.data, "name the file, folder or data set after the colon")
    source = card.data.source if asked == "card" else data_source(options.data)
    name, sha256, place = card.data.name, None, None
    if source is DataSource.FILE:
        place = where or card.data.name
        name, sha256 = describe_file(place)
        try:
            check_file(place, card.labels, card.data.evaluation_rows, card.data.template)
        except ValueError as error:
            raise TunemarkError("--data", f"file:{place}", str(error)) from error
    elif source is DataSource.HUB:
        place = where or card.data.name
        # A local folder read through the hub library is named without its path.
        name = Path(place).name if Path(place).exists() else place
    elif card.data.source is not DataSource.SYNTHETIC:
        full_rows = "random-documents" if card.data.packing else "random-tokens"
        name = full_rows if card.task is Task.CAUSAL_LM else "keyword-classes"
    if source is DataSource.SYNTHETIC and name not in SYNTHETIC[card.task]:
        raise TunemarkError("data.name", name, did_you_mean(name, SYNTHETIC[card.task]))
    tokenizer = "none"
    if source is not DataSource.SYNTHETIC:
        tokenizer = (
            "model"
            if options.weights.startswith("pretrained") or (options.weights == "card" and card.weights is Weights.PRETRAINED)
            else "word-level"
        )
    reasons["data.tokenizer"] = {
        "none": "synthetic samples are token ids already",
        "model": "pretrained weights come with their tokenizer",
        "word-level": "random weights have no tokenizer, so each frequent word of the training rows becomes a token",
    }[tokenizer]
    choice = DataChoice(
        source=source,
        name=name,
        sha256=sha256,
        template=card.data.template,
        tokenizer=tokenizer,
        sequence_length=card.data.sequence_length,
        padding=padding_choice(card, machine, source, name, options, reasons),
        packing=card.data.packing,
        document_borders=borders_choice(card, machine, options, reasons),
        training_rows=card.data.training_rows,
        evaluation_rows=card.data.evaluation_rows,
    )
    return choice, place


def borders_choice(card: WorkloadCard, machine: Machine, options: Options, reasons: Reasons) -> bool:
    """Return whether packed documents do not see each other, which Neuron's kernels cannot see to."""
    asked = options.sets("data.document_borders")
    if not card.data.packing or not card.data.document_borders or asked or machine.backend is not Backend.NEURON:
        return card.data.document_borders
    why = "the attention kernels of optimum-neuron know no borders: documents of a row are laid end to end and see each other"
    return reasons.give("data.document_borders", value=False, why=why)


def padding_choice(card: WorkloadCard, machine: Machine, source: DataSource, name: str, options: Options, reasons: Reasons) -> Padding:
    """Return how rows become a rectangle: a card made for full rows says `none`, which rows of different length cannot have.

    Raises
    ------
    TunemarkError
        When `none` was asked for by name.

    """
    said = card.data.padding
    asked = options.sets("data.padding")
    full = said is Padding.NONE and (card.data.packing or (source is DataSource.SYNTHETIC and name in FULL_ROWS))
    if full or said is Padding.STATIC or (said is Padding.DYNAMIC and (asked or machine.backend is not Backend.NEURON)):
        return said
    if said is Padding.NONE and asked:
        raise TunemarkError(
            "--set data.padding", said.value, f"rows of {name} differ in length; give dynamic or static, or data.packing=true"
        )
    if machine.backend is Backend.NEURON:
        why = "rows differ in length, and on Neuron each new length of a micro-batch would be compiled anew: all are padded to the full one"
        return reasons.give("data.padding", Padding.STATIC, why)
    return reasons.give(
        "data.padding",
        Padding.DYNAMIC,
        "rows differ in length, and the card is made for full ones: each micro-batch is padded to its longest row",
    )


def data_source(text: str) -> DataSource:
    """Return the kind of source that `--data` names."""
    kind = text.partition(":")[0]
    if kind not in {source.value for source in DataSource}:
        raise TunemarkError("--data", text, "give synthetic, file:PATH or hub:NAME")
    return DataSource(kind)


def precision_choice(card: WorkloadCard, machine: Machine, generation: Generation | None, reasons: Reasons) -> Precision:
    """Return the number formats of weights and of matrix products."""
    if card.compute == "auto":
        fastest, why = machine.compute_dtypes[0], f"the first of what a {machine.backend.value} device does well"
        if generation is not None:
            newest, fastest = fastest, next(iter(generation.formats(machine.compute_dtypes)), Dtype.FP32)
            lacking = "" if newest is fastest else f"; {newest.value}: {generation.cannot[FEATURE_OF[newest]]}"
            why = f"the first of what {generation.name} does well{lacking}"
        compute = reasons.give("precision.compute", fastest, why)
    else:
        compute = reasons.give("precision.compute", Dtype(card.compute), "the workload card says so")
    parameters = reasons.give(
        "precision.parameters",
        Dtype.BF16 if compute is Dtype.BF16 else Dtype.FP32,
        "fp16 updates vanish, so its weights are kept in fp32" if compute is Dtype.FP16 else "weights are stored in the compute format",
    )
    return Precision(parameters=parameters, compute=compute)


# MOVE: was tunemark.harness.plan.sections: How many devices a plan uses, and how they share its model and its batch.

HOST_BACKENDS = (Backend.CPU, Backend.FAKE)
"""Device families of which every process of a machine uses the same one."""
PROCESSES_A_CORE = 4
"""More on each core measure nothing but waiting, and take the memory of the machine."""
OFFLOADS: tuple[Offload, ...] = ("none", "optimizer", "all")


def device_choice(
    card: WorkloadCard, machine: Machine, accelerator: AcceleratorCard | None, options: Options, reasons: Reasons
) -> DeviceChoice:
    """Return the devices, which are those of a card where one is known, and how they share the work."""
    known = (
        "its reported name is an alias of the card"
        if accelerator
        else f"no card in data/accelerators has the alias {machine.devices[0].name!r}; peaks and prices are unknown"
    )
    count = _count(card, options, reasons)
    strategy = _strategy(card, count, options, reasons)
    return DeviceChoice(
        backend=reasons.give("device.backend", machine.backend, machine.backend_reason),
        accelerator=reasons.give("device.accelerator", accelerator.key if accelerator else None, known),
        count=count,
        nodes=options.nodes,
        strategy=strategy,
        offload=_offload(card, options),
        tensor_parallel=card.devices.tensor_parallel,
        pipeline_parallel=card.devices.pipeline_parallel,
        launcher=None if count == 1 else options.launcher,
        threads=_threads(machine, count, options, reasons) if machine.backend in HOST_BACKENDS else None,
    )


def _count(card: WorkloadCard, options: Options, reasons: Reasons) -> int:
    asked = options.devices if options.devices is not None else card.devices.count
    count = reasons.give("device.count", asked, "asked for with --devices" if options.devices else "the workload card says so")
    if count % options.nodes:
        raise TunemarkError("--devices", count, f"is for all {options.nodes} nodes together; give a multiple of {options.nodes}")
    return count


def sharing_problem(device: DeviceChoice) -> str | None:
    """Return why so many devices cannot share the work that way, or None."""
    several = [strategy.value for strategy in Strategy if strategy is not Strategy.SINGLE]
    if device.count == 1 and device.strategy is not Strategy.SINGLE:
        return f"{device.strategy.value}: one device shares nothing; leave --strategy out, or give --devices"
    if device.count > 1 and device.strategy is Strategy.SINGLE:
        return f"single: {device.count} devices need one of {', '.join(several)}"
    apart = device.tensor_parallel * device.pipeline_parallel
    if device.count % apart:
        return f"{device.count} devices: tensor x pipeline parallel is {apart}; give a multiple of it"
    return None


def too_many_devices(device: DeviceChoice, machine: Machine) -> str | None:
    """Return why a machine has too few devices for a plan, or None."""
    here, per_node = len(machine.devices), device.count // device.nodes
    on_host = machine.backend in HOST_BACKENDS
    most = PROCESSES_A_CORE * machine.cpu_usable_cores if on_host else here
    if per_node <= most:
        return None
    has = f"{machine.cpu_usable_cores} cores" if on_host else f"{here} {machine.backend.value} device{'s' * (here != 1)}"
    fix = f"this machine has {has}; give --devices {most * device.nodes} or less"
    return f"{device.count} devices{f' on {device.nodes} nodes' * (device.nodes > 1)}: {fix}"


def _strategy(card: WorkloadCard, count: int, options: Options, reasons: Reasons) -> Strategy:
    asked, why = (
        (options.strategy, "asked for with --strategy") if options.strategy else (card.devices.strategy, "the workload card says so")
    )
    words = [strategy.value for strategy in Strategy]
    if asked == "auto" or (count == 1 and not options.strategy):
        one = count == 1
        return reasons.give(
            "device.strategy", Strategy.SINGLE if one else Strategy.DDP, "one device needs none" if one else "each device holds a replica"
        )
    if asked not in words:
        raise TunemarkError("--strategy", asked, did_you_mean(asked, words))
    return reasons.give("device.strategy", Strategy(asked), why)


def _offload(card: WorkloadCard, options: Options) -> Offload:
    asked = options.offload or card.devices.offload
    for known in OFFLOADS:
        if known == asked:
            return known
    raise TunemarkError("--offload", asked, did_you_mean(asked, OFFLOADS))


def _threads(machine: Machine, count: int, options: Options, reasons: Reasons) -> int:
    """Return threads a process: those of all processes on a machine are its physical cores."""
    here = count // options.nodes
    cores = min(machine.cpu_physical_cores or machine.cpu_usable_cores, machine.cpu_usable_cores)
    why = "one thread per physical core that this process may use"
    return reasons.give("device.threads", max(1, cores // here), why if here == 1 else f"{why}, shared by {here} processes")


def batch_choice(card: WorkloadCard, device: DeviceChoice, reasons: Reasons) -> Batch:
    """Return the batch from one micro-step to one optimizer step."""
    micro, accumulation = card.batch.micro_batch, card.batch.gradient_accumulation
    apart = device.tensor_parallel * device.pipeline_parallel
    why = "each device sees different rows" if apart == 1 else f"{device.count} devices / tensor x pipeline parallel {apart}"
    # Devices that cannot be shared so are told as unsupported; until then a plan has one replica.
    replicas = reasons.give("batch.data_parallel", max(1, device.count // apart), why)
    rows = reasons.give(
        "batch.global_batch",
        micro * accumulation * replicas,
        f"micro_batch {micro} x gradient_accumulation {accumulation} x data_parallel {replicas}",
    )
    return Batch(micro_batch=micro, gradient_accumulation=accumulation, data_parallel=replicas, global_batch=rows)


# MOVE: was tunemark.harness.plan.sections: When a planned run may stop: once it is sure, or after all that was asked for.

DEFAULT_MAX_TRAIN_S = 300.0
DEFAULT_NO_STEP_S = 900.0


def measurement_choice(card: WorkloadCard, options: Options, reasons: Reasons) -> Measurement:
    """Return when the run may stop."""
    source = card.data.source if options.data == "card" else data_source(options.data)
    if options.epochs is not None and card.data.training_rows is None and source is DataSource.SYNTHETIC:
        raise TunemarkError(
            "--epochs", options.epochs, "these synthetic rows have no end; give --set data.training_rows=N, --data file:PATH, or --steps"
        )
    stop = card.stop
    asked = options.max_steps is not None or options.epochs is not None
    limits: dict[Literal["max_steps", "epochs"], int | None] = {"max_steps": stop.max_steps, "epochs": stop.epochs}
    if asked:
        limits = {"max_steps": options.max_steps, "epochs": options.epochs}
    return Measurement(
        **limits,
        **_seconds(card, options, reasons, asked=asked),
        timeout_s=options.timeout_s,
        no_step_s=DEFAULT_NO_STEP_S if options.no_step_s is None else options.no_step_s,
        until_relative_ci=_until(options, reasons, stop.epochs, asked=asked),
        timing="strict" if options.strict_timing else "events",
        evaluate=card.data.evaluation_rows > 0,
        save=options.save,
        cold=options.cold,
        probe=options.probe,
        gates=options.gates,
        seed=card.seed if options.seed is None else options.seed,
    )


def _seconds(card: WorkloadCard, options: Options, reasons: Reasons, *, asked: bool) -> dict[Literal["max_train_s", "min_steps"], Any]:
    """Return how long training may take. Steps that were asked for are all done: a limit of time is for runs that nobody gave an end."""
    field = "measurement.max_train_s"
    if options.max_train_s is not None:
        return {"max_train_s": reasons.give(field, options.max_train_s, "asked for with --seconds")}
    if asked:
        return {"max_train_s": None}
    if card.stop.max_train_s is not None or card.stop.max_steps is not None:
        return {"max_train_s": card.stop.max_train_s}
    fewest = Measurement().min_warmup_steps + RANKABLE_STEPS
    why = f"the default for a run that nobody gave an end; {fewest} steps are done in any case, of which {RANKABLE_STEPS} can be ranked"
    return {"max_train_s": reasons.give(field, DEFAULT_MAX_TRAIN_S, why), "min_steps": fewest}


def _until(options: Options, reasons: Reasons, epochs: int | None, *, asked: bool) -> float | None:
    """Return the relative half-width of the interval of throughput at which a run may stop early, or None."""
    field = "measurement.until_relative_ci"
    if options.until_ci is not None:
        return reasons.give(field, options.until_ci, "asked for with --until-ci")
    if asked:
        return reasons.give(field, None, "all of the steps that were asked for are done")
    whole = f"; --epochs {epochs} does the whole job" if epochs else ""
    why = f"the default: a steady window whose 95% interval is this narrow needs no more steps{whole}"
    return reasons.give(field, Measurement().until_relative_ci, why)
