"""`tunemark recommend`: the answer first, options with evidence, and errors that can be mended."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from factories import Tunemark

from tunemark.collector.commands.options import read_number

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "value"), [("10M", 10_000_000), ("1.5B", 1_500_000_000), ("82k", 82_000), ("10,000", 10_000), ("50 million", 50_000_000)]
)
def test_counts_are_read_as_people_write_them(text: str, value: int) -> None:
    assert read_number("--tokens", text) == value


AS_TYPED = tomllib.loads(Path(__file__).with_name("as_typed.toml").read_text(encoding="utf-8"))
BASE = ("recommend", "-m", "llama-3.1-8b", "--tokens", "10M")


def test_the_answer_comes_first_with_time_cost_and_evidence(tunemark: Tunemark) -> None:
    done = tunemark(*BASE)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "Llama 3.1 8B, LoRA, 10M tokens, sequence length 2,048"
    assert lines[2].startswith("Rent ")
    assert "result has the same blocks, method" in done.out
    assert "No answer for " in done.out
    assert "With tuned software: " in done.out
    assert lines[-1].startswith("Includes an assumed 5 min of start-up.")


def test_the_json_has_every_option_with_its_results(tunemark: Tunemark) -> None:
    answer = json.loads(tunemark(*BASE, "--json").out)
    first = answer["ranked"][0]
    assert first["usd"] == pytest.approx(first["seconds"] / 3600 * first["offer"]["usd_per_hour"] * first["instances"])
    assert first["seconds"] == pytest.approx(300 + 10_000_000 / first["rate"]["tokens_per_s"])
    assert [option["usd"] for option in answer["ranked"][5:]] == sorted(option["usd"] for option in answer["ranked"][5:])
    cited = [option for option in answer["ranked"] if option["rate"]["evidence"] == "direct"]
    assert cited
    assert all(option["rate"]["result_ids"] for option in cited)


def test_only_results_count_if_predictions_are_not_wanted(tunemark: Tunemark) -> None:
    answer = json.loads(tunemark(*BASE, "--set", "trust=published", "--json").out)
    assert {option["rate"]["evidence"] for option in answer["ranked"]} == {"direct"}


def test_own_hardware_is_compared_with_renting(tunemark: Tunemark) -> None:
    figures = "purchase=2000,years=3,utilisation=0.5,watts=450,electricity=0.30"
    hourly = 2000 / (3 * 8766 * 0.5) + 0.135
    # The figures are those of the machine, whatever the number of its accelerators.
    for own, owned, usd in (("RTX 4090", figures, hourly), ("2 x RTX 4090", figures, hourly), ("2 x RTX 4090", "usd_per_hour=0.2", 0.2)):
        answer = json.loads(tunemark(*BASE, "--method", "qlora", "--own", own, "--owned", owned, "--json").out)
        (found,) = [option for option in answer["ranked"] if option["offer"]["provider"] == "own hardware"]
        assert found["offer"]["usd_per_hour"] == pytest.approx(usd)


def test_accelerators_can_be_chosen_by_name_and_by_memory(tunemark: Tunemark) -> None:
    def offered(*options: str) -> set[str]:
        answer = json.loads(tunemark(*BASE, *options, "--json").out)
        return {option["offer"]["accelerator"] for group in ("ranked", "may_exceed", "exceeding") for option in answer[group]}

    everything = offered()
    assert offered("--accelerator", "nvidia-h100-80gb-sxm") == {"nvidia-h100-80gb-sxm"} < everything
    assert offered("--accelerator", "nvidia-h100-80gb-sxm", "--set", "max_memory=80") == {"nvidia-h100-80gb-sxm"}
    assert offered("--set", "max_memory=48") < everything - {"nvidia-h100-80gb-sxm"}


@pytest.mark.parametrize(("options", "pattern"), AS_TYPED["questions"])
def test_a_question_is_read_as_people_type_it_and_the_answer_says_how(tunemark: Tunemark, options: str, pattern: str) -> None:
    done = tunemark(*BASE, *shlex.split(options))
    assert re.search(pattern, " ".join((done.out + done.err).split())), "lines are wrapped at the width of the terminal"


@pytest.mark.parametrize("command", ["recommend", "estimate"])
def test_the_readme_shows_what_the_command_prints(tunemark: Tunemark, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"```\n\$ \.venv/bin/tunemark ({command} .*?)\n```", readme, flags=re.DOTALL)
    words, shown = block.replace("\\\n", " ").split("\n", 1)
    monkeypatch.setenv("COLUMNS", "250")
    printed = [wording(line) for line in tunemark(*shlex.split(words)).out.splitlines()]
    for line in shown.splitlines():
        # The README leaves out the last columns of a table. Figures and names change with each accepted result.
        found = any(each[: len(wording(line))] == wording(line) for each in printed)
        assert found, f"the README shows a line that is not printed: {line}"


def wording(line: str) -> list[str]:
    """Return the words of a line without figures, units and names."""
    return [word for word in line.split() if re.fullmatch(r"[a-z][a-z/:,.()-]{3,}", word)]
