"""FLOPs and memory of a result's shape: least values, for bounds that no run can pass. Unknown settings take their cheapest value."""

from functools import lru_cache

from tunemark.collector.audit.evidence import Run
from tunemark.collector.store.rates import precision_class
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.activations import block_activations
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.flops import flops_ledger
from tunemark.schema.physics.memory_states import count_weights
from tunemark.schema.physics.training_shape import ALL_LINEAR, TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

SIXTEEN_BIT = (Dtype.BF16, Dtype.FP16)
LABELS = 2
"""Fewest classes of a classifier; an encoder's head is negligible."""


def shape_of(run: Run, *, sequence_length: int, micro_batch: int, checkpointing: Checkpointing = Checkpointing.NONE) -> TrainingShape:
    """Return the shape with the least work and memory that the conditions allow: rank 1 where the rank is not said."""
    if run.model is None:
        raise ValueError(run.id)
    return cheapest_shape(run.model, run.conditions.method, sequence_length, micro_batch, run.setting("lora_r") or 1, checkpointing)


@lru_cache(maxsize=1_024)
def _cheapest(key: str, method: Method, sequence_length: int, micro_batch: int, rank: int, checkpointing: Checkpointing) -> TrainingShape:
    card = _CARDS[key]
    return TrainingShape(
        card,
        method,
        sequence_length,
        micro_batch,
        labels=LABELS if card.family == "bert" else None,
        lora_rank=rank,
        lora_targets=ALL_LINEAR if rank > 1 else _narrowest(card),
        checkpointing=checkpointing,
        loss="fused",
        adapters=Dtype.BF16,
    )


_CARDS: dict[str, ModelCard] = {}


def cheapest_shape(
    card: ModelCard, method: Method, sequence_length: int, micro_batch: int, rank: int, checkpointing: Checkpointing
) -> TrainingShape:
    """Return a shape with flash attention, fused loss and 16-bit adapters."""
    _CARDS[card.key] = card
    return _cheapest(card.key, method, sequence_length, micro_batch, rank, checkpointing)


def _narrowest(card: ModelCard) -> tuple[str, ...]:
    """Return the projections that the first LoRA recipes adapted: queries and values, or what holds them."""
    fused = {"gpt2": ("c_attn",), "phi3": ("qkv_proj",), "bert": ("query", "value")}
    return fused.get(card.family, ("q_proj", "v_proj"))


def flop_per_token(run: Run, sequence_length: int, *, recompute: bool = False) -> float:
    """Return the FLOPs that a device has to do for a token (definitions.md 8 to 10); recomputed blocks only when said."""
    kept = Checkpointing.FULL if recompute else Checkpointing.NONE
    shape = shape_of(run, sequence_length=sequence_length, micro_batch=1, checkpointing=kept)
    rank = run.setting("lora_r") or 1
    # Documents that share a row need not see each other, and how long they are is not known: attention is left out.
    return _flop_per_token(shape.model.key, shape.method, sequence_length, rank, kept, attention=not run.conditions.packing)


def least_flop_per_token(card: ModelCard, method: Method, sequence_length: int) -> float:
    """Return the FLOPs of a token of a model and a method of which no more is known: rank 1, nothing computed twice, no attention."""
    cheapest_shape(card, method, sequence_length, 1, 1, Checkpointing.NONE)
    return _flop_per_token(card.key, method, sequence_length, 1, Checkpointing.NONE, attention=False)


@lru_cache(maxsize=4_096)
def _flop_per_token(key: str, method: Method, length: int, rank: int, kept: Checkpointing, *, attention: bool) -> float:
    ledger = flops_ledger(_cheapest(key, method, length, 1, rank, kept))
    flops = ledger.hardware_flops if kept is Checkpointing.FULL else ledger.model_flops
    return (flops - (0 if attention else ledger.of("forward_attention", "backward_attention"))) / ledger.tokens


def peak_flop_per_s(run: Run) -> float | None:
    """Return the dense peak of all devices for the named formats, and for the fastest one where none is named; None for unknown cards."""
    if run.accelerator is None:
        return None
    peaks = run.accelerator.peak_tflops
    named = precision_class(run.conditions.precision)
    wanted = [Dtype(name) for name in named.split("/")] if named else [*SIXTEEN_BIT, Dtype.FP8]
    best = max((peaks[dtype] for dtype in wanted if dtype in peaks), default=None)
    if best is None:
        # The named format is emulated: it cannot be faster than the fastest 16-bit one that is there.
        best = max((peaks[dtype] for dtype in SIXTEEN_BIT if dtype in peaks), default=None)
    return None if best is None else best * 1e12 * run.devices


def weight_bytes(card: ModelCard, method: Method) -> tuple[float, str]:
    """Return the least bytes of the weights: 16 bits, or 4 bits and their scales for the matrices of the blocks under QLoRA."""
    weights = count_weights(cheapest_shape(card, method, 1, 1, 1, Checkpointing.NONE))
    if method is not Method.QLORA:
        total = count_parameters(card).total
        return 2.0 * total, f"{total:,} parameters x 2 bytes"
    scales = 1 / 64 + 4 / (64 * 256)
    size = weights.quantised * (0.5 + scales) + weights.plain * 2
    return size, f"{weights.quantised:,} x (0.5 + {scales:.4f}) + {weights.plain:,} x 2 bytes"


def kept_without_recompute(run: Run, sequence_length: int, micro_batch: int) -> tuple[float, str]:
    """Return the least bytes of activations when no matrix product is done twice.

    The results of the products and of attention must stay until the backward pass, and the input of each block
    (Korthikanti et al. 2022, section 4); all element-wise results are taken as recomputed for free.
    """
    shape = shape_of(run, sequence_length=sequence_length, micro_batch=micro_batch)
    block = block_activations(shape)
    size = shape.model.layers * (block.input + block.products)
    return size, f"{shape.model.layers} blocks x {shape.slots:,} tokens x {(block.input + block.products) / shape.slots:,.0f} bytes"


def kept_with_recompute(run: Run, sequence_length: int, micro_batch: int) -> tuple[float, str]:
    """Return the least bytes of activations when every block is computed twice: the inputs of the blocks, one chunk of logits."""
    shape = shape_of(run, sequence_length=sequence_length, micro_batch=micro_batch, checkpointing=Checkpointing.FULL)
    block = block_activations(shape)
    head = 0 if shape.labels else shape.slots * shape.model.hidden_size * 2
    size = shape.model.layers * block.input + head
    return size, f"{shape.model.layers} blocks x {shape.slots:,} tokens x {block.input / shape.slots:,.0f} bytes"
