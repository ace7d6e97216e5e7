"""Software stacks: what training code decides about memory without being asked, and whose results say how fast it is. A stack is a table of stacks.toml."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.families import FAMILIES, with_tuples
from tunemark.schema.physics.memory import SHARDED
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.vocabulary import VENDORS_STACK, Checkpointing, Dtype, Method, SoftwareLevel

Fields = dict[str, Any]
FORMATS = ("parameters", "activations", "autocast")
"""Fields that belong together: if one of them is given, a stack changes none."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Fields of `TrainingShape` that a training code sets, for steps with 16-bit weights."""

    name: str
    because: str
    """What it does, and where its code says so."""
    fields: dict[str, Fields]
    """Those of a stack that it is like, and its own: words of a step (method or `adapters`; `whole`, `fsdp` or `zero`) -> fields that it sets for steps with all of them."""
    vendors: tuple[str, ...] = ()
    """Vendors on whose devices people run it; empty for any."""
    without: tuple[str, ...] = ()
    """Methods, shardings and formats that it does not have, in the words of `fields`, and `fp16`."""
    checkpoints: str = "none"
    """What it recomputes by default: none, selective or full."""
    families: tuple[str, ...] = ()
    """Families of models that it has of its own; empty if it takes those of transformers, or most of them."""
    like: str = ""
    loop: str = ""
    alone: bool = False
    """Its training loop in the throughput model, `Combination.stack`; empty if that has no results. Then, True if all of them are of one device."""
    level: SoftwareLevel = "plain"
    """How far it is tuned, unless somebody says otherwise."""
    any_dense: bool = False
    """True if these are families of mixtures, and it takes any model without experts."""

    def runs_on(self, vendor: str) -> bool:
        """Return True if people run it on the devices of a vendor."""
        return not self.vendors or vendor in self.vendors

    def runs(self, shape: TrainingShape, vendor: str) -> bool:
        """Return True if it runs a step on the devices of a vendor."""
        words = {shape.method.value, "fsdp" if "parameters" in SHARDED[shape.sharding] else "whole"}
        words |= {str(shape.parameters), str(shape.autocast)}
        known = not self.families or shape.model.family in self.families or (self.any_dense and not shape.model.experts)
        return known and self.runs_on(vendor) and not words & set(self.without)

    def fields_for(self, shape: TrainingShape) -> Fields:
        """Return the fields that it sets for a step. Adapters under ZeRO 1 and 2 have whole weights; those on int8 are prepared as in QLoRA."""
        zero, sharded = shape.sharding.startswith("zero"), "parameters" in SHARDED[shape.sharding]
        trained = shape.method is Method.FULL
        kind = "zero" if zero and (trained or sharded) else "fsdp" if sharded else "whole"
        words = ["", "full" if trained else "adapters", "qlora" if shape.block_format is Dtype.INT8 else shape.method.value, kind]
        found: Fields = {
            name: DTYPES.get(value, value)
            for key, fields in self.fields.items()
            if all(word in words for word in key.split(" "))
            for name, value in fields.items()
        }
        if shape.checkpointing is Checkpointing.NONE and self.checkpoints != "none" and not shape.activation_offload:
            found["checkpointing"] = Checkpointing.FULL if self.checkpoints == "full" else Checkpointing.SELECTIVE
        return found

    def loop_for(self, model: ModelCard, devices: int) -> str:
        """Return its training loop; empty for experts, encoders and several devices of which it has no result: then any loop of its level counts."""
        return "" if model.experts or FAMILIES[model.family].encoder or (self.alone and devices > 1) else self.loop

    def with_adapters(self, shape: TrainingShape) -> TrainingShape:
        """Return a step with adapters in the format that its speed is known with; see `loop`."""
        adapters = self.fields_for(shape).get("adapters") if self.loop else None
        return replace(shape, adapters=adapters) if adapters else shape


DTYPES = {each.value: each for each in (Dtype.FP32, Dtype.BF16, Dtype.FP16, Dtype.FP8, Dtype.FP4, Dtype.INT8)}
TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("stacks.toml").read_text(encoding="utf-8"))


def _fields(row: dict[str, Any]) -> dict[str, Fields]:
    base: dict[str, Fields] = TABLE[row["like"]]["fields"] if "like" in row else {}
    own: dict[str, Fields] = row["fields"]
    return base | {key: base.get(key, {}) | fields for key, fields in own.items()}


STACKS = {stack: Stack(stack, **with_tuples(row | {"fields": _fields(row)})) for stack, row in TABLE.items()}
USUAL_STACK: dict[SoftwareLevel, str] = {"plain": "hf", "tuned": "hf", "vendor": VENDORS_STACK}
"""The stack that most people run, by level of software."""


def on_stack(shape: TrainingShape, stack: str, fixed: tuple[str, ...] = ()) -> TrainingShape:
    """Return a step as a stack runs it; `fixed` are fields that keep their value. Steps without 16-bit weights keep their formats."""
    sixteen = shape.parameters in {Dtype.BF16, Dtype.FP16}
    formats = FORMATS if not sixteen or any(name in FORMATS for name in fixed) else ()
    # No stack has a kernel for relative positions.
    attention = ("attention",) if FAMILIES[shape.model.family].relative_positions else ()
    kept = {*fixed, *formats, *attention, *(() if shape.optimizer == "adamw" else ("optimizer",))}
    fields: Fields = {name: value for name, value in STACKS[stack].fields_for(shape).items() if name not in kept}
    if fields.get("activation_offload") and fields.get("checkpointing", shape.checkpointing) is not Checkpointing.FULL:
        fields["activation_offload"] = False
    if shape.parameters is Dtype.FP16:
        # On devices without bf16, fp16 has its place.
        fields = {name: Dtype.FP16 if value is Dtype.BF16 else value for name, value in fields.items()}
    return replace(shape, **fields)
