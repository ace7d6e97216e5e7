"""The work of a micro-step at the limits of an accelerator: seconds per token of each class of work, by its peak, memory bandwidth or link.

A roofline (Williams et al. 2009): how much longer real software takes is for the throughput model, see `tunemark.schema.throughput`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.physics import architecture
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.flops import flops_ledger
from tunemark.schema.physics.training_shape import BYTES, TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

Term = Literal["matmul", "narrow", "attention", "elementwise", "weights", "adapters", "scores", "dequantisation", "exchange"]
TERMS: tuple[Term, ...] = get_args(Term)

HOST_LINK_BYTES_PER_S = 32e9
"""PCI Express 4.0 x16, one direction: the card of an accelerator does not describe its host."""
TERA, GIGA = 1e12, 1e9
ISSUE_S = 28e-6
"""Time in which a host issues one operation of a model that runs operation by operation. LoRA of 4 blocks on an H200 and BERT base on an H100,
whose step takes as long for 1,024 tokens as for 8,192, both give 28 us (submissions smoke-lora and bert-emotion). Of document 050, not used for it,
0.6B and 1.7B take the same 189 to 245 ms with Unsloth on H100, H200 and B200: 25 to 32 us."""
SIXTEEN_BIT = {Dtype.BF16: Dtype.FP16, Dtype.FP16: Dtype.BF16}


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason why there is no figure."""

    reason: str


def work_seconds(shape: TrainingShape, accelerator: AcceleratorCard) -> dict[Term, float] | Missing:
    """Return seconds of one device per token of its micro-step, by class of work, each at the limit of the card.

    Tensor-parallel devices share the tokens: their seconds add up to the seconds of one device that does all the work.
    """
    limits, work = limits_of(shape, accelerator), work_of_tokens(shape) | work_of_weights(shape)
    return limits if isinstance(limits, Missing) else {term: work[term] / limit for term, limit in zip(TERMS, limits, strict=True)}


def limits_of(shape: TrainingShape, accelerator: AcceleratorCard) -> tuple[float, ...] | Missing:
    """Return FLOP/s or bytes per second of a device for each class of work.

    Matrix products use the format of the activations, also in bitsandbytes' 4-bit and int8 layers unless configured otherwise. The default
    of `bnb_4bit_compute_dtype` is fp32; assuming it halves the errors of the QLoRA rows of held-out models.
    """
    computed = shape.autocast or shape.activations
    # Devices without bf16 run 16-bit work in fp16.
    other = SIXTEEN_BIT.get(computed, computed)
    peak, bandwidth = accelerator.peak_tflops.get(computed, accelerator.peak_tflops.get(other)), accelerator.memory_bandwidth_gb_s
    if peak is None:
        return Missing(f"the card of {accelerator.name} has no dense peak for {computed.value}")
    narrow = peak if shape.block_format in {None, Dtype.INT8} else accelerator.peak_tflops.get(shape.block_format)
    if narrow is None:
        return Missing(f"the card of {accelerator.name} has no dense peak for {shape.block_format}")
    if bandwidth is None:
        return Missing(f"the card of {accelerator.name} has no memory bandwidth")
    by_host = shape.offload or shape.world_size > (accelerator.bridged or math.inf)
    to_peers = None if by_host else accelerator.interconnect_gb_s
    link = to_peers / 2 * GIGA if to_peers else HOST_LINK_BYTES_PER_S
    own = {"matmul": peak * TERA, "narrow": narrow * TERA, "attention": peak * TERA, "exchange": link}
    return tuple(own.get(term, bandwidth * GIGA) for term in TERMS)


