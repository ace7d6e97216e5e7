"""A classifier on two NeuronCores: two real processes, with a stand-in of torch_xla that exchanges gradients over gloo.

It shows that both processes are joined, that gradients are averaged once per step, and that the submission is valid. It shows
nothing about graphs, compile time or speed on a device.
"""

import os
from pathlib import Path

import pytest
from harness_making import cold, only_submission, tunemark

from tunemark.schema.vocabulary import Backend, Status

STAND_IN = Path(__file__).with_name("xla_stand_in")
SETS = ("gates=false", "probe=false", "compute=fp32", "data.padding=static", "timeout=150")
SMALL = ("--steps", 6, "--micro-batch", 4, *(word for each in SETS for word in ("--set", each)))


@pytest.fixture
def neuron_machine():
    """The environment of a machine where neuron-ls lists a chip with two cores."""
    return {
        "PATH": f"{STAND_IN / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(STAND_IN), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


@pytest.mark.nightly
def test_two_cores_learn_what_two_processes_learn_under_ddp(tmp_path, neuron_machine):
    """Dropout draws the same in both, so that a gradient that is not exchanged, or is twice, shows from the second step on."""
    ddp = tunemark("run", "smoke-bert", *SMALL, "--devices", 2, "--out", tmp_path / "ddp")
    assert ddp.returncode == 0, ddp.stderr
    cores = tunemark("run", "smoke-bert", *SMALL, "--devices", 2, "--out", tmp_path / "cores", env=neuron_machine, start=cold)
    assert cores.returncode == 0, cores.stderr
    reference, both = only_submission(tmp_path / "ddp"), only_submission(tmp_path / "cores")
    assert both.environment.backend is Backend.NEURON_XLA
    assert both.outcome.status is Status.OK
    assert (both.effective.processes, both.effective.process_group) == (2, "xla")
    assert both.plan.batch.global_batch == reference.plan.batch.global_batch == 8
    assert both.trace.loss == pytest.approx(reference.trace.loss, rel=1e-5)
    assert both.ranks == ()
