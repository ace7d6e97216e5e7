"""The linear layers of one block, by architecture family: names and shapes as transformers builds them."""

from dataclasses import dataclass
from typing import Literal

from tunemark.schema.architecture import FAMILIES
from tunemark.schema.cards import ModelCard
from tunemark.schema.errors import TunemarkError, did_you_mean

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
