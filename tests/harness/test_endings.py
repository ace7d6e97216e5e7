"""A run that fails, hangs or is slow is ended, and says what happened and what to do."""

import errno
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from harness_making import make_machine
from study_making import FACTS, make_run

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.launch import Watchdog
from tunemark.harness.run.record import Finished, outcome_of
from tunemark.harness.run.run_log import RunLog, describe
from tunemark.harness.run.show import print_summary, summary
from tunemark.harness.run.telemetry import Telemetry
from tunemark.harness.vendors.protocol import DeviceUnavailable
from tunemark.harness.worker.loop import LossNotFinite, Trainer
from tunemark.schema.records.plan import Measurement
from tunemark.schema.vocabulary import Status


@pytest.mark.parametrize(
    ("error", "status", "fix"),
    [
        (LossNotFinite("the loss became nan"), "nan", "learning_rate"),
        (DeviceUnavailable("no GPU"), "unsupported", "tunemark doctor"),
        (MemoryError(), "oom_host", "micro_batch"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "oom_device", "micro_batch"),
        (RuntimeError("HIP error: out of memory"), "oom_device", "micro_batch"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"), "oom_host", "micro_batch"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate"), "oom_device", "micro_batch"),
        (OSError(errno.ENOSPC, "No space left on device"), "crash", "disk space"),
        (type("GatedRepoError", (OSError,), {})("Access to model is restricted"), "crash", "licence"),
        (OSError("We couldn't connect to 'the hub' to load the files"), "crash", "HF_HUB_OFFLINE"),
        (ModuleNotFoundError("No module named 'peft'"), "unsupported", "install"),
        (ValueError("odd"), "crash", "output above"),
        (ValueError("Couldn't instantiate the backend tokenizer from one of:\n(1) a file"), "crash", "--weights needs"),
        (OSError("Error no file named model.safetensors found in directory x"), "crash", "--weights needs"),
        (ValueError("the weights are not those of model card tiny-llama: hidden_size 96"), "crash", "--set model=KEY"),
    ],
)
def test_each_kind_of_failure_has_its_status_and_its_fix(error, status, fix):
    said = describe(error)
    assert said["status"] == status
    assert fix in said["fix"]


def test_an_unreadable_line_is_left_out_and_noted(tmp_path):
    from tunemark.harness.run.run_log import LogReader

    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "phase", "phase": "import", "at_s": 0.0}\n{"event": "st{"event": "end"}\n{"event": "end"}\n{"ev')
    log = LogReader(path).finish()
    assert log.ended
    assert log.torn
    assert len(log.phases) == 1


def test_a_full_disk_is_recognised_in_the_workers_output_when_its_log_could_not_take_it():
    printed = "Traceback ...\nOSError: [Errno 28] No space left on device\nsome other line"
    ended = Finished(log=RunLog(), telemetry=Telemetry(), started_at=datetime.now(UTC), exit_code=1, output_tail=printed)
    outcome = outcome_of(ended, Measurement())
    assert outcome.status is Status.CRASH
    assert "No space left" in outcome.message
    assert "TMPDIR" in outcome.fix


RULES = Measurement(no_step_s=100.0)


def log_of(*step_times_s, phase="train"):
    ends, now = [], 10.0
    for seconds in step_times_s:
        now += seconds
        ends.append({"completed_at_s": now})
    return RunLog(phases=[{"phase": phase, "at_s": 1.0}], started_at_s=10.0, steps=ends)


@pytest.mark.parametrize(
    ("log", "allowed_s"),
    [
        (log_of(1.0, 1.0, 1.0), 100.0),
        # Loading and the first steps, which compile, have four times as long.
        (log_of(phase="load"), 400.0),
        (log_of(300.0), 400.0),
        # Slow steps may take ten times the longest.
        (log_of(90.0, 90.0, 90.0), 900.0),
    ],
)
def test_a_worker_without_progress_is_ended_after_a_time_that_suits_what_it_does(log, allowed_s):
    watchdog = Watchdog(RULES, 0.0)
    watchdog.expired(log, 0.0)
    assert watchdog.expired(log, allowed_s - 1) is None
    assert watchdog.expired(log, allowed_s + 1) == "no step"
    assert Watchdog(Measurement(timeout_s=60.0), 0.0).expired(log, 61.0) == "timeout"


def test_a_limit_of_training_time_leaves_the_steps_that_can_be_ranked(tmp_path):
    plan = SimpleNamespace(measurement=Measurement(max_train_s=300.0, min_steps=30))
    trainer = Trainer(None, None, None, None, plan, None, tmp_path / "stop")
    assert not trainer.wants_to_stop(2_400.0, 29)
    assert trainer.wants_to_stop(2_430.0, 30)
    trainer.stop_file.touch()
    assert trainer.wants_to_stop(0.0, 1)


def shown_run(**log):
    return make_run(resolve("smoke-lora", FACTS, make_machine(packages={"torch": "2", "peft": "0"}), Options()), **log)


def test_a_run_shows_its_rate_with_an_interval_if_it_has_the_steps_for_one(capsys):
    submission = shown_run()
    print_summary(submission, "somewhere.json")
    shown = capsys.readouterr().out
    assert "95% interval" in shown
    assert "somewhere.json" in shown
    assert summary(submission)["tokens_per_s_interval"][0] < summary(submission)["tokens_per_s"]
    short = shown_run(steps=12)
    print_summary(short, "somewhere.json")
    assert "too few steps for an interval" in capsys.readouterr().out
    assert summary(short)["tokens_per_s_interval"] is None
