"""Parameters follow from the numbers on a model card, without a hub and without torch."""

import pytest
from factories import FACTS

from tunemark.schema.physics.architecture import count_parameters


@pytest.mark.parametrize("key", sorted(FACTS.models))
def test_the_count_equals_that_of_the_model_which_transformers_builds(key: str) -> None:
    # tests/data/test_model_cards.py holds `parameters` of each card against a meta-device instantiation.
    card = FACTS.models[key]
    assert count_parameters(card).total == card.parameters


@pytest.mark.parametrize(("key", "billions"), [("llama-3-8b", 7.505), ("mixtral-8x7b", 12.75)])
def test_weights_in_matrix_products_leave_out_embeddings_norms_and_sleeping_experts(key: str, billions: float) -> None:
    assert count_parameters(FACTS.models[key]).matrix_multiplied / 1e9 == pytest.approx(billions, abs=0.01)
