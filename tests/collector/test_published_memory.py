"""Predicted memory against published rows: within the goal, and closer than other calculators."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, median

from factories import FACTS

from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.predict.predicted_vs_measured import memory_errors
from tunemark.schema.formats import GIB
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.memory_states import ERROR, SHARDED_ERROR
from tunemark.schema.records.published import PublishedResult

PUBLISHED = [
    PublishedResult.model_validate(json.loads(file.read_text())) for file in sorted((FACTS.root / "published/003").glob("003-*.json"))
]
OUTSIDE = [
    PublishedResult.model_validate(record)
    for source in ("010", "017", "019", "022")
    for record in json.loads((FACTS.root / f"published/{source}/results.json").read_text())["results"]
]


@dataclass(frozen=True)
class Summary:
    """Absolute relative errors of many rows."""

    rows: int
    median: float
    worst: float


def summarise(pairs: Iterable[tuple[float | None, float]]) -> Summary:
    """Return the errors of pairs of predicted and published values; those without a prediction are left out."""
    errors = [abs(predicted / published - 1) for predicted, published in pairs if predicted is not None]
    return Summary(len(errors), median(errors), max(errors))


def test_the_rows_of_source_003_are_predicted_within_the_goal() -> None:
    rows = list(memory_errors(FACTS, PUBLISHED))
    summary = summarise((row["predicted_bytes"], row["published_bytes"]) for row in rows)
    table = "\n".join(
        f"{row['result_id']} {row['model']:14} {row['method']:5} {row['published_bytes'] / 1e9:5.1f} {row['predicted_bytes'] / 1e9:5.1f}"
        f" {row['error']:+.1%}"
        for row in rows
    )
    assert summary.rows == 58, table
    assert summary.median <= 0.10, table
    assert summary.worst <= 0.25, table


def test_published_peaks_of_outside_sources_are_predicted_and_hardly_ever_too_low() -> None:
    rows = list(memory_errors(FACTS, OUTSIDE))
    live = [row for row in rows if row["quantity"] == "allocated"]
    errors = [row["error"] for row in live]
    assert len(errors) >= 80
    assert median(abs(error) for error in errors) <= 0.05
    assert min(errors) > -0.10
    bounds = {True: SHARDED_ERROR, False: ERROR}
    inside = [bounds[row["accelerator_count"] > 1] for row in live]
    assert (
        mean(low <= row["published_bytes"] / row["predicted_bytes"] <= high for row, (low, high) in zip(live, inside, strict=True)) >= 0.9
    )


def test_no_published_step_that_ran_out_of_memory_is_said_to_fit_and_hardly_any_that_ran_is_said_not_to() -> None:
    verdicts: dict[str, list[str]] = {"ok": [], "oom": []}
    for result in (*PUBLISHED, *OUTSIDE):
        shape = published_shape(result.conditions, FACTS, reading := FACTS.known.memory_reading(result.source))
        device = FACTS.accelerators.get(result.conditions.accelerator or "")
        if (
            shape is not None
            and device is not None
            and device.memory_gib
            and result.id not in reading.left_out
            and result.status.value in verdicts
        ):
            verdicts[result.status.value].append(estimate_memory(shape).fit_on(int(device.memory_gib * GIB)))
    assert len(verdicts["ok"]) > 130
    assert len(verdicts["oom"]) > 35
    assert not {"fits", "probably"} & set(verdicts["oom"])
    assert mean(verdict == "fits" for verdict in verdicts["ok"]) > 0.9
    assert "no" not in verdicts["ok"]
