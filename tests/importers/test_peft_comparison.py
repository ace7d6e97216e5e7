"""Runs of PEFT's method comparison become records with the figures that describe training alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from factories import CHECKOUT, Tunemark

from tunemark.collector.importers.peft_comparison import read_runs, record, trimmed
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.published import PublishedResult, PublishedSet
from tunemark.schema.vocabulary import Method, PublishedStatus

RUNS: list[dict[str, Any]] = json.loads((CHECKOUT / "data/tables/011/runs.json").read_bytes())


def run_of(experiment: str) -> dict[str, Any]:
    """Return a copy of the first stored run of an experiment."""
    return json.loads(json.dumps(next(run for run in RUNS if run["run_info"]["experiment_name"].startswith(experiment))))


def recorded(run: dict[str, Any], facts: FactBase) -> PublishedResult:
    """Return the record of a run."""
    return record("901-001", "run.json", trimmed(run), "github.com/huggingface/peft@0123456", facts)


def test_memory_of_training_is_the_peak_and_the_largest_of_the_run_stays_apart(facts: FactBase) -> None:
    run = run_of("lora/llama-3.2-3B-rank32")
    claims = recorded(run, facts).claims
    assert claims["peak_memory_bytes"].value == run["train_info"]["accelerator_memory_reserved_99th"]
    assert "99th percentile" in (claims["peak_memory_bytes"].note or "")
    assert claims["device_memory_bytes"].value == run["train_info"]["accelerator_memory_max"]


def test_the_rate_is_one_of_the_printed_ones_and_the_time_with_evaluation_is_no_training_time(facts: FactBase) -> None:
    run = run_of("lora/llama-3.2-3B-rank32")
    claims = recorded(run, facts).claims
    printed = sorted(entry["tokens / sec"] for entry in run["train_info"]["metrics"] if "tokens / sec" in entry)
    assert claims["tokens_per_s"].value == printed[(len(printed) - 1) // 2]
    assert "train_time_s" not in claims
    assert claims["wall_s"].value == run["run_info"]["total_time"]


@pytest.mark.parametrize(
    ("experiment", "method", "named"),
    [("full-finetuning", Method.FULL, None), ("lora/llama-3.2-3B-rank32", Method.LORA, "lora"), ("ia3", Method.PEFT, "ia3")],
)
def test_the_method_follows_the_adapter_configuration(experiment: str, method: Method, named: str | None, facts: FactBase) -> None:
    result = recorded(run_of(experiment), facts)
    assert result.conditions.method is method
    assert result.conditions.settings.get("peft_method") == named


def test_software_and_device_are_conditions(facts: FactBase) -> None:
    conditions = recorded(run_of("lora/llama-3.2-3B-rank32"), facts).conditions
    assert conditions.accelerator == "nvidia-l40s"
    assert conditions.framework["torch"].startswith("2.")
    assert conditions.settings["attention"] == "sdpa"
    assert conditions.assumed == ("settings.attention",)


def test_a_run_that_failed_keeps_its_reason(facts: FactBase) -> None:
    run = run_of("ia3")
    run["train_info"] |= {"status": "canceled", "metrics": []}
    run["run_info"]["error_msg"] = "CUDA out of memory\x1b[2J"
    result = recorded(run, facts)
    assert result.status is PublishedStatus.FAILED
    assert result.note == "The run ended with canceled. CUDA out of memory [2J"
    assert "tokens_per_s" not in result.claims


def test_a_run_in_two_folders_counts_once_and_broken_files_are_named(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ia3.json").write_text(json.dumps(run_of("ia3")), encoding="utf-8")
    (tmp_path / "b/broken.json").write_text('{\n "run_info": ', encoding="utf-8")
    (tmp_path / "b/other.json").write_text("{}", encoding="utf-8")
    problems: list[Any] = []
    assert len(list(read_runs([tmp_path / "a", tmp_path / "b"], problems))) == 1
    assert [(problem.file, problem.line, problem.noted) for problem in problems] == [
        ("broken.json", 2, False),
        (run_of("ia3")["file"], None, True),
        ("other.json", None, False),
    ]


def test_the_command_writes_a_set_and_reports_a_file_without_a_field(tunemark: Tunemark, tmp_path: Path) -> None:
    good, bad = run_of("ia3"), run_of("full-finetuning")
    del bad["meta_info"]["package_info"]
    (tmp_path / "good.json").write_text(json.dumps(good), encoding="utf-8")
    (tmp_path / "zbad.json").write_text(json.dumps(bad), encoding="utf-8")
    said = tunemark(
        "import", "peft-comparison", tmp_path, "--source", "901", "--out", tmp_path / "out", "--extract", tmp_path / "runs.jsonl"
    )
    assert said.code == 3
    assert "'package_info' is missing" in said.err
    written = PublishedSet.model_validate_json((tmp_path / "out/901/results.json").read_bytes())
    assert [result.id for result in written.results] == ["901-001"]
    assert json.loads((tmp_path / "out/901/source.json").read_bytes())["results"] == 1
