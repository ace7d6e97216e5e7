"""Predictions against published rows: within the goal, and closer than public calculators and rules of thumb."""

import json
from pathlib import Path
from statistics import mean, median

from factories import FACTS

from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.commands.database import run_query
from tunemark.collector.predict.predicted_vs_measured import memory_errors
from tunemark.schema.formats import GIB
from tunemark.schema.physics.memory import ERROR, SHARDED_ERROR, estimate_memory
from tunemark.schema.records.published import PublishedResult

PUBLISHED = [
    PublishedResult.model_validate(json.loads(file.read_text())) for file in sorted((FACTS.root / "published/003").glob("003-*.json"))
]
OUTSIDE = [
    PublishedResult.model_validate(record)
    for source in ("010", "017", "019", "022")
    for record in json.loads((FACTS.root / f"published/{source}/results.json").read_text())["results"]
]


def test_the_rows_of_source_003_are_predicted_within_the_goal() -> None:
    rows = list(memory_errors(FACTS, PUBLISHED))
    errors = [abs(row["predicted_bytes"] / row["published_bytes"] - 1) for row in rows]
    table = "\n".join(
        f"{row['result_id']} {row['model']:14} {row['method']:5} {row['published_bytes'] / 1e9:5.1f} {row['predicted_bytes'] / 1e9:5.1f}"
        f" {row['error']:+.1%}"
        for row in rows
    )
    assert len(errors) == 58, table
    assert median(errors) <= 0.10, table
    assert max(errors) <= 0.25, table


def test_published_peaks_of_outside_sources_are_predicted_and_hardly_ever_too_low() -> None:
    rows = list(memory_errors(FACTS, OUTSIDE))
    live = [row for row in rows if row["quantity"] == "allocated"]
    errors = [row["error"] for row in live]
    assert len(errors) >= 80
    assert median(abs(error) for error in errors) <= 0.05
    assert min(errors) > -0.10
    bounds = {True: SHARDED_ERROR, False: ERROR}
    inside = [bounds[row["accelerator_count"] > 1] for row in live]
    ratios = [row["published_bytes"] / row["predicted_bytes"] for row in live]
    assert mean(low <= ratio <= high for ratio, (low, high) in zip(ratios, inside, strict=True)) >= 0.9
    # The states of the first update settle in blocks that activations have left.
    sharded = [row for row in rows if row["quantity"] == "in use" and row["method"] == "full" and row["accelerator_count"] > 1]
    assert len(sharded) == 4
    assert max(abs(row["error"]) for row in sharded) < 0.05


def test_no_published_step_that_ran_out_of_memory_is_said_to_fit_and_hardly_any_that_ran_is_said_not_to() -> None:
    verdicts: dict[str, list[str]] = {"ok": [], "oom": []}
    for result in (*PUBLISHED, *OUTSIDE):
        shape = published_shape(result.conditions, FACTS, reading := FACTS.known.memory_reading(result.source))
        device = FACTS.accelerators.get(result.conditions.accelerator or "")
        known = shape is not None and device is not None and device.memory_gib and result.id not in reading.left_out
        if known and result.status.value in verdicts:
            verdicts[result.status.value].append(estimate_memory(shape).fit_on(int(device.memory_gib * GIB)))
    assert len(verdicts["ok"]) > 130
    assert len(verdicts["oom"]) > 35
    assert not {"fits", "probably"} & set(verdicts["oom"])
    assert mean(verdict == "fits" for verdict in verdicts["ok"]) > 0.9
    assert "no" not in verdicts["ok"]


def test_our_models_are_closer_to_the_published_results_than_every_rule(whole_database: Path) -> None:
    rows = run_query("from rule_errors", whole_database).records()
    assert all(row["formula"] and row["source"] for row in rows)
    for kind, count in (("memory", 4), ("speed", 5)):
        errors: dict[str, list[float]] = {}
        for row in rows:
            if row["kind"] == kind:
                errors.setdefault(row["rule"], []).append(abs(row["error"]))
        assert len(errors) == count + 1
        assert min(len(group) for group in errors.values()) >= 40
        medians = {name: median(group) for name, group in errors.items()}
        assert medians["Tunemark"] == min(medians.values())
        if kind == "memory":
            assert medians["Tunemark"] < 0.1 * min(size for name, size in medians.items() if name != "Tunemark")
