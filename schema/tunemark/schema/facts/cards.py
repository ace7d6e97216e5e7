"""Fact cards of data/: accelerators, models, prices. Every fact has a source; unknown is null."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tunemark.schema.formats import GIB
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.records.base import Day, Frozen, Key, PositiveCount, Source, Text, consistency, one_of
from tunemark.schema.vocabulary import Dtype, PriceKind

VERSION = re.compile(r"\bv\d+(?:\.\d+)*\b|\b[0-9a-f]{7,40}\b")
"""A catalogue version, or a commit."""
APPLE = "Apple"
TORCH_ON_MACS = "On Macs, memory is that of PyTorch, and the speed of QLoRA that of MLX, the usual software there; `--stack mlx-lm` counts the memory of MLX."
LARGE_MAC_BYTES = 32 * GIB
"""Memory above which Metal recommends 3/4 of it instead of 2/3: 10,922.67 MB of 16 GB (abetlen/llama-cpp-python#687), 21,845.34 MB of 32 GB
(ollama/ollama#434), 49,152.00 MB of 64 GB (ggml-org/llama.cpp#1870). Newer systems recommend up to 84% of 128 GB (antirez/ds4#893)."""
INLINE_ECC_KEEPS = 15 / 16
"""Share of the memory that is left beside checks: drivers list 15,360 MiB of 16 GiB (T4), 23,028 of 24 (A10) and 46,068 of 48 (L40S)."""
ModelFamily = Annotated[str, one_of(FAMILIES, "the families of models")]
"""Architecture name in transformers."""
TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("cards.toml").read_text(encoding="utf-8"))
GROUPS: dict[str, list[str]] = TABLE["groups"]
LATENT, DENSE_FIRST, MIXED_OR_NOT, SHARED = (tuple(GROUPS[name]) for name in ("latent", "dense_first", "mixed_or_not", "shared"))
HYBRID, STATE_SPACE, WITHOUT_WINDOW = (tuple(GROUPS[name]) for name in ("hybrid", "state_space", "without_window"))
TAKEN_FOR_EXPERTS, MIXTURES = tuple(GROUPS["taken"]), (*GROUPS["mixtures"], *MIXED_OR_NOT)
"""Groups of families with what is the same in them."""
OF_FAMILIES = [row | {"of": [name for group in row["of"] for name in GROUPS.get(group, [group])]} for row in TABLE["fields"]]
"""Families and their fields, which other families do not have."""
CONFIG_FIELDS = {theirs: ours for ours, names in TABLE["config_names"].items() for theirs in names.split()}
"""Name in transformers -> field of the model card."""


class CoreCluster(Frozen):
    """Equal cores of a CPU."""

    cores: int = Field(ge=1, le=512)
    clock_ghz: float | None = Field(default=None, ge=0.8, le=5.5)
    """Clock from which the peak is computed; `CpuFacts.clock` names its kind."""
    boost_clock_ghz: float | None = Field(default=None, ge=1, le=7)
    """Highest clock of a single core."""
    vector_bits: int | None = Field(default=None, ge=64, le=2048)
    """Width of the vectors in which the units multiply: NEON has 128, AVX-512 has 512."""
    fma_units: int | None = Field(default=None, ge=1, le=8)
    """Multiply-adds of whole vectors that a core starts per cycle."""
    bf16_flop_per_cycle: int | None = Field(default=None, ge=8, le=8192)
    """FLOP per cycle and core in bf16 with fp32 sums, by matrix or dot-product instructions (AMX has 2,048); null for a core without them."""

    @consistency
    def _possible(self) -> Iterator[str]:
        if self.vector_bits is not None and self.vector_bits & (self.vector_bits - 1):
            yield f"vector_bits is {self.vector_bits}; the width of vector registers is a power of two"
        if self.clock_ghz and self.boost_clock_ghz and self.boost_clock_ghz < self.clock_ghz:
            yield f"boost_clock_ghz is {self.boost_clock_ghz:g}, below clock_ghz, {self.clock_ghz:g}; swap them"

    def flop_per_cycle(self) -> dict[Dtype, int]:
        """Return FLOP per cycle and core by number format: fp32 = 2 x FMA units x vector bits / 32, bf16 as declared."""
        vectors = None if self.fma_units is None or self.vector_bits is None else 2 * self.fma_units * self.vector_bits // 32
        known = {Dtype.FP32: vectors, Dtype.BF16: self.bf16_flop_per_cycle}
        return {dtype: flop for dtype, flop in known.items() if flop is not None}


class CpuFacts(Frozen):
    """The facts of a CPU from which its peak and its memory bandwidth follow."""

    clock: Literal["all_core", "base"] | None = None
    """What `clock_ghz` is: the clock that all cores hold under load, or the guaranteed base clock where that is not documented."""
    clusters: tuple[CoreCluster, ...] = Field(min_length=1)
    """Cores by kind; one entry for a CPU of equal cores."""
    memory_channels: int | None = Field(default=None, ge=1, le=32)
    """64-bit memory channels of a socket."""
    memory_mt_s: int | None = Field(default=None, ge=800, le=20_000)
    """Transfers of a channel in millions per second, from DDR3 to MRDIMM."""

    @property
    def cores(self) -> int:
        """Return the number of cores of all kinds."""
        return sum(cluster.cores for cluster in self.clusters)

    def peak_tflops(self) -> dict[Dtype, float]:
        """Return the dense peak by number format, TFLOP/s: the sum of cores x clock x FLOP per cycle over the kinds of cores.

        A format that one kind of core lacks has no peak. If a kind has no clock, no format has a peak.
        """
        shared = set.intersection(*(set(cluster.flop_per_cycle()) for cluster in self.clusters))
        clocks = [cluster.clock_ghz for cluster in self.clusters]
        return {
            dtype: round(sum(each.cores * (each.clock_ghz or 0.0) * each.flop_per_cycle()[dtype] for each in self.clusters) / 1_000, 6)
            for dtype in Dtype
            if dtype in shared and None not in clocks
        }

    def clock_words(self) -> str:
        """Return the clocks of a peak in words, such as "at 2.8 GHz (all-core clock)"."""
        clocks = " and ".join(f"{cluster.clock_ghz:g} GHz" for cluster in self.clusters if cluster.clock_ghz)
        return f"at {clocks} ({'all-core' if self.clock == 'all_core' else 'base'} clock)"

    def memory_bandwidth_gb_s(self) -> float | None:
        """Return channels x transfers per second x 8 bytes, GB/s, or None."""
        return self.memory_channels * self.memory_mt_s * 8 / 1_000 if self.memory_channels and self.memory_mt_s else None

    def headroom(self) -> float | None:
        """Return the highest clock / the clock of the peak: the factor by which cores can exceed the peak; None if unknown."""
        clocks = [(cluster.boost_clock_ghz, cluster.clock_ghz) for cluster in self.clusters]
        factors = [boost / clock for boost, clock in clocks if boost and clock]
        return max(1.0, *factors) if len(factors) == len(clocks) else None


DRIVER_LEAVES = {"NVIDIA": (0.991, 0.2)}
"""Vendor -> of the memory of its GPUs a process gets this share, less GiB. It is within 0.2 GiB of what torch says: 14.56 GiB (T4), 22.06 (A10G),
23.53 (RTX 4090), 31.36 (RTX 5090), 44.4 (L40S), 39.4 and 79.2 (A100), 79.2 (H100), 139.8 (H200) and 178.4 (B200). AMD's have all (191.98, MI300X)."""


def metal_bytes(memory: int) -> int:
    """Return the bytes that Metal recommends a process to use at most on a Mac of this memory."""
    return int(memory * 3 / 4 if memory > LARGE_MAC_BYTES else memory * 2 / 3)


class AcceleratorCard(Frozen):
    """An accelerator, or a CPU. Peaks are dense, in TFLOP/s, per unit as defined by `unit`."""

    key: Key
    name: Text
    vendor: Text
    architecture: Text | None = None
    """Generation."""
    aliases: tuple[Text, ...] = ()
    """Names that devices report and documents use."""
    unit: Literal["device", "chip", "core", "cpu"] = "device"
    """What one unit is; a `cpu` is one socket."""
    cores_per_unit: PositiveCount | None = None
    """Separately addressable cores per unit, such as two NeuronCores in a Trainium chip."""
    devices_per_unit: PositiveCount = 1
    """Devices of torch in a unit, each with its part of the memory and the peak: a worker runs on a core of Trainium, or a die of an MI250."""
    trains: bool = True
    """False if its vendor supports it for inference alone."""
    memory_gib: float | None = Field(default=None, ge=4, le=2048)
    inline_ecc: bool = False
    """True if checks of errors are kept in the memory itself and are on by default (GDDR6 of NVIDIA's server cards)."""
    memory_bandwidth_gb_s: float | None = Field(default=None, ge=5, le=40_000)
    """Memory bandwidth in GB/s: from one channel of DDR3 to eight stacks of HBM4."""
    peak_tflops: dict[Dtype, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Dense peak by number format; for a CPU it follows from `cpu`."""
    peak_clock_mhz: float | None = Field(default=None, ge=500, le=4_500)
    """Clock of the compute units for which the peaks are given."""
    memory_bus_bits: int | None = Field(default=None, ge=64, le=32_768)
    """Width of the memory bus: 32 bits for each channel of GDDR, 1,024 for each stack of HBM."""
    cpu: CpuFacts | None = None
    """Cores, clocks and memory channels of a CPU."""
    tdp_w: float | None = Field(default=None, ge=15, le=4000)
    """Power of a board, chip or socket in watts."""
    interconnect_gb_s: float | None = Field(default=None, ge=8, le=8000)
    """Bandwidth to its peers in GB/s, both directions together: from PCIe 3.0 x8 to the next NVLink."""
    bridged: PositiveCount | None = None
    """Devices that this link joins where it is a bridge between few cards; more of them exchange over PCIe."""
    caution: Text | None = None
    """What training on it needs that other accelerators do not, in a sentence that answers show."""
    launch_year: int | None = Field(default=None, ge=2010, le=2030)
    msrp_usd: float | None = Field(default=None, ge=100, le=100_000)
    """List price at launch."""

    @property
    def device_bytes(self) -> int:
        """Bytes of memory of a device of torch; 0 if they are not known."""
        kept = INLINE_ECC_KEEPS if self.inline_ecc else 1.0
        return int((self.memory_gib or 0) * kept * GIB / self.devices_per_unit)

    @property
    def usable_bytes(self) -> int:
        """The part of `device_bytes` that one process may use."""
        if self.vendor == APPLE:
            return metal_bytes(self.device_bytes)
        share, less_gib = DRIVER_LEAVES.get(self.vendor, (1.0, 0.0))
        return max(0, int(share * self.device_bytes - less_gib * GIB))

    def with_usable(self, memory: float) -> "AcceleratorCard":
        """Return the card with the memory of which a driver leaves a process these bytes."""
        share, less_gib = DRIVER_LEAVES.get(self.vendor, (1.0, 0.0))
        return self.model_copy(update={"memory_gib": (memory / GIB + less_gib) / share, "inline_ecc": False})

    @property
    def remarks(self) -> str | None:
        """What readers of an answer without a stack need to know of it besides."""
        return self.remarks_on(None)

    def remarks_on(self, stack: str | None) -> str | None:
        """Return remarks for readers of an answer for a stack: the devices of torch in a chip, the caution, and whose memory a Mac without a stack has."""
        each_gib, number = (self.memory_gib or 0) / self.devices_per_unit, self.devices_per_unit
        parts = f"Each {self.unit} has {number} devices of torch with {each_gib:g} GiB each." if each_gib and number > 1 else ""
        return " ".join(filter(None, (parts, self.caution, TORCH_ON_MACS if self.vendor == APPLE and not stack else ""))) or None

    @property
    def why_no_training(self) -> str | None:
        """Why nothing is trained on it; None if it trains."""
        return None if self.trains else f"{self.vendor} supports training on other accelerators, and this one for inference only"

    source: Source
    read_on: Day | None = None
    unverified: tuple[Text, ...] = ()
    """Fields that were not read at a source."""
    notes: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _peaks_of_cpu(cls, content: Any) -> Any:  # noqa: ANN401 - unvalidated input
        """Derive the peaks and the memory bandwidth of a CPU from its facts, so that they are declared once."""
        if not isinstance(content, dict) or content.get("cpu") is None:
            return content
        cpu = CpuFacts.model_validate(content["cpu"])
        derived = {"peak_tflops": cpu.peak_tflops(), "memory_bandwidth_gb_s": cpu.memory_bandwidth_gb_s()}
        for name, value in derived.items():
            if content.get(name, value) != value:
                raise ValueError(f"{name} {content[name]!r} of a CPU follows from its cores, clock and memory: {value!r}; leave it out")
        return content | derived

    @consistency
    def _consistent(self) -> Iterator[str]:
        if self.cpu is not None and self.unit != "cpu":
            yield f"unit is {self.unit!r} and the card has facts of a CPU; use unit = 'cpu'"
        elif self.cpu is None and self.unit == "cpu":
            yield "unit is 'cpu' and the card has no cores; describe them under cpu, or correct the unit"
        elif (self.cores_per_unit is not None) != (self.unit == "chip"):
            yield f"unit is {self.unit!r} and cores_per_unit is {self.cores_per_unit}; a chip has separately addressable cores, another unit has none"
        elif self.launch_year is not None and self.read_on is not None and self.launch_year > self.read_on.year:
            yield f"launch_year is {self.launch_year}, after the facts were read on {self.read_on}; a card describes what is sold"
        elif unknown := [name for name in self.unverified if self.value(name) is None]:
            yield f"unverified names {unknown[0]!r}, which is not a field with a value; name one, or leave it out"

    def value(self, path: str) -> Any:  # noqa: ANN401 - a field of any type
        """Return the value of a field such as `tdp_w`, `peak_tflops.bf16` or `cpu.clock_ghz`, of the first cores; None if it has none."""
        section, _, part = path.partition(".")
        found = getattr(self, section, None)
        if part and isinstance(found, dict):
            return next((value for kind, value in found.items() if kind == part), None)
        if part and isinstance(found, CpuFacts):
            return getattr(found, part, getattr(found.clusters[0], part, None))
        return None if part else found


USUAL_LENGTH = 2_048
"""Tokens of a row where nobody gives a length."""


class ModelCard(Frozen):
    """A model: architecture numbers from which parameters and shapes follow without a hub."""

    key: Key
    name: Text
    aliases: tuple[Text, ...] = ()
    """Names that documents use."""
    family: ModelFamily
    """Architecture name in transformers."""
    hidden_size: int = Field(ge=1, le=65_536)
    """Width of the residual stream."""
    intermediate_size: int = Field(ge=1, le=1_048_576)
    """Width of the feed-forward layer; of one expert in a mixture."""
    dense_intermediate_size: int | None = Field(default=None, ge=1, le=1_048_576)
    """Width of the feed-forward layer in the blocks of a mixture that have no experts."""
    layers: int = Field(ge=1, le=256)
    """Number of blocks."""
    attention_heads: int = Field(ge=1, le=512)
    """Query heads."""
    key_value_heads: int = Field(ge=1, le=512)
    head_dim: int = Field(ge=1, le=512)
    """Width of a head, without `rotary_head_dim`."""
    rotary_head_dim: int | None = Field(default=None, ge=1, le=512)
    """Further width of queries and keys, which holds positions; that of keys is the same in all heads."""
    value_head_dim: int | None = Field(default=None, ge=1, le=512)
    """Width of values, where it is not that of keys."""
    query_rank: PositiveCount | None = None
    """Width of the vector from which queries are computed; null if they are computed from the residual stream."""
    key_value_rank: PositiveCount | None = None
    """Width of the vector from which keys and values are computed (multi-head latent attention)."""
    vocabulary: int = Field(ge=2, le=1_048_576)
    """Rows of the embedding."""
    context_length: int = Field(ge=8, le=16_777_216)
    """Maximum sequence length."""
    tied_embeddings: bool = False
    """True if the output projection is tied to the embedding."""
    sliding_window: PositiveCount | None = None
    """Attention span in tokens, if limited; of encoders to both sides together; the length of a chunk in families that attend within chunks."""
    full_attention_every: PositiveCount | None = None
    """One in this many layers attends to all tokens, the others within a `sliding_window`, with a state of earlier ones or not; null for none."""
    full_attention_layers: tuple[Annotated[int, Field(ge=0, le=255)], ...] | None = None
    """Places of the layers that attend to all tokens, from 0, where they are not one in N."""
    feed_forward_layers: tuple[Annotated[int, Field(ge=0, le=255)], ...] | None = None
    """Places of the layers that are a feed-forward layer alone; the others have none. Null if each layer mixes tokens and has one."""
    wide_head_dim: int | None = Field(default=None, ge=1, le=1024)
    """Width of a head in the layers that attend to all tokens, where it is another one."""
    wide_key_value_heads: int | None = Field(default=None, ge=1, le=512)
    """Their heads of keys, where these are their values, too."""
    per_layer_width: int | None = Field(default=None, ge=1, le=4096)
    """Width of a further embedding of each token for each layer."""
    sharing_layers: PositiveCount | None = None
    """Number of last layers that attend to the keys and values of an earlier one."""
    sharing_intermediate_size: int | None = Field(default=None, ge=1, le=1_048_576)
    """Width of the feed-forward layer in these layers, where it is another one."""
    linear_key_heads: int | None = Field(default=None, ge=1, le=512)
    """Heads of queries and keys in the layers that keep a state of earlier tokens (gated delta rule); the groups of Mamba-2."""
    linear_value_heads: int | None = Field(default=None, ge=1, le=512)
    """Their heads of values; each has a state of its own."""
    linear_head_dim: int | None = Field(default=None, ge=1, le=512)
    """Width of their heads; a state is a square of this side, but for `state_size`."""
    state_size: int | None = Field(default=None, ge=1, le=1024)
    """Width of their queries and keys, where it is not that of the values (Mamba-2): the other side of a state."""
    experts: PositiveCount | None = None
    active_experts: PositiveCount | None = None
    shared_experts: PositiveCount | None = None
    """Experts that every token uses, beside the active ones."""
    mixture_every: PositiveCount | None = None
    """One in this many blocks has experts, beginning after the first dense ones; null for all of them."""
    dense_layers: int | None = Field(default=None, ge=0, le=256)
    """Number of first blocks that have no experts."""
    parameters: PositiveCount | None = None
    """Parameter count, if a source states it."""
    hub_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}$")
    """Repository on the model hub: `owner/name`."""
    gated: bool | None = None
    """True if a licence must be accepted before download."""
    source: Source
    read_on: Day | None = None
    notes: Text | None = None

    def __hash__(self) -> int:
        """Return the hash of the key: shapes of steps, which hold the card, are looked up often."""
        return hash(self.key)

    @property
    def usual_length(self) -> int:
        """Tokens of a row where nobody gives a length: the usual ones, or the context if it is shorter."""
        return min(USUAL_LENGTH, self.context_length)

    @consistency
    def _consistent(self) -> Iterator[str]:
        yield from model_contradictions(self)


def fields_of(family: str) -> dict[str, str]:
    """Return the fields of the card by their names in the configuration of a family."""
    if family == "modernbert":
        # There, it is the half of the other name.
        return {theirs: ours for theirs, ours in CONFIG_FIELDS.items() if theirs != "sliding_window"}
    # `intermediate_size` is that of blocks without experts, where there are some; `head_dim` repeats the width of the rotated part in latent ones.
    dense = {"intermediate_size": "dense_intermediate_size"} if family in DENSE_FIRST and family != "llama4_text" else {}
    return {theirs: ours for theirs, ours in CONFIG_FIELDS.items() if theirs != "head_dim" or family not in LATENT} | dense


def model_contradictions(card: ModelCard) -> Iterator[str]:
    """Yield the contradiction between the numbers of a model, if there is one."""
    places = card.full_attention_layers
    if (card.full_attention_every is not None or places is not None) and card.sliding_window is None and card.family not in WITHOUT_WINDOW:
        yield "some layers attend to all tokens, and there is no sliding_window; say how long the window of the others is"
    elif places is not None and (card.full_attention_every is not None or max(places, default=0) >= card.layers):
        yield f"full_attention_layers names layers of {card.layers}, from 0; give these or full_attention_every"
    elif (card.full_attention_every or 0) > card.layers:
        yield f"full_attention_every is {card.full_attention_every} and there are {card.layers} layers; none would attend to all tokens"
    elif (card.sliding_window or 0) > card.context_length:
        yield f"sliding_window is {card.sliding_window}, longer than the context, {card.context_length}; then there is no window"
    elif card.attention_heads % card.key_value_heads:
        yield f"key_value_heads is {card.key_value_heads}, which does not divide attention_heads, {card.attention_heads}"
    elif (card.experts is None) != (card.active_experts is None) or (card.active_experts or 0) > (card.experts or 0):
        yield f"active_experts is {card.active_experts} of {card.experts} experts; a mixture has both, and no more active than all"
    elif (card.family in MIXTURES) != (card.experts is not None) and card.family not in MIXED_OR_NOT:
        yield f"family is {card.family!r} and experts is {card.experts}; of these families only {' and '.join(MIXTURES)} are mixtures"
    elif (card.dense_layers or 0) >= card.layers:
        yield f"dense_layers is {card.dense_layers} of {card.layers} layers; at least one layer of a mixture has experts"
    elif card.gated is not None and card.hub_id is None:
        yield f"gated is {card.gated} and there is no hub_id that could be gated; add it, or leave this out"
    yield from _of_other_families(card)


def _of_other_families(card: ModelCard) -> Iterator[str]:
    """Yield a field that the family needs and the card lacks, or the other way round."""
    for row in OF_FAMILIES:
        needed = [*row["needed"], *(row["state"] if card.full_attention_every != 1 else ())]
        given = [name for name in (*row["needed"], *row["state"], *row["others"]) if getattr(card, name) is not None]
        missing = [name for name in needed if name not in given]
        if card.family in row["of"] and missing:
            yield f"{missing[0]} is missing; a {card.family} model has it"
        elif card.family not in row["of"] and given:
            yield f"{given[0]} is {getattr(card, given[0])}, and a {card.family} model has none; leave it out"


class PriceRow(Frozen):
    """The price of one instance in one region on one date."""

    provider: Key
    instance: Text
    """The provider's name of the instance."""
    accelerator: Key
    accelerator_count: float = Field(gt=0)
    """Accelerators in the instance; a fraction if the provider sells one. For a CPU, physical cores / cores of its card."""
    vcpus: PositiveCount | None = None
    memory_gib: float | None = Field(default=None, gt=0)
    """Host memory in GiB."""
    region: Text | None = None
    """Region; null if the provider has one price for all."""
    kind: PriceKind
    usd_per_hour: float = Field(gt=0)
    """US dollars per hour for the whole instance."""
    effective_on: Day
    """Date on which this price is known to apply: of a price list, or the date it was read if `dated_by` is `catalog`."""
    dated_by: Literal["provider", "catalog", "inferred"] = "provider"
    """`catalog`: the source names a catalogue version without a date. `inferred`: the date follows from price lists around it."""
    source: Source
    notes: Text | None = None

    @consistency
    def _dated(self) -> Iterator[str]:
        if self.dated_by == "catalog" and not VERSION.search(f"{self.source} {self.notes or ''}"):
            yield "dated_by is 'catalog', and neither source nor notes names a version of it; name it, such as v8 or a commit"
        if self.dated_by == "inferred" and not self.notes:
            yield "dated_by is 'inferred' and there are no notes; say which lists the day follows from"


AwsSize = Annotated[str, Field(pattern=r"^((\d{1,3})?xlarge|large|medium|small|metal(-\d{1,3}xl)?)$")]


class AwsSizes(Frozen):
    """The sizes of instance families with accelerators that AWS sells."""

    source: Source
    read_on: Day
    families: dict[Text, Annotated[tuple[AwsSize, ...], Field(min_length=1)]]


def current_prices(prices: Iterable[PriceRow], on: date | None = None) -> list[PriceRow]:
    """Return the newest price per provider, instance, region and kind in force on a day, by default of all, as the view `current_prices`."""
    begun = sorted((row for row in prices if on is None or row.effective_on <= on), key=lambda row: row.effective_on)
    return list({(row.provider, row.instance, row.region, row.kind): row for row in begun}.values())


FRACTION_TOLERANCE = 1e-3
"""Rounding of the fraction of a CPU in the price book."""
OVERSIZED = 2
"""An instance with more than this many times the devices that are needed is the last choice."""


def cheapest_offer(prices: Iterable[PriceRow], devices: float) -> PriceRow | None:
    """Return the cheapest price of an instance with at least this many devices, a fraction for a part of a CPU; None if there is none.

    An instance with more than twice the devices counts only if there is no smaller one. The view `first_offers` of the database does the
    same, and the page of costs uses this function.
    """
    enough = [row for row in prices if row.accelerator_count >= devices * (1 - FRACTION_TOLERANCE)]
    return min(
        enough,
        key=lambda row: (
            row.accelerator_count > OVERSIZED * devices * (1 + FRACTION_TOLERANCE),
            *(row.usd_per_hour, row.accelerator_count, row.provider, row.instance, row.region or ""),
        ),
        default=None,
    )


class TrainingFabric(Frozen):
    """The network for training between several nodes of one instance type."""

    provider: Key
    instance: Text
    """The provider's name of the instance."""
    fabric: Text
    """Kind of network and bandwidth of one node."""
    source: Source


class PriceBasis(Frozen):
    """The default basis of costs: the providers whose on-demand list prices count, and the instances with a training fabric."""

    providers: tuple[Key, ...]
    """Providers. Others are not part of the basis."""
    reason: Text
    """Why these providers."""
    fabric: tuple[TrainingFabric, ...] = ()
    """Instances whose nodes are connected by a training fabric."""

    def fabric_of(self, provider: str, instance: str) -> str | None:
        """Return the training fabric between nodes of an instance type, or None if none is known."""
        return next((entry.fabric for entry in self.fabric if (entry.provider, entry.instance) == (provider, instance)), None)

    def offer(
        self, prices: Iterable[PriceRow], accelerator: str, devices: float, *, nodes: int = 1, on: date | None = None
    ) -> PriceRow | None:
        """Return the on-demand price of one node with at least `devices` of an accelerator, a fraction for a part of a CPU, or None.

        The cheapest fitting instance of any listed provider counts, see `cheapest_offer`. Several nodes need a training fabric. Each offer
        has its newest price on the day `on`, by default the newest of all.
        """
        listed = [
            row for row in prices if row.accelerator == accelerator and row.kind is PriceKind.ON_DEMAND and row.provider in self.providers
        ]
        joined = (row for row in listed if nodes == 1 or self.fabric_of(row.provider, row.instance) is not None)
        return cheapest_offer(current_prices(joined, on), devices)
