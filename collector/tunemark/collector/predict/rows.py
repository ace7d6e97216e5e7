"""What the model of throughput learns from: one row per accepted result, with the combination that it was measured at."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tunemark.collector.predict.work import Missing, Term, work_seconds
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.physics.training_shape import TrainingShape


@dataclass(frozen=True, slots=True)
class Combination:
    """What is asked for: work of a shape, on an accelerator, with a kind of software."""

    accelerator: AcceleratorCard
    """The card; a device is one of what it describes."""
    devices: int
    """How many devices work together."""
    shape: TrainingShape
    """A micro-step of one device, or of the devices that share a row."""
    stack: str
    """Whose training loop: a source document, `mlperf`, or `measured`."""
    release: str = ""
    """Version of that stack, such as a round of MLPerf."""
    devices_per_row: float = 1.0
    """Devices that share a row (tensor, context and pipeline parallel)."""

    def __post_init__(self) -> None:
        """Refuse counts that are none."""
        if self.devices < 1:
            raise TunemarkError("devices", self.devices, "must be 1 or more")
        if self.devices_per_row < 1:
            raise TunemarkError("devices_per_row", self.devices_per_row, "must be 1 or more")

    @property
    def generation(self) -> str:
        """Vendor and architecture of the accelerator."""
        return f"{self.accelerator.vendor} {self.accelerator.architecture or self.accelerator.key}"

    @property
    def architecture(self) -> str:
        """Which model, told by its shape: Llama 3 and 3.1 are one."""
        return architecture_of(self.shape.model)


@dataclass(frozen=True, slots=True)
class Observed:
    """A result that is learnt from."""

    id: str
    """Of the result; of several equal ones the first."""
    of: Combination
    """At which combination."""
    device_seconds_per_token: float
    """Devices x seconds / tokens that were computed (slots): its inverse is tokens/s per device."""
    terms: dict[Term, float]
    """Seconds per token of each class of work at the limits of the card."""
    same: tuple[str, ...] = ()
    """Results with the same combination and the same digits, which are no further evidence."""

    @property
    def log_seconds(self) -> float:
        """What is modelled."""
        return math.log(self.device_seconds_per_token)


def observe(result_id: str, of: Combination, tokens_per_s: float) -> Observed | Missing:
    """Return a row from tokens/s of all devices together, or why it cannot be one."""
    terms = work_seconds(of.shape, of.accelerator)
    if isinstance(terms, Missing):
        return terms
    if not (math.isfinite(tokens_per_s) and tokens_per_s > 0):
        return Missing(f"{tokens_per_s:g} tokens/s is no rate")
    return Observed(result_id, of, of.devices / tokens_per_s, terms)


def architecture_of(model: ModelCard) -> str:
    """Return the numbers that decide how long a token takes, the vocabulary left out."""
    return (
        f"{model.layers} blocks of {model.hidden_size}/{model.intermediate_size}, "
        f"{model.attention_heads}/{model.key_value_heads} heads of {model.head_dim}"
        + (f", {model.experts} experts" if model.experts else "")
    )


def without_copies(rows: Iterable[Observed]) -> tuple[Observed, ...]:
    """Return rows without those that repeat another's digits at the same combination: a copy is no second measurement."""
    kept: dict[tuple[object, ...], Observed] = {}
    for row in rows:
        of = row.of
        what = (of.accelerator.key, of.devices, of.stack, of.release, of.architecture, of.shape.method, of.devices_per_row)
        size = (of.shape.sequence_length, of.shape.micro_batch, of.shape.checkpointing, f"{row.device_seconds_per_token:.4g}")
        first = kept.get((*what, *size))
        kept[*what, *size] = (
            row if first is None else Observed(first.id, first.of, first.device_seconds_per_token, first.terms, (*first.same, row.id))
        )
    return tuple(kept.values())
