"""Synthetic rows follow from their seed: a step log that is not theirs is refused."""

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
from factories import CHECKOUT, FACTS
from hypothesis import given, settings
from hypothesis import strategies as st

from tunemark.collector.gate.derive import expected_counts, packed
from tunemark.harness.worker.data import Counts, micro_batches, pack, shape_of
from tunemark.schema.records.plan import Plan
from tunemark.schema.synthetic_data import GENERATORS

BERT = CHECKOUT / "submissions" / "smoke-bert" / "20261124-cpu-ec27868fc8d5.json"
Content = dict[str, Any]


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
    assert trained_on(plan, ranks) == made_again(plan)


@pytest.mark.parametrize("borders", [True, False])
def test_the_counts_of_packed_rows_are_those_that_the_harness_trains_on(borders: bool) -> None:
    packing = {"name": "random-documents", "packing": True, "padding": "none", "document_borders": borders}
    plan = plan_like({"data": packing | {"sequence_length": 64, "training_rows": None}, "model": {"task": "causal_lm", "labels": None}})
    assert trained_on(plan, 1) == made_again(plan)


def trained_on(plan: Plan, ranks: int, steps: int = 12) -> list[tuple[int, ...]]:
    card = FACTS.models[plan.model.key]
    data, seed = plan.data, plan.measurement.seed
    samples = GENERATORS[data.name](card.vocabulary, data.sequence_length, plan.model.labels, seed)
    if data.training_rows is not None:
        finite = list(islice(samples, data.training_rows))
        samples = (finite[index % len(finite)] for index in range(10**6))
    batches = micro_batches(plan, samples, shape_of(plan, card), 0, ranks)
    found = []
    for _ in range(steps):
        total = Counts()
        for batch in islice(batches, plan.batch.gradient_accumulation):
            total = total.plus(batch.everywhere)
        found.append((total.slot_tokens, total.real_tokens, total.supervised_tokens, total.documents))
    return found


def made_again(plan: Plan, steps: int = 12) -> list[tuple[int, ...]]:
    columns = expected_counts(plan, FACTS.models[plan.model.key].vocabulary, steps)
    return [tuple(int(value) for value in row) for row in zip(*columns, strict=True)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(4, 24))
def test_lengths_are_packed_as_the_harness_packs_rows(lengths: list[int], row_tokens: int) -> None:
    rows = list(pack(iter({"input_ids": np.ones(length, dtype=np.int64)} for length in lengths), row_tokens))
    pieces, documents = packed(lengths, row_tokens, len(rows))
    assert pieces.tolist() == [len(row.pieces) for row in rows]
    assert documents.tolist() == [row.documents for row in rows]
