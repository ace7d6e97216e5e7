"""The memory of a training step on one device, predicted from shapes: lines of bytes, and the moments at which they are alive."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.formats import MIB
from tunemark.schema.physics.activations import FP32, activations_by_kind, stored_per_block
from tunemark.schema.physics.architecture import block_kinds, block_linears, count_parameters
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.training_shape import BYTES, TrainingShape
from tunemark.schema.vocabulary import LOSS_CHUNK, Checkpointing, Dtype, Method

Moment = Literal["loss", "backward begins", "backward ends", "optimizer"]
MOMENTS: tuple[Moment, ...] = ("loss", "backward begins", "backward ends", "optimizer")
"""The moments at which memory can peak: logits; gradients of the last block; of the first block; optimizer update."""

BACKWARD: tuple[Moment, ...] = ("backward begins", "backward ends")
LATE: tuple[Moment, ...] = ("backward ends", "optimizer")

MemoryVerdict = Literal["fits", "probably", "unsure", "no"]
ERROR, SHARDED_ERROR = (0.90, 1.05), (0.90, 1.17)
"""True / predicted peak of live tensors: 90% of the published rows of the table `memory_errors` are between these.

Sharded steps ran out of memory where the prediction left an eighth of the device free (70B QLoRA on 2 x 80 GiB, `010-068`): gathered
weights fragment it.
"""
RESERVED_ERROR, SHARDED_RESERVED_ERROR = (0.90, 1.17), (0.80, 1.30)
"""The same for reserved memory: how much of its cache an allocator reuses differs more than what is alive."""
Group = Literal["model", "training", "activations", "gathered", "framework"]


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """Bytes of one kind on one device."""

    key: str
    group: Group
    """Category: model, training state, activations, gathered from other devices, or framework."""
    bytes: int
    formula: str
    moments: tuple[Moment, ...] = MOMENTS


@dataclass(frozen=True, slots=True)
class MemoryLedger:
    """The predicted memory of one training step on one device, in bytes."""

    lines: tuple[MemoryLine, ...]
    """All lines except empty ones."""
    outside: int
    """Memory outside the allocator: the device context and communication buffers."""
    sharded: bool = False
    """True if the weights are divided among devices: the errors are larger."""
    settled: int = 0
    """Optimizer states that FSDP's first update puts into blocks which activations have left."""
    delayed: float = 1.0
    """Reserved memory over what would be reserved if freed memory could be used again at once. Settled states are a part of the difference."""

    @property
    def error(self) -> tuple[float, float]:
        """Interval of the live tensors: their true peak is between these multiples of the predicted one. `needed` adds a constant."""
        return SHARDED_ERROR if self.sharded else ERROR

    @property
    def reserved_error(self) -> tuple[float, float]:
        """The same of reserved memory."""
        return SHARDED_RESERVED_ERROR if self.sharded else RESERVED_ERROR

    def allocated_at(self, moment: Moment) -> int:
        """Return the bytes of live tensors at a moment."""
        return sum(line.bytes for line in self.lines if moment in line.moments)

    @property
    def peak_moment(self) -> Moment:
        """The moment of the peak."""
        return max(MOMENTS, key=self.allocated_at)

    @property
    def peak_allocated(self) -> int:
        """Peak of live tensors (`max_memory_allocated`)."""
        return max(map(self.allocated_at, MOMENTS))

    @property
    def peak_reserved(self) -> int:
        """Peak reserved by a caching allocator that is not short of memory (`max_memory_reserved`).

        Tensors of the other moments have other sizes, so that the blocks freed at the peak hold only a part of them. Gathered
        weights belong to the stream of the collectives, and the allocator never shares blocks between streams. The states of the first
        update settle in freed blocks, and the next step has to reserve these again. On one device, freed gradients replace most of them;
        sharded gradients belong to the stream of the collectives (7B in full, 4 x 4,096 tokens, by the rules of torch's allocator: 6.3 GiB
        beside the peak with all tensors on one stream, 13.5 GiB with gradients on another).
        """
        peak = self.peak_moment
        elsewhere = [line for line in self.lines if peak not in line.moments]
        gathered = sum(line.bytes for line in elsewhere if line.group == "gathered")
        rest = sum(line.bytes for line in elsewhere) - gathered
        reserved = self.allocated_at(peak) + gathered + NOT_REUSED * rest
        return int(reserved + max((1 - NOT_REUSED) * min(rest, self.settled), (self.delayed - 1) * reserved))

    def reserved_on(self, device_bytes: int | None) -> int:
        """Return the peak reserved on a device of this memory.

        An allocator short of memory returns cached blocks; assume the middle between what it needs and what is there.
        """
        if device_bytes is None or self.peak_reserved + self.outside <= device_bytes:
            return self.peak_reserved
        return max(self.peak_allocated, (self.peak_allocated + device_bytes - self.outside) // 2)

    @property
    def needed(self) -> int:
        """Memory of a device that this step needs: under pressure the allocator returns its cache."""
        return self.peak_allocated + self.outside

    @property
    def reserved_interval(self) -> tuple[int, int]:
        """90% interval of `peak_reserved`. Its upper end is that of rows with varied lengths: blocks of one length seldom fit another."""
        low, high = self.reserved_error
        recomputed = any(line.key == "one block, recomputed" for line in self.lines)
        by_rows = sum(line.bytes for line in self.lines if line.group == "activations" and self.peak_moment in line.moments)
        varied = self.peak_reserved + (VARIED_ROWS[recomputed] - 1) * by_rows
        return int(self.peak_reserved * low), int(max(self.peak_reserved * high, varied))

    @property
    def needed_low(self) -> int:
        """Lower end of the 90% interval of `needed`: not below the weights and states that are always there, whose bytes are exact."""
        always = sum(line.bytes for line in self.lines if line.moments == MOMENTS)
        return max(int(self.peak_allocated * self.error[0]), always) + self.outside

    @property
    def needed_high(self) -> int:
        """Upper end of the 90% interval of `needed`."""
        return int(self.peak_allocated * self.error[1]) + self.outside

    @property
    def fit_limits(self) -> dict[MemoryVerdict, int]:
        """The smallest memory of a device for each verdict other than `no`, in bytes, best first.

        `fits` is room for all that the allocator would reserve and for the upper end of the interval, `probably` for that end, `unsure` for
        the lower one.
        """
        fits = max(self.needed_high, self.peak_reserved + self.outside)
        return {"fits": fits, "probably": self.needed_high, "unsure": self.needed_low}

    def fit_on(self, device_bytes: int) -> MemoryVerdict:
        """Return the verdict on a device of this memory; see `fit_limits`."""
        return next((verdict for verdict, least in self.fit_limits.items() if device_bytes >= least), "no")


VARIED_ROWS = {True: 2.3, False: 1.5}
"""Reserved bytes of activations over those with rows of one length, at the upper end, with and without recomputed blocks.

By the rules of torch's allocator (512-byte sizes, segments of 2 and 20 MiB, best fit, splits), applied to the tensors of 40 steps of three
models with rows of three distributions of lengths: median 1.3 and 1.2, and 2.3 and 1.5 in nine of ten. A longest batch that comes first adds nothing.
"""
NOT_REUSED = 0.5
"""Share of the tensors that are not alive at the peak for which the caching allocator reserves memory beside the peak's.

Fitted to the reserved and used memory of 99 published rows on one device (table `memory_errors`). The rules of torch's allocator (512-byte
sizes, segments of 2 and 20 MiB, best fit, splits), applied to the tensors of 9 checkpointed steps of transformers 5.23, agree within 3%.
"""


MXFP4 = "; the hub's experts are in MXFP4, which is not trainable (transformers 5.23)"
WHOLE_EXPERTS = "; bitsandbytes does not quantise the experts of transformers 5 (its issue 1849), and peft casts them to fp32 on one device; Unsloth and axolotl quantise them"
NF4_BLOCK = 64
"""Weights per scale (Dettmers et al. 2023, QLoRA, section 3)."""
FP4_BLOCK = 16
"""Weights per one-byte scale in NVFP4 (Transformer Engine)."""
SCALES_BLOCK = 256
"""Scales per second-level scale under double quantisation (same source)."""
REDUCE_BUCKET = 500_000_000
"""Default of DeepSpeed's `reduce_bucket_size`."""
EIGHT_BIT_BLOCK = 256
"""Numbers per scale in bitsandbytes' 8-bit optimizers."""

ALL_STATES = ("optimizer", "gradients", "parameters")
SHARDED = {name: ALL_STATES[:stage] for stage, name in enumerate(("single", "zero1", "zero2", "zero3"))}
SHARDED |= {"ddp": ()} | dict.fromkeys(("fsdp1", "fsdp2", "fsdp-grad-op"), ALL_STATES)
"""The states that each strategy divides over data-parallel devices (Rajbhandari et al. 2020, ZeRO)."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameter counts on one tensor-parallel rank."""

    quantised: int
    """Stored in 4 bits, or in fp8."""
    plain: int
    """Stored in the format of the parameters."""
    adapters: int
    trained: int
    """Base weights with gradients."""


def count_weights(shape: TrainingShape) -> Weights:
    """Return the numbers of quantised, plain, adapter and trained weights on one tensor-parallel rank.

    Quantisation applies to the matrices of the blocks, in 4 bits not to experts that are one parameter. Embeddings, head, router, norms and
    biases stay plain.
    """
    card, ranks = shape.model, shape.tensor_parallel
    count = count_parameters(card)
    matrices = count.attention + count.feed_forward - (0 if shape.packs_experts else count.experts)
    quantised, trained = matrices if shape.packed else 0, count.total if shape.method is Method.FULL else 0
    return Weights(quantised // ranks, (count.total - quantised) // ranks, shape.adapter_weights // ranks, trained // ranks)


def state_lines(shape: TrainingShape) -> tuple[MemoryLine, ...]:
    """Return weights, quantisation constants, adapters, gradients, master weights and optimizer states."""
    weights = count_weights(shape)
    return (*_model(shape, weights), *_gradients(shape, weights), *_optimizer(shape, weights))


def block_weights(shape: TrainingShape) -> int:
    """Return the number of weights of the matrices of the largest block on one tensor-parallel rank, and of the experts that stay on it."""
    parts = min(shape.world_size, shape.model.experts or 1) if shape.expert_parallel else 1
    sizes = [(each.blocks, each.weights // (parts if each.part == "experts" else 1)) for each in block_linears(shape.model)]
    return max(sum(size for blocks, size in sizes if kind[0].place in blocks) for kind in block_kinds(shape.model)) // shape.tensor_parallel


def divided(shape: TrainingShape, what: str) -> int:
    """Return the divisor of a kind of state over the data-parallel devices."""
    return shape.world_size if what in SHARDED[shape.sharding] else 1


def _model(shape: TrainingShape, weights: Weights) -> Iterator[MemoryLine]:
    share, size = divided(shape, "parameters"), BYTES[shape.parameters]
    here = 0 if shape.offload and share > 1 else 1
    by = " (in host memory)" if not here else f" / {share} devices" if share > 1 else ""
    scale = 1 / NF4_BLOCK + 4 / (NF4_BLOCK * SCALES_BLOCK) if shape.double_quantisation else 4 / NF4_BLOCK
    scales = f"(1/{NF4_BLOCK} + 4/({NF4_BLOCK} x {SCALES_BLOCK}))" if shape.double_quantisation else f"4/{NF4_BLOCK}"
    adapter, four_bit = BYTES[shape.adapters], weights.quantised if shape.packed is Dtype.NF4 else 0
    note = WHOLE_EXPERTS if not shape.packs_experts else MXFP4 if shape.model.family == "gpt_oss" and not four_bit else ""
    adapted = f"{weights.adapters:,} x {adapter:g} bytes{by}: {_adapted(shape)}"
    yield MemoryLine("weights", "model", int(here * weights.plain * size / share), f"{weights.plain:,} x {size:g} bytes{by}{note}")
    yield from _narrow(shape, weights)
    yield MemoryLine("4-bit weights", "model", int(here * four_bit * BYTES[Dtype.NF4] / share), f"{four_bit:,} x 0.5 bytes{by}")
    # Scales are attributes of the weights, not parameters: no strategy divides them.
    yield MemoryLine("4-bit scales", "model", int(four_bit * scale), f"{four_bit:,} x {scales} bytes")
    yield MemoryLine("adapters", "model", int(here * weights.adapters * adapter / share), adapted)


def _adapted(shape: TrainingShape) -> str:
    """Return the rank of the adapters and the layers that have them, in words."""
    experts = [linear for linear in shape.adapted if linear.part == "experts"]
    layers, of_experts = (
        ", ".join(dict.fromkeys(linear.path.split(".")[-1] for linear in shape.adapted if (linear in experts) is inside))
        for inside in (False, True)
    )
    numbers = f"{sum(shape.adapter_of(linear) for linear in experts):,} of them on {of_experts} of {shape.model.experts} experts"
    return f"rank {shape.lora_rank} on {layers}" + (f", {numbers}; lora.target_modules=attention leaves these out" if experts else "")


def fp8_scales(card: ModelCard) -> int:
    """Return the number of scales of frozen weights in fp8: one per output of each matrix of the blocks."""
    return sum(linear.outputs * linear.copies * linear.times() for linear in block_linears(card))


def _narrow(shape: TrainingShape, weights: Weights) -> Iterator[MemoryLine]:
    """Yield the frozen weights of LoRA in fp8 or fp4 with their scales."""
    if shape.packed not in {Dtype.FP8, Dtype.FP4, Dtype.INT8}:
        return
    scales = weights.quantised // FP4_BLOCK if shape.packed is Dtype.FP4 else 4 * fp8_scales(shape.model) // shape.tensor_parallel
    size, name = BYTES[shape.packed], shape.packed.value
    yield MemoryLine(f"{name} weights", "model", int(weights.quantised * size), f"{weights.quantised:,} x {size:g} bytes")
    yield MemoryLine(f"{name} scales", "model", scales, f"one byte for {FP4_BLOCK} weights in fp4, else 4 for each output")


def _gradients(shape: TrainingShape, weights: Weights) -> Iterator[MemoryLine]:
    if shape.optimizer_in_backward:
        widest = max(count_parameters(shape.model).embedding if shape.method is Method.FULL else 0, *_widths(shape))
        one = int(widest * BYTES[shape.parameters])
        yield MemoryLine("gradients", "training", one, f"{widest:,} x {BYTES[shape.parameters]:g} bytes: one matrix", LATE)
        return
    share = divided(shape, "gradients")
    numbers, each = weights.trained or weights.adapters, BYTES[shape.parameters if weights.trained else shape.adapters]
    formula = f"{numbers:,} x {each:g} bytes" + (f" / {share} devices" if share > 1 else "")
    here = numbers * each / share
    if (shape.offload and shape.sharding != "fsdp1") or (shape.optimizer_offload and share > 1):
        here, formula = 0.0, "(on the host)"
    # ZeRO 3 allocates its share with the optimizer and keeps it (`grad_partitions_flat_buffer`).
    always = (shape.gradient_accumulation > 1 or shape.sharding == "zero3") and not shape.offload
    moments: tuple[Moment, ...] = ("optimizer",) if shape.keeps_whole_gradients else MOMENTS if always else LATE
    yield MemoryLine("gradients", "training", int(here), formula, moments)
    yield from _buckets(shape, int(numbers * each))


def _buckets(shape: TrainingShape, gradient_bytes: int) -> Iterator[MemoryLine]:
    """Yield the buffers in which gradients are reduced. DeepSpeed 0.19.8 allocates a whole one, for good in ZeRO 3, which scatters a copy."""
    if shape.sharding == "ddp" and shape.world_size > 1:
        yield MemoryLine("communication buckets", "training", gradient_bytes, "a second copy of the gradients, as DDP keeps it by default")
    elif shape.sharding.startswith("zero"):
        bucket, formula = 2 * REDUCE_BUCKET, f"{REDUCE_BUCKET:,} x 2 bytes: reduce_bucket_size"
        always = shape.sharding == "zero3"
        yield MemoryLine("communication buckets", "training", bucket, formula, MOMENTS if always else BACKWARD)
        yield MemoryLine("scattered bucket", "training", min(gradient_bytes, bucket) if always else 0, formula + ", copied", BACKWARD)


def _widths(shape: TrainingShape) -> Iterator[int]:
    """Yield the numbers of weights of the trained matrices of a block on one rank, and of its adapters."""
    if shape.method is Method.FULL:
        yield from (linear.inputs * linear.outputs // shape.tensor_parallel for linear in block_linears(shape.model))
    else:
        yield from (shape.lora_rank * max(linear.inputs, linear.outputs) for linear in shape.adapted)


def _optimizer(shape: TrainingShape, weights: Weights) -> Iterator[MemoryLine]:
    if shape.offload or shape.optimizer_offload or shape.optimizer.startswith("paged"):
        # Paged states are managed memory outside the allocator, which moves to the host when the device is short.
        return
    share = divided(shape, "optimizer")
    by = f" / {share} devices" if share > 1 else ""
    numbers = weights.trained + weights.adapters
    master = 4 * numbers if shape.master_weights else 0
    trained = master or weights.trained * BYTES[shape.parameters] + weights.adapters * BYTES[shape.adapters]
    states: dict[str, tuple[float, str]] = {
        **dict.fromkeys(("adamw", "adamw-fused"), (2 * trained, f"two moments of {numbers:,} numbers, in their own format{by}")),
        "adamw-8bit": (2 * numbers * (1 + 4 / EIGHT_BIT_BLOCK), f"2 x {numbers:,} x (1 + 4/{EIGHT_BIT_BLOCK}) bytes{by}"),
        "sgd": (0, "no states without momentum"),
        "adafactor": (_factored(shape), f"4 bytes per row and column of each trained matrix{by}"),
    }
    size, formula = states[shape.optimizer]
    # torch's default AdamW updates all tensors at once and holds the square roots of all second moments.
    roots = trained if shape.optimizer == "adamw" and not shape.optimizer_in_backward else 0
    # DeepSpeed casts its share of the gradients before it updates the master weights.
    casts = master if shape.sharding in {"zero1", "zero2", "zero3"} else min(4 * shape.cast_at_once, master)
    # Stochastic rounding copies a part of the largest weight to fp32: weights, gradients and two moments. A compiled update does not.
    whole = shape.model.vocabulary * shape.model.hidden_size if shape.method is Method.FULL else 0
    updated = min(shape.rounded_at_once, max([whole, *_widths(shape)]) // share)
    yield MemoryLine("optimizer states", "training", int(size / share), formula)
    yield MemoryLine("fp32 master weights", "training", int(master / share), f"{numbers:,} x 4 bytes{by}")
    yield MemoryLine("update workspace", "training", int(roots / share), "square roots of all second moments (foreach)", ("optimizer",))
    yield MemoryLine("fp32 update", "training", 16 * updated, f"{updated:,} weights at a time x 16 bytes", ("optimizer",))
    yield MemoryLine("fp32 gradients", "training", int(casts / share), f"{numbers:,} x 4 bytes{by}", ("optimizer",))


def _factored(shape: TrainingShape) -> float:
    if shape.method is not Method.FULL:
        return 4.0 * sum((each.inputs + each.outputs + 2 * shape.lora_rank) * each.times() for each in shape.adapted)
    linears = block_linears(shape.model)
    return 4.0 * sum((each.inputs + each.outputs) * each.copies * each.times() for each in linears)


# The whole step

LIVE_PARAMETERS = 1_000_000_000
"""Default of DeepSpeed's `stage3_max_live_parameters`."""
WORKSPACE = 40 * MIB
"""cuBLAS workspaces reserved by torch: 32 MiB on Hopper, 8 MiB before (torch.cuda docs); one of each is assumed."""
CONTEXT = 512 * MIB
"""CUDA context and loaded kernels of one process, outside the allocator: 0.4 to 0.6 GiB on data-centre GPUs."""
COLLECTIVES = 512 * MIB
"""NCCL communication buffers with default channels, outside the allocator."""

RECORD_STREAM = 1 / 0.93
"""Peak of FSDP 1 over that of FSDP 2, which does not delay the reuse of memory by `recordStream` (torchtitan, docs/fsdp.md: 7% less)."""

ALL_BUT_UPDATE: tuple[Moment, ...] = ("loss", "backward begins", "backward ends")
BEFORE: tuple[Moment, ...] = ("loss", "backward begins")


@lru_cache(maxsize=256)
def estimate_memory(shape: TrainingShape) -> MemoryLedger:
    """Return the predicted memory of a training step on one device."""
    outside = CONTEXT + (COLLECTIVES if shape.world_size * shape.tensor_parallel > 1 else 0)
    library = MemoryLine("matrix library", "framework", WORKSPACE, "its workspaces, as those of cuBLAS: 32 + 8 MiB")
    lines = (*state_lines(shape), *_activations(shape), head_line(shape), *_gathered(shape), library)
    # DeepSpeed creates its states before the first step.
    settling = {"optimizer states", "fp32 master weights"} if shape.sharding.startswith("fsdp") else set()
    settled = sum(line.bytes for line in lines if line.key in settling)
    sharded = divided(shape, "parameters") != 1
    # Copies from the host make the streams wait for each other, so that nothing is delayed.
    delayed = RECORD_STREAM if sharded and shape.sharding == "fsdp1" and not shape.offload else 1.0
    return MemoryLedger(tuple(line for line in lines if line.bytes), outside, sharded, settled, delayed)


def _activations(shape: TrainingShape) -> Iterator[MemoryLine]:
    kinds = activations_by_kind(shape)
    block = max((each for _, each in kinds), key=lambda each: each.saved)
    # Offloaded inputs are on the device while they are copied: one leaves while the next is computed.
    stored = [(min(live, 2) if shape.activation_offload else live, *stored_per_block(shape, each)) for live, each in kinds]
    formula = " + ".join(f"{waiting} {'block' if waiting == 1 else 'blocks'} x {each}" for waiting, _, each in stored)
    # Hooks of frozen FSDP 1 units (`register_multi_grad_hook`) keep the inputs of all blocks: re-entry makes these leaves.
    frozen = shape.sharding == "fsdp1" and shape.method is not Method.FULL
    held = frozen and shape.reentrant and shape.checkpointing is Checkpointing.FULL
    # bitsandbytes dequantises the largest matrix at once: for any 4-bit product, for 8 bits in the backward pass.
    widest = max(linear.inputs * linear.outputs for linear in block_linears(shape.model)) // shape.tensor_parallel
    unpacked = 2 * widest if shape.packed in {Dtype.NF4, Dtype.INT8} else 0
    recomputed = 0 if shape.checkpointing is Checkpointing.NONE else block.saved
    name = "activations" if shape.checkpointing is Checkpointing.NONE else "checkpointed activations"
    size = BYTES[shape.activations]
    numbers, by = shape.slots * shape.model.hidden_size, f" / {shape.residual_share}" if shape.residual_share > 1 else ""
    norm = f"{shape.slots:,} tokens x {shape.model.hidden_size:,} x (4 + 2 x {size:g}) bytes{by}"
    hooks = f"{shape.model.layers} blocks x input: the gradients of their inputs, kept by the hooks of frozen FSDP 1 units"
    yield MemoryLine(name, "activations", sum(waiting * each for waiting, each, _ in stored), formula, ALL_BUT_UPDATE if held else BEFORE)
    yield MemoryLine("one block's input", "activations", block.input, "input of the last block", ("backward ends",))
    yield MemoryLine("one block, recomputed", "activations", recomputed, block.formula, BACKWARD)
    yield MemoryLine("one block's gradients", "activations", block.backward, "gradients of its widest tensors, while needed", BACKWARD)
    yield MemoryLine("final norm", "activations", int(numbers * (4 + 2 * size) / shape.residual_share), norm, ("loss",))
    yield MemoryLine("held by hooks", "activations", shape.model.layers * block.input if held else 0, hooks, ("backward ends",))
    yield MemoryLine("unpacked matrix", "activations", unpacked, f"{widest:,} x 2 bytes: the largest packed matrix in bf16", BACKWARD)
    yield from _cast_weights(shape)


def _cast_weights(shape: TrainingShape) -> Iterator[MemoryLine]:
    """Yield the bytes of the 16-bit copies that autocast makes of fp32 weights.

    The backward pass needs the copies that gradients pass through. Those of trained weights are also cached until the forward pass ends,
    when the gradients of the logits are not there yet. Sharded weights are gathered in 16 bits and need no copy.
    """
    if shape.autocast is None or BYTES[shape.parameters] != FP32 or divided(shape, "parameters") > 1:
        return
    count, ranks, kept = count_parameters(shape.model), shape.tensor_parallel, shape.checkpointing is Checkpointing.NONE
    head, matrices = count.head // ranks, 0 if shape.packed else (count.attention + count.feed_forward) // ranks
    copied = matrices if kept or shape.method is Method.FULL else 0
    gradients = FP32 * shape.slots * shape.model.vocabulary // ranks if shape.loss == "upcast" and not kept else 0
    formula = f"{copied:,} x 2 bytes: copies made by autocast" + (", less the gradients of the logits" if gradients else "")
    yield MemoryLine("head in 16 bits", "activations", 2 * head, f"{head:,} x 2 bytes: a copy made by autocast", ("loss",))
    yield MemoryLine("weights in 16 bits", "activations", max(0, 2 * copied - gradients), formula, BEFORE if kept else ("loss",))


def _gathered(shape: TrainingShape) -> Iterator[MemoryLine]:
    """Yield the bytes gathered from other shards: the block in use and the prefetched one, the head while logits are computed.

    FSDP 1 never frees its outermost unit, which holds head and embeddings, before the backward pass ends (`_post_forward_reshard`), and
    has the head's gradients whole until then. FSDP 2 keeps the joined buffer of a collective beside the weights copied from it until the next
    one (`all_gather_state`). A block's gradients are whole twice: as computed, and joined for their reduction; DeepSpeed joins them in its bucket.
    """
    share = divided(shape, "parameters")
    if share == 1:
        return
    count, size = count_parameters(shape.model), BYTES[shape.logits]
    outermost = shape.sharding == "fsdp1" and not shape.matrix_units
    head, table = count.head // shape.tensor_parallel, 0 if count.tied_head or not outermost else count.embedding // shape.tensor_parallel
    block = max(each.inputs * each.outputs for each in block_linears(shape.model)) if shape.matrix_units else block_weights(shape)
    held: tuple[Moment, ...] = ALL_BUT_UPDATE if outermost else ("loss",)
    alive: tuple[Moment, ...] = BEFORE if outermost else ("loss",)
    fetched: tuple[Moment, ...] = BEFORE if shape.sharding == "fsdp-grad-op" else ("backward begins",)
    each = BYTES[shape.packed] if shape.packed and shape.packs_experts else size
    # DeepSpeed keeps gathered parameters up to this number, and FSDP without resharding all.
    most = {"zero3": LIVE_PARAMETERS, "fsdp-grad-op": (count.attention + count.feed_forward) // shape.tensor_parallel}
    blocks = min(shape.model.layers * block, max(2 * block, most.get(shape.sharding, 0)))
    # Offloaded shards are on the device too; FSDP 1 has them twice: as stored, and in the format in which they are gathered.
    shards = (2 if shape.sharding == "fsdp1" else 1) if shape.offload else 0
    joined = 1 if shape.sharding in {"fsdp2", "fsdp-grad-op"} else 0
    copies, by = 1 + joined + shards / share, f" x ({1 + joined} + {shards}/{share})" if shards or joined else ""
    # Copies from the host make the streams wait for each other.
    stream: Group = "framework" if shape.offload else "gathered"
    trained = 1 if shape.method is Method.FULL else 0
    whole, reduced = 0 if shape.loss in {"chunked", "streamed", "fused"} else 1, 0 if outermost or shape.sharding == "zero3" else 1
    of_block = block if shape.sharding == "zero3" else 2 * block
    of_head = f"{head:,} x {size:g} bytes x ({whole} + {reduced}/{share}): whole, and reduced"
    ahead = f"{blocks - block:,} x {each:g} bytes" + (f" x (1 + {shards}/{share})" if shards else "")
    waiting = count_weights(shape).trained * BYTES[shape.parameters] / share if shape.offload and shape.sharding == "fsdp1" else 0
    unreduced = count_weights(shape).trained if shape.keeps_whole_gradients else 0
    until_last = f"{unreduced:,} x {size:g} bytes: not reduced before the last micro-step"
    late = "the device's share of all gradients: copies to the host are slower than the backward pass"
    yield MemoryLine("gathered head", stream, int((head + table) * size * copies), f"{head + table:,} x {size:g} bytes{by}", held)
    yield MemoryLine("gradients of the head", "training", int(head * size * (whole + reduced / share) * trained), of_head, alive)
    yield MemoryLine("gradients of a block", "training", int(of_block * size * trained), f"{of_block:,} x {size:g} bytes", BACKWARD)
    yield MemoryLine("gathered blocks", stream, int(block * each * copies), f"the block in use: {block:,} x {each:g} bytes{by}", BACKWARD)
    yield MemoryLine("prefetched blocks", stream, int((blocks - block) * each * (copies - joined)), ahead, fetched)
    yield MemoryLine("unreduced gradients", "training", int(unreduced * size), until_last, ALL_BUT_UPDATE)
    yield MemoryLine("gradients on their way to the host", "training", int(waiting), late, BEFORE)


CHUNKS = 8
"""Chunks of torchtune's chunked cross-entropy."""
COPIES: dict[str, tuple[float, float]] = {"plain": (3, 0), "upcast": (1, 3), "inplace": (1, 1), "shifted": (1, 2)}
COPIES |= {"chunked": (1 + 1 / CHUNKS, 3 / CHUNKS)}
"""Loss -> (tensors of the size of the logits in their own format, in fp32)."""


def head_line(shape: TrainingShape) -> MemoryLine:
    """Return the peak bytes of logits, their copies and their gradients; see `vocabulary.Loss`. Softly capped logits keep one more."""
    card, size = shape.model, BYTES[shape.logits]
    if shape.labels or FAMILIES[card.family].encoder:
        classes = 16 * shape.slots * (shape.labels or 1)
        return MemoryLine("logits and loss", "activations", classes, "negligible: a classifier", ("loss",))
    width = card.vocabulary / shape.tensor_parallel
    if shape.loss in {"fused", "streamed"}:
        return _fused(shape, width, size)
    own, in_fp32 = COPIES[shape.loss]
    own += 1 if FAMILIES[card.family].capped_logits else 0
    in_fp32 = 0 if shape.loss == "chunked" and shape.compiled else in_fp32
    head = 2 * size * width * card.hidden_size if shape.loss == "chunked" and shape.method is Method.FULL else 0
    total = shape.slots * width * (own * size + in_fp32 * FP32) + head
    formula = f"{shape.slots:,} tokens x {width:,.0f} words x ({own:g} x {size:g} + {in_fp32:g} x {FP32}) bytes"
    return MemoryLine("logits and loss", "activations", int(total), formula + (", gradients of the head" if head else ""), ("loss",))


def _fused(shape: TrainingShape, width: float, size: float) -> MemoryLine:
    """Return the bytes of a head and loss that are computed for one chunk of the tokens after the other.

    Liger Kernel (ead96b6, ops/fused_linear_cross_entropy.py) overwrites a chunk of logits with its gradient. It adds the gradient of a 16-bit
    head up in its format, from a product in that format that is cast to fp32; that of an fp32 head in place.
    """
    chunks = -(-int(width) // shape.model.hidden_size)
    stored = BYTES[shape.parameters] if shape.sharding in {"single", "ddp"} else size
    rows, each, kept = 2 ** (-(-shape.slots // chunks) - 1).bit_length(), size, stored if stored == FP32 else stored + size + FP32
    if shape.loss == "streamed":
        rows, each, kept = min(shape.slots, max(1, LOSS_CHUNK // shape.model.vocabulary)), size + FP32, stored
    trained = kept * width * shape.model.hidden_size if shape.method is Method.FULL else 0
    chunk = rows * width * each + shape.slots * shape.model.hidden_size * size
    formula = f"{rows:,} rows x {width:,.0f} words x {each:g} bytes, gradients of the hidden states"
    formula += f" and of the head, {kept:g} bytes a weight" if trained else ""
    return MemoryLine("logits and loss", "activations", int(chunk + trained), formula, ("loss",))
