"""Logs of a person's own training: a record, its utilisation, its audit, its prediction and its neighbours, in one command."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from factories import Tunemark
from harness_making import warm
from hypothesis import given
from hypothesis import strategies as st

from tunemark.collector.importers import llamafactory, torchtune_log, trainer_state, wandb_export
from tunemark.collector.importers.own_log import OwnLog, Stated, judge, record_of
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.records.upgrade import read_record

H100 = Stated(
    model="llama-3.1-8b",
    method="lora",
    accelerator="nvidia-h100-80gb-sxm",
    devices=1,
    micro_batch=2,
    gradient_accumulation=4,
    sequence_length=2048,
    packing=True,
    precision="bf16",
)
CONDITIONS = (
    *("--method", "lora", "--model", "llama-3.1-8b", "--accelerator", "nvidia-h100-80gb-sxm", "--devices", 1),
    *("--micro-batch", 2, "--accumulate", 4, "--seq", 2048, "--packed", "--precision", "bf16", "--checkpointing", "full"),
)
FINAL = {
    "step": 10,
    "epoch": 1.0,
    "train_loss": 1.5,
    "train_runtime": 20.0,
    "train_samples_per_second": 4.0,
    "num_input_tokens_seen": 40_000,
}


@pytest.fixture
def logs(data: Path) -> Path:
    """The folder of logs."""
    return data / "own-logs"


def state_in(folder: Path, **changes: Any) -> Path:
    """Write a state of the HF Trainer with ten steps of four rows."""
    content = {"global_step": 10, "max_steps": 10, "epoch": 1.0, "log_history": [{"step": 5, "loss": 2.0}, FINAL], "train_batch_size": 2}
    path = folder / "trainer_state.json"
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return path


def values(log: OwnLog) -> dict[str, float]:
    return {name: claim.value for name, claim in log.claims.items()}


# The Hugging Face Trainer -----------------------------------------------------------------------------


def test_speed_and_tokens_of_a_state_are_those_of_its_last_timed_entry(tmp_path: Path):
    early = {"step": 5, "loss": 2.0, "train_runtime": 15.0, "train_tokens_per_second": 1_000.0, "num_input_tokens_seen": 15_000}
    log = trainer_state._read(state_in(tmp_path, log_history=[early, FINAL]))
    assert values(log) == {
        "steps": 10,
        "epochs": 1.0,
        "train_loss": 1.5,
        "train_time_s": 20.0,
        "samples_per_s": 4.0,
        "tokens": 40_000,
    }
    assert log.stated.micro_batch == 2
    assert not log.problems


def test_a_state_of_a_checkpoint_is_a_partial_record_without_a_time(tmp_path: Path, facts: FactBase):
    log = trainer_state._read(state_in(tmp_path, max_steps=20, log_history=[{"step": 5, "loss": 2.0}]))
    result = record_of(log, H100, facts, "999-001")
    assert (result.status.value, "train_time_s" in result.claims, result.claims["total_steps"].value) == ("partial", False, 20)


def test_a_diverged_training_is_a_failed_record(tmp_path: Path, facts: FactBase):
    path = state_in(tmp_path, log_history=[{"step": 5, "loss": float("nan")}, FINAL])
    result = record_of(trainer_state._read(path), H100, facts, "999-001")
    assert result.status.value == "failed"
    assert result.note == "The training diverged: log_history[0].loss is nan."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"log_history": [\n {"loss": 1.0,, }]}', "trainer_state.json:2:15"),
        ('{"global_step": 3}', "log_history"),
        ("[1, 2]", "log_history"),
    ],
)
def test_a_file_that_is_no_state_is_named_with_line_and_column(text: str, said: str, tmp_path: Path):
    (tmp_path / "trainer_state.json").write_text(text, encoding="utf-8")
    with pytest.raises(TunemarkError) as error:
        trainer_state._read(tmp_path / "trainer_state.json")
    assert said in str(error.value)


def test_a_figure_that_is_no_number_is_reported_with_its_field_and_the_rest_is_kept(tmp_path: Path):
    log = trainer_state._read(state_in(tmp_path, log_history=[7, FINAL | {"train_runtime": "soon"}]))
    assert [str(problem) for problem in log.problems] == [
        "trainer_state.json: log_history[0] is '7', not an object; left out",
        "trainer_state.json: log_history[1].train_runtime is 'soon', not a finite number; left out",
    ]
    assert values(log)["samples_per_s"] == 4.0


def test_fields_without_a_meaning_are_listed_as_not_used(tmp_path: Path):
    log = trainer_state._read(state_in(tmp_path, log_history=[{"loss": 2.0, "grad_norm": 1.0}, FINAL], best_metric=0.5))
    assert log.unused == {"grad_norm", "best_metric"}


@pytest.mark.slow
def test_a_real_training_with_transformers_is_imported_whole(tmp_path: Path, tunemark: Tunemark):
    subprocess.run(warm("trainer_process", tmp_path), check=True, capture_output=True, timeout=200)
    state = json.loads((tmp_path / "trainer_state.json").read_text(encoding="utf-8"))
    said = tunemark("import", "trainer-state", tmp_path / "trainer_state.json", *CONDITIONS, "--json")
    assert said.code == 0
    claims = json.loads(said.out)["record"]["claims"]
    final = state["log_history"][-1]
    assert claims["tokens"]["value"] == 6 * 2 * 32
    assert claims["steps"]["value"] == 6
    assert claims["train_time_s"]["value"] == final["train_runtime"]
    assert claims["train_loss"]["value"] == final["train_loss"]
    assert claims["total_flops"]["value"] == final["total_flos"]
    assert tunemark("import", "llamafactory", tmp_path, *CONDITIONS).code == 0


# torchtune --------------------------------------------------------------------------------------------


def test_the_rate_of_torchtune_is_the_median_without_the_warm_up_times_the_devices(logs: Path, facts: FactBase):
    log = torchtune_log._read(logs / "torchtune.txt")
    result = record_of(log, Stated(method="full", devices=4), facts, "999-001")
    assert result.claims["tokens_per_s"].value == 4 * 8_200.25
    assert result.claims["peak_memory_bytes"].value == pytest.approx(60.54 * 2**30)
    assert (result.claims["steps"].value, log.unused, log.problems) == (24, {"lr"}, [])


def test_the_rate_of_one_device_needs_the_number_of_devices(logs: Path, facts: FactBase):
    with pytest.raises(TunemarkError, match="--devices"):
        record_of(torchtune_log._read(logs / "torchtune.txt"), Stated(method="full"), facts, "999-001")


def test_lines_and_fields_that_cannot_be_read_are_named(tmp_path: Path):
    (tmp_path / "log.txt").write_text("Step 1 | loss:1.0 lr\nhello\nStep 2 | loss:0.9 tokens_per_second_per_gpu:fast\n", encoding="utf-8")
    assert [str(problem) for problem in torchtune_log._read(tmp_path / "log.txt").problems[:3]] == [
        "log.txt:1: 'lr' is not name:value; left out",
        "log.txt:2: 'hello' is not `Step N | name:value ...`; left out",
        "log.txt:3: tokens_per_second_per_gpu is 'fast', not a finite number; left out",
    ]


def test_two_trainings_in_one_torchtune_log_are_reported(tmp_path: Path):
    (tmp_path / "log.txt").write_text("Step 1 | loss:1.0\nStep 2 | loss:0.9\nStep 1 | loss:1.0\n", encoding="utf-8")
    assert any("more than one training" in str(problem) for problem in torchtune_log._read(tmp_path / "log.txt").problems)


@given(noise=st.text(alphabet="Step 0123456789|:.losnaif-\n", max_size=200))
def test_any_text_is_read_or_refused(noise: str, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("noise") / "log.txt"
    path.write_text(f"Step 1 | loss:1.0\n{noise}", encoding="utf-8")
    log = torchtune_log._read(path)
    assert log.losses
    assert log.losses[0] == 1.0


# LLaMA-Factory ----------------------------------------------------------------------------------------


def test_a_folder_of_llamafactory_states_its_own_conditions(logs: Path, facts: FactBase):
    log = llamafactory._read(logs / "llamafactory")
    result = record_of(log, Stated(accelerator="nvidia-h100-80gb-sxm", devices=1), facts, "999-001")
    conditions = result.conditions
    assert (conditions.model, conditions.method.value, conditions.micro_batch, conditions.gradient_accumulation) == (
        "llama-3.1-8b",
        "lora",
        1,
        8,
    )
    assert (conditions.sequence_length, conditions.precision, conditions.settings["lora_r"]) == (2048, "bf16", 8)
    assert conditions.settings["gradient_checkpointing"] is True
    assert (result.claims["tokens"].value, result.claims["train_time_s"].value) == (800_000, 200.5)
    assert result.claims["peak_memory_bytes"].value == 19.42 * 2**30
    assert not log.problems


def test_the_log_of_steps_is_enough_for_a_rate(logs: Path, tmp_path: Path):
    shutil.copy(logs / "llamafactory/trainer_log.jsonl", tmp_path)
    log = llamafactory._read(tmp_path)
    assert (values(log)["tokens"], values(log)["train_time_s"], values(log)["steps"]) == (800_000, 201, 50)


def test_results_of_another_training_are_reported(logs: Path, tmp_path: Path):
    folder = shutil.copytree(logs / "llamafactory", tmp_path / "out")
    results = json.loads((folder / "train_results.json").read_text(encoding="utf-8"))
    (folder / "train_results.json").write_text(json.dumps(results | {"train_runtime": 90.0}), encoding="utf-8")
    problems = [str(problem) for problem in llamafactory._read(folder).problems]
    assert problems == ["train_results.json: train_runtime is 90.0, and 200.5 in trainer_state.json: files of different trainings"]


def test_an_option_counts_more_than_the_arguments_and_the_contradiction_is_noted(logs: Path, facts: FactBase):
    log = llamafactory._read(logs / "llamafactory")
    result = record_of(log, Stated(micro_batch=4), facts, "999-001")
    assert result.conditions.micro_batch == 4
    assert [str(problem) for problem in log.problems] == ["llamafactory: --micro-batch is 4, and the log states 1; the option is used"]


def test_a_folder_without_a_log_is_refused(tmp_path: Path):
    with pytest.raises(TunemarkError, match=r"neither trainer_state\.json"):
        llamafactory._read(tmp_path)


# Weights & Biases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wandb-history.csv", "wandb-history.jsonl"])
def test_the_speed_of_a_history_is_work_over_time_after_the_warm_up(name: str, logs: Path):
    log = wandb_export._read(logs / name)
    found = values(log)
    assert found["step_time_s"] == pytest.approx((90.0 - 50.0) / 30)
    assert found["tokens_per_s"] == pytest.approx(30 * 16_384 / 40.0)
    assert (found["eval_loss"], found["device_memory_bytes"], found["power_w"], found["device_busy_mean"]) == (1.62, 2.25e10, 320.0, 0.94)
    assert (log.problems, log.unused) == ([], {"train/grad_norm", "train/learning_rate"})


def test_the_export_of_a_chart_is_refused_with_the_fix(tmp_path: Path):
    (tmp_path / "chart.csv").write_text('"Step","run-1 - train/loss","run-1 - train/loss__MIN"\n1,2.0,2.0\n', encoding="utf-8")
    with pytest.raises(TunemarkError, match=r"chart\.csv:1: 'run-1 - train/loss'.*run\.history"):
        wandb_export._read(tmp_path / "chart.csv")


def test_rows_and_cells_of_a_history_that_cannot_be_read_are_named(tmp_path: Path):
    (tmp_path / "h.csv").write_text("_runtime,train/global_step,train/loss\n1,5,2.0\nsoon,6,1.9\n3,7\n", encoding="utf-8")
    assert [str(problem) for problem in wandb_export._read(tmp_path / "h.csv").problems][:2] == [
        "h.csv:3: _runtime is 'soon', not a finite number; left out",
        "h.csv:4: 2 cells for 3 columns; left out",
    ]


def test_two_runs_in_one_history_are_reported(tmp_path: Path):
    (tmp_path / "h.csv").write_text("_runtime,train/global_step,train/loss\n1,5,2.0\n2,6,1.9\n1,5,2.0\n", encoding="utf-8")
    assert any("more than one run" in str(problem) for problem in wandb_export._read(tmp_path / "h.csv").problems)


# The shared part --------------------------------------------------------------------------------------


def test_rows_that_need_not_be_full_give_no_rate_of_tokens(tmp_path: Path, facts: FactBase):
    entry = {name: value for name, value in FINAL.items() if name != "num_input_tokens_seen"}
    for packing, rate in ((True, 2.0), (None, None)):
        log = trainer_state._read(state_in(tmp_path, log_history=[entry]))
        result = record_of(log, Stated(method="lora", packing=packing), facts, "999-001")
        step = result.claims.get("step_time_s")
        assert (step.value if step else None) == rate
        assert any("no count of tokens" in str(problem) for problem in log.problems) is (packing is None)


def test_the_time_of_a_resumed_session_gives_no_rate_of_all_tokens(tmp_path: Path, facts: FactBase):
    session = FINAL | {"train_runtime": 4.0, "train_steps_per_second": 0.5}
    log = trainer_state._read(state_in(tmp_path, log_history=[session]))
    result = record_of(log, H100, facts, "999-001")
    assert {"tokens", "tokens_per_s", "step_time_s"}.isdisjoint(result.claims)
    assert [str(problem) for problem in log.problems] == [
        "trainer_state.json: 10 steps in 4 s are 2.5 a second, and 0.5 are printed. A resumed training: its tokens and steps give no rate."
    ]


def test_a_byte_order_mark_is_no_part_of_a_history(tmp_path: Path):
    (tmp_path / "plain.csv").write_text("_runtime,train/global_step,train/loss\n1,5,2.0\n3,7,1.9\n", encoding="utf-8-sig")
    assert values(wandb_export._read(tmp_path / "plain.csv"))["step_time_s"] == 1.0


def test_the_judgement_has_rate_utilisation_prediction_and_neighbours_without_the_record_itself(tmp_path: Path, facts: FactBase):
    path = state_in(tmp_path, log_history=[FINAL | {"num_input_tokens_seen": 163_840, "train_samples_per_second": 4.0}])
    result = record_of(trainer_state._read(path), H100, facts, "999-001")
    judged = judge(result, "tuned", facts)
    assert judged.derived["tokens_per_s"][0] == 163_840 / 20
    mfu = judged.derived["mfu"][0]
    assert mfu is not None
    assert 0.2 < mfu < 0.5
    assert judged.derived["hfu"] == (None, "it is not stated whether activations are recomputed")
    assert hasattr(judged.prediction, "tokens_per_s")
    assert all(neighbour.id != result.id for neighbour in judged.neighbours)
    assert judged.neighbours[0].accelerator == facts.accelerators["nvidia-h100-80gb-sxm"].name
    assert [place.among for place in judged.places] == ["lora on H100 SXM5 80GB", "lora on any accelerator"]


def test_rows_that_are_padded_dynamically_may_be_shorter_than_the_longest(logs: Path, facts: FactBase):
    result = record_of(llamafactory._read(logs / "llamafactory"), Stated(accelerator="nvidia-h100-80gb-sxm", devices=1), facts, "999-001")
    assert (result.conditions.padding, result.conditions.assumed) == ("dynamic", ("rows are padded to the longest of their batch",))
    judged = judge(result, "plain", facts)
    assert judged.findings == ()
    assert "samples_per_s" not in judged.derived


def test_an_impossible_rate_is_found(tmp_path: Path, facts: FactBase):
    path = state_in(tmp_path, log_history=[FINAL | {"num_input_tokens_seen": 2_000_000}])
    judged = judge(record_of(trainer_state._read(path), H100, facts, "999-001"), "tuned", facts)
    assert any(finding.verdict.value == "impossible" and "tokens" in finding.quantities for finding in judged.findings)


def test_the_command_prints_everything_and_writes_a_record_that_validates(logs: Path, tmp_path: Path, tunemark: Tunemark):
    said = tunemark(
        "import", "wandb-export", logs / "wandb-history.csv", *CONDITIONS, "--software", "tuned", "--out", tmp_path / "run.json"
    )
    assert said.code == 0
    for words in ("Tokens/s", "MFU", "HFU", "Predicted with tuned software", "This training: ", "nearest result"):
        assert words in said.out
    record = read_record((tmp_path / "run.json").read_bytes())
    assert isinstance(record, PublishedResult)
    assert record.claims["step_time_s"].value == pytest.approx(4 / 3)
    again = tunemark("import", "wandb-export", logs / "wandb-history.csv", *CONDITIONS, "--out", tmp_path / "run.json")
    assert (again.code, "already exists" in again.err) == (2, True)
    into = tunemark("import", "wandb-export", logs / "wandb-history.csv", *CONDITIONS, "--out", tmp_path / "published")
    assert into.code == 0
    assert tunemark("validate", tmp_path / "published").code == 0


def test_json_is_everything_and_the_exit_code_tells_of_what_could_not_be_read(tmp_path: Path, tunemark: Tunemark):
    path = state_in(tmp_path, log_history=[{"loss": "low"}, FINAL])
    said = tunemark("import", "trainer-state", path, *CONDITIONS, "--json")
    assert said.code == 3
    content = json.loads(said.out)
    assert set(content) == {"record", "derived", "findings", "prediction", "nearest", "places", "losses", "problems", "not_used"}
    assert content["problems"][0]["reason"] == "log_history[0].loss is 'low', not a finite number; left out"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--method"),
        (("--method", "lora", "--model", "no-such-model"), "no-such-model"),
        (("--method", "lora", "--source", "12"), "--source"),
        (("--method", "lora", "--software", "fast"), "--software"),
    ],
)
def test_a_missing_method_and_unknown_words_are_usage_errors(options: tuple[str, ...], said: str, tmp_path: Path, tunemark: Tunemark):
    answer = tunemark("import", "trainer-state", state_in(tmp_path), *options)
    assert (answer.code, said in answer.err) == (2, True)
