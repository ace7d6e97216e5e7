"""An exception in the worker becomes a status and a fix."""

import errno
import logging
from datetime import UTC, datetime

import pytest

from tunemark.harness.run.run_log import LogReader, LogWriter, RunLog
from tunemark.harness.run.run_outcome import Finished, describe, judge, outcome_of
from tunemark.harness.run.telemetry import Telemetry
from tunemark.harness.vendors.protocol import DeviceUnavailable
from tunemark.harness.worker.entry import keep_library_logs
from tunemark.harness.worker.loop import LossNotFinite
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


def test_a_misleading_library_message_goes_to_the_log_only(tmp_path, capfd):
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    filters = list(logger.filters)
    keep_library_logs(LogWriter(tmp_path / "log.jsonl", 0.0))
    logger.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s", "no module")
    logger.filters[:] = filters
    (note,) = LogReader(tmp_path / "log.jsonl").finish().notes
    assert (note["level"], note["message"]) == ("warning", "Failed to load CPU gemm_4bit_forward from kernels-community: no module")
    assert capfd.readouterr().err == ""
