"""Workload cards: standard benchmarks with every setting that affects a result.

A file of data/workloads holds one card, or a matrix of cells that share settings. Each cell becomes a card named `FILE-CELL`.
"""

from collections.abc import Iterator
from copy import deepcopy
from functools import reduce
from typing import Annotated, Any, Literal

from pydantic import Field

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records import plan as records
from tunemark.schema.records.base import Frozen, Key, SettingOrZero, Sha256, Source, Text, consistency
from tunemark.schema.vocabulary import Method, Task

Value = str | float | int | bool | None
Settings = Annotated[dict[Text, Value], Field(max_length=20)]
"""Dotted paths in a card with their values."""


class Axis(Frozen):
    """A setting that the source varied. All of its values belong to the card, so that a run of any is in the standard division."""

    field: Text
    """Dotted path in this card."""
    values: Annotated[tuple[Value, ...], Field(min_length=2)]
    at: Settings = Field(default_factory=dict)
    """Other settings that differ from the card when the source varied this one."""


class GoldenLosses(Frozen):
    """Expected losses of a workload, with their tolerance."""

    key: Key
    workload_sha256: Sha256
    """Hash of the card for which they were recorded."""
    seed: SettingOrZero
    """Seed of weights and samples."""
    tolerance: float = Field(ge=1e-4, le=0.3)
    """Maximum relative difference of a correct run: kernels round above 1e-4, and with 0.3 a run that learns nothing could pass."""
    losses: dict[int, float]
    """Loss by optimizer step: the mean of that step and the four before."""
    source: Source


class WorkloadCard(records.Levers):
    """A standard benchmark: all conditions in which two comparable results agree."""

    title: Text
    description: Text
    """What it measures and where it comes from."""
    tier: Literal["smoke", "entry", "source", "large"] = "source"
    """Size of machine that it needs."""
    source: Source
    not_stated: tuple[Text, ...] = ()
    """Settings that the source does not state and that we chose."""
    model: Key
    method: Method
    """full, lora or qlora."""
    lora: records.LoraSettings | None = None
    quantisation: records.Quantisation | None = None
    """How the frozen weights of QLoRA are stored."""
    data: records.DataSettings
    batch: records.DeviceBatch
    optimizer: records.Optimizer
    compute: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Number format of matrix products; `auto` uses bf16 if the device supports it."""
    attention: Literal["auto"] | records.Attention = "sdpa"
    """Attention implementation. `auto` for packed documents: varlen or else flex_attention, where the device has it; otherwise sdpa."""
    loss: Literal["auto"] | records.LossForm = "auto"
    """How the loss of a causal language model is computed. `auto`: in chunks of tokens where that is supported, otherwise from whole logits."""
    neuron: records.NeuronSettings | None = None
    """Settings of the Neuron compiler, used on Neuron devices only."""
    devices: records.Devices = records.Devices()
    axes: Annotated[tuple[Axis, ...], Field(max_length=20)] = ()
    """Settings that the source varied; `tunemark sweep` runs them."""
    points: Annotated[tuple[Settings, ...], Field(max_length=20)] = ()
    """Settings that the source changed together. `tunemark sweep` runs each as one point; all values belong to the card."""
    stop: records.Stop = records.Stop()
    seed: SettingOrZero = 0
    """Seed of weights, samples and their order."""

    @consistency
    def _complete(self) -> Iterator[str]:
        if self.method is Method.PEFT:
            yield "method is 'peft', which only published results have; use full, lora or qlora"
        if (self.method is Method.FULL) != (self.lora is None):
            yield f"method is {self.method.value!r} and lora is {self.lora}; adapter settings go with lora and qlora only"
        if (self.method is Method.QLORA) != (self.quantisation is not None):
            yield f"method is {self.method.value!r} and quantisation is {self.quantisation}; four-bit weights go with qlora only"
        if (self.task is Task.SEQUENCE_CLASSIFICATION) != (self.labels is not None):
            yield f"task is {self.task.value!r} and labels is {self.labels}; labels go with classification only"

    def own_values(self, field: str) -> tuple[Value, ...]:
        """Return the values of a setting that belong to the card besides its own: a run of any is in the standard division."""
        on_axes = [value for axis in self.axes if axis.field == field for value in axis.values]
        together = [settings[field] for settings in (*(axis.at for axis in self.axes), *self.points) if field in settings]
        return tuple(dict.fromkeys([*on_axes, *together]))


def cells(content: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, card content) of each workload in the content of a file.

    A cell is a table `[[cells]]` with `cell`, the suffix of its key, and dotted settings that replace the shared ones.
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
            *path, last = field.split(".")
            section = reduce(lambda part, key: part.setdefault(key, {}), path, card)
            section[last] = value
            # TOML has no null: a word stands for a cell without adapters.
            if field == "cell" or (value == "none" and last in {"lora", "quantisation"}):
                del section[last]
        yield f"{place}: cell {name}", card
