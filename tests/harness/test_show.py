"""The summary of a run on a terminal: headline numbers, and a reason where one is missing."""

import pytest
from harness_making import make_machine
from study_making import FACTS, make_run

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.show import print_summary, summary


def make_submission(**log):
    return make_run(resolve("smoke-lora", FACTS, make_machine(packages={"torch": "2", "peft": "0"}), Options()), **log)


def test_a_long_run_shows_its_rate_with_an_interval(capsys):
    submission = make_submission()
    print_summary(submission, "somewhere.json")
    shown = capsys.readouterr().out
    assert "95% interval" in shown
    assert "somewhere.json" in shown
    assert summary(submission)["tokens_per_s_interval"][0] < summary(submission)["tokens_per_s"]


@pytest.mark.parametrize("steps", [1, 2, 12])
def test_a_short_run_says_that_it_has_too_few_steps_for_an_interval(capsys, steps):
    submission = make_submission(steps=steps)
    print_summary(submission, "somewhere.json")
    shown = capsys.readouterr().out
    assert ("too few steps for an interval" in shown) is ("tokens/s" in shown)
    assert summary(submission)["tokens_per_s_interval"] is None


def test_a_run_of_a_given_number_of_steps_without_steady_ones_is_ok_and_says_why_it_is_not_rankable(capsys):
    short = resolve("smoke-lora", FACTS, make_machine(packages={"torch": "2", "peft": "0"}), Options(max_steps=3))
    print_summary(make_run(short, steps=3), "somewhere.json")
    shown = capsys.readouterr().out
    assert "smoke-lora: ok, not rankable: 0 steps after warm-up, and a rank needs 20\n" in shown
    assert "what to do: train 30 steps or more" in shown
