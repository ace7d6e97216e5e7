"""The front door behaves like other command-line tools."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from factories import FACTS, assert_golden
from typer.testing import CliRunner

from tunemark import cli
from tunemark.collector.predict.estimate import read_evidence
from tunemark.schema import VERSION

ROOT = Path(__file__).parents[1]


def leaves(words, command):
    """Return each command below a command, and itself, with the words that call it."""
    below = getattr(command, "commands", {})
    return [(words, command), *(leaf for name, inner in below.items() for leaf in leaves((*words, name), inner))]


def commands_with_examples():
    """Return the words of each command of the command line, and the command. The group `site` only lists its commands."""
    return [leaf for name in cli.COMMANDS for leaf in leaves((name,), cli.imported_command(name)) if leaf[0] != ("site",)]


def help_of(words, columns):
    """Return the help page of a command in a terminal of some columns."""
    shown = CliRunner().invoke(cli.app, [*words, "--help"], env={"COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)})
    assert shown.exit_code == 0, shown.output
    return shown.output


MOST_LINES, MOST_COMMANDS, MOST_OPTIONS = 60, 24, 200
"""Of a help page of 80 columns, and of all commands together, without `--help`: the last ones are `runs`, and `--model` of what plans."""


@pytest.mark.parametrize(("words", "command"), commands_with_examples(), ids=lambda part: " ".join(part) if isinstance(part, tuple) else "")
def test_the_help_of_each_command_is_a_screen_or_two_and_lists_examples_of_one_line_each(words, command):
    section = help_of(words, 80).partition("\n Examples ")[2].partition("╭")[0]
    examples = [line.strip() for line in section.splitlines() if line.strip()]
    assert examples, "no example"
    for example in examples:
        called = f"tunemark {' '.join(words)}"
        assert re.fullmatch(rf"• {called}( .*)?", example), example
        assert not re.search(r"[`|;&]", example), example
        given = shlex.split(example.removeprefix("• "))
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        if not hasattr(command, "commands"):
            assert {word for word in given if word.startswith("-")} <= options, example
    assert help_of(words, 80).count("\n") <= MOST_LINES


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


@pytest.mark.parametrize("command", ["doctor --no-self-test", "prices"])
def test_a_reader_that_has_seen_enough_is_no_error(command):
    piped = f"set -o pipefail; {sys.executable} -m tunemark {command} | head -n 1"
    done = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_error_is_one_line_that_names_option_value_and_fix(monkeypatch, tunemark):
    """`command_errors.txt` lists commands with their errors."""
    monkeypatch.chdir(ROOT)
    # The first prediction of a fresh clone would say that it fits the model.
    read_evidence(ROOT, FACTS)
    golden, shown = Path(__file__).with_name("command_errors.txt"), ""
    for command in re.findall(r"^\$ tunemark (.+)$", golden.read_text(encoding="utf-8"), re.MULTILINE):
        said = tunemark(*shlex.split(command))
        assert (said.out, said.err.count("\n")) == ("", 1), (command, said.err)
        shown += f"$ tunemark {command}\n{said.err}{'' if said.code == 2 else f'exit code {said.code:d}'}\n"
    assert_golden(golden, shown)


@pytest.mark.parametrize("arguments", [[], ["import"]])
def test_without_arguments_the_help_is_shown(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["tunemark", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.err) == (2, "")
    assert "Usage:" in shown.out


@pytest.mark.parametrize(("words", "found"), [("tunemark submit --dry", "--dry-run"), ("tunemark import ml", "mlperf")])
def test_the_shell_completes_commands_and_options(words, found):
    code = "import sys; sys.argv = ['tunemark']; from tunemark.cli import main; main()"
    completion = {"_TUNEMARK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | completion)
    assert done.stdout.split() == [found]
