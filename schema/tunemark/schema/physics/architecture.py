"""Parameters of a model from the numbers on its card: no hub, no torch.

Shapes are those of the transformers implementation of each family; a test compares the counts with the models that
transformers builds on the meta device.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.records.plan import LoraSettings


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


# MOVE: was tunemark.schema.physics.architecture: The linear layers of one block, by architecture family: names and shapes as transformers builds them.

Part = Literal["attention", "feed_forward", "router"]


@dataclass(frozen=True, slots=True)
class Names:
    """What transformers calls the layers of a family."""

    attention: tuple[str, ...]
    """Inside of a block: what makes queries, keys and values, each or in one matrix, and the output."""
    feed_forward: tuple[str, ...]
    """Inside of a block, down to the residual stream last."""
    outside: tuple[str, ...] = ("embed_tokens", "lm_head")
    """Layers outside of the blocks that adapters can go on too."""
    router: str | None = None
    """What chooses among experts. Experts are one parameter each, no layers that peft puts adapters on."""


TOKEN_TABLES = ("embed_tokens", "wte", "word_embeddings")
"""What the table that token ids are looked up in is called. An adapter on it looks up too, and then multiplies once."""
QUERY_KEY_VALUE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
LLAMA = Names(QUERY_KEY_VALUE, ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))
NAMES: dict[str, Names] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2"), LLAMA),
    "mixtral": Names(QUERY_KEY_VALUE, ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"), router="mlp.gate"),
    "phi3": Names(("self_attn.qkv_proj", "self_attn.o_proj"), ("mlp.gate_up_proj", "mlp.down_proj")),
    "gpt2": Names(("attn.c_attn", "attn.c_proj"), ("mlp.c_fc", "mlp.c_proj"), ("wte", "wpe", "lm_head")),
    "bert": Names(
        ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
        ("intermediate.dense", "output.dense"),
        ("word_embeddings", "position_embeddings", "token_type_embeddings", "pooler.dense"),
    ),
}
"""Family -> names of its layers; a test holds them against the models that transformers builds."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix that tokens pass through."""

    path: str
    """Name inside of the block."""
    inputs: int
    """Width of what goes in."""
    outputs: int
    """Width of what comes out."""
    part: Part
    """Where in the block it is."""
    after_norm: bool = False
    """True when its input is the block's normed input: with nothing to train before it, it needs no input gradient."""
    copies: int = 1
    """How often it stands in the block: once, or once per expert."""
    active: int = 1
    """How many of the copies one token passes through."""

    @property
    def weights(self) -> int:
        """Weights of all copies."""
        return self.inputs * self.outputs * self.copies

    @property
    def active_weights(self) -> int:
        """Weights that one token is multiplied with."""
        return self.inputs * self.outputs * self.active


def block_linears(card: ModelCard) -> tuple[Linear, ...]:
    """Return the linear layers of one block of a model, in the order of a forward pass."""
    return _attention(card) + _feed_forward(card)


