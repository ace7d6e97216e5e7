"""Models that a question names without a card: variants, configuration files and sizes."""

import json
import tomllib
from pathlib import Path

import pytest
import torch
import transformers

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.any_model import any_model
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.architecture import count_parameters

TABLES = tomllib.loads(Path(__file__).with_name("any_model.toml").read_text(encoding="utf-8"))
FACTS = FactBase(Path(__file__).parents[2] / "data")
ARCHITECTURE = set(ModelCard.model_fields) - {"key", "name", "aliases", "parameters", "hub_id", "gated", "source", "read_on", "notes"}


@pytest.mark.parametrize(("name", "key"), TABLES["variants"].items())
def test_a_variant_of_a_model_has_the_card_of_its_architecture(name: str, key: str) -> None:
    assert FACTS.model(name).key == key


OTHERS = ("granite-4.0-h-tiny", "granite-4.0-h-micro", "nemotron-3-nano-30b-a3b", "nemotron-nano-9b-v2", "lfm2-350m", "gemma-4-26b-a4b")
OTHERS += ("gemma-4-e2b", "gemma-4-e4b", "qwen3.5-27b")


@pytest.mark.parametrize("key", [*{card.family: card.key for card in FACTS.models.values()}.values(), *OTHERS])
def test_the_configuration_that_transformers_writes_for_a_card_gives_the_card_back(key: str, tmp_path: Path) -> None:
    from tunemark.harness.worker.models import config_of

    card = FACTS.models[key]
    config_of(card).to_json_file(tmp_path / "config.json", use_diff=False)
    assert any_model(FACTS, str(tmp_path)).model_dump(include=ARCHITECTURE) == card.model_dump(include=ARCHITECTURE)


@pytest.mark.parametrize(("kind", "settings"), TABLES["other_names"].items())
def test_an_architecture_under_another_name_has_as_many_parameters_as_transformers_builds(
    kind: str, settings: dict[str, int], tmp_path: Path
) -> None:
    config = transformers.AutoConfig.for_model(kind, **{name: value or None for name, value in settings.items()})
    config.to_json_file(tmp_path / "config.json", use_diff=False)
    card = any_model(FACTS, str(tmp_path))
    with torch.device("meta"):
        model = (transformers.AutoModel if card.family == "bert" else transformers.AutoModelForCausalLM).from_config(config)
    # An ELECTRA has its pooler in its classifier.
    pooler = card.hidden_size * (card.hidden_size + 1) if kind == "electra" else 0
    assert count_parameters(card).total == model.num_parameters() + pooler


@pytest.mark.parametrize(("content", "message"), TABLES["contents"].items())
def test_a_configuration_without_what_is_needed_is_refused_by_its_key(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(TunemarkError, match=message):
        any_model(FACTS, str(tmp_path / "config.json"))


@pytest.mark.parametrize(("key", "value", "message"), [(key, *row) for key, row in TABLES["refused"].items()])
def test_a_configuration_of_deepseek_without_a_width_is_refused_by_its_key(
    key: str, value: int | str, message: str, tmp_path: Path
) -> None:
    from tunemark.harness.worker.models import config_of

    content = json.loads(config_of(FACTS.models["deepseek-v2-lite"]).to_json_string(use_diff=False))
    content.pop("num_experts", None)
    content[key] = value
    if value == "":
        del content[key]
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(TunemarkError, match=message):
        any_model(FACTS, str(tmp_path))


@pytest.mark.parametrize(("every", "dense"), [(1, 0), (2, 1), (3, 2)])
def test_the_last_of_so_many_layers_of_llama_4_has_experts(every: int, dense: int, tmp_path: Path) -> None:
    content = {"model_type": "llama4_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 100}
    content |= {"max_position_embeddings": 16_384, "interleave_moe_layer_step": every}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama4", "text_config": content}))
    card = any_model(FACTS, str(tmp_path))
    assert (card.mixture_every, card.dense_layers, card.sliding_window, card.full_attention_every) == (every, dense, 8192, 4)


@pytest.mark.parametrize("size", ["13B", "7b", "500M", "70 billion"])
def test_a_size_stands_for_the_median_of_the_dense_models_of_that_size_and_says_so(size: str) -> None:
    card = any_model(FACTS, size)
    assert card.name.startswith(f"a model of {size}, such as ")
    assert card.experts is None


@pytest.mark.parametrize(("kind", "key", "left_out"), [(kind, *row) for kind, row in TABLES["left_out"].items()])
def test_what_a_file_of_the_hub_leaves_out_is_completed_as_transformers_does(
    kind: str, key: str, left_out: tuple[str, ...], tmp_path: Path
) -> None:
    from tunemark.harness.worker.models import config_of

    content = json.loads(config_of(FACTS.models[key]).to_json_string(use_diff=False))
    (tmp_path / "config.json").write_text(
        json.dumps({name: value for name, value in content.items() if name not in left_out} | {"model_type": kind})
    )
    card = any_model(FACTS, str(tmp_path))
    assert card.model_dump(include=ARCHITECTURE) == FACTS.models[key].model_dump(include=ARCHITECTURE)


def test_a_name_without_end_is_no_model() -> None:
    with pytest.raises(TunemarkError, match="not a known model"):
        any_model(FACTS, "x" * 5_000)


def test_a_folder_does_not_hide_the_model_of_its_name_and_a_strange_name_is_printed_harmlessly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama-3.1-8b").mkdir()
    (tmp_path / "my-llama-3.1-8b").mkdir()
    content = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    content |= {"max_position_embeddings": 128, "_name_or_path": "\u001b]0;owned\u0007", "layer_types": 5, "sliding_window": 8}
    (tmp_path / "config.json").write_text(json.dumps(content))
    (tmp_path / "my-llama-3.1-8b" / "config.json").write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    assert (any_model(FACTS, "llama-3.1-8b").layers, any_model(FACTS, "my-llama-3.1-8b").layers) == (32, 2)
    assert "\u001b" not in any_model(FACTS, "config.json").name
