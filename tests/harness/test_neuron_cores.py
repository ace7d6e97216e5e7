"""A classifier on two NeuronCores: two real processes, with a stand-in of torch_xla that exchanges gradients over gloo.

It shows that both processes are joined, that gradients are averaged once per step, and that the submission is valid. It shows
nothing about graphs, compile time or speed on a device.
"""

import os
from pathlib import Path

import pytest
from harness_making import cold, only_submission, tunemark

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.vocabulary import Backend, Status

STAND_IN = Path(__file__).with_name("xla_stand_in")
SMALL = (
    "--steps",
    6,
    "--no-gates",
    "--no-probe",
    "--set",
    "compute=fp32",
    "--set",
    "data.padding=static",
    "--set",
    "batch.micro_batch=4",
    "--timeout",
    150,
)


@pytest.fixture
def neuron_machine():
    """The environment of a machine where neuron-ls lists a chip with two cores."""
    return {
        "PATH": f"{STAND_IN / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(STAND_IN), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


@pytest.mark.slow
def test_two_cores_learn_what_two_processes_learn_under_ddp(tmp_path, neuron_machine):
    """Dropout draws the same in both, so that a gradient that is not exchanged, or is twice, shows from the second step on."""
    ddp = tunemark("run", "smoke-bert", *SMALL, "--devices", 2, "--out", tmp_path / "ddp")
    assert ddp.returncode == 0, ddp.stderr
    cores = tunemark("run", "smoke-bert", *SMALL, "--devices", 2, "--out", tmp_path / "cores", env=neuron_machine, start=cold)
    assert cores.returncode == 0, cores.stderr
    reference, both = only_submission(tmp_path / "ddp"), only_submission(tmp_path / "cores")
    assert both.environment.backend is Backend.NEURON
    assert both.outcome.status is Status.OK
    assert (both.effective.processes, both.effective.process_group) == (2, "xla")
    assert both.plan.batch.global_batch == reference.plan.batch.global_batch == 8
    assert both.trace.loss == pytest.approx(reference.trace.loss, rel=1e-5)
    assert both.ranks == ()


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
def test_classifiers_are_not_sharded(neuron_plan, strategy):
    assert neuron_plan("bert-emotion", devices=2, strategy=strategy).unsupported is not None


def test_bert_on_the_two_cores_of_a_chip_can_be_planned(neuron_plan):
    resolved = neuron_plan("bert-emotion", devices=2)
    assert resolved.unsupported is None
    assert (resolved.plan.batch.data_parallel, resolved.plan.batch.global_batch) == (2, 16)
    assert resolved.overrides == ()


@pytest.fixture
def neuron_plan():
    """Return a function that plans a workload on the two cores of a chip."""
    from test_neuron import make_neuron

    facts = FactBase.of_project()
    return lambda name, **options: resolve(name, facts, make_neuron(2), Options(**options))