def adapted_linears(card: ModelCard, targets: tuple[str, ...]) -> tuple[Linear, ...]:
    """Return the linear layers of a block that get an adapter; a name matches as in peft, whole or as the end of a dotted path.

    Raises
    ------
    TunemarkError
        When a target is the name of no linear layer of the family, or of a layer outside of the blocks that is not counted.

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
    """Return whether the table of the token ids gets an adapter."""
    return bool(_token_tables(card) & set(targets))


def _token_tables(card: ModelCard) -> set[str]:
    return set(TOKEN_TABLES) & set(NAMES[card.family].outside)


def every_target(card: ModelCard) -> tuple[str, ...]:
    """Return the names of all linear layers of a block that can have an adapter: all but a router."""
    return tuple(linear.path for linear in block_linears(card) if linear.part != "router")


def endings(path: str) -> tuple[str, ...]:
    """Return the names that a layer can be found by, from its whole path to its last word."""
    parts = path.split(".")
    return tuple(".".join(parts[index:]) for index in range(len(parts)))


def _attention(card: ModelCard) -> tuple[Linear, ...]:
    hidden, *names, last = card.hidden_size, *NAMES[card.family].attention
    queries, keys = card.attention_heads * card.head_dim, card.key_value_heads * card.head_dim
    widths = (queries + 2 * keys,) if len(names) == 1 else (queries, keys, keys)
    inward = (Linear(name, hidden, width, "attention", after_norm=True) for name, width in zip(names, widths, strict=True))
    return (*inward, Linear(last, queries, hidden, "attention"))


def _feed_forward(card: ModelCard) -> tuple[Linear, ...]:
    hidden, inner, names = card.hidden_size, card.intermediate_size, NAMES[card.family]
    *upward, last = names.feed_forward
    # One matrix for gate and up is as wide as the two.
    width = 2 * inner if FAMILIES[card.family].gated and len(upward) == 1 else inner
    copies, active = card.experts or 1, (card.active_experts or 1) if card.experts else 1
    router = (Linear(names.router, hidden, card.experts, "router"),) if names.router and card.experts else ()
    up = (Linear(name, hidden, width, "feed_forward", copies=copies, active=active) for name in upward)
    return (*router, *up, Linear(last, inner, hidden, "feed_forward", copies=copies, active=active))


# MOVE: was tunemark.schema.physics.architecture: Which layers of a model get adapters: groups of layers, and names, as each family calls them.

Group = Literal["all-linear", "attention"]
GROUPS: tuple[Group, ...] = ("all-linear", "attention")
"""What may stand for the names of layers: all linear layers of a block, and those of attention only."""
DEFAULT = LoraSettings().target_modules
"""All linear layers of a block in the names of llama: of another family its own names are meant."""


def targets_in(card: ModelCard, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names by which peft finds the layers that are asked for in a model.

    Raises
    ------
    TunemarkError
        For a name that adapters can go on nowhere in the model, with those that they can.

    """
    if asked == DEFAULT:
        return group(card, "all-linear")
    known = layer_names(card)
    found: list[str] = []
    for name in asked:
        of_group = next((group(card, one) for one in GROUPS if one == name), None)
        if of_group is None and name not in known:
            has = ", ".join((*group(card, "all-linear"), *NAMES[card.family].outside))
            fix = f"adapters go on no layer of {card.key} by this name; it has {has}, and {' and '.join(GROUPS)} stand for several"
            raise TunemarkError("lora.target_modules", name, fix)
        found.extend(of_group or (name,))
    return tuple(dict.fromkeys(found))


def group(card: ModelCard, which: Group) -> tuple[str, ...]:
    """Return the names of a group of layers, each as short as tells it from the others of a block."""
    return tuple(_short(card, one) for one in _adaptable(card) if which == "all-linear" or one.part == "attention")


def layer_names(card: ModelCard) -> tuple[str, ...]:
    """Return every name that peft finds layers by: ends of paths that lie inside of blocks only, and the layers outside."""
    outside = NAMES[card.family].outside
    elsewhere = {end for path in outside for end in endings(path)}
    inside = {end for one in _adaptable(card) for end in endings(one.path)}
    return (*sorted(inside - elsewhere), *outside)


def _adaptable(card: ModelCard) -> Iterator[Linear]:
    """Yield the linear layers of a block that are layers to peft: experts are parameters of one module."""
    return (one for one in block_linears(card) if one.part == "attention" or NAMES[card.family].router is None)


def _short(card: ModelCard, linear: Linear) -> str:
    others = {end for one in block_linears(card) if one != linear for end in endings(one.path)} | set(NAMES[card.family].outside)
    alone = [end for end in endings(linear.path) if end not in others]
    # Where even the whole path is the end of another's, both are in the group.
    return alone[-1] if alone else linear.path
