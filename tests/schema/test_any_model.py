"""Models that a question names without a card: variants, configuration files and sizes."""

import json
from pathlib import Path

import pytest

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.any_model import any_model, card_of_config
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.architecture import FAMILIES

FACTS = FactBase(Path(__file__).parents[2] / "data")
ARCHITECTURE = {"family", *("hidden_size", "intermediate_size", "layers", "attention_heads", "key_value_heads", "head_dim", "vocabulary")}
ARCHITECTURE |= {"context_length", "tied_embeddings", "sliding_window", "full_attention_every", "experts", "active_experts"}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Qwen/Qwen3-14B-Instruct", "qwen3-14b"),
        ("unsloth/Qwen3-32B-unsloth-bnb-4bit", "qwen3-32b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("NousResearch/Llama-2-13b-chat-hf", "llama-2-13b"),
        ("someone/Meta-Llama-3.1-8B-Instruct-GPTQ", "llama-3.1-8b"),
    ],
)
def test_a_variant_of_a_model_has_the_card_of_its_architecture(name: str, key: str) -> None:
    assert FACTS.model(name).key == key


def test_a_name_that_two_models_share_without_their_variants_is_neither() -> None:
    with pytest.raises(TunemarkError, match="did you mean"):
        FACTS.model("llama-instruct")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_configuration_that_transformers_writes_for_a_card_gives_the_card_back(family: str, tmp_path: Path) -> None:
    from tunemark.harness.worker.models import config_of

    card = next(card for card in FACTS.models.values() if card.family == family)
    config_of(card).to_json_file(tmp_path / "config.json", use_diff=False)
    assert any_model(FACTS, str(tmp_path)).model_dump(include=ARCHITECTURE) == card.model_dump(include=ARCHITECTURE)


def test_of_a_model_with_an_image_encoder_the_language_model_counts(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 100}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": text | {"max_position_embeddings": 128}}))
    card = card_of_config(path)
    assert (card.family, card.head_dim, card.key_value_heads, card.intermediate_size) == ("gemma3_text", 16, 4, 256)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "holds no keys"),
        ("{", "is no configuration"),
        ('{"model_type": "rwkv"}', "model_type: 'rwkv': the work of this architecture is not known"),
        ('{"model_type": "llama"}', "hidden_size or n_embd: is missing"),
        (json.dumps({"model_type": "llama", "hidden_size": 0, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9,
                     "max_position_embeddings": 64, "intermediate_size": 4}), "hidden_size"),
    ],
)  # fmt: skip
def test_a_configuration_without_what_is_needed_is_refused_by_its_key(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(TunemarkError, match=message):
        any_model(FACTS, str(tmp_path / "config.json"))


@pytest.mark.parametrize("size", ["13B", "7b", "500M"])
def test_a_size_stands_for_the_median_of_the_dense_models_of_that_size_and_says_so(size: str) -> None:
    card = any_model(FACTS, size)
    assert card.name.startswith(f"a model of {size}, such as ")
    assert card.experts is None


@pytest.mark.parametrize("size", ["0B", "999999B"])
def test_a_size_that_no_model_has_is_refused(size: str) -> None:
    with pytest.raises(TunemarkError, match="no known model has about this size"):
        any_model(FACTS, size)
