"""Trainer logs: what a trainer prints at its end becomes claims, exactly as printed."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from factories import Tunemark
from hypothesis import example, given
from hypothesis import strategies as st

from tunemark.collector.importers.trainer_log import StatedConditions, record
from tunemark.collector.importers.trainer_output import read_trainer_log
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.records.upgrade import read_record
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
    said = StatedConditions("000", 1, "Neuron", "qwen3-8b", Method.LORA, "Trainium", 16, "trn1.32xlarge")
    result = record(first, 0, said, facts)
    assert (result.id, result.conditions.model, result.conditions.accelerator, result.status.value) == (
        "000-001",
        "qwen3-8b",
        "aws-trainium1",
        "ok",
    )


def test_a_record_needs_a_stated_method(data: Path, facts: FactBase):
    (first, _) = read_trainer_log((data / "trainer-log.txt").read_text(encoding="utf-8"), "log").runs
    with pytest.raises(TunemarkError, match="--method"):
        record(first, 0, StatedConditions("000", 1, "Log"), facts)


def test_a_bar_that_rewrites_its_line_counts_once():
    bars = "".join(f"\r {step}/10 [00:{step:02d}<00:01,  1.00s/it]" for step in range(1, 11))
    (claims,) = claims_of(bars)
    assert claims == {"progress_elapsed_s": (10.0, "00:10"), "steps": (10.0, "10"), "step_time_s": (1.0, "1.00s/it")}


def test_steps_per_second_become_seconds_per_step():
    (run,) = read_trainer_log("100%|###| 50/50 [00:20<00:00,  2.50it/s]", "log").runs
    assert (run.claims["step_time_s"].value, run.claims["step_time_s"].printed) == (0.4, "2.50it/s")
    assert run.claims["step_time_s"].note == "Printed as steps per second."


def test_a_bar_that_ends_early_gives_the_planned_steps():
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
def test_a_figure_that_is_not_finite_is_left_out_and_reported(value: str):
    found = read_trainer_log(f"{{'train_runtime': 100.0, 'train_loss': {value}}}", "log")
    assert set(found.runs[0].claims) == {"train_time_s"}
    assert str(found.problems[0]).startswith("log:1: train_loss is")


def test_a_dictionary_that_is_cut_off_is_reported_with_its_line():
    found = read_trainer_log("\n{'train_runtime': 100.0, 'train_loss': 2.", "log")
    assert str(found.problems[0]) == "log:2: a dictionary that is cut off or not a Python literal; ignored"


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
    assert (first["id"], second["id"], second["claims"]["tokens"]["printed"]) == (None, None, "9603960.0")
    named = json.loads(tunemark("import", "trainer-log", data / "trainer-log.txt", "--source", "000", "--json").out)
    assert [one["id"] for one in named] == ["000-001", "000-002"]


def test_the_command_reads_standard_input_and_writes_records(
    tmp_path: Path, data: Path, tunemark: Tunemark, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((data / "trainer-log.txt").read_bytes())))
    said = tunemark("import", "trainer-log", "-", "--source", "005", "--first-number", 3, "--method", "lora", "--out", tmp_path)
    assert said.code == 0
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")) == [
        "005/005-003.json",
        "005/005-004.json",
        "005/source.json",
    ]
    assert tunemark("validate", tmp_path).code == 0


def test_the_command_never_overwrites_a_record(tmp_path: Path, data: Path, tunemark: Tunemark):
    for code in (0, 2):
        said = tunemark("import", "trainer-log", data / "trainer-log.txt", "--source", "005", "--method", "lora", "--out", tmp_path)
        assert said.code == code
    said = tunemark(
        "import", "trainer-log", data / "trainer-log.txt", "--source", "005", "--first-number", 2, "--method", "lora", "--out", tmp_path
    )
    assert said.code == 2
    assert len(list(tmp_path.rglob("*-*.json"))) == 2, "nothing is written where one of the records is there"


def test_records_need_a_source_and_add_to_the_count_of_its_document(tmp_path: Path, data: Path, tunemark: Tunemark):
    log = data / "trainer-log.txt"
    refused = tunemark("import", "trainer-log", log, "--method", "lora", "--out", tmp_path)
    assert (refused.code, "--source" in refused.err) == (2, True)
    second = tmp_path / "second.txt"
    # The same rows under other ids would be copies.
    second.write_text(re.sub(r"('train_loss': \d+\.\d\d)", r"\g<1>5", log.read_text(encoding="utf-8")), encoding="utf-8")
    for read, first, results in ((log, 1, 2), (second, 3, 4)):
        said = tunemark("import", "trainer-log", read, "--source", "005", "--first-number", first, "--method", "lora", "--out", tmp_path)
        assert said.code == 0
        assert json.loads((tmp_path / "005" / "source.json").read_bytes())["results"] == results
        assert tunemark("validate", tmp_path).code == 0
    (tmp_path / "005" / "source.json").unlink()
    assert "has 4 results but no source.json" in tunemark("validate", tmp_path).err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--instance", "g5.13xlarge"), "instance: 'g5.13xlarge': not in data/prices; did you mean 'g5.12xlarge'"),
        (("--accelerator", "RTX 4070 Ti (16GB)"), "the GeForce RTX 4070 Ti has 12 GB, not 16; did you mean 'RTX 4070 Ti'"),
        (("--accelerator", "h100"), "did you mean 'nvidia-h100-80gb-sxm'"),
        (("--model", "llama-3-8c"), "did you mean 'llama-3-8b'"),
        (("--method", "lorra"), "--method: 'lorra': did you mean 'lora' or 'qlora'?"),
        (("--instance", "g5.12xlarge", "--accelerator", "nvidia-l4"), "an instance g5.12xlarge has nvidia-a10g"),
    ],
)
def test_names_are_resolved_also_when_nothing_is_written(data: Path, tunemark: Tunemark, options: tuple[str, ...], said: str):
    answered = tunemark("import", "trainer-log", data / "trainer-log.txt", *options)
    assert (answered.code, answered.out) == (2, "")
    assert said in answered.err


# How a run ended ------------------------------------------------------------------------------------------


def only_record(text: str, facts: FactBase) -> PublishedResult:
    (run,) = read_trainer_log(text, "log").runs
    return record(run, 0, StatedConditions("005", 1, "Log", method=Method.LORA), facts)


def test_a_loss_that_is_not_a_number_is_a_failed_run(facts: FactBase):
    for text in (
        "{'train_runtime': 100.0, 'train_loss': nan}",
        '{"train_runtime": 100.0, "train_loss": NaN}',
        f"{{'loss': nan, 'grad_norm': nan}}\n{FINAL}",
    ):
        result = only_record(text, facts)
        assert result.status.value == "failed"
        assert "The training diverged" in (result.note or "")


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: HIP out of memory.",
        "[rank0]: torch.cuda.OutOfMemoryError: CUDA out of memory.",
    ],
)
def test_a_run_out_of_memory_has_that_status(facts: FactBase, line: str):
    assert only_record(line, facts).status.value == "oom"
    result = only_record(f" 3/50 [00:06<01:34,  2.00s/it]\n{line}\nreal 0m20.5s\n", facts)
    assert (result.status.value, result.claims["steps"].value, result.note) == ("oom", 3, "Out of memory in line 2 of the log.")


def test_a_log_that_ends_early_is_partial(facts: FactBase):
    result = only_record(" 3/50 [00:06<01:34,  2.00s/it]", facts)
    assert (result.status.value, result.note) == ("partial", "The log ends without the final line of the Trainer.")


@pytest.mark.parametrize(
    ("figure", "left_out"),
    [
        ("'train_runtime': -100.0", "train_time_s"),
        ("'train_samples_per_second': 0.0", "samples_per_s"),
        ("'train_loss': -2", "train_loss"),
        ("'num_tokens': 0", "tokens"),
    ],
)
def test_a_figure_that_is_not_an_amount_is_left_out_and_reported(figure: str, left_out: str):
    found = read_trainer_log(f"{{{figure}, 'epoch': 1.0, 'eval_loss': 2.0}}", "log")
    assert left_out not in found.runs[0].claims
    assert "not an amount; left out" in str(found.problems[0])


def test_figures_that_contradict_each_other_are_noted(facts: FactBase):
    slow = "100%|##| 50/50 [01:40<00:00,  2.00s/it]\n{'train_runtime': 100.0, 'train_steps_per_second': 0.9, 'epoch': 1.0}\nreal 1m0.0s\n"
    found = read_trainer_log(slow, "log")
    assert [problem.noted for problem in found.problems] == [True, True]
    note = only_record(slow, facts).note or ""
    assert "The whole process took 1m0.0s, less than its training (100.0 s)." in note
    assert "50 steps in 100.0 s are 0.5 a second, and 0.9 are printed." in note


# What stands around the figures ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"INFO 2026-11-20 12:00:00 {FINAL}",
        f"[rank0]: {FINAL}",
        f"\x1b[32m{FINAL}\x1b[0m",
        FINAL.replace("'", '"'),
        f"INFO:root: {FINAL} (done)",
    ],
)
def test_a_dictionary_is_read_whatever_stands_around_it(text: str):
    assert claims_of(text) == claims_of(FINAL)


def test_a_dictionary_after_the_bar_on_its_line_is_read_with_it():
    (claims,) = claims_of(f"100%|##| 50/50 [01:40<00:00,  2.00s/it]{FINAL}")
    assert (claims["steps"], claims["train_time_s"]) == ((50.0, "50"), (100.0, "100.0"))


TABLE = """***** train metrics *****
  epoch                    =        3.0
  total_flos               =     2345GF
  train_loss               =     0.4321
  train_runtime            = 0:01:23.45
  train_samples            =       3668
  train_samples_per_second =     12.345
  train_steps_per_second   =      1.543
