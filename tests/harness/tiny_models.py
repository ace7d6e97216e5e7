"""Cards of tiny models: those of a real model of each family, with few and narrow layers."""

from harness_making import FACTS

from tunemark.schema.physics.families import FAMILIES

EXAMPLES = {"granitemoehybrid": "granite-4.0-h-tiny"}
"""Family -> its model with blocks of all kinds, where the first one does not have them."""
OWN_KEYS = {"gpt2", "gpt_neox", "opt", "biogpt", "bloom", "mpt", "gptj", "gpt_neo"}


def tiny_card(family, scale=1, window=8, **sizes):
    """Return the first card of a family, or that with a key, with widths that grow with `scale`; the window is for families that have one."""
    card = FACTS.models.get(EXAMPLES.get(family, family)) or next(card for card in FACTS.models.values() if card.family == family)
    tiny = {
        "hidden_size": 64 * scale,
        "intermediate_size": (256 if FAMILIES[card.family].alibi else 160) * scale,
        "head_dim": 16 * scale,
        "layers": 2,
        "attention_heads": 4,
    }
    # All heads of some older families and of encoders have keys of their own.
    own = card.family in OWN_KEYS or FAMILIES[card.family].encoder
    tiny |= {"key_value_heads": 4 if own else min(2, card.key_value_heads), "vocabulary": 256}
    if card.sliding_window:
        tiny["sliding_window"] = window
    if card.full_attention_layers is not None:
        tiny["full_attention_layers"] = (min(1, *card.full_attention_layers),)
    if card.feed_forward_layers is not None:
        tiny |= {"layers": 3, "full_attention_layers": (2,), "feed_forward_layers": (1,)}
    if card.experts:
        tiny |= {"experts": 4, "active_experts": 2}
    if card.linear_head_dim:
        tiny |= {
            "full_attention_every": None if card.full_attention_layers else 2,
            "linear_key_heads": 2,
            "linear_value_heads": 4,
            "linear_head_dim": 8 * scale,
        }
    if card.state_size:
        tiny |= {"linear_key_heads": 2, "linear_head_dim": 32 * scale, "state_size": 24 * scale}
    if card.wide_head_dim:
        tiny |= {"full_attention_every": 2, "wide_head_dim": 32 * scale, "wide_key_value_heads": card.wide_key_value_heads and 1}
        tiny |= {"per_layer_width": card.per_layer_width and 8 * scale, "sharing_layers": card.sharing_layers and 2}
        tiny |= {"sharing_intermediate_size": card.sharing_intermediate_size and 320 * scale}
    if card.dense_layers is not None:
        tiny |= {"dense_intermediate_size": 240 * scale, "dense_layers": min(1, card.dense_layers)}
    if card.key_value_rank:
        tiny |= {"query_rank": card.query_rank and 24 * scale, "key_value_rank": 20 * scale, "key_value_heads": 4}
        # A CPU has no fused attention for values that are narrower than keys.
        tiny |= {"head_dim": 12 * scale, "rotary_head_dim": 4 * scale, "value_head_dim": 16 * scale}
    return card.model_copy(update=tiny | sizes)
