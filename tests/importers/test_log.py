"""Logs of a person's own training: figures exactly as printed, a record, its utilisation, its audit, its prediction and its neighbours."""

import io
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from factories import CHECKOUT, FACTS, Tunemark, assert_golden
from hypothesis import example, given
from hypothesis import strategies as st

from tunemark.collector.importers.log import judge, read_log
from tunemark.collector.importers.own_log import Stated, read_printed_log, record_of
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.reading import read_record

pytestmark = pytest.mark.usefixtures("beside_few_documents")
DATA = Path(__file__).with_name("data")
LOGS = DATA / "own-logs"
H100: Stated = {"model": "llama-3.1-8b", "method": "lora", "accelerator": "nvidia-h100-80gb-sxm", "devices": 1, "micro_batch": 2}
H100 |= {"gradient_accumulation": 4, "sequence_length": 2048, "packing": True, "precision": "bf16"}
CONDITIONS = (
    *("--method", "lora", "--model", "llama-3.1-8b", "--accelerator", "1 x H100", "--micro-batch", 2),
    *("--seq", "2k", "--set", "packing=true", "--set", "gradient_accumulation=4", "--set", "precision=bf16", "--set", "checkpointing=full"),
)
FINAL = {"step": 10, "epoch": 1.0, "train_loss": 1.5, "train_runtime": 20.0}
FINAL |= {"train_samples_per_second": 4.0, "num_input_tokens_seen": 40_000}


def state_in(folder: Path, **changes: Any) -> Path:
    """Write a state of the HF Trainer with ten steps of four rows."""
    content = {"global_step": 10, "max_steps": 10, "epoch": 1.0, "log_history": [{"step": 5, "loss": 2.0}, FINAL], "train_batch_size": 2}
    path = folder / "trainer_state.json"
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return path


FOLDER = Path(__file__).with_name("cases")
CASES = {name: case for name, (case,) in tomllib.loads((FOLDER / "log.toml").read_text(encoding="utf-8")).items()}


def outcome(case: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yield what becomes of a log, a line each: conditions, figures as computed and as printed, how it ended, and problems."""
    log, configuration = (folder if "text" in case else LOGS) / case["file"], folder / "qlora.yml"
    if "text" in case:
        log.write_text(case["text"], encoding="utf-8", newline="")
    if "configuration" in case:
        configuration.write_text(case["configuration"], encoding="utf-8")
    try:
        training = read_log(log, configuration if "configuration" in case else None)
    except TunemarkError as error:
        yield f"refused with exit code {int(error.exit_code)}: {error}"
        return
    stated: Stated = case.get("stated", {})
    result = record_of(training, stated, FACTS) if "method" in training.stated | stated else None
    conditions = result.conditions.model_dump(mode="json", exclude_defaults=True) if result else training.stated
    yield "; ".join(f"{name} {value}" for name, value in conditions.items())
    yield from (f"{name} {claim.value:.12g}, printed {claim.printed}" for name, claim in (result or training).claims.items())
    yield from ([f"{result.status.value}: {result.note or ''}"] if result else [])
    yield from map(str, training.problems)


def test_each_log_gives_its_conditions_figures_status_and_problems(tmp_path: Path):
    lines = [f"# {name}\n" + "\n".join(outcome(case, tmp_path)) for name, case in CASES.items()]
    assert_golden(FOLDER / "log.txt", "\n".join(lines).replace(f"{tmp_path}/", "").replace(f"{LOGS}/", "") + "\n")


def test_the_judgement_has_rate_utilisation_and_prediction_without_the_record_itself(tmp_path: Path, few_documents: Path):
    path = state_in(tmp_path, log_history=[FINAL | {"num_input_tokens_seen": 163_840, "train_samples_per_second": 4.0}])
    result = record_of(read_log(path), H100, FACTS)
    judged = judge(result, "tuned", FactBase.of_root(few_documents))
    assert judged["derived"]["tokens_per_s"]["value"] == 163_840 / 20
    mfu = judged["derived"]["mfu"]["value"]
    assert 0.2 < mfu < 0.5
    assert judged["derived"]["hfu"] == {"value": None, "calculation": "it is not stated whether activations are recomputed"}
    assert judged["prediction"]["tokens_per_s"]["low"] > 0


def test_the_command_prints_everything_and_writes_a_record_that_validates(tmp_path: Path, tunemark: Tunemark):
    said = tunemark("import", "log", LOGS / "wandb-history.csv", *CONDITIONS, "--set", "software=tuned", "--out", tmp_path / "run.json")
    assert said.code == 0
    for words in ("Tokens/s", "MFU", "HFU", "Predicted with tuned software", "This training: "):
        assert words in said.out
    record = read_record((tmp_path / "run.json").read_bytes())
    assert record.claims["step_time_s"].value == pytest.approx(4 / 3)
    wrong = tunemark("import", "log", state_in(tmp_path, log_history=[{"loss": "low"}, FINAL]), *CONDITIONS, "--json")
    assert (wrong.code, json.loads(wrong.out)["problems"][0]["reason"]) == (3, "loss is 'low', not a finite number; left out")
    again = tunemark("import", "log", LOGS / "wandb-history.csv", *CONDITIONS, "--out", tmp_path / "run.json")
    assert (again.code, "already exists" in again.err) == (2, True)


NOT_IN_THE_LOG = {"device_memory_total_bytes", "device_memory_each_bytes"}
PRINTED = "{'train_runtime': 100.0, 'train_samples_per_second': 1.0, 'train_loss': 2.5, 'epoch': 1.0}"


def test_pasting_the_two_logs_of_source_000_gives_the_claims_of_its_two_records():
    for number, file in enumerate(("trainer-log.txt", "trainer-log-2.txt"), start=1):
        run = read_log(DATA / file)
        assert not run.problems
        known = read_record((CHECKOUT / f"data/published/000/000-{number:03d}.json").read_bytes())
        wanted = {name: (claim.value, claim.printed) for name, claim in known.claims.items() if name not in NOT_IN_THE_LOG}
        assert {name: (claim.value, claim.printed) for name, claim in run.claims.items()} == wanted
        assert run.claims["step_time_s"].note == known.claims["step_time_s"].note


@given(noise=st.text(alphabet="{}'[]:,/<%|srealuty019 .itm\r\n-", max_size=300), at=st.integers(0, 200))
@example(noise="{'train_runtime': " + "(" * 5_000, at=0)
def test_any_printed_text_is_read_and_never_raises(noise: str, at: int):
    good = f"{PRINTED}\n 5/5 [00:10<00:00,  2.00s/it]\nreal 1m1s\n"
    assert read_printed_log(good[:at] + noise + good[at:], "log").claims


def test_a_record_passes_the_audit(tmp_path: Path, tunemark: Tunemark):
    assert tunemark("import", "log", state_in(tmp_path), *CONDITIONS, "--out", tmp_path / "run.json").code == 0
    assert tunemark("audit", tmp_path / "run.json").code == 0


def test_standard_input_is_read_and_names_are_those_of_estimate(tunemark: Tunemark, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((DATA / "trainer-log.txt").read_bytes())))
    said = tunemark("import", "log", "-", "--method", "lora", "-m", "Llama-3.3-70B", "-a", "8 x H100", "--set", "rank=8", "--json")
    count = json.loads(said.out)["record"]["conditions"]["accelerator_count"]
    assert (count, "'H100' is read as" in said.err) == (8, True)
