"""Families of models: how their blocks differ, and the names of their layers in transformers, as data.

A test compares the shapes and names that follow with the models that transformers builds.
"""

from dataclasses import dataclass, replace
from typing import Literal

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
    """Norms add a bias."""
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
    relative_positions: int = 0
    """Rows of a table of distances between tokens, which queries and keys are multiplied with as well (disentangled attention)."""
    token_types: int = 0
    encoder: bool = False
    """Tokens attend to later ones, too. A pooler is there instead of an output projection."""
    head_bias: bool = False
    """The output projection, or the pooler of an encoder, has a bias."""


PLAIN = Traits(gated=False, layer_norm=True, norm_bias=True)
CLASSIC = replace(PLAIN, linear_bias=True, drops_out=True)
"""Blocks of the first transformers."""
DELTA_RULE = Traits(norms_scaled_in_fp32=True, query_key_norm="head", gated_attention=True, limited="delta rule")
FAMILIES: dict[str, Traits] = {
    **dict.fromkeys(("llama", "mistral", "ministral3", "mixtral", "phi3", "granite", "smollm3", "ernie4_5"), Traits()),
    "arcee": Traits(gated=False),
    "stablelm": Traits(layer_norm=True, norm_bias=True),
    "starcoder2": replace(PLAIN, linear_bias=True),
    "gpt_neox": replace(PLAIN, linear_bias=True, parallel=True),
    "phi": replace(PLAIN, linear_bias=True, parallel=True, norms_per_layer=1, head_bias=True),
    "falcon": replace(PLAIN, parallel=True, norms_per_layer=1, eager=True),
    **dict.fromkeys(("qwen2", "seed_oss"), Traits(query_key_value_bias=True)),
    **dict.fromkeys(("qwen3", "qwen3_moe", "exaone4", "hunyuan_v1_dense"), Traits(query_key_norm="head")),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "glm4_moe"), Traits(router_in_fp32=True)),
    "ernie4_5_moe": Traits(router_in_fp32=True, router_bias=True),
    "qwen2_moe": Traits(query_key_value_bias=True, gated_expert=True),
    "apertus": Traits(gated=False, query_key_norm="head", learned_activation=2),
    **dict.fromkeys(("minimax_m2", "olmoe"), Traits(query_key_norm="all")),
    "glm4": Traits(norms_per_layer=4, query_key_value_bias=True),
    "llama4_text": Traits(query_key_norm="unit", chunked=True, every_expert=True),
    "gpt_oss": Traits(linear_bias=True, sinks=True, eager=True, overflows_fp16=True),
    "qwen3_5_text": DELTA_RULE,
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), replace(DELTA_RULE, gated_expert=True)),
    "gemma4_text": Traits(
        norms_per_layer=4, norms_scaled_in_fp32=True, value_norm=True, query_key_norm="head", capped_logits=True, router_scaled=True
    ),
    "gemma": Traits(norms_scaled_in_fp32=True),
    "gemma2": Traits(norms_per_layer=4, norms_scaled_in_fp32=True, capped_logits=True, eager=True),
    "gemma3_text": Traits(norms_per_layer=4, norms_scaled_in_fp32=True, query_key_norm="head", overflows_fp16=True),
    **dict.fromkeys(("olmo2", "olmo3"), Traits(norms_scaled_in_fp32=True, query_key_norm="all")),
    **dict.fromkeys(("cohere", "cohere2"), Traits(norms_per_layer=1, norms_scaled_in_fp32=True, norms_centred=True, parallel=True)),
    **dict.fromkeys(("lfm2", "lfm2_moe"), Traits(query_key_norm="head", limited="convolution")),
    "granitemoehybrid": Traits(limited="state space"),
    "nemotron_h": Traits(gated=False, norms_per_layer=1, norms_scaled_in_fp32=True, limited="state space", router_in_fp32=True),
    "gpt2": replace(CLASSIC, learned_positions=True),
    "bert": replace(CLASSIC, learned_positions=True, token_types=2, encoder=True, head_bias=True),
    "deberta-v2": replace(CLASSIC, outer_norms=2, relative_positions=512, eager=True, encoder=True, head_bias=True),
    "modernbert": Traits(layer_norm=True, outer_norms=2, encoder=True),
}
CONVOLUTION: dict[Mixer, int] = {"delta rule": 4, "state space": 4, "convolution": 3}
"""Tokens that a convolution reads, in all models with this mixer."""


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
    """The expert router."""
    state: tuple[str, ...] = ()
    """Inside a block that does not attend: its layers, with the output last."""
    refused: tuple[str, ...] = ()
    """Inside a block: layers that peft adapts in no model of this type, since kernels read their weights (peft 0.21)."""
    ambiguous: tuple[str, ...] = ()
    """Last names of layers that experts of some release of transformers have, too; peft cannot adapt those."""


TOKEN_TABLES = ("embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings")
"""Name of the token embedding. An adapter on it does one look-up and one multiplication."""
QUERY_KEY_VALUE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
STATE = tuple(f"linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"))
"""Of the gated delta rule: queries, keys and values, the gate of the output, two numbers per head, then the output."""
FUSED_STATE = tuple(f"linear_attn.{name}" for name in ("in_proj_qkvz", "in_proj_ba", "out_proj"))
LATENT = (
    *("self_attn.q_proj", "self_attn.q_a_proj", "self_attn.q_b_proj"),
    *("self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj", "self_attn.o_proj"),
)
"""Queries whole or of a rank; keys and values of a rank."""
GATED = ("gate_proj", "up_proj", "down_proj")
LLAMA = Names(QUERY_KEY_VALUE, tuple(f"mlp.{name}" for name in GATED))
WIDE_AND_BACK = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
LFM2 = Names(
    (*QUERY_KEY_VALUE[:3], "self_attn.out_proj"),
    ("feed_forward.w1", "feed_forward.w3", "feed_forward.w2"),
    state=("conv.in_proj", "conv.out_proj"),
)


