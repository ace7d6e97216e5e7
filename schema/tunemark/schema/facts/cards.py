"""Fact cards of data/: accelerators, models, prices. Every fact has a source; unknown is null."""

import re
from collections.abc import Iterable
from datetime import date
from typing import Literal, Self

from pydantic import Field, model_validator

from tunemark.schema.records.base import Frozen, Key, PositiveCount, Text
from tunemark.schema.vocabulary import Dtype, PriceKind

VERSION = re.compile(r"\bv\d+(?:\.\d+)*\b|\b[0-9a-f]{7,40}\b")
"""A catalogue version, or a commit."""


class AcceleratorCard(Frozen):
    """An accelerator. Peaks are dense, in TFLOP/s, per unit as defined by `unit`."""

    key: Key
    """Key of the card."""
    name: Text
    """Display name."""
    vendor: Text
    """Vendor."""
    architecture: Text | None = None
    """Generation."""
    aliases: tuple[Text, ...] = ()
    """Names that devices report and documents use."""
    unit: Literal["device", "chip", "core"] = "device"
    """What one unit is."""
    cores_per_unit: PositiveCount | None = None
    """Separately addressable cores per unit, such as two NeuronCores in a Trainium chip."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Memory in GiB."""
    memory_bandwidth_gb_s: float | None = Field(default=None, gt=0)
    """Memory bandwidth in GB/s."""
    peak_tflops: dict[Dtype, float] = Field(default_factory=dict)
    """Dense peak by number format."""
    tdp_w: float | None = Field(default=None, gt=0)
    """Board or chip power."""
    interconnect_gb_s: float | None = Field(default=None, gt=0)
    """Bandwidth to its peers in GB/s, both directions together."""
    launch_year: int | None = Field(default=None, ge=2010, le=2030)
    """Year of launch."""
    msrp_usd: float | None = Field(default=None, gt=0)
    """List price at launch."""
    source: Text
    """Source of these facts."""
    read_on: date | None = None
    """Date on which they were read."""
    unverified: tuple[Text, ...] = ()
    """Fields that were not read at a source."""
    notes: Text | None = None
    """Notes."""


