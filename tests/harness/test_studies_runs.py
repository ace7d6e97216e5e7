"""Series in real processes: stopped and resumed, limited in memory, and used for predictions."""

import json
import signal
import subprocess

import pytest
from harness_making import run_json, tunemark, warm

from tunemark.schema.records.reading import read_record
from tunemark.schema.vocabulary import Status

TINY = ("--set", "data.sequence_length=16", "--set", "data.name=random-tokens", "--set", "probe=false", "--set", "gates=false")

pytestmark = [pytest.mark.slow, pytest.mark.process]


def records(out):
    return [read_record(path.read_bytes()) for path in out.rglob("*.json")]


def test_ctrl_c_stops_a_sweep_after_its_record_the_same_command_resumes_and_its_runs_predict_a_job(tmp_path):
    command = ["sweep", "smoke-full", "--over", "batch_size=1,2", "--steps", "30", "--out", str(tmp_path), "--json", *TINY]
    process = subprocess.Popen(warm("tunemark", *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("1/2"):
            process.send_signal(signal.SIGINT)
            break
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 6, errors
    first = json.loads(said)
    assert first["missing"] == 1
    assert "the same command resumes the series" in errors
    second = tunemark(*command)
    assert second.returncode == 0, second.stderr
    answer = run_json(second)
    assert (answer["study_id"], answer["missing"]) == (first["study_id"], 0)
    assert [point["status"] for point in answer["points"]] == ["ok", "ok"]
    assert "1/2 batch.micro_batch=1: done before" in second.stderr
    assert {record.study.study_id for record in records(tmp_path)} == {first["study_id"]}
    # Under load, the signal can also reach a run in its first steps: its record stays beside that of the run that was resumed.
    path = next(path for path in tmp_path.rglob("*.json") if read_record(path.read_bytes()).outcome.status is Status.OK)
    done = tunemark("predict", path, "--samples", "16k", "--epochs", 3, "--usd-per-hour", 2, "--json")
    assert done.returncode == 0, done.stderr
    job, rows = run_json(done), read_record(path.read_bytes()).plan.batch.global_batch
    assert job["steps"] == 3 * 16_000 / rows
    assert job["train_s"]["low"] < job["train_s"]["value"] < job["train_s"]["high"]
    assert job["usd"]["value"] == pytest.approx(job["wall_s"]["value"] * 2 / 3600)
    assert "give --usd-per-hour" in tunemark("predict", path, "--steps", 100).stdout


@pytest.mark.nightly
def test_a_frontier_under_a_real_limit_ends_in_out_of_memory_and_not_in_a_crash(tmp_path):
    done = tunemark(
        "frontier", "smoke-full", "--limit-memory", 1, "--set", "batch.micro_batch=16", "--within", "60%", "--set", "data.name=random-tokens",
        "--out", tmp_path, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (edge,) = run_json(done)["edges"]
    assert edge["micro_batch"] >= 1
    assert edge["first_failed"]
    assert edge["peak_memory_bytes"] < 1.2 * 2**30
    statuses = {record.outcome.status.value for record in records(tmp_path)}
    assert statuses == {"ok", "oom_host"}
    assert {record.study.kind for record in records(tmp_path)} == {"frontier"}
