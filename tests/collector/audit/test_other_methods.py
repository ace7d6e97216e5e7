"""Methods with a frozen base that are neither LoRA nor QLoRA: published, bounded from below, and never calculated or planned."""

import pytest
from audit_factories import facts

from tunemark.collector.audit.bounds import least_flop_per_token, weight_bytes
from tunemark.schema.errors import TunemarkError
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.vocabulary import Method

MODEL = facts().models["llama-3.2-3b"]


def test_their_least_work_is_a_forward_pass_since_gradients_may_end_early() -> None:
    other, lora = (least_flop_per_token(MODEL, method, 512) for method in (Method.PEFT, Method.LORA))
    assert 0.4 * lora < other < 0.6 * lora
    assert least_flop_per_token(MODEL, Method.PEFT, 512, rank=64) == other


def test_their_weights_take_what_those_of_lora_take() -> None:
    assert weight_bytes(MODEL, Method.PEFT) == weight_bytes(MODEL, Method.LORA)


def test_they_have_no_shape() -> None:
    with pytest.raises(TunemarkError, match=r"method: 'peft': .*use full, lora or qlora"):
        TrainingShape(MODEL, Method.PEFT, 512)


def test_a_workload_cannot_ask_for_them() -> None:
    card = facts().workloads["smoke-lora"]
    with pytest.raises(ValueError, match="only published results have"):
        type(card).model_validate_json(card.model_copy(update={"method": Method.PEFT}).model_dump_json())
