"""Public calculators and rules of thumb: each is the rule that its source states, and ours are closer to what was published."""

from statistics import median

import pytest
from factories import CHECKOUT, FACTS

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.predict.calibration_rows import calibrate
from tunemark.collector.predict.cross_validation import leave_out, throughput_rows
from tunemark.collector.predict.fit import fit
from tunemark.collector.predict.predicted_vs_measured import memory_errors
from tunemark.collector.store.database import Row, arrow_schemas, as_arrow, build_database
from tunemark.collector.store.sql_query import run_query

OURS = "Tunemark"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """The rows of the view `rule_errors` for all results of the checkout."""
    evidence, schemas = load_evidence(CHECKOUT, FACTS), arrow_schemas()
    fitted = fit(calibrate(CHECKOUT, FACTS, evidence).rows)
    speed = throughput_rows(fitted, list(leave_out(fitted, "source")), {}, ())["throughput_errors"]
    tables = {"memory_errors": list(memory_errors(FACTS, evidence.records)), "throughput_errors": speed}
    database = tmp_path_factory.mktemp("rules") / "tunemark.duckdb"
    build_database(database, {name: as_arrow(part, schemas[name]) for name, part in tables.items()})
    return run_query("select * from rule_errors", database).records()


def test_our_models_are_closer_to_the_published_results_than_every_rule(rows: list[Row]) -> None:
    for kind, count in (("memory", 4), ("speed", 5)):
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
