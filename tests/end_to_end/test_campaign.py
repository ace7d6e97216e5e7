"""The campaign on a GPU machine: its stages fit, its runs are valid, it skips what is done, and a rehearsal runs without a hand on it."""

import json
import os
import subprocess
import sys
import tarfile

import gpu_campaign
import overhead
import pytest
import torch
from harness_making import FACTS, ROOT, make_machine, ran
from transformers import AutoModelForCausalLM
from typer.main import get_command

from tunemark.cli import COMMANDS
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.studies.series import read_submission
from tunemark.harness.worker.models import config_of
from tunemark.schema.formats import MISSING
from tunemark.schema.plan.resolve import apply_overrides

CONTENT = gpu_campaign.campaign()
STAGES = gpu_campaign.stages(CONTENT)
RUNS = [run for runs in STAGES.values() for run in runs if not run.is_benchmark]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_fits_a_command_of_ten_minutes(stage):
    assert sum(run.minutes for run in STAGES[stage]) <= gpu_campaign.LIMIT_MINUTES


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_run_and_its_rehearsal_name_a_workload_settings_and_options_that_exist_and_can_run_on_a_cpu(run):
    card, _ = apply_overrides(FACTS.workload(run.workload), tuple(run.set))
    assert card.key == run.workload
    assert run.anchor is None or {"tokens_per_s", "device", "conditions", "source"} == set(CONTENT["anchors"][run.anchor])
    assert len({other.name for other in RUNS}) == len(RUNS)
    rehearsed = gpu_campaign.rehearsed(run, CONTENT["rehearsal"])
    command = get_command(__import__(COMMANDS[run.command][0], fromlist=["app"]).app).commands[run.command]
    for made in (run, rehearsed):
        assert command.make_context(run.command, made.words[2:]).params["workload"] == made.workload
    packages = dict.fromkeys(("torch", "transformers", "peft", "accelerate", "torchao"), "99.0")
    resolved = resolve(rehearsed.workload, FACTS, make_machine(packages=packages), Options(overrides=tuple(rehearsed.set)))
    assert resolved.unsupported is None
    assert resolved.plan.data.packing is FACTS.workload(run.workload).data.packing
    assert rehearsed.minutes == CONTENT["rehearsal"]["minutes"]


def test_the_report_shows_energy_the_first_step_and_how_far_the_predicted_memory_is_off():
    records = list(gpu_campaign.read(ROOT / "submissions" / "smoke-lora"))
    _title, results, *_ = "\n".join(gpu_campaign.report(records, [])).split("\n\n")
    header, _, *rows = [line.split(" | ") for line in results.splitlines()]
    assert {len(row) for row in rows} == {len(header)}
    assert header[11:14] == ["difference", "J per 1k tokens", "s to first step"]
    assert any(float(row[13]) > 0 for row in rows if row[13] != MISSING)


@pytest.mark.parametrize("size", overhead.SIZES)
def test_the_plan_of_each_size_of_the_overhead_benchmark_is_supported(size, tmp_path):
    made = overhead.setting(size, tmp_path / "work")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(made.card))
    assert sum(parameter.numel() for parameter in model.parameters()) == made.card.parameters
    assert made.plan.precision.parameters.value == ("bf16" if size == overhead.BILLION_SIZE else "fp32")


@pytest.mark.parametrize(("history", "carried"), [(None, True), ("older", True), ("newer", False)])
def test_a_copy_whose_history_lacks_the_carried_commit_states_that_commit(tmp_path, monkeypatch, history, carried):
    def git(*words):
        identity = ("-c", "user.name=n", "-c", "user.email=e")
        return subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True, text=True).stdout.strip()

    commit = "a" * 40
    if history:
        git("init")
        git("commit", "--allow-empty", "-m", "first")
        if history == "newer":
            commit = git("rev-parse", "HEAD")
            git("commit", "--allow-empty", "-m", "second")
    for name, path in (("ROOT", tmp_path), ("WHEELS", tmp_path / ".wheels"), ("BUILT_FROM", tmp_path / "built_from.json")):
        monkeypatch.setattr(gpu_campaign, name, path)
    monkeypatch.setattr(gpu_campaign.os, "execv", lambda *_: None)
    monkeypatch.delenv(gpu_campaign.PREPARED, raising=False)
    (tmp_path / ".wheels").mkdir()
    (tmp_path / ".wheels" / "built_from.json").write_text(json.dumps({"commit": commit, "dirty": False}), encoding="utf-8")
    gpu_campaign.prepare()
    assert (gpu_campaign.BUILT_FROM.exists(), "GIT_DIR" in os.environ) == (carried, carried)


def test_a_run_that_outlasts_its_limit_is_stopped_so_that_it_can_write():
    # A test run in the background of a shell ignores Ctrl-C, and so would its child.
    code = "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "try: time.sleep(60)\nexcept KeyboardInterrupt: raise SystemExit(6)"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    assert gpu_campaign.end_of(process, 5.0) == ("limit", 6)


@pytest.mark.nightly
def test_a_rehearsal_runs_through_and_a_second_one_skips_what_is_done(tmp_path):
    out, only = tmp_path / "out", ("--only", "lora-8b varlen", "--only", "003 Phi-3-mini LoRA")
    command = [sys.executable, ROOT / "benchmarks" / "gpu_campaign.py", "remaining", "source-003", "--rehearse", *only]
    command += ["--work", tmp_path / "work", "--out", out]
    first = ran(command)
    assert first.returncode == 0, first.stdout + first.stderr + (out / "log.txt").read_text(encoding="utf-8")
    assert first.stdout.count(": done, ") == 2
    entries = json.loads((out / "campaign.json").read_text(encoding="utf-8"))
    assert [entry["code"] for entry in entries] == [0, 0]
    with tarfile.open(out / "submissions.tar.gz") as archive:
        names = [name for name in archive.getnames() if name.endswith(".json")]
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert len(names) == 2
    records = [read_submission(tmp_path / "unpacked" / name, (tmp_path / "unpacked" / name).read_bytes()) for name in names]
    assert sorted(record.plan.data.packing for record in records) == [False, True]
    table = (out / "table.md").read_text(encoding="utf-8")
    assert table.count("| smoke-lora | open |") == 2
    assert "12,473 tokens/s, 1 x H100" in table
    assert sum(path.stat().st_size for path in out.iterdir()) < 16 * 2**20
    second = ran(command, timeout=60)
    assert second.returncode == 0
    assert len(json.loads((out / "campaign.json").read_text(encoding="utf-8"))) == 2
