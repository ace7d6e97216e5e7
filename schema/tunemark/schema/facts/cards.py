"""Fact cards of data/: accelerators, models, prices. Every fact has a source; unknown is null."""

import re
from datetime import date
from typing import Literal, Self

from pydantic import Field, model_validator

from tunemark.schema.records.base import Frozen, Key, PositiveCount, Text
from tunemark.schema.vocabulary import Dtype, PriceKind

VERSION = re.compile(r"\bv\d+(?:\.\d+)*\b|\b[0-9a-f]{7,40}\b")
"""A version of a catalogue, or a commit of one."""


class AcceleratorCard(Frozen):
    """One device that computes. Peaks are dense, in TFLOP/s, of the unit that `unit` names."""

    key: Key
    """Name of this card."""
    name: Text
    """Name for readers."""
    vendor: Text
    """Who makes it."""
    architecture: Text | None = None
    """Generation."""
    aliases: tuple[Text, ...] = ()
    """Names under which devices report themselves and documents call it."""
    unit: Literal["device", "chip", "core"] = "device"
    """What one of it is."""
    cores_per_unit: PositiveCount | None = None
    """Separately addressable cores in one unit, such as two NeuronCores in a Trainium chip."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Memory in GiB."""
    memory_bandwidth_gb_s: float | None = Field(default=None, gt=0)
    """Memory bandwidth in GB/s."""
    peak_tflops: dict[Dtype, float] = Field(default_factory=dict)
    """Dense peak by number format."""
    tdp_w: float | None = Field(default=None, gt=0)
    """Board or chip power."""
    interconnect_gb_s: float | None = Field(default=None, gt=0)
    """Link to its peers in GB/s, both directions together."""
    launch_year: int | None = Field(default=None, ge=2010, le=2030)
    """Year of launch."""
    msrp_usd: float | None = Field(default=None, gt=0)
    """List price at launch."""
    source: Text
    """Where these facts were read."""
    read_on: date | None = None
    """Day on which they were read."""
    unverified: tuple[Text, ...] = ()
    """Names of fields above that were not read at a source."""
    notes: Text | None = None
    """What else to know."""


class ModelCard(Frozen):
    """One model: architecture numbers from which parameters and shapes follow without a hub."""

    key: Key
    """Name of this card."""
    name: Text
    """Name for readers."""
    aliases: tuple[Text, ...] = ()
    """Names documents call it."""
    family: Literal["llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "gpt2", "bert"]
    """Architecture, as transformers calls it."""
    hidden_size: PositiveCount
    """Width of the residual stream."""
    intermediate_size: PositiveCount
    """Width of the feed-forward layer."""
    layers: PositiveCount
    """Number of blocks."""
    attention_heads: PositiveCount
    """Query heads."""
    key_value_heads: PositiveCount
    """Key and value heads."""
    head_dim: PositiveCount
    """Width of a head."""
    vocabulary: PositiveCount
    """Rows of the embedding."""
    context_length: PositiveCount
    """Longest sequence it was made for."""
    tied_embeddings: bool = False
    """True when the output projection is the embedding."""
    sliding_window: PositiveCount | None = None
    """Attention span in tokens, where it is limited."""
    sliding_window_every: PositiveCount | None = None
    """Every so-many-th layer is limited to `sliding_window`; null where that is all or none of them."""
    experts: PositiveCount | None = None
    """Experts in a mixture."""
    active_experts: PositiveCount | None = None
    """Experts that a token passes through."""
    parameters: PositiveCount | None = None
    """Parameter count, where a source states it."""
    hub_id: Text | None = None
    """Repository on the model hub."""
    gated: bool | None = None
    """True when a licence has to be accepted before download."""
    source: Text
    """Where these facts were read."""
    read_on: date | None = None
    """Day on which they were read."""
    notes: Text | None = None
    """What else to know."""

    @model_validator(mode="after")
    def _window(self) -> Self:
        if self.sliding_window_every is not None and self.sliding_window is None:
            msg = f"sliding_window_every is {self.sliding_window_every} and there is no sliding_window; say how long the window is"
            raise ValueError(msg)
        return self


class PriceRow(Frozen):
    """What one instance costs in one region on one day. Without a date or a source it is not a price."""

    provider: Key
    """Who rents it out."""
    instance: Text
    """The provider's name of it."""
    accelerator: Key
    """The accelerator card."""
    accelerator_count: float = Field(gt=0)
    """Accelerators in the instance; a fraction where the provider sells one."""
    vcpus: PositiveCount | None = None
    """Virtual CPUs."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Host memory in GiB."""
    region: Text | None = None
    """Region; null where the provider has one price for all."""
    kind: PriceKind
    """On which terms."""
    usd_per_hour: float = Field(gt=0)
    """US dollars an hour for the whole instance."""
    effective_on: date
    """Day on which this price is known to be in force: of a price list, or the day it was read when `dated_by` is `catalog`."""
    dated_by: Literal["provider", "catalog", "inferred"] = "provider"
    """`catalog`: the source names a catalogue version, not a day. `inferred`: the day follows from price lists around it."""
    source: Text
    """Where it was read."""
    notes: Text | None = None
    """What else to know."""

    @model_validator(mode="after")
    def _dated(self) -> Self:
        if self.dated_by == "catalog" and not VERSION.search(f"{self.source} {self.notes or ''}"):
            msg = "dated_by is 'catalog', and neither source nor notes names a version of it; name it, such as v8 or a commit"
            raise ValueError(msg)
        if self.dated_by == "inferred" and not self.notes:
            msg = "dated_by is 'inferred' and there are no notes; say which lists the day follows from"
            raise ValueError(msg)
        return self
