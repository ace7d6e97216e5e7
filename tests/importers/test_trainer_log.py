"""Trainer logs: what a trainer prints at its end becomes claims, exactly as printed."""

import io
import json
import sys
from pathlib import Path

import pytest
from factories import Tunemark
from hypothesis import example, given
from hypothesis import strategies as st

from tunemark.collector.importers.published_record import Said, record
from tunemark.collector.importers.trainer_log import read_trainer_log
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts import FactBase
from tunemark.schema.history import read_record
from tunemark.schema.published import PublishedResult
from tunemark.schema.vocabulary import Method

NOT_IN_THE_LOG = {"device_memory_total_bytes", "device_memory_each_bytes"}
FINAL = "{'train_runtime': 100.0, 'train_samples_per_second': 1.0, 'train_loss': 2.5, 'epoch': 1.0}"


def claims_of(text: str) -> list[dict[str, tuple[float, str]]]:
    return [{name: (claim.value, claim.printed) for name, claim in run.claims.items()} for run in read_trainer_log(text, "log").runs]


def test_pasting_the_two_logs_of_source_000_gives_the_claims_of_its_two_records(data: Path, project: Path):
    found = read_trainer_log((data / "trainer-log.txt").read_text(encoding="utf-8"), "log")
    assert not found.problems
    assert len(found.runs) == 2
    for number, run in enumerate(found.runs, start=1):
        known = read_record((project / f"data/published/000/000-{number:03d}.json").read_bytes())
        assert isinstance(known, PublishedResult)
        wanted = {name: (claim.value, claim.printed) for name, claim in known.claims.items() if name not in NOT_IN_THE_LOG}
        assert {name: (claim.value, claim.printed) for name, claim in run.claims.items()} == wanted
        assert run.claims["step_time_s"].note == known.claims["step_time_s"].note


def test_the_records_are_valid_and_name_their_source(data: Path, facts: FactBase):
    (first, _) = read_trainer_log((data / "trainer-log.txt").read_text(encoding="utf-8"), "log").runs
    said = Said("000", 1, "Neuron", "qwen3-8b", Method.LORA, "Trainium", 16, "trn1.32xlarge")
    result = record(first, 0, said, facts)
    assert (result.id, result.conditions.model, result.conditions.accelerator, result.status.value) == (
        "000-001",
        "qwen3-8b",
        "aws-trainium1",
        "ok",
    )


def test_the_method_has_to_be_said(data: Path, facts: FactBase):
    (first, _) = read_trainer_log((data / "trainer-log.txt").read_text(encoding="utf-8"), "log").runs
    with pytest.raises(TunemarkError, match="--method"):
        record(first, 0, Said("000", 1, "Log"), facts)


def test_a_bar_that_rewrites_its_line_counts_once():
    bars = "".join(f"\r {step}/10 [00:{step:02d}<00:01,  1.00s/it]" for step in range(1, 11))
    (claims,) = claims_of(bars)
    assert claims == {"progress_elapsed_s": (10.0, "00:10"), "steps": (10.0, "10"), "step_time_s": (1.0, "1.00s/it")}


def test_steps_a_second_become_seconds_a_step():
    (run,) = read_trainer_log("100%|###| 50/50 [00:20<00:00,  2.50it/s]", "log").runs
    assert (run.claims["step_time_s"].value, run.claims["step_time_s"].printed) == (0.4, "2.50it/s")
    assert run.claims["step_time_s"].note == "Printed as steps a second."


def test_a_bar_that_ends_early_says_how_many_steps_were_planned():
    (claims,) = claims_of("40%|##  | 20/50 [00:20<00:30,  1.00s/it]")
    assert claims["total_steps"] == (50.0, "50")


def test_bars_of_an_evaluation_are_not_those_of_the_training():
    (claims,) = claims_of(
        f"100%|##| 50/50 [01:40<00:00,  2.00s/it]\n{FINAL}\n100%|##| 9/9 [00:03<00:00,  3.00it/s]\n{{'eval_loss': 1.5, 'eval_runtime': 3.0, 'epoch': 1.0}}"
    )
    assert (claims["steps"], claims["eval_loss"], claims["eval_time_s"]) == ((50.0, "50"), (1.5, "1.5"), (3.0, "3.0"))


def test_runs_that_follow_one_another_are_kept_apart():
    one = f"100%|##| 50/50 [01:40<00:00,  2.00s/it]\n{FINAL}\n"
    two = f"100%|##| 25/25 [01:40<00:00,  4.00s/it]\n{FINAL}\n"
    assert [claims["steps"][0] for claims in claims_of(one + two)] == [50.0, 25.0]
    assert [claims["steps"][0] for claims in claims_of(one + "real 2m0.5s\nuser 3m0s\nsys 0m1s\n" + two)] == [50.0, 25.0]


def test_hours_in_the_output_of_time():
    (claims,) = claims_of("real\t1h31m41.436s\nuser\t0m0.000s\nsys\t78m18.630s")
    assert claims == {"wall_s": (5_501.436, "1h31m41.436s"), "user_s": (0.0, "0m0.000s"), "system_s": (4_698.63, "78m18.630s")}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "__import__('os').system('true')", "[1]", "'much'"])
def test_what_is_no_finite_number_is_left_out_and_reported(value: str):
    found = read_trainer_log(f"{{'train_runtime': 100.0, 'train_loss': {value}}}", "log")
    assert set(found.runs[0].claims) == {"train_time_s"}
    assert str(found.problems[0]).startswith("log:1: train_loss is")


def test_a_dictionary_that_is_cut_off_is_reported_with_its_line():
    found = read_trainer_log("\n{'train_runtime': 100.0, 'train_loss': 2.", "log")
    assert str(found.problems[0]) == "log:2: a dictionary that is cut off or no Python literal; passed over"


def test_a_log_without_any_of_it_is_reported():
    assert "neither a final dictionary" in str(read_trainer_log("hello\n", "log").problems[0])


@given(st.text(alphabet="{}'[]:,/<%|srealuty019 .itm\r\n-", max_size=300), st.integers(0, 200))
@example("{'train_runtime': " + "(" * 5_000, 0)
def test_any_text_is_judged_and_not_raised(noise: str, at: int):
    good = f"{FINAL}\n 5/5 [00:10<00:00,  2.00s/it]\nreal 1m1s\n"
    for run in read_trainer_log(good[:at] + noise + good[at:], "log").runs:
        assert run.claims


def test_the_command_shows_the_claims(data: Path, tunemark: Tunemark):
    said = tunemark("import", "trainer-log", data / "trainer-log.txt", "--json")
    assert said.code == 0
    first, second = json.loads(said.out)
    assert (first["id"], second["id"], second["claims"]["tokens"]["printed"]) == ("000-001", "000-002", "9603960.0")


def test_the_command_reads_standard_input_and_writes_records(
    tmp_path: Path, data: Path, tunemark: Tunemark, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((data / "trainer-log.txt").read_bytes())))
    said = tunemark("import", "trainer-log", "-", "--source", "005", "--first-number", 3, "--method", "lora", "--out", tmp_path)
    assert said.code == 0
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")) == ["005/005-003.json", "005/005-004.json"]
    assert tunemark("validate", tmp_path).code == 0


def test_the_command_never_overwrites_a_record(tmp_path: Path, data: Path, tunemark: Tunemark):
    for code in (0, 2):
        assert tunemark("import", "trainer-log", data / "trainer-log.txt", "--method", "lora", "--out", tmp_path).code == code
