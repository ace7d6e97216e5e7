"""A machine with too few devices refuses the run before it starts, and the record gives the reason."""

import re

import pytest
from harness_making import gpus, planned, tunemark
from study_making import make_run

from tunemark.harness.run.launch import help_another_node
from tunemark.harness.run.show import print_summary
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.reading import read_record
from tunemark.schema.vocabulary import Status


@pytest.mark.parametrize("command", [("run",), ("frontier",)])
def test_more_devices_than_there_are_is_refused_at_once_with_the_number_there_is(command, tmp_path):
    done = tunemark(command[0], "smoke-full", *command[1:], "--devices", 50_000, "--out", tmp_path)
    assert done.returncode == Exit.UNSUPPORTED
    assert re.search(r"this machine has \d+ cores, with at most 4 processes per core; give --devices \d+ or less", done.stderr)
    assert not list(tmp_path.iterdir())


def test_the_record_of_a_refused_run_lists_the_devices_found():
    machine = gpus("NVIDIA A10G", 2, gib=24)
    submission = make_run(planned("smoke-full", machine=machine, devices=8), machine=machine)
    assert (submission.plan.device.count, len(submission.environment.devices)) == (8, 2)
    assert read_record(submission.model_dump_json().encode()) == submission


def test_a_machine_that_cannot_do_its_part_of_several_starts_nothing(facts):
    machine = gpus("NVIDIA A10G", 2, gib=24)
    resolved = planned("smoke-full", machine=machine, devices=8, nodes=2)
    with pytest.raises(TunemarkError, match="8 devices on 2 nodes: this machine has 2 cuda devices; give --devices 4 or less") as caught:
        help_another_node(resolved, facts, machine)
    assert caught.value.exit_code is Exit.UNSUPPORTED


def test_brackets_in_a_message_are_shown_and_are_no_markup(capsys):
    submission = make_run(planned("smoke-lora"), status=Status.CRASH)
    outcome = submission.outcome.model_copy(update={"message": "[enforce fail at x.cpp:1] y[/b] [red]"})
    print_summary(submission.model_copy(update={"outcome": outcome}), "[place]")
    shown = " ".join(capsys.readouterr().out.split())
    assert "[enforce fail at x.cpp:1] y[/b] [red]" in shown
    assert "[place]" in shown
