"""Public calculators and rules of thumb: each is the rule that its source states, and ours are closer to what was published."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from factories import CHECKOUT

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.predict.calibration_rows import calibrate
from tunemark.collector.predict.cross_validation import leave_out
from tunemark.collector.predict.fit import fit
from tunemark.collector.predict.predicted_vs_measured import memory_errors
from tunemark.collector.predict.rules_of_thumb import MEMORY_RULES, OURS, SPEED_RULES, rule_rows
from tunemark.collector.store.database import Row
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Method

FACTS = FactBase(Path(__file__).parents[2] / "data")
RULES = {rule.name: rule.bytes_of for rule in MEMORY_RULES}
SEVEN = 6_738_415_616


def make_shape(method: Method = Method.FULL, **changes: Any) -> TrainingShape:
    return TrainingShape(FACTS.model("llama-2-7b"), method, **({"sequence_length": 2048, "micro_batch": 1} | changes))


def test_the_formula_of_document_004_gives_its_own_examples() -> None:
    for method, gb in ((Method.FULL, 280), (Method.LORA, 56), (Method.QLORA, 7)):
        found = RULES["formula of document 004"](make_shape(method))
        assert found is not None
        assert found * 7e9 / SEVEN / 1e9 == pytest.approx(gb, rel=1e-9)


def test_the_rule_of_accelerate_is_the_one_it_runs() -> None:
    from accelerate.commands.estimate import estimate_training_usage

    assert RULES["accelerate estimate-memory"](make_shape()) == max(estimate_training_usage(4 * SEVEN, "bfloat16").values())
    assert RULES["accelerate estimate-memory"](make_shape(Method.QLORA)) is None


def test_deepspeeds_rule_is_the_one_of_its_estimators() -> None:
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    assert RULES["DeepSpeed's estimators"](make_shape()) == estimate_zero2_model_states_mem_needs(SEVEN, 1, 1, cpu_offload=False)[1]
    block = 4 * 4096 * 4096 + 3 * 4096 * 11008
    eight = estimate_zero3_model_states_mem_needs(SEVEN, block, 8, 1, cpu_offload=False)[1]
    assert RULES["DeepSpeed's estimators"](make_shape(sharding="zero3", world_size=8)) == pytest.approx(eight, rel=1e-9)


def test_tables_and_formulas_give_what_they_print() -> None:
    assert RULES["LLaMA-Factory's table"](make_shape(Method.QLORA)) == pytest.approx(SEVEN / 2)
    assert RULES["16 bytes per trained parameter"](make_shape()) == 16 * SEVEN
    recomputed = RULES["Transformer Math 101"](make_shape(checkpointing=Checkpointing.FULL))
    assert recomputed == 16 * SEVEN + 2 * 2048 * 4096 * 32


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    evidence = load_evidence(CHECKOUT, FACTS)
    held_out = leave_out(fit(calibrate(CHECKOUT, FACTS, evidence).rows), "source")
    return list(rule_rows(memory_errors(FACTS, evidence.records), held_out))


def test_our_models_are_closer_to_the_published_results_than_every_rule(rows: list[Row]) -> None:
    for kind, count in (("memory", len(MEMORY_RULES)), ("speed", len(SPEED_RULES))):
        errors: dict[str, list[float]] = {}
        for row in rows:
            if row["kind"] == kind:
                errors.setdefault(row["rule"], []).append(abs(row["error"]))
        assert len(errors) == count + 1
        assert min(len(group) for group in errors.values()) >= 40
        medians = {name: median(group) for name, group in errors.items()}
        assert medians[OURS] == min(medians.values())
        if kind == "memory":
            assert medians[OURS] < 0.1 * min(size for name, size in medians.items() if name != OURS)


def test_a_rule_names_its_formula_and_its_source(rows: list[Row]) -> None:
    assert all(row["formula"] and row["source"] for row in rows)
