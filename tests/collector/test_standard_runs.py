"""A run is what its card says, on the device that it reports, under the project's own rules of measurement."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from factories import ELSEWHERE, FACTS, Tunemark, give_to_git, make_submission, opened, save

from tunemark.collector.gate.check import judge_bytes
from tunemark.collector.store.loading import collect
from tunemark.collector.store.sql_query import run_query
from tunemark.schema.facts.workloads import shared_settings
from tunemark.schema.records.base import canonical_json

H100 = {"plan.device.accelerator": "nvidia-h100-80gb-sxm", "plan.device.backend": "cuda", "environment.backend": "cuda"}
OLD_CARD = {"plan.workload_sha256": "0" * 64}
CARD = FACTS.workloads["smoke-lora"]


def problems_with(**overrides: object) -> list[str]:
    content = canonical_json(make_submission(**overrides))
    return [str(problem) for problem in judge_bytes(content, Path("record.json"), FACTS).problems]


CHANGES: list[tuple[str, dict[str, object]]] = [
    ("lora.rank", {"plan.lora.rank": 1}),
    ("lora.target_modules", {"plan.lora.target_modules": ["q_proj"]}),
    ("model", {"plan.model.key": "llama-3.2-1b"}),
    ("task", {"plan.model.task": "sequence_classification"}),
    ("labels", {"plan.model.labels": 3}),
    ("gradient_checkpointing", {"plan.model.gradient_checkpointing": "full"}),
    ("data.source", {"plan.data.source": "hub"}),
    ("data.name", {"plan.data.name": "other"}),
    ("data.sequence_length", {"plan.data.sequence_length": 256}),
    ("data.padding", {"plan.data.padding": "static"}),
    ("data.packing", {"plan.data.packing": True}),
    ("data.training_rows", {"plan.data.training_rows": 9}),
    ("data.evaluation_rows", {"plan.data.evaluation_rows": 9}),
    ("batch.gradient_accumulation", {"plan.batch.micro_batch": 4, "plan.batch.gradient_accumulation": 2, "plan.batch.global_batch": 8}),
    ("optimizer.learning_rate", {"plan.optimizer.learning_rate": 0.5}),
    ("optimizer.weight_decay", {"plan.optimizer.weight_decay": 0.1}),
    ("optimizer.scheduler", {"plan.optimizer.scheduler": "cosine"}),
    ("optimizer.max_grad_norm", {"plan.optimizer.max_grad_norm": None}),
]


@pytest.mark.parametrize(("field", "change"), CHANGES, ids=[field for field, _ in CHANGES])
def test_a_standard_run_follows_its_card_in_every_setting(field: str, change: dict[str, object]) -> None:
    found = problems_with(**change)
    assert [line for line in found if "a run in division 'standard' must follow its card" in line] == found[:1]
    assert not any(words in line for line in problems_with(**opened(field, **change)) for words in ("must follow", "must list"))
    undeclared = problems_with(**change, **ELSEWHERE)
    assert f"add {field} to the overrides" in undeclared[0]


def test_a_method_without_adapters_is_a_change_of_two_settings() -> None:
    change = {"plan.method": "full", "plan.lora": None}
    assert sum("must follow its card" in line for line in problems_with(**change)) == 2
    assert problems_with(**opened("method", "lora", **change)) == []


def test_the_format_of_matrix_products_is_compared_where_the_card_gives_one() -> None:
    plan = make_submission().plan
    assert [one.field for one in shared_settings(plan, CARD) if one.field == "compute"] == []
    fixed = CARD.model_copy(update={"compute": "bf16"})
    assert [(one.card, one.run) for one in shared_settings(plan, fixed) if one.field == "compute"] == [("bf16", "fp32")]


def test_pretrained_weights_are_those_that_the_model_card_names() -> None:
    found = problems_with(**{"plan.model.weights": "pretrained", "plan.model.hub_id": "someone/else"}, **ELSEWHERE)
    assert any("plan.model.hub_id: 'someone/else'" in line for line in found)


@pytest.mark.parametrize("field", ["min_warmup_steps", "min_steady_steps", "min_steady_s"])
@pytest.mark.parametrize("division", [{}, ELSEWHERE], ids=["standard", "open"])
def test_a_record_does_not_lower_the_rules_of_measurement(field: str, division: dict[str, object]) -> None:
    found = problems_with(**{f"plan.measurement.{field}": 1}, **division)
    assert len(found) == 1
    assert found[0].startswith(f"plan.measurement.{field}: 1: it is ")


def test_a_failed_run_does_not_lower_them_either() -> None:
    failed = {"outcome.status": "crash", "outcome.message": "boom", "outcome.fix": "run it again"}
    assert len(problems_with(**failed, **{"plan.measurement.min_steady_s": 0})) == 1


def test_a_device_is_the_one_that_it_reports() -> None:
    assert problems_with(**H100, **{"environment.devices.0.name": "NVIDIA H100 80GB HBM3"}) == []
    assert (
        "environment.devices reports 'AMD EPYC', a device without a card"
        in problems_with(**H100, **{"environment.devices.0.name": "AMD EPYC"})[0]
    )
    assert "the device of nvidia-t4" in problems_with(**H100, **{"environment.devices.0.name": "Tesla T4"})[0]


def test_a_run_is_on_the_devices_it_was_planned_for() -> None:
    assert "plan.device.backend is 'cpu'" in problems_with(**{"environment.backend": "cuda"})[0]


def test_a_scripted_device_measures_nothing(checkout: Path, tunemark: Tunemark) -> None:
    save(checkout, make_submission(**{"plan.device.backend": "fake", "environment.backend": "fake"}))
    for command in ("validate", "collect"):
        said = tunemark(command)
        assert said.code == 3
        assert "a scripted device measures nothing" in said.err


def test_a_run_of_a_changed_card_is_a_problem_until_git_has_it(checkout: Path, tunemark: Tunemark) -> None:
    save(checkout, make_submission(**OLD_CARD, **{"plan.optimizer.learning_rate": 0.5}))
    said = tunemark("validate")
    assert (said.code, said.err.count("smoke-lora/")) == (3, 1)
    assert "is not the card smoke-lora of this catalogue, which may have changed since the run; run it again" in said.err
    give_to_git(checkout)
    said = tunemark("validate")
    assert (said.code, said.out.startswith("1 record and ")) == (0, True)
    assert "note: plan.workload_sha256" in said.err


def test_a_committed_run_of_a_changed_card_is_shown_as_open_and_shares_no_ranking(checkout: Path) -> None:
    save(checkout, make_submission(**OLD_CARD))
    give_to_git(checkout)
    db = checkout / "build" / "tunemark.duckdb"
    done = collect(checkout, db)
    assert (done.problems, len(done.notes)) == ([], 1)
    assert run_query("select division, rankable, note from results", db).rows == [
        ("open", False, "the card smoke-lora has changed since; declared as a standard run of it")
    ]


def test_an_invented_card_does_not_switch_off_the_comparison_with_the_card(checkout: Path, tunemark: Tunemark) -> None:
    save(checkout, make_submission(**OLD_CARD, **{"plan.optimizer.learning_rate": 0.5}, **ELSEWHERE))
    assert "is not the card smoke-lora of this catalogue" in tunemark("validate").err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ({"field": "optimizer.learning_rate", "card": 0.004, "run": 0.1}, "the plan has 0.5"),
        ({"field": "optimizer.learning_rate", "card": 0.001, "run": 0.5}, "the card smoke-lora has 0.004"),
        ({"field": "optimizer.speed", "card": 1, "run": 2}, "the card smoke-lora has no such setting"),
        ({"field": "optimizer.name", "card": "adamw", "run": "adamw"}, "changes nothing"),
    ],
)
def test_an_override_says_what_the_card_and_the_plan_have(override: dict[str, object], said: str) -> None:
    declared = opened("optimizer.learning_rate", **{"plan.optimizer.learning_rate": 0.5})
    assert problems_with(**declared) == []
    assert any(said in line for line in problems_with(**{**declared, "overrides": [override]}))


def test_a_device_added_to_the_catalogue_is_a_problem_of_new_runs_only(checkout: Path, tunemark: Tunemark) -> None:
    save(checkout, make_submission(**{"environment.devices.0.name": "AMD EPYC 7763 64-Core Processor"}))
    assert "the catalogue now has the device as amd-epyc-7763" in tunemark("validate").err
    give_to_git(checkout)
    assert tunemark("validate").code == 0


def test_a_run_from_the_future_is_refused() -> None:
    now = datetime.now(tz=UTC)
    assert "is in the future" in problems_with(started_at=(now + timedelta(days=2)).isoformat())[0]
    assert problems_with(started_at=(now + timedelta(hours=20)).isoformat()) == []
