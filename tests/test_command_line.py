"""The front door behaves like other command-line tools."""

import importlib
import os
import re
import shlex
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tunemark import cli
from tunemark.schema import VERSION


def leaves(words, command):
    """Return each command below a command, and itself, with the words that call it."""
    below = getattr(command, "commands", {})
    return [(words, command), *(leaf for name, inner in below.items() for leaf in leaves((*words, name), inner))]


def commands_with_examples():
    """Return the words of each command of the command line, and the command. The group `site` only lists its commands."""
    tops = {name: get_command(importlib.import_module(module).app).commands[name] for name, (module, _) in cli.COMMANDS.items()}
    return [leaf for name, command in tops.items() for leaf in leaves((name,), command) if leaf[0] != ("site",)]


def examples_in(words):
    """Return the lines of the section of examples in a help text of 80 columns."""
    shown = CliRunner().invoke(cli.app, [*words, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert shown.exit_code == 0, shown.output
    section = shown.output.partition("\n Examples ")[2].partition("╭")[0]
    return [line.strip() for line in section.splitlines() if line.strip()]


@pytest.mark.parametrize(("words", "command"), commands_with_examples(), ids=lambda part: " ".join(part) if isinstance(part, tuple) else "")
def test_the_help_of_each_command_lists_examples_of_one_line_each(words, command):
    examples = examples_in(words)
    assert examples, "no example"
    for example in examples:
        called = f"tunemark {' '.join(words)}"
        assert re.fullmatch(rf"• {called}( .*)?", example), example
        assert not re.search(r"[`|;&]", example), example
        given = shlex.split(example.removeprefix("• "))
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        if not hasattr(command, "commands"):
            assert {word for word in given if word.startswith("-")} <= options, example


MOST_LINES, MOST_COMMANDS, MOST_OPTIONS = 60, 23, 190
"""Of a help page of 100 columns, and of all commands together, without `--help`. They only ever fall."""


@pytest.mark.parametrize(("words", "command"), commands_with_examples(), ids=lambda part: " ".join(part) if isinstance(part, tuple) else "")
def test_no_help_page_is_longer_than_a_screen_or_two(monkeypatch, words, command):
    del command
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)
    shown = CliRunner().invoke(cli.app, [*words, "--help"], env={"COLUMNS": "100"})
    assert shown.output.count("\n") <= MOST_LINES, shown.output


def test_all_commands_together_are_few_and_have_few_options():
    found = {
        " ".join(words): sum(parameter.param_type_name == "option" and parameter.name != "help" for parameter in command.params)
        for words, command in commands_with_examples()
        if not hasattr(command, "commands")
    }
    assert len(found) <= MOST_COMMANDS
    assert sum(found.values()) <= MOST_OPTIONS, found


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
        ("run smoke-lora --steps x", "--steps: 'x': must be a whole number of 1 or more, such as 500, 2k or 10M; `tunemark run --help`"),
        ("run smoke-lora --set backend=foo", "--set backend: 'foo': must be 'cpu', "),
        ("run smoke-lora --set until_ci=7", "--set until_ci: '7': is not a fraction between 0 and 1; give 1% or 0.01"),
        ("predict nope.json", "FILE: 'nope.json': no such file; `tunemark run` writes submissions to submissions/WORKLOAD/, and names the file"),
        ("predict data", "FILE: 'data': is a folder; name the submissions in it"),
        ("recommend -m llama-3.1-8b", "--tokens: give the size of the data with either --tokens or --samples"),
        ("run", "missing argument 'workload'"),
        ("run --foo", "no such option: --foo"),
        ("sweep smoke-lora --over foo=1,2", "--over: 'foo': not a setting of smoke-lora; none of the 82 known names is similar; `tunemark workloads --json`"),
        ("sweep smoke-lora --over micro_batchh=1,2", "--over: 'micro_batchh': not a setting of smoke-lora; did you mean 'micro_batch' or"),
        ("plan smoke-lora --set foo=1", "--set: 'foo': not a setting of the workload card"),
        ("estimate -m lama-3.1-8b", "--model/-m: 'lama-3.1-8b': not in data/models; did you mean 'llama-3.1-8b'"),
        ("estimate -m gpt2 -a h100", "--accelerator/-a: 'h100': may be nvidia-h100-80gb-pcie or nvidia-h100-80gb-sxm or nvidia-h100-94gb-nvl; give one of them"),
        ("estimate -m gpt2 --devices 0", "--devices: 0: must be 1 or more"),
        ("estimate -m gpt2 --method peft", "--method: 'peft': known: full, lora, qlora"),
        ("recommend -m gpt2 --tokens 10M --method peft", "--method: 'peft': known: any, full, lora, qlora"),
        ("estimate -m gpt2 --rank 0", "--rank: 0: must be 1 or more"),
        ("estimate -m gpt2 --tokens 1M --epochs 0", "--epochs: 0: must be 1 or more"),
        ("estimate -m gpt2 --optimizer adm", "--optimizer: 'adm': did you mean 'adamw'"),
        ("estimate -m gpt2 --sharding single --devices 2", "--sharding: 'single': 2 devices need ddp"),
        ("estimate -m gpt2 --set lora_dropout=2", "--set lora_dropout: 2.0: must be at least 0 and below 1"),
        ("recommend -m lama-3.1-8b --tokens 10M", "--model/-m: 'lama-3.1-8b': not in data/models; did you mean 'llama-3.1-8b'"),
        ("recommend -m gpt2 --tokens 10M --own foo", "--own: 'foo': not in data/accelerators"),
        ("recommend -m gpt2 --tokens 10M --own L4 --owned usd_per_hour=0", "--owned: 'usd_per_hour=0': must be a cost above 0"),
        ("recommend -m gpt2 --tokens 10M --own L4 --owned usd_per_hour=nan", "--owned: 'usd_per_hour=nan': must be a cost above 0"),
        ("recommend -m gpt2 --tokens 10M --own L4 --owned 5", "--owned: '5': not a figure of owned hardware; known: electricity, purchase, resale, utilisation, watts, years; for example usd_per_hour=0.20, or purchase="),
        ("recommend -m gpt2 --tokens 10M --set foo=1", "--set: 'foo': known: max_memory, start_up, trust\n"),
        ("audit nope.json", "nope.json: no such file or folder"),
        ("validate nope.json", "nope.json: no such file or folder"),
        ("validate --pull-request nope..HEAD", "--pull-request: 'nope': is no commit of this repository"),
        ("validate submissions --github", "--github: is for --pull-request"),
        ("query", "SQL: give a SELECT, or --views to list tables and columns"),
        ("prices nope", "nope: neither an instance nor an accelerator"),
        ("prices p5.48xlarge --kind owned", "--kind: 'owned': known: marketplace, on_demand, reserved, spot"),
        ("submit nope.json", "nope.json: no such file or folder"),
        ("run smoke-lora --set packin=1", "--set: 'packin': not a setting of the workload card; did you mean 'data.packing'? `tunemark workloads --json` shows each card with its settings, and `tunemark run --help` those of a run"),
        ("plan smoke-lora --accelerator nvidia-h1000", "--accelerator: 'nvidia-h1000': not in data/accelerators; did you mean 'nvidia-h100"),
        ("plan smoke-lora --accelerator h100", "--accelerator: 'h100': may be nvidia-h100-80gb-pcie or nvidia-h100-80gb-sxm or nvidia-h100-94gb-nvl; give one"),
        ("run 'Smoke LoRA'", "workload: 'Smoke LoRA': give the name of a workload; `tunemark workloads` lists them"),
        ("plan smoke-lora --data ''", "--data: must have at least 1 character"),
        ("frontier smoke-lora --seq ''", "--seq: '': must be a whole number of 1"),
        ("sweep smoke-bert", "--over: is missing, and smoke-bert has no axes of its own; name what to vary, such as --over batch_size=8,16,32"),
        ("run smoke-lora --seq 999999999", "--seq: 999999999: must be less than or equal to 2097152"),
        ("run smoke-lora --set packing=foo", "--set packing: 'foo': must be true or false"),
        ("run smoke-lora --set devices=0", "--set devices: '0': must be greater than or equal to 1"),
        ("run smoke-bert --rank 4", "--rank: not a setting of the workload card"),
        ("tune smoke-lora --method qlora --set lora=null", "--method, --set lora: '\"qlora\", null': method is 'qlora'"),
        ("sweep smoke-lora --over batch=0,4", "--over: 'batch.micro_batch=0': must be greater than or equal to 1"),
        ("ab smoke-lora --a batch=4 --b batch=0", "--b: 'batch.micro_batch=0': must be greater than or equal to 1"),
        ("frontier smoke-lora --seq foo", "--seq: 'foo': must be a whole number of 1 or more, such as 500, 2k or 10M; `tunemark frontier --help`"),
    ],
)  # fmt: skip
def test_every_usage_error_is_one_line_that_names_option_and_value(monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["tunemark", *shlex.split(arguments)])
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
    ("words", "found"), [("tunemark sub", "submit"), ("tunemark submit --dry", "--dry-run"), ("tunemark import rel", "releases")]
)
def test_the_shell_completes_commands_and_options(words, found):
    code = "import sys; sys.argv = ['tunemark']; from tunemark.cli import main; main()"
    completion = {"_TUNEMARK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | completion)
    assert done.stdout.split() == [found]