***** eval metrics *****
  epoch                   =        3.0
  eval_loss               =     0.5123
  eval_runtime            = 0:00:01.20
"""


def test_the_table_of_the_trainer_is_read():
    (claims,) = claims_of(TABLE)
    assert claims["train_time_s"] == (83.45, "0:01:23.45")
    assert claims["total_flops"] == (2345 * 2**30, "2345GF")
    assert (claims["epochs"], claims["eval_loss"], claims["eval_time_s"]) == ((3.0, "3.0"), (0.5123, "0.5123"), (1.2, "0:00:01.20"))


def test_a_table_after_its_dictionary_adds_only_what_is_new():
    (claims,) = claims_of(f"{FINAL}\n{TABLE}")
    assert (claims["train_time_s"], claims["train_loss"]) == ((100.0, "100.0"), (2.5, "2.5"))
    assert claims["steps_per_s"] == (1.543, "1.543")
    assert len(claims_of(f"{TABLE}\n{TABLE}")) == 2


@pytest.mark.parametrize(
    ("text", "wall", "user"),
    [
        ("3.20user 0.50system 0:15.25elapsed 24%CPU (0avgtext+0avgdata 1024maxresident)k", 15.25, 3.2),
        ("real 62.50\nuser 3.20\nsys 0.50", 62.5, 3.2),
        ("\tUser time (seconds): 3.20\n\tSystem time (seconds): 0.50\n\tElapsed (wall clock) time (h:mm:ss or m:ss): 1:02:03", 3_723, 3.2),
    ],
)
def test_every_form_of_time_is_read(text: str, wall: float, user: float):
    (claims,) = claims_of(text)
    assert (claims["wall_s"][0], claims["user_s"][0], claims["system_s"][0]) == (wall, user, 0.5)
