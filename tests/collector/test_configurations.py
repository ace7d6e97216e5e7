"""Configurations: repeats are pooled, and submitters who agree make a result reproduced."""

import subprocess
from pathlib import Path

import pytest

from tunemark.collector.gate.cross_file_checks import submitters
from tunemark.collector.store.loading import pool_configurations
from tunemark.schema.statistics.intervals import one_more_run


def run(name, rate, **changes):
    row = {"result_id": name, "source": "measured", "trust": "measured", "rankable": True, "tokens_per_s": rate}
    row |= {"accelerator": "nvidia-l4", "software": "torch 2.13.0", "comparability_group": "group", "file": f"submissions/{name}.json"}
    return row | changes


def test_repeats_are_one_configuration_with_the_interval_for_one_more_run():
    rows = [run("a", 100.0), run("b", 104.0), run("c", 97.0)]
    (pooled,) = pool_configurations(rows, {})
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
    assert len(pool_configurations([run("a", 100.0), run("b", 101.0, **change)], {})) == 2


@pytest.mark.parametrize("change", [{"rankable": False}, {"source": "003"}, {"comparability_group": None}, {"tokens_per_s": None}])
def test_only_rankable_measured_runs_with_all_conditions_known_belong_to_a_configuration(change):
    row = run("a", 100.0, **change)
    assert pool_configurations([row], {}) == []
    assert row.get("configuration") is None


@pytest.mark.parametrize(("rate", "author", "reproduced"), [(104.0, "b@b", True), (130.0, "b@b", False), (104.0, "a@a", False)])
def test_a_configuration_is_reproduced_if_another_submitter_agrees_within_5_percent(rate, author, reproduced):
    rows = [run("a", 100.0), run("b", 103.0), run("c", 98.0), run("d", rate)]
    (pooled,) = pool_configurations(rows, {row["file"]: author if row["result_id"] == "d" else "a@a" for row in rows})
    assert (pooled["submitters"], pooled["reproduced"]) == (1 + (author != "a@a"), reproduced)
    assert {row["trust"] for row in rows} == {"reproduced" if reproduced else "measured"}


def test_the_submitter_of_a_result_is_the_author_of_the_commit_that_added_it(tmp_path: Path):
    def git(*words):
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=b@b", *words], check=True, capture_output=True)

    assert submitters(tmp_path) == {}
    git("init", "-q")
    (tmp_path / "submissions").mkdir()
    for name, author in (("one", "a <a@a>"), ("two", "b <b@b>")):
        (tmp_path / "submissions" / f"{name}.json").write_text(name)
        git("add", ".")
        git("commit", "-qm", name, f"--author={author}")
    assert submitters(tmp_path) == {"submissions/one.json": "a@a", "submissions/two.json": "b@b"}
