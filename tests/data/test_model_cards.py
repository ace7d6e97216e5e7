"""The numbers of a model card make a model of the stated size."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tunemark.schema.facts.cards import ModelCard

FILES = sorted((Path(__file__).parents[2] / "data" / "models").glob("*.toml"))
CONFIG_CLASSES = {
    "llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral", "qwen2": "Qwen2", "qwen3": "Qwen3",
    "gemma": "Gemma", "gemma2": "Gemma2", "phi3": "Phi3", "gpt2": "GPT2", "bert": "Bert",
}  # fmt: skip


def settings(card: ModelCard) -> dict[str, Any]:
    """Return the card's numbers under the names that transformers gives them."""
    if card.family == "gpt2":
        return {
            "n_embd": card.hidden_size, "n_inner": card.intermediate_size, "n_layer": card.layers, "n_head": card.attention_heads,
            "vocab_size": card.vocabulary, "n_positions": card.context_length, "tie_word_embeddings": card.tied_embeddings,
        }  # fmt: skip
    found: dict[str, Any] = {
        "hidden_size": card.hidden_size, "intermediate_size": card.intermediate_size, "num_hidden_layers": card.layers,
        "num_attention_heads": card.attention_heads, "vocab_size": card.vocabulary, "max_position_embeddings": card.context_length,
        "tie_word_embeddings": card.tied_embeddings,
    }  # fmt: skip
    if card.family != "bert":
        # Special tokens change no shape, but their defaults may lie outside of a small vocabulary.
        found |= {
            "num_key_value_heads": card.key_value_heads,
            "head_dim": card.head_dim,
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
        }
    if card.experts is not None:
        found |= {"num_local_experts": card.experts, "num_experts_per_tok": card.active_experts}
    return found


def parameters(card: ModelCard) -> int:
    """Count the parameters of the model from those of one block and of two: each block of a model has the same number."""
    one, two = (counted(card.model_copy(update={"layers": layers})) for layers in (1, 2))
    return one + (card.layers - 1) * (two - one)


def counted(card: ModelCard) -> int:
    """Count the parameters of a model on the meta device, which allocates nothing."""
    import torch
    import transformers

    name = CONFIG_CLASSES[card.family]
    head = {"gpt2": "LMHeadModel", "bert": "Model"}.get(card.family, "ForCausalLM")
    config = getattr(transformers, f"{name}Config")(**settings(card))
    with torch.device("meta"):
        model = getattr(transformers, f"{name}{head}")(config)
    if card.tied_embeddings and card.family != "bert":
        model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_numbers_of_a_card_give_the_parameter_count_it_states(file: Path) -> None:
    card = ModelCard.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    assert parameters(card) == card.parameters
