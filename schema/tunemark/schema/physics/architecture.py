"""Architecture: parameter counts, linear layers and adapter targets of a model, from the numbers on its card.

Shapes and names are those of the transformers implementation of each family. A test compares them with the models that
transformers builds on the meta device.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.records.plan import LoraSettings


@dataclass(frozen=True, slots=True)
class Traits:
    """How the blocks of a family differ."""

    gated: bool = True
    """The feed-forward layer has a gate: three matrices instead of two."""
    norms_per_layer: int = 2
    norms_scaled_in_fp32: bool = False
    """RMS norms multiply by their weights before the result is cast back."""
    norm_bias: bool = False
    """Layer norm (weight and bias) instead of RMS norm."""
    query_key_norm: Literal["", "head", "all"] = ""
    """RMS norms of queries and keys: over each head, or over all heads together."""
    query_key_value_bias: bool = False
    linear_bias: bool = False
    """Every linear layer of a block has a bias."""
    sinks: bool = False
    """One learned score per head that a softmax may attend to instead of a token."""
    eager: bool = False
    """transformers has no attention for it in torch's fused kernels."""
    learned_positions: bool = False
    final_norm: bool = True
    encoder: bool = False
    """Token types, a norm on the embeddings, and a pooler instead of an output projection."""


FAMILIES: dict[str, Traits] = {
    "llama": Traits(),
    "mistral": Traits(),
    "mixtral": Traits(),
    "qwen2": Traits(query_key_value_bias=True),
    "qwen3": Traits(query_key_norm="head"),
    "qwen3_moe": Traits(query_key_norm="head"),
    "gpt_oss": Traits(linear_bias=True, sinks=True, eager=True),
    "gemma": Traits(norms_scaled_in_fp32=True),
    "gemma2": Traits(norms_per_layer=4, norms_scaled_in_fp32=True, eager=True),
    "gemma3_text": Traits(norms_per_layer=4, norms_scaled_in_fp32=True, query_key_norm="head"),
    "phi3": Traits(),
    "granite": Traits(),
    "smollm3": Traits(),
    "olmo2": Traits(norms_scaled_in_fp32=True, query_key_norm="all"),
    "olmo3": Traits(norms_scaled_in_fp32=True, query_key_norm="all"),
    "gpt2": Traits(gated=False, norm_bias=True, linear_bias=True, learned_positions=True),
    "bert": Traits(gated=False, norm_bias=True, linear_bias=True, learned_positions=True, final_norm=False, encoder=True),
}
TOKEN_TYPES = 2


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by function. `total` is the size of a checkpoint, with tied weights counted once."""

    embedding: int
    """Look-up tables: tokens, positions, token types."""
    attention: int
    """Weights of the query, key, value and output projections."""
    feed_forward: int
    """Weights of all feed-forward layers, every expert of a mixture."""
    active_feed_forward: int
    """Weights of the feed-forward layers used by one token."""
    router: int
    """Weights of the expert router."""
    head: int
    """Weights of the output projection, or of an encoder's pooler."""
    tied_head: bool
    """True if the output projection is tied to the embedding, and therefore counted there."""
    vectors: int
    """Norms and biases."""

    @property
    def total(self) -> int:
        """Return all parameters."""
        head = 0 if self.tied_head else self.head
        return self.embedding + self.attention + self.feed_forward + self.router + head + self.vectors

    @property
    def matrix_multiplied(self) -> int:
        """Return N_mm: weights in matrix products, the head once, active experts only. See definitions#model-flops."""
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
    heads = {"": 0, "head": 2 * card.head_dim, "all": queries + keys}[traits.query_key_norm]
    norms = traits.norms_per_layer * hidden * (2 if traits.norm_bias else 1) + heads
    attention = queries + 2 * keys if traits.query_key_value_bias or traits.linear_bias else 0
    inner, experts = card.intermediate_size * (2 if traits.gated else 1), card.experts or 1
    others = hidden + experts * (inner + hidden) + (card.experts or 0) if traits.linear_bias else 0
    return norms + attention + others + (card.attention_heads if traits.sinks else 0)


