"""The FLOPs ledger `flops/1`: FLOPs by class, computed from shapes, so that any convention can be derived.

One multiplication and one addition are two FLOPs. Element-wise operations, norms and dequantisation are not counted.
See definitions#model-flops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.architecture import Block, block_linears, blocks_of, count_parameters
from tunemark.schema.physics.families import FAMILIES, SCAN_CHUNK, STATE_CHUNK
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Method

RECOMPUTED = {
    Checkpointing.NONE: "nothing is recomputed",
    Checkpointing.SELECTIVE: "selective checkpointing keeps the results of matrix products and of attention",
    Checkpointing.FULL: "forward of every block once more: forward_matmul + forward_attention + its adapters",
}
Pairs = Literal["exact", "square"]


@dataclass(frozen=True, slots=True)
class FlopsLine:
    """One class of work of a micro-step."""

    key: str
    flops: int
    """FLOPs of a micro-step on one replica."""
    formula: str


@dataclass(frozen=True, slots=True)
class FlopsLedger:
    """The FLOPs of one micro-step on one replica, by class."""

    lines: tuple[FlopsLine, ...]
    """One line per class, including classes without work."""
    tokens: int
    """Real tokens of the micro-step."""
    not_needed: int
    """Counted by the definition of LoRA (4 N + 6 A) but skipped by autograd: gradients with respect to frozen embeddings."""

    def of(self, *keys: str) -> int:
        """Return the FLOPs of the named classes."""
        known = {line.key: line.flops for line in self.lines}
        return sum(known[key] for key in keys)

    @property
    def forward(self) -> int:
        """FLOPs of the forward pass."""
        return self.of("forward_matmul", "forward_attention", "forward_head", "forward_adapters")

    @property
    def model_flops(self) -> int:
        """The numerator of MFU: all FLOPs except recomputed ones."""
        return sum(line.flops for line in self.lines) - self.of("recompute")

    @property
    def hardware_flops(self) -> int:
        """The numerator of HFU: model FLOPs and recomputed FLOPs."""
        return self.model_flops + self.of("recompute")

    def in_block_matrices(self, *, recomputed: bool) -> int:
        """Return the FLOPs of the matrices of the blocks, the only products that can be in fp8; with `recomputed`, repeated ones too."""
        once = self.of("forward_matmul", "backward_input", "backward_weight")
        return once + (self.of("forward_matmul") if recomputed and self.of("recompute") else 0)

    @property
    def executed(self) -> int:
        """FLOPs that a device must compute if autograd skips unneeded gradients."""
        return self.hardware_flops - self.not_needed


@lru_cache(maxsize=256)
def flops_ledger(shape: TrainingShape, pairs: Pairs = "exact") -> FlopsLedger:
    """Return the ledger of one micro-step.

    `exact` pairs are the query-key pairs that the mask allows (definitions#model-flops). `square` counts all s^2 of each document, as
    kernels without mask skipping and torch's FlopCounterMode do.
    """
    linears, attention, (pooler, outputs) = block_linears(shape.model), _attention(shape, pairs), _heads(shape)
    positions = sum(linear.weights * linear.times() * linear.positions for linear in linears)
    matmul = 2 * (shape.tokens * sum(linear.active_weights * linear.times() for linear in linears) + positions)
    widths = ((shape.tokens * each.active + each.positions, each.inputs + each.outputs, each.times()) for each in shape.adapted)
    in_blocks = 2 * shape.lora_rank * sum(rows * width * times for rows, width, times in widths)
    # The first matrix of an adapter on the embedding is a look-up.
    adapters = in_blocks + (2 * shape.tokens * shape.lora_rank * shape.model.hidden_size if shape.tokens_adapted else 0)
    tokens, width, full, layers = shape.tokens, _width(shape.model), shape.method is Method.FULL, shape.model.layers
    # A classifier is trained under LoRA too.
    head_weights = (outputs if full or shape.labels else 0) + (pooler if full else 0)
    of_head = "forward_head for the input gradient" + (" and once more for the weights" if head_weights else "; its weights are frozen")
    recomputed = matmul + attention + in_blocks if shape.checkpointing is Checkpointing.FULL else 0
    lines = (
        FlopsLine("forward_matmul", matmul, f"2 x {matmul // (2 * tokens):,} x {tokens:,}: the matrices of {layers} blocks"),
        FlopsLine("forward_attention", attention, f"2 x {width:,} x {attention // (2 * width):,} pairs"),
        FlopsLine("forward_head", pooler + outputs, "2 x weights of the head x tokens with an output"),
        FlopsLine("forward_adapters", adapters, f"2 x {adapters // (2 * tokens):,} x {tokens:,}"),
        FlopsLine("backward_input", matmul, f"as forward_matmul, in {layers} blocks that gradients pass through"),
        FlopsLine("backward_weight", full * matmul, f"as forward_matmul, in {full * layers} blocks whose weights are trained"),
        FlopsLine("backward_head", pooler + outputs + head_weights, of_head),
        FlopsLine("backward_attention", 2 * attention, "2 x forward_attention"),
        FlopsLine("backward_adapters", 2 * adapters, "2 x forward_adapters: input and weight gradients"),
        FlopsLine("recompute", recomputed, RECOMPUTED[shape.checkpointing]),
    )
    return FlopsLedger(lines, tokens, _first_inputs(shape))


def palm_flops(shape: TrainingShape) -> int:
    """Return FLOPs as counted by PaLM (Chowdhery et al. 2022, appendix B): 6 N_mm + 12 L H Q T, on slots."""
    card = shape.model
    layers = sum(block.attends for block in blocks_of(card))
    per_slot = 6 * count_parameters(card).matrix_multiplied + 6 * layers * _width(card) * shape.sequence_length
    return per_slot * shape.slots


def attention_pairs(documents: Sequence[int], *, causal: bool, window: int | None = None, chunked: bool = False) -> int:
    """Return the number of query-key pairs that a mask allows, summed over documents (definitions#model-flops).

    Bidirectional: s^2. Causal: s (s + 1) / 2. With a window of w tokens: w (w + 1) / 2 + (s - w) w if s > w. In chunks of w tokens: the
    causal pairs of each chunk. A bidirectional window has half of its tokens on each side: causal pairs with these, twice, less the diagonal.
    """
    if not causal and window is not None:
        return 2 * attention_pairs(documents, causal=True, window=window // 2 + 1) - sum(documents)
    total = 0
    for length in documents:
        reach = min(length, window or length)
        rest, first = length % reach, reach * (reach + 1) // 2
        beyond = (length // reach - 1) * first + rest * (rest + 1) // 2 if chunked else (length - reach) * reach
        total += first + beyond if causal else length * length
    return total


def _width(card: ModelCard, block: Block | None = None) -> int:
    """Return the multiplications of a query-key pair in a block, by default the last: with the key, and of the score with the value."""
    one = block or blocks_of(card)[-1]
    return card.attention_heads * (one.width + one.value_width)


def _attention(shape: TrainingShape, pairs: Pairs) -> int:
    card, documents, traits, exact = shape.model, shape.documents, FAMILIES[shape.model.family], pairs == "exact"
    blocks, causal = blocks_of(card), exact and not traits.encoder
    whole = attention_pairs(documents, causal=causal)
    wide, limited = [each for each in blocks if each.mixer == "attention"], [each for each in blocks if each.mixer == traits.limited]
    total = 2 * len(wide) * _width(card, wide[-1]) * whole if wide else 0
    # Both queries and keys also meet the positions.
    total += 2 * card.layers * shape.tokens * _width(card) * traits.relative_positions
    if not limited or traits.limited == "convolution":
        return total
    if not limited[0].attends:
        return total + len(limited) * shape.tokens * (_scan(card) if card.state_size else _delta_rule(card))
    within = attention_pairs(documents, causal=causal, window=card.sliding_window, chunked=traits.chunked) if exact else whole
    return total + 2 * _width(card, limited[0]) * len(limited) * within


def _delta_rule(card: ModelCard) -> int:
    """Return the FLOPs per token of the gated delta rule in one block, in chunks of `STATE_CHUNK` tokens as kernels compute it.

    In a chunk, keys and queries meet the keys, two triangular systems are solved (half a product each), and scores meet the values; the state is
    read twice and written once.
    """
    width, heads = card.linear_head_dim or 0, card.linear_value_heads or 0
    return heads * (8 * STATE_CHUNK * width + 6 * width * width)


def _scan(card: ModelCard) -> int:
    """Return the FLOPs per token of Mamba-2 in one block, in chunks of `SCAN_CHUNK` tokens as kernels compute it (Dao and Gu 2024, section 6).

    In a chunk, keys meet queries in each group, and scores meet the values in each head; the state is written and read once.
    """
    width, heads, state = card.linear_head_dim or 0, card.linear_value_heads or 0, card.state_size or 0
    return 2 * SCAN_CHUNK * ((card.linear_key_heads or 0) * state + heads * width) + 4 * heads * width * state


def _first_inputs(shape: TrainingShape) -> int:
    """Return the input gradients of the first block that no layer before it needs, and those of frozen relative positions in all blocks.

    Full fine-tuning trains the embeddings before it. With checkpointing, peft makes their output require a gradient.
    """
    if shape.method is Method.FULL:
        return 0
    of_positions = sum(each.positions * each.weights * each.times() for each in block_linears(shape.model))
    of_positions += sum(each.positions * shape.lora_rank * each.inputs * each.times() for each in shape.adapted)
    if shape.tokens_adapted or shape.checkpointing is not Checkpointing.NONE:
        return 2 * of_positions
    first = sum(linear.active_weights for linear in block_linears(shape.model) if linear.after_norm and 0 in linear.blocks)
    adapters = sum(shape.lora_rank * linear.inputs for linear in shape.adapted if linear.after_norm and 0 in linear.blocks)
    return 2 * (shape.tokens * (first + adapters) + of_positions)


def _heads(shape: TrainingShape) -> tuple[int, int]:
    """Return the forward FLOPs of an encoder's pooler and of the outputs. An encoder has them for one token per document."""
    card, encoder = shape.model, FAMILIES[shape.model.family].encoder
    inputs = 2 * (len(shape.documents) if encoder else shape.tokens) * card.hidden_size
    return inputs * card.hidden_size if encoder else 0, inputs * (shape.labels or (0 if encoder else card.vocabulary))
