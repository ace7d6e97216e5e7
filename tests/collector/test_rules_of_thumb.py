"""Public calculators and rules of thumb: each is the rule that its source states, and ours are closer to what was published."""

from statistics import median

import pytest
from factories import CHECKOUT, FACTS

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.predict.calibration_rows import calibrate
from tunemark.collector.predict.cross_validation import leave_out
from tunemark.collector.predict.fit import fit
from tunemark.collector.predict.predicted_vs_measured import memory_errors
from tunemark.collector.predict.rules_of_thumb import MEMORY_RULES, OURS, SPEED_RULES, rule_rows
from tunemark.collector.store.database import Row


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
