"""The linear layers of one block, by architecture family: names and shapes as transformers builds them."""

from dataclasses import dataclass
from typing import Literal

from tunemark.schema.architecture import FAMILIES
from tunemark.schema.cards import ModelCard
from tunemark.schema.errors import TunemarkError, did_you_mean

Part = Literal["attention", "feed_forward", "router"]


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
    """Return the linear layers that get an adapter; a name matches as in peft, whole or as the end of a dotted path.

    Raises
    ------
    TunemarkError
        When a target is the name of no linear layer of the family.

    """
    linears = block_linears(card)
    names = sorted({end for linear in linears for end in _endings(linear.path)})
    for target in targets:
        if target not in names:
            raise TunemarkError("lora_targets", target, f"no linear layer of family {card.family!r}; {did_you_mean(target, names)}")
    return tuple(linear for linear in linears if set(_endings(linear.path)) & set(targets))


def every_target(card: ModelCard) -> tuple[str, ...]:
    """Return the names of all linear layers of a block that can have an adapter: all but a router."""
    return tuple(linear.path for linear in block_linears(card) if linear.part != "router")


def _endings(path: str) -> tuple[str, ...]:
    parts = path.split(".")
    return tuple(".".join(parts[index:]) for index in range(len(parts)))


def _attention(card: ModelCard) -> tuple[Linear, ...]:
    hidden = card.hidden_size
    queries, keys = card.attention_heads * card.head_dim, card.key_value_heads * card.head_dim
    if card.family == "gpt2":
        return (
            Linear("attn.c_attn", hidden, queries + 2 * keys, "attention", after_norm=True),
            Linear("attn.c_proj", queries, hidden, "attention"),
        )
    if card.family == "bert":
        names = [f"attention.self.{name}" for name in ("query", "key", "value")] + ["attention.output.dense"]
    elif card.family == "phi3":
        fused = Linear("self_attn.qkv_proj", hidden, queries + 2 * keys, "attention", after_norm=True)
        return (fused, Linear("self_attn.o_proj", queries, hidden, "attention"))
    else:
        names = [f"self_attn.{name}_proj" for name in "qkvo"]
    return (
        Linear(names[0], hidden, queries, "attention", after_norm=True),
        Linear(names[1], hidden, keys, "attention", after_norm=True),
        Linear(names[2], hidden, keys, "attention", after_norm=True),
        Linear(names[3], queries, hidden, "attention"),
    )


def _feed_forward(card: ModelCard) -> tuple[Linear, ...]:
    hidden, inner = card.hidden_size, card.intermediate_size
    if not FAMILIES[card.family].gated:
        up, down = ("mlp.c_fc", "mlp.c_proj") if card.family == "gpt2" else ("intermediate.dense", "output.dense")
        return (Linear(up, hidden, inner, "feed_forward"), Linear(down, inner, hidden, "feed_forward"))
    if card.family == "phi3":
        return (
            Linear("mlp.gate_up_proj", hidden, 2 * inner, "feed_forward"),
            Linear("mlp.down_proj", inner, hidden, "feed_forward"),
        )
    if card.experts:
        router = Linear("mlp.gate", hidden, card.experts, "router")
        copies, active = card.experts, card.active_experts or 1
        return (
            router,
            Linear("mlp.experts.gate_up_proj", hidden, 2 * inner, "feed_forward", copies=copies, active=active),
            Linear("mlp.experts.down_proj", inner, hidden, "feed_forward", copies=copies, active=active),
        )
    return (
        Linear("mlp.gate_proj", hidden, inner, "feed_forward"),
        Linear("mlp.up_proj", hidden, inner, "feed_forward"),
        Linear("mlp.down_proj", inner, hidden, "feed_forward"),
    )
