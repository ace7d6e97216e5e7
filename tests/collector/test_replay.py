"""Synthetic rows follow from their seed: a step log that is not theirs is refused."""

import json
from functools import reduce
from itertools import cycle, islice
from typing import Any

import pytest
from factories import CHECKOUT, FACTS

from tunemark.collector.gate.derive import expected_counts
from tunemark.harness.worker.data import micro_batches
from tunemark.schema.records.plan import Plan
from tunemark.schema.samples import GENERATORS, Counts

BERT = CHECKOUT / "submissions" / "smoke-bert" / "20261124-cpu-ec27868fc8d5.json"
Content = dict[str, Any]
STEPS = 12


def plan_like(changes: Content) -> Plan:
    content = json.loads(BERT.read_bytes())["plan"]
    for section, values in changes.items():
        content[section] |= values
    return Plan.model_validate(content)


@pytest.mark.parametrize("padding", ["dynamic", "static"])
@pytest.mark.parametrize(("rows", "shape"), [(None, (4, 2, 1)), (40, (2, 1, 3))])
def test_the_counts_are_those_that_the_harness_trains_on(padding: str, rows: int | None, shape: tuple[int, int, int]) -> None:
    micro, accumulated, ranks = shape
    batch = {
        "micro_batch": micro,
        "gradient_accumulation": accumulated,
        "data_parallel": ranks,
        "global_batch": micro * accumulated * ranks,
    }
    plan = plan_like({"batch": batch, "data": {"padding": padding, "training_rows": rows}, "device": {"count": ranks}})
    assert trained_on(plan, ranks) == expected_counts(plan, FACTS.models[plan.model.key].vocabulary, STEPS)


@pytest.mark.parametrize("borders", [True, False])
def test_the_counts_of_packed_rows_are_those_that_the_harness_trains_on(borders: bool) -> None:
    packing = {"name": "random-documents", "packing": True, "padding": "none", "document_borders": borders}
    plan = plan_like({"data": packing | {"sequence_length": 64, "training_rows": None}, "model": {"task": "causal_lm", "labels": None}})
    assert trained_on(plan, 1) == expected_counts(plan, FACTS.models[plan.model.key].vocabulary, STEPS)


def trained_on(plan: Plan, ranks: int) -> list[Counts]:
    card = FACTS.models[plan.model.key]
    data, seed = plan.data, plan.measurement.seed
    samples = GENERATORS[data.name](card.vocabulary, data.sequence_length, plan.model.labels, seed)
    if data.training_rows is not None:
        samples = cycle(list(islice(samples, data.training_rows)))
    batches = micro_batches(plan, samples, 0, ranks)
    of_step = (islice(batches, plan.batch.gradient_accumulation) for _ in range(STEPS))
    return [reduce(Counts.plus, (batch.everywhere for batch in step)) for step in of_step]
