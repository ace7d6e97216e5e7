"""The numbers of a model card make a model of the stated size."""

import tomllib
from pathlib import Path

import pytest

from tunemark.schema.facts.cards import HYBRID, SHARED, ModelCard
from tunemark.schema.physics.architecture import count_parameters

FILES = sorted((Path(__file__).parents[2] / "data" / "models").glob("*.toml"))


def parameters(card: ModelCard) -> int:
    """Count the parameters of the model from those of one block and of two: each block of a model has the same number, in most families."""
    if card.family in (*SHARED, *HYBRID, "gemma4_text"):
        return counted(card)
    one, two = (counted(card.model_copy(update={"layers": layers})) for layers in (1, 2))
    return one + (card.layers - 1) * (two - one)


def counted(card: ModelCard) -> int:
    """Count the parameters of a model on the meta device, which allocates nothing."""
    import torch
    import transformers

    from tunemark.harness.worker.models import config_of

    kind = transformers.AutoModel if card.family == "bert" else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config_of(card))
    if card.tied_embeddings and card.family != "bert":
        model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_numbers_of_a_card_give_the_parameter_count_it_states(file: Path) -> None:
    card = ModelCard.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    assert parameters(card) == count_parameters(card).total == card.parameters