def _mixture(attention: tuple[str, ...], part: str, router: str, shared: str = "", state: tuple[str, ...] = ()) -> Names:
    return Names(
        attention,
        tuple(f"{part}.{name}" for name in GATED) if shared else (),
        state=state,
        experts=(f"{part}.experts.gate_up_proj", f"{part}.experts.down_proj"),
        shared=tuple(f"{part}.{shared}.{name}" for name in GATED) if shared else (),
        router=f"{part}.{router}",
    )


NAMES: dict[str, Names] = {
    **dict.fromkeys(("llama", "mistral", "ministral3", "qwen2", "qwen3", "seed_oss", "exaone4", "granite", "smollm3", "stablelm"), LLAMA),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "olmo2", "olmo3", "ernie4_5", "hunyuan_v1_dense", "cohere", "cohere2"), LLAMA),
    **dict.fromkeys(("mixtral", "qwen3_moe", "minimax_m2", "olmoe"), _mixture(QUERY_KEY_VALUE, "mlp", "gate")),
    **dict.fromkeys(("glm4_moe", "ernie4_5_moe"), _mixture(QUERY_KEY_VALUE, "mlp", "gate", "shared_experts")),
    "qwen2_moe": _mixture(QUERY_KEY_VALUE, "mlp", "gate", "shared_expert"),
    **dict.fromkeys(("apertus", "arcee"), Names(QUERY_KEY_VALUE, ("mlp.up_proj", "mlp.down_proj"))),
    "glm4": Names(QUERY_KEY_VALUE, ("mlp.gate_up_proj", "mlp.down_proj")),
    "gpt_oss": _mixture(QUERY_KEY_VALUE, "mlp", "router"),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), _mixture(LATENT, "mlp", "gate", "shared_experts")),
    "qwen3_5_text": replace(LLAMA, state=STATE),
    "qwen3_5_moe_text": _mixture(QUERY_KEY_VALUE, "mlp", "gate", "shared_expert", STATE),
    "qwen3_next": _mixture(QUERY_KEY_VALUE, "mlp", "gate", "shared_expert", FUSED_STATE),
    "gemma4_text": replace(LLAMA, shared=LLAMA.feed_forward, router="router.proj", experts=("experts.gate_up_proj", "experts.down_proj")),
    "llama4_text": _mixture(QUERY_KEY_VALUE, "feed_forward", "router", "shared_expert"),
    "phi3": Names(("self_attn.qkv_proj", "self_attn.o_proj"), ("mlp.gate_up_proj", "mlp.down_proj")),
    "starcoder2": Names(QUERY_KEY_VALUE, ("mlp.c_fc", "mlp.c_proj")),
    "phi": Names((*QUERY_KEY_VALUE[:3], "self_attn.dense"), ("mlp.fc1", "mlp.fc2")),
    "falcon": Names(("self_attention.query_key_value", "self_attention.dense"), WIDE_AND_BACK, ("word_embeddings", "lm_head")),
    "gpt_neox": Names(("attention.query_key_value", "attention.dense"), WIDE_AND_BACK, ("embed_in",)),
    "gpt2": Names(("attn.c_attn", "attn.c_proj"), ("mlp.c_fc", "mlp.c_proj"), ("wte", "wpe", "lm_head")),
    "lfm2": LFM2,
    "lfm2_moe": replace(LFM2, router="feed_forward.gate", experts=("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj")),
    "granitemoehybrid": Names(
        QUERY_KEY_VALUE,
        ("shared_mlp.input_linear", "shared_mlp.output_linear"),
        experts=("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj"),
        shared=("shared_mlp.input_linear", "shared_mlp.output_linear"),
        router="block_sparse_moe.router",
        state=("mamba.in_proj", "mamba.out_proj"),
        ambiguous=("input_linear", "output_linear"),
    ),
    "nemotron_h": Names(
        tuple(f"mixer.{name}_proj" for name in "qkvo"),
        ("mixer.up_proj", "mixer.down_proj"),
        ("lm_head",),
        experts=("mixer.experts.up_proj", "mixer.experts.down_proj"),
        shared=("mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj"),
        router="mixer.gate",
        state=("mixer.in_proj", "mixer.out_proj"),
        refused=("mixer.out_proj",),
    ),
    "modernbert": Names(("attn.Wqkv", "attn.Wo"), ("mlp.Wi", "mlp.Wo"), ("tok_embeddings", "head.dense")),
    "deberta-v2": Names(
        ("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj", "attention.output.dense"),
        ("intermediate.dense", "output.dense"),
        ("word_embeddings", "rel_embeddings", "pooler.dense"),
    ),
    "bert": Names(
        ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
        ("intermediate.dense", "output.dense"),
        ("word_embeddings", "position_embeddings", "token_type_embeddings", "pooler.dense"),
    ),
}
"""Layer names by family. A test compares them with the models that transformers builds."""
BARE_EXPERTS = ("llama4_text", "gpt_oss", "qwen2_moe", "qwen3_5_moe_text", "gemma4_text", "granitemoehybrid", "lfm2_moe")
"""Families whose experts get no adapters from peft's `all-linear`; those of the other mixtures get some (peft 0.21)."""
