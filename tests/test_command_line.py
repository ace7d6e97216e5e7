"""The front door behaves like other command-line tools."""

import os
import subprocess
import sys

import pytest

from tunemark import cli
from tunemark.schema import VERSION


def test_the_package_can_be_run_as_a_module():
    done = subprocess.run([sys.executable, "-m", "tunemark", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tunemark {VERSION}\n"


@pytest.mark.parametrize("command", ["doctor --no-self-test", "workloads", "estimate -m llama-3.1-8b --method lora --seq 2048", "prices"])
def test_a_reader_that_has_seen_enough_is_no_error(command):
    piped = f"set -o pipefail; {sys.executable} -m tunemark {command} | head -n 1"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("frontier smoke-lora --limit-memory 0.01", "--limit-memory: '0.01': must be greater than or equal to 0.1"),
        ("run smoke-lora --steps x", "--steps: 'x': must be a valid integer"),
        ("run smoke-lora --backend foo", "--backend: 'foo': must be one of 'cpu'"),
        ("run smoke-lora --until-ci 7", "--until-ci: '7' is not a fraction between 0 and 1; give 1% or 0.01"),
        ("predict nope.json", "submissions: file 'nope.json' does not exist"),
        ("run", "missing argument 'workload'"),
        ("run --foo", "no such option: --foo"),
        ("sweep smoke-lora --over foo=1,2", "--over: 'foo': not a setting of smoke-lora; none of the 82 known names is similar; `tunemark workloads --json`"),
        ("sweep smoke-lora --over micro_batchh=1,2", "--over: 'micro_batchh': not a setting of smoke-lora; did you mean 'micro_batch' or"),
        ("plan smoke-lora --set foo=1", "--set: 'foo': not a setting of the workload card"),
        ("plan smoke-lora --accelerator nvidia-h1000", "accelerator: 'nvidia-h1000': not in data/accelerators; did you mean 'nvidia-h100"),
        ("plan smoke-lora --accelerator nvidia-l4", "--accelerator: 'nvidia-l4': applies only to scripts; add --emit"),
        ("plan smoke-lora --instance p4d.24xlargee", "--instance: 'p4d.24xlargee': not in data/prices/prices.csv; did you mean 'p4d.24xlarge'"),
    ],
)  # fmt: skip
def test_every_usage_error_is_one_line_that_names_option_and_value(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["tunemark", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith(f"tunemark: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["import"]])
def test_without_arguments_the_help_is_shown(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["tunemark", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.err) == (2, "")
    assert "Usage:" in shown.out


@pytest.mark.parametrize(
    ("words", "found"), [("tunemark sub", "submit"), ("tunemark submit --dry", "--dry-run"), ("tunemark import trainer-s", "trainer-state")]
)
def test_the_shell_completes_commands_and_options(words, found):
    code = "import sys; sys.argv = ['tunemark']; from tunemark.cli import main; main()"
    completion = {"_TUNEMARK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | completion)
    assert done.stdout.split() == [found]
