"""A run that fails, hangs or is slow is ended, and says what happened and what to do."""

import errno
from datetime import UTC, datetime
from pathlib import Path

import pytest
from harness_making import make_machine
from study_making import FACTS, make_run

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.launch import Watchdog
from tunemark.harness.run.run_log import RunLog
from tunemark.harness.run.run_outcome import Finished, describe, judge, outcome_of
from tunemark.harness.run.show import print_summary, summary
from tunemark.harness.run.telemetry import Telemetry
from tunemark.harness.vendors.protocol import DeviceUnavailable
from tunemark.harness.worker.loop import LossNotFinite, StopRule
from tunemark.schema.records.plan import Measurement
from tunemark.schema.vocabulary import Status


@pytest.mark.parametrize(
    ("error", "status", "fix"),
    [
        (LossNotFinite("the loss became nan"), "nan", "learning_rate"),
        (DeviceUnavailable("no GPU"), "unsupported", "tunemark doctor"),
        (MemoryError(), "oom_host", "micro_batch"),
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


def test_a_message_with_an_incomplete_first_line_includes_the_next_lines():
    said = describe(ValueError("Couldn't instantiate the backend tokenizer from one of:\n(1) a file\n(2) a slow tokenizer"))
    assert said["message"].endswith("from one of: (1) a file (2) a slow tokenizer")


def test_an_unreadable_line_is_left_out_and_noted(tmp_path):
    from tunemark.harness.run.run_log import LogReader

    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "phase", "phase": "import", "at_s": 0.0}\n{"event": "st{"event": "end"}\n{"event": "end"}\n{"ev')
    log = LogReader(path).finish()
    assert log.ended
    assert log.torn
    assert len(log.phases) == 1


@pytest.mark.parametrize(
    "text",
    [
        "AcceleratorError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate",
        "RuntimeError: HIP error: out of memory",
        "ncclUnhandledCudaError: Cuda failure 2 'out of memory'",
    ],
)
def test_every_way_a_device_says_that_it_is_full_is_out_of_memory(text):
    assert judge(text)[0] is Status.OOM_DEVICE


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


def test_a_hang_after_some_steps_is_detected():
    watchdog, log = Watchdog(RULES, 0.0), log_of(1.0, 1.0, 1.0)
    assert watchdog.expired(log, 50.0) is None
    assert watchdog.expired(log, 149.0) is None
    assert watchdog.expired(log, 151.0) == "no step"


def test_loading_and_the_first_steps_which_compile_have_four_times_as_long():
    for log in (log_of(phase="load"), log_of(), log_of(300.0)):
        watchdog = Watchdog(RULES, 0.0)
        watchdog.expired(log, 0.0)
        assert watchdog.expired(log, 399.0) is None
        assert watchdog.expired(log, 401.0) == "no step"


def test_slow_steps_may_take_ten_times_the_longest():
    watchdog, log = Watchdog(RULES, 0.0), log_of(90.0, 90.0, 90.0)
    watchdog.expired(log, 0.0)
    assert watchdog.expired(log, 899.0) is None
    assert watchdog.expired(log, 901.0) == "no step"


def test_a_limit_of_all_the_time_holds_where_one_was_given():
    assert Watchdog(Measurement(timeout_s=60.0), 0.0).expired(log_of(1.0), 61.0) == "timeout"
    assert Watchdog(Measurement(), 0.0).expired(log_of(1.0), 1e9) is None


def test_a_limit_of_training_time_leaves_the_steps_that_can_be_ranked(tmp_path):
    rule = StopRule(None, 300.0, Path(tmp_path / "stop"), at_least=30)
    assert not rule.wants(2_400.0, 29)
    assert rule.wants(2_430.0, 30)
    rule.stop_file.touch()
    assert rule.wants(0.0, 1)


def shown_run(**log):
    return make_run(resolve("smoke-lora", FACTS, make_machine(packages={"torch": "2", "peft": "0"}), Options()), **log)


def test_a_long_run_shows_its_rate_with_an_interval(capsys):
    submission = shown_run()
    print_summary(submission, "somewhere.json")
    shown = capsys.readouterr().out
    assert "95% interval" in shown
    assert "somewhere.json" in shown
    assert summary(submission)["tokens_per_s_interval"][0] < summary(submission)["tokens_per_s"]


@pytest.mark.parametrize("steps", [1, 2, 12])
def test_a_short_run_says_that_it_has_too_few_steps_for_an_interval(capsys, steps):
    submission = shown_run(steps=steps)
    print_summary(submission, "somewhere.json")
    shown = capsys.readouterr().out
    assert ("too few steps for an interval" in shown) is ("tokens/s" in shown)
    assert summary(submission)["tokens_per_s_interval"] is None


def test_a_run_of_a_given_number_of_steps_without_steady_ones_is_ok_and_says_why_it_is_not_rankable(capsys):
    short = resolve("smoke-lora", FACTS, make_machine(packages={"torch": "2", "peft": "0"}), Options(max_steps=3))
    print_summary(make_run(short, steps=3), "somewhere.json")
    shown = capsys.readouterr().out
    assert "smoke-lora: ok, not rankable: 0 steps after warm-up, and a rank needs 20\n" in shown
    assert "what to do: train 30 steps or more" in shown
