"""Workload cards: what a standard benchmark is, down to each setting that a result depends on."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.base import Count, Frozen, Key, PositiveCount, Seconds, Sha256, Text
from tunemark.schema.records.plan import Attention, Compile, FusedKernels, LoraSettings, NeuronSettings, Offload, Optimizer, Quantisation
from tunemark.schema.vocabulary import Checkpointing, DataSource, Method, Padding, Strategy, Task, Weights

FEWEST_LABELS = 2


class WorkloadData(Frozen):
    """Samples of a workload."""

    source: DataSource
    """Where they come from."""
    name: Text
    """Hub id of the data set, or a name for synthetic samples."""
    template: Text | None = None
    """How a document is made of the columns of a row, such as `{question}\\n{answer}`; null takes the column `text`."""
    sequence_length: PositiveCount
    """Tokens in a row at most."""
    padding: Padding = Padding.NONE
    """How rows are filled."""
    packing: bool = False
    """Whether documents share a row."""
    document_borders: bool = True
    """Whether documents that share a row do not see each other."""
    training_rows: PositiveCount | None = None
    """Rows of an epoch, the first of the data set; null takes all, or generates rows without end."""
    evaluation_rows: Count = 0
    """Rows held out."""


class WorkloadBatch(Frozen):
    """Batch of a workload on one device."""

    micro_batch: PositiveCount
    """Rows of one forward and backward on one device."""
    gradient_accumulation: PositiveCount = 1
    """Micro-steps in an optimizer step."""


class WorkloadDevices(Frozen):
    """How many devices a workload is made for, and how they share it."""

    count: PositiveCount = 1
    """Devices."""
    strategy: Strategy | Literal["auto"] = "auto"
    """`auto`: DDP on several devices."""
    offload: Offload = "none"
    """What is kept in host memory between its uses."""
    tensor_parallel: PositiveCount = 1
    """Devices that share each layer."""
    pipeline_parallel: PositiveCount = 1
    """Devices that share the stack of layers."""


Value = str | float | int | bool | None
"""What a setting can be."""
Settings = Annotated[dict[Text, Value], Field(max_length=20)]
"""Dotted paths in a card and their values."""


class Axis(Frozen):
    """A setting that the source varied. Each of its values is the card's own: a run of one is in the standard division."""

    field: Text
    """Dotted path in this card."""
    values: Annotated[tuple[Value, ...], Field(min_length=2)]
    """What it was set to."""
    at: Settings = Field(default_factory=dict)
    """Other settings, where the source varied this one at others than the card's."""


class GoldenLosses(Frozen):
    """Losses that a right run of a workload reaches, and how far another may be from them."""

    key: Key
    """The workload."""
    workload_sha256: Sha256
    """The card that they were taken with."""
    seed: Count
    """Seed of weights and samples."""
    tolerance: float = Field(gt=0)
    """Largest relative difference of a right run: other kernels and number formats round differently."""
    losses: dict[int, float]
    """Loss by optimizer step, the mean of that step and the four before."""
    source: Text
    """How they were taken."""


class WorkloadStop(Frozen):
    """When a run of the workload may stop; null is decided by the plan."""

    max_steps: PositiveCount | None = None
    """After this many optimizer steps."""
    epochs: PositiveCount | None = None
    """After this many passes over the rows."""
    max_train_s: Seconds | None = None
    """After this many seconds of training."""


