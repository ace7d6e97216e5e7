"""What a token costs a device at its own limits: seconds of each class of work if it ran at the peak of its card.

seconds = FLOPs / dense peak of the format that computes + bytes / memory bandwidth + bytes / host link (the roofline of
Williams, Waterman and Patterson 2009, summed instead of taking the larger: the loops that are learnt from overlap little).
How far from these limits real loops stay is what `fit` learns. FLOPs are those of `flops/1`; bytes are counted here.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.physics.architecture import block_linears
from tunemark.schema.physics.flops import flops_ledger
from tunemark.schema.physics.training_shape import BYTES, TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

Term = Literal["matmul", "attention", "elementwise", "adapters", "scores", "exchange"]
TERMS: tuple[Term, ...] = get_args(Term)

MEANING: dict[Term, str] = {
    "matmul": "matrix products, recomputed ones included, over the dense peak of the format that multiplies",
    "attention": "attention as s^2 pairs, heads filled up to a power of two, over the dense peak of the format of the activations",
    "elementwise": "norms, activations, residuals and rotations: bytes over memory bandwidth",
    "adapters": "what adapters add: their inputs cast to their format, dropped out and kept: bytes over memory bandwidth",
    "scores": "attention scores where the kernel writes them (eager): bytes over memory bandwidth",
    "exchange": "weights that sharding gathers and gradients that it scatters: bytes over the link between devices or to the host",
}
HOST_LINK_BYTES_PER_S = 32e9
"""PCI Express 4.0 x16, one direction: the card of an accelerator does not say which host it is in."""
TERA, GIGA = 1e12, 1e9
FP32_ONLY = (Dtype.FP32, Dtype.TF32)


@dataclass(frozen=True, slots=True)
class Missing:
    """Why the work cannot be put into seconds."""

    reason: str


def work_seconds(shape: TrainingShape, accelerator: AcceleratorCard) -> dict[Term, float] | Missing:
    """Return seconds of one device for one token of its micro-step by class of work, each at the limit of the card.

    Tensor parallel devices share the tokens: their seconds add up to those of one device that does it all.
    """
    products, kept = matmul_dtype(shape), shape.activations
    peaks, bandwidth = accelerator.peak_tflops, accelerator.memory_bandwidth_gb_s
    for dtype in (products, kept):
        if dtype not in peaks:
            return Missing(f"the card of {accelerator.name} has no dense peak for {dtype.value}")
    if bandwidth is None:
        return Missing(f"the card of {accelerator.name} has no memory bandwidth")
    attention, matmul = _flops(shape)
    moved = bandwidth * GIGA * shape.tokens
    link = HOST_LINK_BYTES_PER_S if shape.offload else (accelerator.interconnect_gb_s or 64) / 2 * GIGA
    return {
        "matmul": matmul / (peaks[products] * TERA * shape.tokens),
        "attention": attention / (peaks[kept] * TERA * shape.tokens),
        "elementwise": elementwise_bytes(shape) / moved,
        "adapters": adapter_bytes(shape) / moved,
        "scores": score_bytes(shape) / moved,
        "exchange": exchanged_bytes(shape) / (link * shape.tokens),
    }


def matmul_dtype(shape: TrainingShape) -> Dtype:
    """Return the format that multiplies: that of the activations, which bitsandbytes' 4-bit layers also take unless told otherwise.

    Its `bnb_4bit_compute_dtype` is fp32 by default; read so, the QLoRA rows of held-out models are met twice as well.
    """
    return shape.activations


def _flops(shape: TrainingShape) -> tuple[float, float]:
    """Return FLOPs of attention (all s^2 pairs, with what is recomputed) and of all else of a micro-step.

    Kernels work in tiles: a head of 96 takes as long as one of 128.
    """
    square = flops_ledger(shape, "square")
    again = square.of("forward_attention") if shape.checkpointing is Checkpointing.FULL else 0
    attention = square.of("forward_attention", "backward_attention") + again
    tile = 2 ** math.ceil(math.log2(shape.model.head_dim)) / shape.model.head_dim
    return attention * tile, square.executed - attention


def passes(shape: TrainingShape) -> int:
    """Return how often activations go through memory: forward, twice as much backward, and the forward that is recomputed."""
    return 4 if shape.checkpointing is Checkpointing.FULL else 3


def elementwise_bytes(shape: TrainingShape) -> float:
    """Return bytes that element-wise work of all blocks and of the head moves in a micro-step.

    A block reads and writes about ten tensors as wide as the model (two norms, two residuals, rotations) and four as wide as
    its feed-forward layer (gate, activation, product); the head three as wide as the vocabulary.
    """
    model = shape.model
    block = 10 * model.hidden_size + 4 * model.intermediate_size * (model.active_experts or 1)
    return shape.slots * (model.layers * block * passes(shape) + 3 * model.vocabulary * 2) * BYTES[shape.activations]


def adapter_bytes(shape: TrainingShape) -> float:
    """Return bytes that adapters move: input cast and dropped out, output added, in their format."""
    widths = sum((3 if shape.lora_dropout else 1) * linear.inputs + 2 * linear.outputs for linear in shape.adapted)
    return shape.slots * shape.model.layers * widths * BYTES[shape.adapters] * passes(shape)


def score_bytes(shape: TrainingShape) -> float:
    """Return bytes of attention scores that an eager kernel writes and reads: product, mask, softmax in fp32, cast."""
    if shape.attention != "eager":
        return 0.0
    return shape.micro_batch * shape.model.attention_heads * shape.sequence_length**2 * shape.model.layers * 16.0 * passes(shape)


def exchanged_bytes(shape: TrainingShape) -> float:
    """Return bytes that a device exchanges in a micro-step: 16-bit weights per gather, and gradients of what is trained."""
    if shape.world_size == 1 or shape.sharding == "single":
        return 0.0
    weights = shape.model.layers * sum(linear.inputs * linear.outputs * linear.copies for linear in block_linears(shape.model))
    gathers = {"zero3": passes(shape) - 1, "fsdp1": passes(shape) - 1, "fsdp2": passes(shape) - 1}.get(shape.sharding, 0)
    gradients = 1 if shape.method is Method.FULL else 0
    return weights * 2.0 * (gathers + gradients)


# MOVE: was tunemark.collector.predict.work: Throughput of a fine-tuning step: a roofline whose few constants are learnt from accepted results, with an interval.
