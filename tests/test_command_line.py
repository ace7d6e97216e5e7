"""The front door behaves like other command-line tools."""

import subprocess
import sys

import pytest

from tunemark.schema import VERSION


def test_the_package_can_be_run_as_a_module():
    done = subprocess.run([sys.executable, "-m", "tunemark", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tunemark {VERSION}\n"


@pytest.mark.parametrize("command", ["doctor --no-self-test", "workloads", "estimate -m llama-3.1-8b --method lora --seq 2048", "prices"])
def test_a_reader_that_has_seen_enough_is_no_error(command):
    piped = f"set -o pipefail; {sys.executable} -m tunemark {command} | head -n 1"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
