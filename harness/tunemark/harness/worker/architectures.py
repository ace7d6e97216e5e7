"""Model card -> transformers configuration: which field of a card each architecture calls by which name."""

from typing import Any

from tunemark.schema.facts.cards import ModelCard

DECODER = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "attention_heads",
    "num_key_value_heads": "key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "context_length",
    "tie_word_embeddings": "tied_embeddings",
    "sliding_window": "sliding_window",
}
GPT2 = {
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "layers",
    "n_head": "attention_heads",
    "vocab_size": "vocabulary",
    "n_positions": "context_length",
    "tie_word_embeddings": "tied_embeddings",
}
BERT = {
    name: field
    for name, field in DECODER.items()
    if name not in {"num_key_value_heads", "head_dim", "tie_word_embeddings", "sliding_window"}
}
WITHOUT_WINDOW = {name: field for name, field in DECODER.items() if name != "sliding_window"}

FAMILIES: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "llama": ("LlamaConfig", WITHOUT_WINDOW, {}),
    "mistral": ("MistralConfig", DECODER, {}),
    "mixtral": ("MixtralConfig", DECODER | {"num_local_experts": "experts", "num_experts_per_tok": "active_experts"}, {}),
    "qwen2": ("Qwen2Config", {name: field for name, field in WITHOUT_WINDOW.items() if name != "head_dim"}, {}),
    "qwen3": ("Qwen3Config", WITHOUT_WINDOW, {}),
    "gemma": ("GemmaConfig", WITHOUT_WINDOW, {}),
    "gemma2": ("Gemma2Config", DECODER, {}),
    "phi3": ("Phi3Config", {name: field for name, field in DECODER.items() if name != "head_dim"}, {}),
    "gpt2": ("GPT2Config", GPT2, {}),
    "bert": ("BertConfig", BERT, {}),
}
"""Family -> (configuration class, its names for the card's fields, further settings)."""

NO_TOKEN = 0


def config_of(card: ModelCard, *, labels: int | None = None, vocabulary: int | None = None) -> Any:  # noqa: ANN401 - a transformers class
    """Return the transformers configuration of a card; `vocabulary` replaces the card's, `labels` makes it a classifier."""
    import transformers  # noqa: PLC0415

    name, fields, further = FAMILIES[card.family]
    settings: dict[str, Any] = {theirs: getattr(card, ours) for theirs, ours in fields.items()} | further
    if vocabulary is not None:
        settings["vocab_size"] = vocabulary
    if labels is not None:
        settings["num_labels"] = labels
    # Cards hold no special token ids; padding must lie inside of any vocabulary.
    settings |= {"pad_token_id": NO_TOKEN, "bos_token_id": NO_TOKEN, "eos_token_id": NO_TOKEN}
    return getattr(transformers, name)(**settings)
