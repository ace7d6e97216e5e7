"""Families of models: how their blocks differ, and the names of their layers in transformers. The families are rows of families.toml."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Mixer = Literal["attention", "window", "delta rule", "state space", "convolution", "none"]
"""How a block mixes tokens: it attends to all or within a window, keeps a state of earlier ones, is a convolution over a few, or does not."""


@dataclass(frozen=True, slots=True)
class Traits:
    """How the blocks of a family differ."""

    gated: bool = True
    """The feed-forward layer has a gate: three matrices instead of two."""
    norms_per_layer: int = 2
    norms_scaled_in_fp32: bool = False
    """RMS norms multiply by their weights before the result is cast back."""
    norms_centred: bool = False
    """Norms also subtract the mean, which keeps one more tensor in fp32; those of torch keep their input alone (`layer_norm`)."""
    layer_norm: bool = False
    """Layer norm instead of RMS norm."""
    norm_bias: bool = False
    bare_norms: bool = False
    """Norms have no weights."""
    outer_norms: int = 1
    """Norms outside of the blocks: after the last one, of an encoder those of embeddings, positions and head, less one that a block lacks."""
    parallel: bool = False
    """Attention and the feed-forward layer read the same residual stream, to which both results are added."""
    limited: Mixer = "window"
    """How the blocks mix tokens that do not attend to all of them."""
    drops_out: bool = False
    """Scores and results of a block are dropped out in training."""
    value_norm: bool = False
    """RMS norm of values over each head, without weights."""
    query_key_norm: Literal["", "head", "all", "unit"] = ""
    """RMS norms of queries and keys: over each head, over all heads together, or over each head without weights."""
    query_key_value_bias: bool = False
    linear_bias: bool = False
    """Every linear layer of a block has a bias."""
    biased: tuple[str, ...] = ()
    """The linear layers with a bias, where they are some of a block."""
    sinks: bool = False
    """One learned score per head that a softmax may attend to instead of a token."""
    chunked: bool = False
    """A window is a chunk: tokens attend to none before the last multiple of its length."""
    every_expert: bool = False
    """transformers multiplies each token with all experts, and the input of those that were not chosen is zero."""
    router_in_fp32: bool = False
    gated_expert: bool = False
    """The output of the expert for all tokens is multiplied by a gate."""
    router_bias: bool = False
    """The router has a number for each expert, by which it chooses."""
    router_scaled: bool = False
    """The router scales its input by a vector, and the experts by a number each."""
    gated_attention: bool = False
    """The product for the queries gives a gate of the output of attention, too."""
    overflows_fp16: bool = False
    """Activations of its trained weights exceed the range of fp16 (unsloth.ai/blog/gemma3, docs.unsloth.ai on long contexts of gpt-oss)."""
    capped_logits: bool = False
    """Logits are capped softly, which keeps one more tensor of their size."""
    eager: bool = False
    """transformers has no attention for it in torch's fused kernels."""
    learned_activation: int = 0
    """Numbers that the activation of a feed-forward layer learns."""
    learned_positions: bool = False
    spare_positions: int = 0
    """Rows of the table of positions beyond the context."""
    alibi: bool = False
    """Scores fall with the distance of tokens; queries and keys are not rotated."""
    relative_positions: int = 0
    """Rows of a table of distances between tokens, which queries and keys are multiplied with as well (disentangled attention)."""
    token_types: int = 0
    encoder: bool = False
    """Tokens attend to later ones, too. A pooler is there instead of an output projection."""
    head_bias: bool = False
    """The output projection, or the pooler of an encoder, has a bias."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the layers of a family in transformers."""

    attention: tuple[str, ...]
    """Inside a block: query, key and value layers, separate, fused or latent, then the output."""
    feed_forward: tuple[str, ...] = ()
    """Inside a block without experts: feed-forward layers, with the projection to the residual stream last."""
    outside: tuple[str, ...] = ("embed_tokens", "lm_head")
    """Layers outside the blocks that can have adapters."""
    experts: tuple[str, ...] = ()
    """Inside a block with experts: one parameter for all of them, which cannot have adapters in peft."""
    shared: tuple[str, ...] = ()
    """Inside a block with experts: the layers of an expert for all tokens."""
    router: str | None = None
    state: tuple[str, ...] = ()
    """Inside a block that does not attend: its layers, with the output last."""
    refused: tuple[str, ...] = ()
    """Inside a block: layers that peft adapts in no model of this type, since kernels read their weights (peft 0.21)."""
    ambiguous: tuple[str, ...] = ()
    """Last names of layers that experts of some release of transformers have, too; peft cannot adapt those."""


def with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table with tuples in place of its lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
FAMILIES: dict[str, Traits] = {name: Traits(**with_tuples(row)) for names, row in TABLE["traits"].items() for name in names.split()}
NAMES: dict[str, Names] = {family: Names(**with_tuples(row)) for families, row in TABLE["names"].items() for family in families.split()}
SETTINGS: dict[str, dict[str, Any]] = TABLE["settings"]
"""Family -> keys and values in transformers of all its models that are known here; another value is another architecture."""
CONVOLUTION: dict[str, int] = TABLE["convolution"]
"""Tokens that a convolution reads, in all models with this mixer."""
STATE_CHUNK, SCAN_CHUNK = 64, 256
"""Tokens of a chunk of the gated delta rule, in transformers and in flash-linear-attention, and of Mamba-2, by the configurations of Granite 4."""
TOKEN_TABLES = tuple(TABLE["token_tables"])
"""Names of the token embedding. An adapter on it does one look-up and one multiplication."""
BARE_EXPERTS = tuple(TABLE["bare_experts"])
"""Families whose experts get no adapters from peft's `all-linear`."""