class ModelCard(Frozen):
    """A model: architecture numbers from which parameters and shapes follow without a hub."""

    key: Key
    """Key of the card."""
    name: Text
    """Display name."""
    aliases: tuple[Text, ...] = ()
    """Names that documents use."""
    family: Literal["llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "gpt2", "bert"]
    """Architecture name in transformers."""
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
    """Maximum sequence length."""
    tied_embeddings: bool = False
    """True if the output projection is tied to the embedding."""
    sliding_window: PositiveCount | None = None
    """Attention span in tokens, if limited."""
    sliding_window_every: PositiveCount | None = None
    """`sliding_window` applies to one in this many layers; null for all or none."""
    experts: PositiveCount | None = None
    """Number of experts in a mixture."""
    active_experts: PositiveCount | None = None
    """Experts per token."""
    parameters: PositiveCount | None = None
    """Parameter count, if a source states it."""
    hub_id: Text | None = None
    """Repository on the model hub."""
    gated: bool | None = None
    """True if a licence must be accepted before download."""
    source: Text
    """Source of these facts."""
    read_on: date | None = None
    """Date on which they were read."""
    notes: Text | None = None
    """Notes."""

    @model_validator(mode="after")
    def _window(self) -> Self:
        if self.sliding_window_every is not None and self.sliding_window is None:
            msg = f"sliding_window_every is {self.sliding_window_every} and there is no sliding_window; say how long the window is"
            raise ValueError(msg)
        return self


class PriceRow(Frozen):
    """The price of one instance in one region on one date."""

    provider: Key
    """Provider."""
    instance: Text
    """The provider's name of the instance."""
    accelerator: Key
    """The accelerator card."""
    accelerator_count: float = Field(gt=0)
    """Accelerators in the instance; a fraction if the provider sells one."""
    vcpus: PositiveCount | None = None
    """Virtual CPUs."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Host memory in GiB."""
    region: Text | None = None
    """Region; null if the provider has one price for all."""
    kind: PriceKind
    """Terms of payment."""
    usd_per_hour: float = Field(gt=0)
    """US dollars per hour for the whole instance."""
    effective_on: date
    """Date on which this price is known to apply: of a price list, or the date it was read if `dated_by` is `catalog`."""
    dated_by: Literal["provider", "catalog", "inferred"] = "provider"
    """`catalog`: the source names a catalogue version without a date. `inferred`: the date follows from price lists around it."""
    source: Text
    """Source."""
    notes: Text | None = None
    """Notes."""

    @model_validator(mode="after")
    def _dated(self) -> Self:
        if self.dated_by == "catalog" and not VERSION.search(f"{self.source} {self.notes or ''}"):
            msg = "dated_by is 'catalog', and neither source nor notes names a version of it; name it, such as v8 or a commit"
            raise ValueError(msg)
        if self.dated_by == "inferred" and not self.notes:
            msg = "dated_by is 'inferred' and there are no notes; say which lists the day follows from"
            raise ValueError(msg)
        return self


def current_prices(prices: Iterable[PriceRow], on: date | None = None) -> list[PriceRow]:
    """Return the newest price per provider, instance, region and kind in force on a day, by default the newest of all.

    Of two prices of one day, the later row of the price book counts. The view `current_prices` of the database does the same.
    """
    begun = (row for row in prices if on is None or row.effective_on <= on)
    return list(
        {(row.provider, row.instance, row.region, row.kind): row for row in sorted(begun, key=lambda row: row.effective_on)}.values()
    )


class TrainingFabric(Frozen):
    """The network for training between several nodes of one instance type."""

    provider: Key
    """Provider."""
    instance: Text
    """The provider's name of the instance."""
    fabric: Text
    """Kind of network and bandwidth of one node."""
    source: Text
    """Source."""


OVERSIZED = 2
"""An instance with more than this many times the devices that are needed is the last choice."""


class PriceBasis(Frozen):
    """The default basis of costs: the order of providers for on-demand list prices, and the instances with a training fabric."""

    providers: tuple[Key, ...]
    """Providers, first choice first. Others are not part of the basis."""
    reason: Text
    """Why the providers have this order."""
    fabric: tuple[TrainingFabric, ...] = ()
    """Instances whose nodes are connected by a training fabric."""

    @model_validator(mode="after")
    def _no_repeats(self) -> Self:
        named = [*self.providers, *(f"{entry.provider} {entry.instance}" for entry in self.fabric)]
        twice = next((name for name in named if named.count(name) > 1), None)
        if twice is not None:
            msg = f"{twice} is listed twice; list each provider and each instance once"
            raise ValueError(msg)
        return self

    def rank(self, provider: str) -> int | None:
        """Return the place of a provider in the order, from 1, or None if it is not listed."""
        return self.providers.index(provider) + 1 if provider in self.providers else None

    def fabric_of(self, provider: str, instance: str) -> str | None:
        """Return the training fabric between nodes of an instance type, or None if none is known."""
        return next((entry.fabric for entry in self.fabric if (entry.provider, entry.instance) == (provider, instance)), None)

    def offer(
        self, prices: Iterable[PriceRow], accelerator: str, devices: int, *, nodes: int = 1, on: date | None = None
    ) -> PriceRow | None:
        """Return the on-demand price of one node with at least `devices` of an accelerator, or None.

        The first provider in the order with a fitting instance counts; of its instances the smallest, then the cheapest. An instance
        with more than twice the devices counts only if no provider has a smaller one. Several nodes need a training fabric. Each offer has its newest price on the day `on`, by default the newest of all. The view
        `basis_costs` of the database applies the same rule.
        """
        fitting = [
            row
            for row in current_prices((row for row in prices if row.accelerator == accelerator), on)
            if row.kind is PriceKind.ON_DEMAND
            and row.provider in self.providers
            and row.accelerator_count >= devices
            and (nodes == 1 or self.fabric_of(row.provider, row.instance) is not None)
        ]
        return min(
            fitting,
            key=lambda row: (
                row.accelerator_count > OVERSIZED * devices,
                self.providers.index(row.provider),
                *(row.accelerator_count, row.usd_per_hour, row.instance, row.region or ""),
            ),
            default=None,
        )
