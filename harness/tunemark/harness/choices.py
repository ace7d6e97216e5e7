"""The sections of a plan, each resolved from card, options and machine, each derived value with its reason."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tunemark.harness.devices.generations import FEATURE_OF, Generation
from tunemark.harness.machine import Machine
from tunemark.harness.sources import FULL_ROWS, SYNTHETIC, describe_file
from tunemark.harness.spawn import Node
from tunemark.harness.worker.text import check_file
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.physics.architecture import targets_in
from tunemark.schema.records.plan import DataChoice, Launcher, LoraSettings, ModelChoice, Precision
from tunemark.schema.vocabulary import Backend, DataSource, Dtype, Padding, Task, Weights

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