@lru_cache(maxsize=4096)
def work_of_tokens(shape: TrainingShape) -> dict[Term, float]:
    """Return the FLOPs and the moved bytes per token, by class of work, that are the same for any micro-batch and sharding.

    A block reads and writes about ten tensors as wide as the model (two norms, two residuals, rotations) and four as wide as
    its feed-forward layer (gate, activation, product); the head three as wide as the vocabulary. For each expert that it is multiplied with,
    a token is copied, and the result added to the others: two reads and two writes.
    """
    # All s^2 pairs count, recomputed ones included. Kernels work in tiles: a head of 96 takes as long as one of 128.
    model, ledger, passes = shape.model, flops_ledger(shape, "square"), _passes(shape)
    attention = ledger.of("forward_attention", "backward_attention") + (passes - 3) * ledger.of("forward_attention")
    in_blocks = ledger.in_block_matrices(recomputed=True)
    narrow, grouped = 0 if shape.block_format is None else in_blocks, shape.grouped_experts
    idle = 0.0 if grouped else in_blocks * architecture.idle_experts(model)
    blocks = architecture.blocks_of(model)
    width = blocks[-1].width
    tile = 2 ** math.ceil(math.log2(width)) / width
    inner = sum(len(kind) * architecture.inner_width(model, kind[0], grouped=grouped) for kind in architecture.block_kinds(model))
    copies = architecture.experts_run(model, grouped=grouped) * sum(block.mixed for block in blocks)
    wide = 5 * architecture.parts_of_block(model) * model.layers + 4 * copies
    # What selective checkpointing does not keep is computed again, too.
    again = 3 if shape.checkpointing is Checkpointing.NONE else 4
    elementwise = ((wide * model.hidden_size + 4 * inner) * again + 3 * model.vocabulary * 2) * BYTES[shape.activations]
    # Adapters: input cast and dropped out, output added, in their format, for each expert that a token is multiplied with.
    widths = sum(each.active * ((3 if shape.lora_dropout else 1) * each.inputs + 2 * each.outputs) * each.times() for each in shape.adapted)
    # An eager kernel writes and reads all scores: product, mask, softmax in fp32, cast.
    # Those by distance are gathered twice, scaled and added.
    positions = FAMILIES[model.family].relative_positions
    read = shape.sequence_length + (2 * shape.sequence_length + positions if positions else 0)
    scores = model.attention_heads * read * model.layers * 16.0 * passes if shape.attention == "eager" else 0.0
    padded = shape.slots / shape.tokens
    return {
        "matmul": (ledger.executed - attention - narrow + idle) / shape.tokens,
        "narrow": narrow / shape.tokens,
        "attention": attention * tile / shape.tokens,
        "elementwise": elementwise * padded,
        "adapters": widths * BYTES[shape.adapters] * passes * padded,
        "scores": scores * padded,
    }


def work_of_weights(shape: TrainingShape) -> dict[Term, float]:
    """Return the bytes that the weights move per token, by class of work."""
    model, uses = shape.model, _passes(shape) - 1
    parts = [(linear.part, float(linear.weights * linear.times())) for linear in architecture.block_linears(model)]
    count, quantised = sum(weights for _, weights in parts), shape.method is Method.QLORA
    packed = sum(weights for part, weights in parts if shape.packs_experts or part != "experts") if quantised else 0.0
    whole = count - packed
    # Weights are read in the forward and backward pass and in recomputation. Each time, bitsandbytes expands a 4-bit layer.
    expanded = packed * (BYTES[Dtype.NF4] + BYTES[shape.activations]) * uses
    # Sharding gathers weights for each use, or updated ones once (DDP: gradients), and scatters gradients in 16 bits. A device has its own part.
    once = shape.method is Method.FULL or shape.sharding == "fsdp-grad-op"
    gathers = uses if shape.sharding in {"zero3", "fsdp1", "fsdp2"} else int(once)
    exchanged = (packed * BYTES[Dtype.NF4] + whole * 2.0) * gathers + count * 2.0 * (shape.method is Method.FULL)
    others = 1.0 if shape.offload else 1 - 1 / shape.world_size
    # Each product reads its weights. Full fine-tuning also adds up their gradients (one read, one write), and AdamW reads weight, gradient
    # and two moments and writes all but the gradient, of the device's own shard.
    weights = whole * BYTES[shape.activations if quantised else shape.packed or shape.activations] * uses
    if shape.method is Method.FULL:
        shards = 1 if shape.sharding in {"single", "ddp"} else shape.world_size
        weights += count * BYTES[shape.parameters] * (2 + 7 / (shape.gradient_accumulation * shards))
    return {
        "weights": weights / shape.tokens,
        "dequantisation": expanded / shape.tokens,
        "exchange": 0.0 if shape.sharding == "single" else others * exchanged / shape.tokens,
    }


def issue_seconds(shape: TrainingShape) -> float:
    """Return seconds per token in which a host issues the operations of a micro-step one by one: no device is done earlier.

    Forward and backward of a block are about 100 operations, and 12 more for each adapted matrix; a recomputed forward pass is 40 and 7.
    Blocks of encoders have fewer, which take longer.
    """
    again = shape.checkpointing is Checkpointing.FULL
    adapted = sum(linear.times() for linear in shape.adapted)
    blocks = shape.model.layers * architecture.parts_of_block(shape.model) / 2
    return ISSUE_S * ((140 if again else 100) * blocks + (19 if again else 12) * adapted) / shape.slots


def _passes(shape: TrainingShape) -> int:
    """Return the passes of activations through memory: forward, twice that backward, and the recomputed forward."""
    return 4 if shape.checkpointing is Checkpointing.FULL else 3
