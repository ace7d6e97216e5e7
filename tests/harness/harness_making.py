"""Factories that default what does not matter to a test."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tunemark.harness.plan.machine import Machine
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.records.upgrade import read_record
from tunemark.schema.vocabulary import Backend, Dtype

ROOT = Path(__file__).parents[2]


def make_machine(**changes):
    plain = {
        "backend": Backend.CPU,
        "backend_reason": "no accelerator was found",
        "devices": (DeviceFacts(name="Plain CPU", memory_bytes=8 * 2**30),),
        "compute_dtypes": (Dtype.FP32, Dtype.BF16),
        "os": "Linux 6.1 x86_64",
        "python": "3.11.7",
        "packages": {"torch": "2.13.0"},
        "cpu": "Plain CPU",
        "cpu_physical_cores": 2,
        "cpu_logical_cores": 4,
        "cpu_usable_cores": 4,
        "memory_bytes": 8 * 2**30,
        "free_disk_bytes": 100 * 2**30,
    }
    return Machine(**{**plain, **changes})


def tunemark(*arguments, env=None, **options):
    """Start the command line as a person does and return the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "tunemark.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, **(env or {})},
        **options,
    )


def only_submission(folder):
    """Return the one submission that a run has left in a folder, read and validated as the collector does."""
    (path,) = Path(folder).rglob("*.json")
    return read_record(path.read_bytes())


def run_json(done):
    assert done.stdout, done.stderr
    return json.loads(done.stdout)
