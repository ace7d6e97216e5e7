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