def _model_vectors(card: ModelCard, traits: Traits) -> int:
    norm = card.hidden_size * (2 if traits.norm_bias else 1)
    pooler_bias = card.hidden_size if traits.encoder else 0
    return (norm if traits.final_norm or traits.encoder else 0) + pooler_bias


Part = Literal["attention", "feed_forward", "router"]


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the layers of a family in transformers."""

    attention: tuple[str, ...]
    """Inside a block: query, key and value layers, separate or fused, then the output."""
    feed_forward: tuple[str, ...]
    """Inside a block: feed-forward layers, with the projection to the residual stream last."""
    outside: tuple[str, ...] = ("embed_tokens", "lm_head")
    """Layers outside the blocks that can have adapters."""
    router: str | None = None
    """The expert router. Experts are one parameter each and cannot have adapters in peft."""


TOKEN_TABLES = ("embed_tokens", "wte", "word_embeddings")
"""Name of the token embedding. An adapter on it does one look-up and one multiplication."""
QUERY_KEY_VALUE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
LLAMA = Names(QUERY_KEY_VALUE, ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))
NAMES: dict[str, Names] = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "granite", "smollm3", "olmo2", "olmo3"), LLAMA
    ),
    **dict.fromkeys(
        ("mixtral", "qwen3_moe"), Names(QUERY_KEY_VALUE, ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"), router="mlp.gate")
    ),
    "gpt_oss": Names(QUERY_KEY_VALUE, ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"), router="mlp.router"),
    "phi3": Names(("self_attn.qkv_proj", "self_attn.o_proj"), ("mlp.gate_up_proj", "mlp.down_proj")),
    "gpt2": Names(("attn.c_attn", "attn.c_proj"), ("mlp.c_fc", "mlp.c_proj"), ("wte", "wpe", "lm_head")),
    "bert": Names(
        ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
        ("intermediate.dense", "output.dense"),
        ("word_embeddings", "position_embeddings", "token_type_embeddings", "pooler.dense"),
    ),
}
"""Layer names by family. A test compares them with the models that transformers builds."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight matrix that tokens are multiplied with."""

    path: str
    inputs: int
    outputs: int
    part: Part
    after_norm: bool = False
    """True if its input is the normed input of the block. Without trained layers before, it needs no input gradient."""
    copies: int = 1
    """Copies per block: one, or one per expert."""
    active: int = 1
    """Copies used by one token."""

    @property
    def weights(self) -> int:
        """Weights of all copies."""
        return self.inputs * self.outputs * self.copies

    @property
    def active_weights(self) -> int:
        """Weights multiplied with one token."""
        return self.inputs * self.outputs * self.active


@lru_cache(maxsize=256)
def block_linears(card: ModelCard) -> tuple[Linear, ...]:
    """Return the linear layers of one block in the order of a forward pass."""
    return _attention(card) + _feed_forward(card)


@lru_cache(maxsize=256)
def adapted_linears(card: ModelCard, targets: tuple[str, ...]) -> tuple[Linear, ...]:
    """Return the linear layers of a block that get an adapter. Names match as in peft: whole, or as the end of a dotted path.

    Raises TunemarkError if a target names no linear layer of the family, or a layer outside the blocks that is not counted.
    """
    linears, outside = block_linears(card), NAMES[card.family].outside
    names = sorted({end for linear in linears for end in endings(linear.path)})
    for target in targets:
        if target in {*names, *_token_tables(card)}:
            continue
        if target in outside:
            raise TunemarkError("lora_targets", target, "adapters on this layer outside of the blocks are not counted in this version")
        raise TunemarkError("lora_targets", target, f"no linear layer of family {card.family!r}; {did_you_mean(target, names)}")
    return tuple(linear for linear in linears if set(endings(linear.path)) & set(targets))


def adapts_tokens(card: ModelCard, targets: tuple[str, ...]) -> bool:
    """Return True if the token embedding gets an adapter."""
    return bool(_token_tables(card) & set(targets))


def _token_tables(card: ModelCard) -> set[str]:
    return set(TOKEN_TABLES) & set(NAMES[card.family].outside)


