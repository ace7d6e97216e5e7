"""Logs of a person's own training: figures exactly as printed, a record, its utilisation, its audit, its prediction and its neighbours."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from factories import Tunemark
from harness_making import warm
from hypothesis import example, given
from hypothesis import strategies as st

from tunemark.collector.importers.log import judge
from tunemark.collector.importers.log_formats import read_log
from tunemark.collector.importers.own_log import OwnLog, Stated, record_of
from tunemark.collector.importers.printed_log import read_printed_log
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.records.reading import read_record

H100: Stated = dict(  # noqa: C408 - keywords
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
    *("--method", "lora", "--model", "llama-3.1-8b", "--accelerator", "nvidia-h100-80gb-sxm", "--devices", 1, "--micro-batch", 2),
    *("--seq", 2048, "--set", "packing=true", "--set", "gradient_accumulation=4", "--set", "precision=bf16", "--set", "checkpointing=full"),
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


def read_one(path: Path) -> OwnLog:
    (log,) = read_log(path)
    return log


def values(log: OwnLog) -> dict[str, float]:
    return {name: claim.value for name, claim in log.claims.items()}


# The Hugging Face Trainer -----------------------------------------------------------------------------


def test_speed_and_tokens_of_a_state_are_those_of_its_last_timed_entry(tmp_path: Path):
    early = {"step": 5, "loss": 2.0, "train_runtime": 15.0, "train_tokens_per_second": 1_000.0, "num_input_tokens_seen": 15_000}
    log = read_one(state_in(tmp_path, log_history=[early, FINAL]))
    assert values(log) == {"steps": 10, "epochs": 1.0, "train_loss": 1.5, "train_time_s": 20.0, "samples_per_s": 4.0, "tokens": 40_000}
    assert log.stated["micro_batch"] == 2
    assert not log.problems


@pytest.mark.slow
def test_a_real_training_with_transformers_is_imported_whole(tmp_path: Path, tunemark: Tunemark):
    subprocess.run(warm("trainer_process", tmp_path), check=True, capture_output=True, timeout=200)
    state = json.loads((tmp_path / "trainer_state.json").read_text(encoding="utf-8"))
    said = tunemark("import", "log", tmp_path / "trainer_state.json", *CONDITIONS, "--json")
    assert said.code == 0
    claims = json.loads(said.out)[0]["record"]["claims"]
    assert "grad_norm" in json.loads(said.out)[0]["not_used"]
    final = state["log_history"][-1]
    assert claims["tokens"]["value"] == 6 * 2 * 32
    assert claims["steps"]["value"] == 6
    assert claims["train_time_s"]["value"] == final["train_runtime"]
    assert claims["train_loss"]["value"] == final["train_loss"]
    assert claims["total_flops"]["value"] == final["total_flos"]
    imported = tunemark("import", "log", tmp_path, *CONDITIONS)
    # The model of the log is a tiny one: its trainer computed far less per token than the stated 8B.
    assert (imported.code, "FLOPs of the trainer" in imported.out) == (0, True)


# torchtune --------------------------------------------------------------------------------------------


def test_the_rate_of_torchtune_is_the_median_without_the_warm_up_times_the_devices(logs: Path, facts: FactBase):
    log = read_one(logs / "torchtune.txt")
    result = record_of(log, {"method": "full", "devices": 4}, facts, "999-001")
    assert result.claims["tokens_per_s"].value == 4 * 8_200.25
    assert result.claims["peak_memory_bytes"].value == pytest.approx(60.54 * 2**30)
    assert (result.claims["steps"].value, log.problems) == (24, [])


# LLaMA-Factory ----------------------------------------------------------------------------------------


def test_a_folder_of_llamafactory_states_its_own_conditions(logs: Path, facts: FactBase):
    log = read_one(logs / "llamafactory")
    result = record_of(log, {"accelerator": "nvidia-h100-80gb-sxm", "devices": 1}, facts, "999-001")
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


# axolotl ----------------------------------------------------------------------------------------------

AXOLOTL = """\
base_model: meta-llama/Meta-Llama-3-8B
load_in_4bit: true
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
adapter: qlora
sequence_len: 4096
sample_packing: true
pad_to_sequence_len: true
lora_r: 32
gradient_accumulation_steps: 4
micro_batch_size: 2
bf16: true
fp16:
gradient_checkpointing: true
liger_rope: true
"""


def test_a_configuration_of_axolotl_states_the_conditions_of_its_log(tmp_path: Path, tunemark: Tunemark):
    (tmp_path / "qlora.yml").write_text(AXOLOTL, encoding="utf-8")
    said = tunemark("import", "log", state_in(tmp_path), tmp_path / "qlora.yml", "--json")
    assert said.code == 0, said.err
    record = json.loads(said.out)[0]["record"]
    expected = {"model": "llama-3-8b", "method": "qlora", "dataset": "tatsu-lab/alpaca", "sequence_length": 4096, "micro_batch": 2}
    expected |= {"gradient_accumulation": 4, "packing": True, "padding": "static", "precision": "bf16"}
    assert {name: record["conditions"][name] for name in expected} == expected
    settings = record["conditions"]["settings"]
    assert (settings["lora_r"], settings["gradient_checkpointing"], settings["software"]) == (32, True, "tuned")


@pytest.mark.parametrize(
    ("change", "to", "code", "expected"),
    [
        ("adapter: qlora", "adapter: qlora\nrl: dpo", 3, "rl: 'dpo': is another task"),
        ("adapter: qlora", "adapter: llama-adapter", 0, "adapter is 'llama-adapter', which is no known method; give --method"),
        ("base_model", "base", 3, "qlora.yml has neither model_name_or_path nor base_model"),
        ("base_model:", "x: !!python/object/apply:os.system [true]\nbase_model:", 3, "not valid YAML"),
    ],
    ids=["another task", "another method", "another file", "code in the file"],
)
def test_what_a_configuration_cannot_state_is_said(tmp_path: Path, tunemark: Tunemark, change: str, to: str, code: int, expected: str):
    (tmp_path / "qlora.yml").write_text(AXOLOTL.replace(change, to), encoding="utf-8")
    said = tunemark("import", "log", state_in(tmp_path), tmp_path / "qlora.yml")
    assert (said.code, expected in said.err) == (code, True), said.err


def test_a_configuration_alone_is_no_log(tmp_path: Path, tunemark: Tunemark):
    (tmp_path / "qlora.yml").write_text(AXOLOTL, encoding="utf-8")
    assert "give one log, and at most one configuration" in tunemark("import", "log", tmp_path / "qlora.yml").err


# Weights & Biases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wandb-history.csv", "wandb-history.jsonl"])
def test_the_speed_of_a_history_is_work_over_time_after_the_warm_up(name: str, logs: Path):
    log = read_one(logs / name)
    found = values(log)
    assert found["step_time_s"] == pytest.approx((90.0 - 50.0) / 30)
    assert found["tokens_per_s"] == pytest.approx(30 * 16_384 / 40.0)
    assert found["eval_loss"] == 1.62
    assert not log.problems


def test_the_export_of_a_chart_is_refused_with_the_fix(tmp_path: Path):
    (tmp_path / "chart.csv").write_text('"Step","run-1 - train/loss","run-1 - train/loss__MIN"\n1,2.0,2.0\n', encoding="utf-8")
    with pytest.raises(TunemarkError, match=r"chart\.csv:1: .*'run-1 - train/loss' is a column of a chart.*run\.history"):
        read_one(tmp_path / "chart.csv")


# The shared part --------------------------------------------------------------------------------------


def test_rows_that_need_not_be_full_give_no_rate_of_tokens(tmp_path: Path, facts: FactBase):
    entry = {name: value for name, value in FINAL.items() if name != "num_input_tokens_seen"}
    for packing, rate in ((True, 2.0), (None, None)):
        log = read_one(state_in(tmp_path, log_history=[entry]))
        result = record_of(log, {"method": "lora", "packing": packing}, facts, "999-001")
        step = result.claims.get("step_time_s")
        assert (step.value if step else None) == rate
        assert any("no count of tokens" in str(problem) for problem in log.problems) is (packing is None)


def test_the_time_of_a_resumed_session_gives_no_rate_of_all_tokens(tmp_path: Path, facts: FactBase):
    session = FINAL | {"train_runtime": 4.0, "train_steps_per_second": 0.5}
    log = read_one(state_in(tmp_path, log_history=[session]))
    result = record_of(log, H100, facts, "999-001")
    assert {"tokens", "tokens_per_s", "step_time_s"}.isdisjoint(result.claims)
    assert [str(problem).rpartition("/")[2] for problem in log.problems] == [
        "trainer_state.json: 10 steps in 4 s are 2.5 a second, and 0.5 are printed. A resumed training: its tokens and steps give no rate."
    ]


def test_the_judgement_has_rate_utilisation_prediction_and_neighbours_without_the_record_itself(tmp_path: Path, facts: FactBase):
    path = state_in(tmp_path, log_history=[FINAL | {"num_input_tokens_seen": 163_840, "train_samples_per_second": 4.0}])
    result = record_of(read_one(path), H100, facts, "999-001")
    judged = judge(result, "tuned", facts)
    assert judged["derived"]["tokens_per_s"]["value"] == 163_840 / 20
    mfu = judged["derived"]["mfu"]["value"]
    assert mfu is not None
    assert 0.2 < mfu < 0.5
    assert judged["derived"]["hfu"] == {"value": None, "calculation": "it is not stated whether activations are recomputed"}
    assert judged["prediction"]["tokens_per_s"]["low"] > 0
    assert all(neighbour["id"] != result.id for neighbour in judged["nearest"])
    assert judged["nearest"][0]["accelerator"] == facts.accelerators["nvidia-h100-80gb-sxm"].name


def test_the_command_prints_everything_and_writes_a_record_that_validates(logs: Path, tmp_path: Path, tunemark: Tunemark):
    said = tunemark("import", "log", logs / "wandb-history.csv", *CONDITIONS, "--set", "software=tuned", "--out", tmp_path / "run.json")
    assert said.code == 0
    for words in ("Tokens/s", "MFU", "HFU", "Predicted with tuned software", "This training: ", "nearest result"):
        assert words in said.out
    record = read_record((tmp_path / "run.json").read_bytes())
    assert isinstance(record, PublishedResult)
    assert record.claims["step_time_s"].value == pytest.approx(4 / 3)
    wrong = tunemark("import", "log", state_in(tmp_path, log_history=[{"loss": "low"}, FINAL]), *CONDITIONS, "--json")
    assert (wrong.code, json.loads(wrong.out)[0]["problems"][0]["reason"]) == (3, "loss is 'low', not a finite number; left out")
    again = tunemark("import", "log", logs / "wandb-history.csv", *CONDITIONS, "--out", tmp_path / "run.json")
    assert (again.code, "already exists" in again.err) == (2, True)


# Text that a trainer prints ---------------------------------------------------------------------------

NOT_IN_THE_LOG = {"device_memory_total_bytes", "device_memory_each_bytes"}
PRINTED = "{'train_runtime': 100.0, 'train_samples_per_second': 1.0, 'train_loss': 2.5, 'epoch': 1.0}"


def claims_of(text: str) -> list[dict[str, tuple[float, str]]]:
    return [{name: (claim.value, claim.printed) for name, claim in run.claims.items()} for run in read_printed_log(text, "log")]


def problems_of(text: str) -> list[str]:
    return [str(problem) for problem in read_printed_log(text, "log")[0].problems]


def test_pasting_the_two_logs_of_source_000_gives_the_claims_of_its_two_records(data: Path, project: Path):
    found = read_log(data / "trainer-log.txt")
    assert not found[0].problems
    assert len(found) == 2
    for number, run in enumerate(found, start=1):
        known = read_record((project / f"data/published/000/000-{number:03d}.json").read_bytes())
        assert isinstance(known, PublishedResult)
        wanted = {name: (claim.value, claim.printed) for name, claim in known.claims.items() if name not in NOT_IN_THE_LOG}
        assert {name: (claim.value, claim.printed) for name, claim in run.claims.items()} == wanted
        assert run.claims["step_time_s"].note == known.claims["step_time_s"].note


TABLE = """***** train metrics *****
  epoch                    =        3.0
  total_flos               =     2345GF
  train_loss               =     0.4321
  train_runtime            = {time}
  train_samples            =       3668
  train_samples_per_second =     12.345
