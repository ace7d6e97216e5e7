"""The doctor reports a machine before anything runs on it."""

import subprocess
import sys

from harness_making import make_machine, tunemark

from tunemark.harness.commands.doctor import runnable
from tunemark.schema import VERSION
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Dtype


def test_a_workload_that_needs_more_memory_than_there_is_is_called_too_large(facts):
    rows = {row["workload"]: row for row in runnable(facts, make_machine())}
    assert rows["full-8b"]["too_large"]
    assert rows["full-8b"]["needed_bytes"] > 8 * 2**30 == rows["full-8b"]["memory_bytes"]
    assert not rows["smoke-lora"]["too_large"]


def test_a_device_with_its_own_memory_is_compared_with_that_and_not_with_the_hosts(facts):
    large = make_machine(
        backend=Backend.CUDA,
        devices=(DeviceFacts(name="NVIDIA H200", memory_bytes=141 * 10**9),),
        compute_dtypes=(Dtype.BF16, Dtype.FP16, Dtype.TF32, Dtype.FP32),
        target="9.0",
    )
    rows = {row["workload"]: row for row in runnable(facts, large)}
    assert not rows["full-8b"]["too_large"]
    assert rows["full-8b"]["memory_bytes"] == 141 * 10**9


def test_a_plan_that_does_not_fit_is_refused_before_anything_is_loaded_unless_forced(tmp_path):
    done = tunemark("run", "full-8b", "--steps", 1, "--out", tmp_path)
    assert done.returncode == 5
    assert "for full-8b': each device has" in done.stderr
    assert "--force" in done.stderr
    assert not list(tmp_path.rglob("*.json"))


NOT_INSTALLED = """
import importlib.metadata
def version(name): raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = version
from tunemark.harness.run.record import harness_version, source_content
print(harness_version().version, source_content())
"""


def test_a_harness_that_is_not_installed_as_a_package_still_knows_its_version():
    done = subprocess.run([sys.executable, "-c", NOT_INSTALLED], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == VERSION
