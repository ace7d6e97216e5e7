"""Configurations: repeats are pooled, and independent series that agree make a result reproduced."""

from datetime import UTC, datetime, timedelta

import pytest

from tunemark.collector.store.loading import pool_configurations
from tunemark.schema.statistics.intervals import one_more_run

START = datetime(2026, 11, 1, tzinfo=UTC)


def run(name, rate, hours=0.0, **changes):
    row = {
        "result_id": name,
        "source": "measured",
        "trust": "measured",
        "rankable": True,
        "tokens_per_s": rate,
        "started_at": START + timedelta(hours=hours),
        "study_id": None,
        "comparability_group": "group",
        "accelerator": "nvidia-l4",
        "software": "torch 2.13.0",
    }
    return row | changes


def test_repeats_are_one_configuration_with_the_interval_for_one_more_run():
    rows = [run("a", 100.0), run("b", 104.0), run("c", 97.0)]
    (pooled,) = pool_configurations(rows)
    expected = one_more_run([100.0, 104.0, 97.0])
    assert (pooled["tokens_per_s"], pooled["tokens_per_s_low"], pooled["tokens_per_s_high"]) == (
        expected.value,
        expected.low,
        expected.high,
    )
    assert (pooled["runs"], pooled["result_ids"]) == (3, ["a", "b", "c"])
    assert pooled["between_run_cv"] == pytest.approx(0.0349, abs=1e-3)
    assert {row["configuration"] for row in rows} == {pooled["configuration"]}


@pytest.mark.parametrize(
    "change",
    [
        {"accelerator": "nvidia-t4"},
        {"accelerator_count": 2},
        {"software": "torch 2.12.0"},
        {"compile": "blocks"},
        {"fp8": "frozen weights"},
        {"comparability_group": "other"},
    ],
)
def test_runs_that_differ_in_device_software_or_a_lever_are_other_configurations(change):
    assert len(pool_configurations([run("a", 100.0), run("b", 101.0, **change)])) == 2


@pytest.mark.parametrize("change", [{"rankable": False}, {"source": "003"}, {"comparability_group": None}, {"tokens_per_s": None}])
def test_only_rankable_measured_runs_with_all_conditions_known_belong_to_a_configuration(change):
    row = run("a", 100.0, **change)
    assert pool_configurations([row]) == []
    assert row.get("configuration") is None


@pytest.mark.parametrize(("later_rate", "reproduced"), [(101.0, True), (130.0, False)])
def test_a_configuration_is_reproduced_if_a_later_series_agrees(later_rate, reproduced):
    first = [run("a", 100.0), run("b", 103.0, 0.1), run("c", 98.0, 0.2)]
    later = run("d", later_rate, 24.0)
    (pooled,) = pool_configurations([*first, later])
    assert (pooled["series"], pooled["reproduced"]) == (2, reproduced)
    assert {row["trust"] for row in (*first, later)} == {"reproduced" if reproduced else "measured"}