***** eval metrics *****
  epoch                   =        2.0
  eval_loss               =     0.5123
  eval_runtime            = 0:00:01.20
"""


@pytest.mark.parametrize(
    ("time", "seconds", "printed"), [("0:01:23.45", 83.45, "0:01:23.45"), ("1 day, 0:01:23.45", 86_483.45, "86483.45")]
)
def test_the_table_of_the_trainer_is_read(time: str, seconds: float, printed: str):
    (claims,) = claims_of(TABLE.format(time=time).replace("\n", "\r\n"))
    assert (claims["train_time_s"], claims["total_flops"]) == ((seconds, printed), (2345 * 2**30, "2345GF"))
    assert (claims["epochs"], claims["train_loss"], claims["samples_per_s"]) == ((3.0, "3.0"), (0.4321, "0.4321"), (12.345, "12.345"))
    assert (claims["eval_loss"], claims["eval_time_s"]) == ((0.5123, "0.5123"), (1.2, "0:00:01.20"))
    assert "train_runtime is '1 day, noon:00', not a finite number" in problems_of(TABLE.format(time="1 day, noon:00"))[0]


def test_a_table_has_fewer_digits_than_the_dictionary_before_it_and_the_next_table_is_of_another_training():
    first, second = claims_of(f"{PRINTED}\n{TABLE.format(time='0:01:40.12')}{TABLE.format(time='0:02:00.00')}")
    assert (first["train_time_s"], first["total_flops"][1], second["train_time_s"][0]) == ((100.0, "100.0"), "2345GF", 120.0)


def test_bars_of_an_evaluation_are_not_those_of_the_training():
    (claims,) = claims_of(
        f"100%|##| 50/50 [01:40<00:00,  2.00s/it]\n{PRINTED}\n100%|##| 9/9 [00:03<00:00,  3.00it/s]\n{{'eval_loss': 1.5, 'eval_runtime': 3.0, 'epoch': 1.0}}"
    )
    assert (claims["steps"], claims["eval_loss"], claims["eval_time_s"]) == ((50.0, "50"), (1.5, "1.5"), (3.0, "3.0"))


def test_a_dictionary_is_read_whatever_stands_around_it():
    for text in (f"INFO 2026-11-20 12:00:00 {PRINTED}", f"\x1b[32m{PRINTED}\x1b[0m", f"INFO:root: {PRINTED} (done)"):
        assert claims_of(text) == claims_of(PRINTED)


@pytest.mark.parametrize("times", ["real 62.50\nuser 3.20\nsys 0.50", "real\t1m2.5s\nuser\t0m3.2s\nsys\t0m0.5s"])
def test_the_output_of_time_is_read(times: str):
    (claims,) = claims_of(times)
    assert (claims["wall_s"][0], claims["user_s"][0], claims["system_s"][0]) == (62.5, 3.2, 0.5)


@pytest.mark.parametrize("value", ["[1]", "'much'", "__import__('os').system('true')"])
def test_a_figure_that_is_no_number_is_left_out_and_reported(value: str):
    assert "log:1: train_loss is" in problems_of(f"{{'train_runtime': 100.0, 'train_loss': {value}}}")[0]


@given(noise=st.text(alphabet="{}'[]:,/<%|srealuty019 .itm\r\n-", max_size=300), at=st.integers(0, 200))
@example(noise="{'train_runtime': " + "(" * 5_000, at=0)
def test_any_printed_text_is_read_and_never_raises(noise: str, at: int):
    good = f"{PRINTED}\n 5/5 [00:10<00:00,  2.00s/it]\nreal 1m1s\n"
    assert any(run.claims for run in read_printed_log(good[:at] + noise + good[at:], "log"))


@pytest.mark.parametrize(
    ("text", "status", "note"),
    [
        ("{'train_runtime': 100.0, 'train_loss': nan}", "failed", "The training diverged"),
        (f"{{'loss': nan, 'grad_norm': nan}}\n{PRINTED}", "failed", "The training diverged"),
        (f"{{'loss': None}}\n{PRINTED}", "ok", ""),
        (" 3/50 [00:06<01:34,  2.00s/it]\nRuntimeError: HIP out of memory.\nreal 0m20.5s\n", "oom", "Out of memory in line 2 of the log."),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "oom", "Out of memory in line 1"),
        (" 3/50 [00:06<01:34,  2.00s/it]", "partial", "The log does not contain the end of the training."),
        (f"{PRINTED}\nreal 1m0.0s\n", "ok", "The whole process took 1m0.0s, less than its training (100.0 s)."),
    ],
)
def test_the_record_states_how_a_printed_training_ended(facts: FactBase, text: str, status: str, note: str):
    (run,) = read_printed_log(text, "log")
    result = record_of(run, {"method": "lora"}, facts, "999-001")
    assert result.status.value == status
    assert note in (result.note or "")


def test_a_record_is_of_one_training_and_passes_the_audit(tmp_path: Path, data: Path, tunemark: Tunemark):
    assert tunemark("import", "log", state_in(tmp_path), *CONDITIONS, "--out", tmp_path / "run.json").code == 0
    assert tunemark("audit", tmp_path / "run.json").code == 0
    said = tunemark("import", "log", data / "trainer-log.txt", "--method", "lora", "--out", tmp_path / "two.json")
    assert (said.code, "the log has 2 trainings; keep the lines of one" in said.err) == (2, True)


def test_standard_input_is_read(data: Path, tunemark: Tunemark, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((data / "trainer-log.txt").read_bytes())))
    said = tunemark("import", "log", "-", "--method", "lora", "--json")
    assert [answer["record"]["id"] for answer in json.loads(said.out)] == ["999-001", "999-002"]
