"""The division of a run follows from its overrides: nothing changed, only free settings changed, or anything else."""

import json

import pytest
from factories import FACTS, bare_content, bare_submission
from pydantic import ValidationError

from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import FREE_SETTINGS, Override, Plan, card_global_batch, division_of
from tunemark.schema.vocabulary import Division

CARD = FACTS.workloads["smoke-lora"]
"""Its batch: four rows, one micro-step."""


def plan_with(**changes: object) -> Plan:
    return Plan.model_validate_json(json.dumps(bare_content(5, **{f"plan.{path}": value for path, value in changes.items()})["plan"]))


def split(micro: int, accumulation: int, replicas: int = 1) -> dict[str, object]:
    """Return the changes of a plan with another split of the batch."""
    rows = micro * accumulation * replicas
    return {"batch": {"micro_batch": micro, "gradient_accumulation": accumulation, "data_parallel": replicas, "global_batch": rows}}


def override(field: str, card: object, run: object) -> Override:
    return Override.model_validate({"field": field, "card": card, "run": run})


COMPILED = override("compile", "none", "blocks")


def test_the_global_batch_of_a_card_grows_with_the_devices_and_not_with_the_parallel_strategy() -> None:
    eight = {"device": plan_with().device.model_dump(mode="json") | {"count": 8, "strategy": "ddp", "launcher": "torchrun"}}
    assert card_global_batch(plan_with(**eight, **split(4, 1, 8)), ()) == 32
    tensor = {"device": eight["device"] | {"tensor_parallel": 2}}
    parallel = (override("devices.tensor_parallel", 1, 2), override("batch.gradient_accumulation", 1, 2))
    assert division_of(plan_with(**tensor, **split(4, 2, 4)), parallel) is Division.TUNED
    assert division_of(plan_with(**tensor, **split(4, 1, 4)), parallel[:1]) is Division.OPEN


@pytest.mark.parametrize("field", FREE_SETTINGS)
def test_every_free_setting_is_a_setting_of_a_card(field: str) -> None:
    cards = [
        CARD.model_copy(update={"quantisation": FACTS.workloads["qlora-8b"].quantisation}),
        *(card for card in FACTS.workloads.values() if card.neuron),
    ]
    known = {path for card in cards for path, _ in flattened(WorkloadCard.model_dump(card, mode="json"))}
    assert field in known


def test_a_declared_division_that_does_not_follow_is_refused_with_the_field_and_the_fix() -> None:
    learning = {"overrides": [{"field": "optimizer.learning_rate", "card": 0.004, "run": 0.1}]}
    with pytest.raises(ValidationError, match=r"declare 'open': optimizer\.learning_rate is fixed by the card"):
        bare_submission(5, division="tuned", **learning)
    compiled = {"overrides": [COMPILED.model_dump(mode="json")]}
    with pytest.raises(ValidationError, match="declare 'tuned': all of them are free settings"):
        bare_submission(5, division="standard", **compiled)
    assert bare_submission(5, division="open", **compiled).division is Division.OPEN
    rows = {"overrides": [{"field": "batch.micro_batch", "card": 4, "run": 8}], "plan.batch.micro_batch": 8, "plan.batch.global_batch": 8}
    with pytest.raises(ValidationError, match="the card has 4 rows per step on these devices"):
        bare_submission(5, division="tuned", **rows)
