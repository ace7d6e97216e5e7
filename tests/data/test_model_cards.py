"""The numbers of a model card make a model of the stated size."""

import tomllib
from pathlib import Path

import pytest

from tunemark.schema.facts.cards import SHARED, WITHOUT_WINDOW, ModelCard
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.families import FAMILIES

FILES = sorted((Path(__file__).parents[2] / "data" / "models").glob("*.toml"))


def parameters(card: ModelCard) -> int:
    """Count the parameters of the model from those of one block and of two: each block of a model has the same number, in most families."""
    if card.family in (*SHARED, *WITHOUT_WINDOW, "gemma4_text", "modernbert"):
        return counted(card)
    one, two = (counted(card.model_copy(update={"layers": layers})) for layers in (1, 2))
    return one + (card.layers - 1) * (two - one)


def counted(card: ModelCard) -> int:
    """Count the parameters of a model on the meta device, which allocates nothing."""
    import torch
    import transformers

    from tunemark.harness.worker.models import config_of

    encoder = FAMILIES[card.family].encoder
    kind = transformers.AutoModelForSequenceClassification if encoder else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config_of(card))
    if card.tied_embeddings and not encoder:
        model.tie_weights()
    return sum(parameter.numel() for name, parameter in model.named_parameters() if not name.startswith("classifier."))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_numbers_of_a_card_give_the_parameter_count_it_states(file: Path) -> None:
    card = ModelCard.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    assert parameters(card) == count_parameters(card).total == card.parameters
