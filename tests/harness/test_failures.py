"""An exception in the worker becomes a status and a word on what to do."""

import errno

import pytest

from tunemark.harness.devices.protocol import DeviceUnavailable
from tunemark.harness.worker.failures import describe
from tunemark.harness.worker.loop import LossNotFinite
from tunemark.schema.privacy import scrub


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
    ],
)
def test_each_kind_of_failure_has_its_status_and_its_fix(error, status, fix):
    said = describe(error)
    assert said["status"] == status
    assert fix in said["fix"]


def test_paths_are_removed_from_messages():
    assert scrub("cannot open /home/someone/models/x.bin here") == "cannot open <removed> here"


def test_a_line_that_cannot_be_read_is_left_out_and_said(tmp_path):
    from tunemark.harness.worklog import LogReader

    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "phase", "phase": "import", "at_s": 0.0}\n{"event": "st{"event": "end"}\n{"event": "end"}\n{"ev')
    log = LogReader(path).finish()
    assert log.ended
    assert log.torn
    assert len(log.phases) == 1


def test_a_refused_run_has_no_memory_reading_instead_of_zero():
    from tunemark.harness.record import memory
    from tunemark.harness.refusal import refused

    reading = memory(refused("no such device")).host_rss
    assert reading.peak_bytes is None
    assert reading.reason
