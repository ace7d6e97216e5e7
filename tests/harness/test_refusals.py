"""What a machine has too few of ends before anything runs, as a record that says so."""

import pytest
from harness_making import make_machine, only_submission, run_json, tunemark
from study_making import make_run

from tunemark.harness.planning import Options, resolve
from tunemark.harness.runner import help_another_node
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.history import read_record
from tunemark.schema.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Dtype, Status


def make_gpus(count):
    gpu = DeviceFacts(name="NVIDIA A10G", memory_bytes=24 * 2**30)
    return make_machine(backend=Backend.CUDA, devices=(gpu,) * count, compute_dtypes=(Dtype.BF16, Dtype.FP32))


def test_more_devices_than_there_are_end_as_an_unsupported_record_with_the_number_there_is(tmp_path):
    done = tunemark("run", "smoke-full", "--devices", 100, "--out", tmp_path)
    assert done.returncode == Exit.UNSUPPORTED, done.stderr
    outcome = only_submission(tmp_path).outcome
    assert outcome.status is Status.UNSUPPORTED
    assert outcome.message.startswith("100 devices: this machine has 1 cpu device; give --devices 64 or less")


def test_a_plan_with_more_devices_than_there_are_is_shown_and_says_so():
    done = tunemark("plan", "smoke-full", "--devices", 100, "--json")
    shown = run_json(done)
    assert done.returncode == Exit.UNSUPPORTED
    assert shown["plan"]["device"]["count"] == 100
    assert "give --devices 64 or less" in shown["unsupported"]


def test_the_record_of_a_refused_run_lists_the_devices_that_there_are(facts):
    machine = make_gpus(2)
    submission = make_run(resolve("smoke-full", facts, machine, Options(devices=8)), machine=machine)
    assert (submission.plan.device.count, len(submission.environment.devices)) == (8, 2)
    assert read_record(submission.model_dump_json().encode()) == submission


def test_the_first_of_several_machines_lists_its_own_devices(facts):
    machine = make_gpus(4)
    resolved = resolve("smoke-full", facts, machine, Options(devices=8, nodes=2))
    assert resolved.unsupported is None
    submission = make_run(resolved, machine=machine)
    assert (submission.plan.device.count, len(submission.environment.devices)) == (8, 4)
    assert read_record(submission.model_dump_json().encode()) == submission


def test_a_machine_that_cannot_do_its_part_of_several_starts_nothing(facts):
    machine = make_gpus(2)
    resolved = resolve("smoke-full", facts, machine, Options(devices=8, nodes=2))
    with pytest.raises(TunemarkError, match="8 devices on 2 nodes: this machine has 2 cuda devices; give --devices 4 or less") as caught:
        help_another_node(resolved, facts, machine)
    assert caught.value.exit_code is Exit.UNSUPPORTED
