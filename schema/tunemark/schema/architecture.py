"""Parameters of a model from the numbers on its card: no hub, no torch.

Shapes are those of the transformers implementation of each family; a test compares the counts with the models that
transformers builds on the meta device.
"""

from dataclasses import dataclass

from tunemark.schema.cards import ModelCard


@dataclass(frozen=True, slots=True)
class Traits:
    """In what the blocks of a family differ."""

    gated: bool = True
    """The feed-forward layer has a gate: three matrices instead of two."""
    norms_per_layer: int = 2
    norm_bias: bool = False
    """Layer norm (weight and bias) instead of RMS norm."""
    query_key_norm: bool = False
    """RMS norms over the heads of queries and keys."""
    query_key_value_bias: bool = False
    linear_bias: bool = False
    """Every linear layer of a block has a bias."""
    learned_positions: bool = False
    final_norm: bool = True
    encoder: bool = False
    """Token types, a norm on the embeddings and a pooler instead of an output projection."""


FAMILIES: dict[str, Traits] = {
    "llama": Traits(),
    "mistral": Traits(),
    "mixtral": Traits(),
    "qwen2": Traits(query_key_value_bias=True),
    "qwen3": Traits(query_key_norm=True),
    "gemma": Traits(),
    "gemma2": Traits(norms_per_layer=4),
    "phi3": Traits(),
    "gpt2": Traits(gated=False, norm_bias=True, linear_bias=True, learned_positions=True),
    "bert": Traits(gated=False, norm_bias=True, linear_bias=True, learned_positions=True, final_norm=False, encoder=True),
}
TOKEN_TYPES = 2


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by what they do; `total` is what a checkpoint holds, tied weights once."""

    embedding: int
    """Look-up tables: tokens, positions, token types."""
    attention: int
    """Weights of the query, key, value and output projections."""
    feed_forward: int
    """Weights of all feed-forward layers, every expert of a mixture."""
    active_feed_forward: int
    """Weights of the feed-forward layers that one token passes through."""
    router: int
    """Weights that choose among experts."""
    head: int
    """Weights of the output projection, or of an encoder's pooler."""
    tied_head: bool
    """True when the output projection is the embedding, and so counted there."""
    vectors: int
    """Norms and biases."""

    @property
    def total(self) -> int:
        """Return all parameters."""
        head = 0 if self.tied_head else self.head
        return self.embedding + self.attention + self.feed_forward + self.router + head + self.vectors

    @property
    def matrix_multiplied(self) -> int:
        """Return N_mm of definitions.md, 8: weights in matrix products, the head once, active experts only."""
        return self.attention + self.active_feed_forward + self.router + self.head


def count_parameters(card: ModelCard) -> ParameterCount:
    """Count the parameters of a model from its card."""
    traits = FAMILIES[card.family]
    hidden, layers, experts = card.hidden_size, card.layers, card.experts or 1
    queries, keys = card.attention_heads * card.head_dim, card.key_value_heads * card.head_dim
    expert = (3 if traits.gated else 2) * hidden * card.intermediate_size
    embedding = card.vocabulary * hidden
    positions = card.context_length * hidden if traits.learned_positions else 0
    return ParameterCount(
        embedding=embedding + positions + (TOKEN_TYPES * hidden if traits.encoder else 0),
        attention=layers * hidden * (2 * queries + 2 * keys),
        feed_forward=layers * experts * expert,
        active_feed_forward=layers * (card.active_experts or 1) * expert,
        router=layers * hidden * card.experts if card.experts else 0,
        head=hidden * hidden if traits.encoder else embedding,
        tied_head=card.tied_embeddings and not traits.encoder,
        vectors=layers * _layer_vectors(card, traits, queries, keys) + _model_vectors(card, traits),
    )


def _layer_vectors(card: ModelCard, traits: Traits, queries: int, keys: int) -> int:
    hidden = card.hidden_size
    norms = traits.norms_per_layer * hidden * (2 if traits.norm_bias else 1) + (2 * card.head_dim if traits.query_key_norm else 0)
    attention = queries + 2 * keys if traits.query_key_value_bias or traits.linear_bias else 0
    others = hidden + card.intermediate_size + hidden if traits.linear_bias else 0
    return norms + attention + others


def _model_vectors(card: ModelCard, traits: Traits) -> int:
    norm = card.hidden_size * (2 if traits.norm_bias else 1)
    pooler_bias = card.hidden_size if traits.encoder else 0
    return (norm if traits.final_norm or traits.encoder else 0) + pooler_bias