@lru_cache(maxsize=256)
def all_linears(card: ModelCard) -> tuple[Linear, ...]:
    """Return the linear layers of a block that can have an adapter: all but a router."""
    return tuple(linear for linear in block_linears(card) if linear.part != "router")


def endings(path: str) -> tuple[str, ...]:
    """Return the names that match a layer, from its full path to its last word."""
    parts = path.split(".")
    return tuple(".".join(parts[index:]) for index in range(len(parts)))


def _attention(card: ModelCard) -> tuple[Linear, ...]:
    hidden, names = card.hidden_size, NAMES[card.family].attention
    queries, keys = card.attention_heads * card.head_dim, card.key_value_heads * card.head_dim
    widths = (queries + 2 * keys,) if len(names) == 2 else (queries, keys, keys)  # noqa: PLR2004 - a fused layer, and the output
    inward = (Linear(name, hidden, width, "attention", after_norm=True) for name, width in zip(names[:-1], widths, strict=True))
    return (*inward, Linear(names[-1], queries, hidden, "attention"))


def _feed_forward(card: ModelCard) -> tuple[Linear, ...]:
    hidden, inner, names = card.hidden_size, card.intermediate_size, NAMES[card.family]
    upward, last = names.feed_forward[:-1], names.feed_forward[-1]
    # A fused gate and up matrix has twice the width.
    width = 2 * inner if FAMILIES[card.family].gated and len(upward) == 1 else inner
    copies, active = card.experts or 1, (card.active_experts or 1) if card.experts else 1
    router = (Linear(names.router, hidden, card.experts, "router"),) if names.router and card.experts else ()
    up = (Linear(name, hidden, width, "feed_forward", copies=copies, active=active) for name in upward)
    return (*router, *up, Linear(last, inner, hidden, "feed_forward", copies=copies, active=active))


Group = Literal["all-linear", "attention"]
GROUPS: tuple[Group, ...] = ("all-linear", "attention")
"""Names of groups of layers: all linear layers of a block, or only those of attention."""
DEFAULT = LoraSettings().target_modules
"""All linear layers of a block in Llama's names. For other families it stands for their own names."""


def targets_in(card: ModelCard, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names by which peft finds the requested layers in a model.

    Raises TunemarkError for a name that matches no layer that can have an adapter, with the names that do.
    """
    if asked == DEFAULT:
        return group(card, "all-linear")
    known = layer_names(card)
    names: list[str] = []
    for name in asked:
        of_group = next((group(card, candidate) for candidate in GROUPS if candidate == name), None)
        if of_group is None and name not in known:
            layers = ", ".join((*group(card, "all-linear"), *NAMES[card.family].outside))
            fix = f"{card.key} has no layer of this name that can have an adapter; use {layers}, or a group: {' or '.join(GROUPS)}"
            raise TunemarkError("lora.target_modules", name, fix)
        names.extend(of_group or (name,))
    return tuple(dict.fromkeys(names))


def group(card: ModelCard, which: Group) -> tuple[str, ...]:
    """Return the names of a group of layers, each as short as is unique in a block."""
    return tuple(_short(card, linear) for linear in _adaptable(card) if which == "all-linear" or linear.part == "attention")


def layer_names(card: ModelCard) -> tuple[str, ...]:
    """Return all names that match layers in peft: ends of paths inside blocks, and layers outside."""
    outside = NAMES[card.family].outside
    elsewhere = {end for path in outside for end in endings(path)}
    inside = {end for linear in _adaptable(card) for end in endings(linear.path)}
    return (*sorted(inside - elsewhere), *outside)


def _adaptable(card: ModelCard) -> Iterator[Linear]:
    """Yield the linear layers of a block that are layers in peft: experts are parameters of one module."""
    return (linear for linear in block_linears(card) if linear.part == "attention" or NAMES[card.family].router is None)


def _short(card: ModelCard, linear: Linear) -> str:
    others = {end for other in block_linears(card) if other != linear for end in endings(other.path)} | set(NAMES[card.family].outside)
    alone = [end for end in endings(linear.path) if end not in others]
    # If even the full path is the end of another, both are in the group.
    return alone[-1] if alone else linear.path