class WorkloadCard(Frozen):
    """A standard benchmark: everything that must be equal for two results to be compared."""

    key: Key
    """Name of this card."""
    title: Text
    """One line for readers."""
    description: Text
    """What it measures and where it comes from."""
    tier: Literal["smoke", "entry", "source", "large"] = "source"
    """How much of a machine it needs."""
    source: Text
    """Where its settings were read."""
    not_stated: tuple[Text, ...] = ()
    """Settings that the source does not give and that were chosen here."""
    task: Task
    """What the model learns."""
    model: Key
    """The model card."""
    labels: PositiveCount | None = None
    """Number of classes, for classification."""
    weights: Weights = Weights.RANDOM
    """Where the first weights come from."""
    method: Method
    """full, lora or qlora."""
    lora: LoraSettings | None = None
    """Adapter settings."""
    quantisation: Quantisation | None = None
    """How the frozen weights of qlora are stored."""
    data: WorkloadData
    """Samples."""
    batch: WorkloadBatch
    """Batch."""
    optimizer: Optimizer
    """Optimizer."""
    compute: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Number format of matrix products; `auto` takes bf16 where the device has it."""
    attention: Attention = "sdpa"
    """Attention kernel."""
    gradient_checkpointing: Checkpointing = Checkpointing.NONE
    """Which activations are recomputed."""
    fused_kernels: FusedKernels = "none"
    """Whether Liger's fused kernels are used."""
    compile: Compile = "none"
    """What `torch.compile` is given."""
    neuron: NeuronSettings | None = None
    """Settings of the Neuron compiler, used on its devices only."""
    devices: WorkloadDevices = WorkloadDevices()
    """Devices it is made for."""
    axes: Annotated[tuple[Axis, ...], Field(max_length=20)] = ()
    """Settings that the source varied: `tunemark sweep` runs them."""
    points: Annotated[tuple[Settings, ...], Field(max_length=20)] = ()
    """Settings that the source changed together: `tunemark sweep` runs each as one point, and each value is the card's own."""
    stop: WorkloadStop = WorkloadStop()
    """When it may stop."""
    seed: Count = 0
    """Of weights, samples and their order."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.method is Method.FULL) != (self.lora is None):
            msg = f"method is {self.method.value!r} and lora is {self.lora}; adapter settings go with lora and qlora only"
            raise ValueError(msg)
        if (self.method is Method.QLORA) != (self.quantisation is not None):
            msg = f"method is {self.method.value!r} and quantisation is {self.quantisation}; four-bit weights go with qlora only"
            raise ValueError(msg)
        if self.labels is not None and self.labels < FEWEST_LABELS:
            msg = f"labels is {self.labels}; a classifier tells at least {FEWEST_LABELS} classes apart"
            raise ValueError(msg)
        if (self.task is Task.SEQUENCE_CLASSIFICATION) != (self.labels is not None):
            msg = f"task is {self.task.value!r} and labels is {self.labels}; labels go with classification only"
            raise ValueError(msg)
        return self

    def own_values(self, field: str) -> tuple[Value, ...]:
        """Return what the source set a setting to beside the card's value: a run of these is in the standard division."""
        on_axes = [value for axis in self.axes if axis.field == field for value in axis.values]
        together = [settings[field] for settings in (*(axis.at for axis in self.axes), *self.points) if field in settings]
        return tuple(dict.fromkeys([*on_axes, *together]))


# MOVE: was tunemark.schema.facts.workloads: A file of data/workloads may hold a whole matrix: settings that all cells share, and one line per cell. Each cell becomes a workload of its own, named `FILE-CELL`, so that everything else knows single cards only.


def cells(content: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, card content) of each workload in a file's content.

    A cell is a table `[[cells]]` with `cell`, the end of its name, and dotted settings that replace the shared ones.
    """
    if "cells" not in content:
        yield place, content
        return
    shared = {name: value for name, value in content.items() if name != "cells"}
    names = set()
    for number, cell in enumerate(content["cells"], start=1):
        name = cell.get("cell")
        if not isinstance(name, str) or name in names:
            raise TunemarkError(f"{place}: cells[{number}].cell", name, "give each cell a name of its own", exit_code=Exit.INVALID)
        names.add(name)
        card = deepcopy(shared) | {"key": f"{shared['key']}-{name}"}
        for field, value in cell.items():
            if field != "cell":
                _put(card, field.split("."), value)
        yield f"{place}: cell {name}", card


def _put(card: dict[str, Any], path: list[str], value: object) -> None:
    *sections, last = path
    for section in sections:
        card = card.setdefault(section, {})
    if value == "none" and last in {"lora", "quantisation"}:
        # TOML has no null: a cell without adapters says so.
        card.pop(last, None)
    else:
        card[last] = value
