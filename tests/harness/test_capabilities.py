"""The support matrix is generated from the code and cannot drift from it."""

import pytest
from harness_making import make_machine
from typer.testing import CliRunner

from tunemark.harness.commands.run import app
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.harness.vendors.support import support_matrix
from tunemark.schema.features import Feature
from tunemark.schema.files import project_root
from tunemark.schema.plan.capabilities import shared_cores
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend


def test_the_committed_matrix_is_what_the_code_says():
    assert (project_root() / "data" / "support.json").read_bytes() == canonical_json(support_matrix()), "run `make support`"


def test_every_reason_is_of_a_feature_and_the_scripted_device_is_left_out():
    made = support_matrix()
    assert set(made.features) == {feature.value for feature in Feature}
    assert Backend.FAKE not in made.families
    assert Backend.CPU in made.families


@pytest.mark.parametrize(("release", "runs"), [("4.57.6", True), ("5.23.0", False), ("to be installed", False)])
def test_four_bit_experts_need_an_older_transformers(facts, release, runs):
    gpu = make_machine(
        backend=Backend.CUDA,
        devices=(DeviceFacts(name="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30),),
        compute_dtypes=vendor_of(Backend.CUDA).formats,
        packages={"torch": "2.13.0", "bitsandbytes": "0.50.2", "transformers": release},
    )
    said = resolve("large-qlora-2k-mixtral-8x7b", facts, gpu, Options()).unsupported
    assert (said is None) is runs
    assert runs or "bitsandbytes does not quantise" in said
    assert resolve("large-qlora-2k-llama2-70b", facts, gpu, Options()).unsupported is None


@pytest.mark.parametrize(
    ("backend", "devices", "shared"), [(Backend.CPU, 8, 4), (Backend.CPU, 4, None), (Backend.CPU, 1, None), (Backend.CUDA, 8, None)]
)
def test_more_processes_than_cores_are_a_warning_on_a_cpu_only(facts, backend, devices, shared):
    machine = make_machine(
        backend=backend,
        devices=(DeviceFacts(name="A device that no card knows"),) * (8 if backend is Backend.CUDA else 1),
        compute_dtypes=vendor_of(backend).formats,
        cpu_usable_cores=4,
    )
    resolved = resolve("smoke-lora", facts, machine, Options(devices=devices))
    assert resolved.unsupported is None
    warning = shared_cores(resolved.plan.device, machine)
    assert warning is None if shared is None else f"give --devices {shared} or less" in warning


def test_a_plan_with_more_processes_than_cores_says_so_and_is_shown(monkeypatch):
    monkeypatch.setattr("tunemark.harness.plan.options.detect", lambda _backend: make_machine(cpu_usable_cores=2))
    done = CliRunner().invoke(app, ["plan", "smoke-lora", "--devices", "8"])
    assert done.exit_code == 0, done.stderr
    assert "warning: 8 processes share 2 cores" in done.stderr
    assert "device.count" in done.stdout
    assert "share" not in CliRunner().invoke(app, ["plan", "smoke-lora", "--devices", "2"]).stderr
