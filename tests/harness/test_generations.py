"""A plan uses what a device's generation and its installed packages have: formats, kernels, names and cards of CPUs."""

import pytest
from harness_making import make_machine, planned
from typer.testing import CliRunner

from tunemark.harness.commands.run import app
from tunemark.harness.plan.resolve import machine_with, support_matrix
from tunemark.harness.vendors.cpu import cpu_model
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.schema.files import project_root
from tunemark.schema.physics.memory import state_lines
from tunemark.schema.physics.training_shape import shape_of_plan
from tunemark.schema.plan.capabilities import Feature
from tunemark.schema.records.base import canonical_json
from tunemark.schema.vocabulary import Backend, Dtype


@pytest.mark.parametrize("workload", ["smoke-lora", "smoke-full"])
def test_zero_stores_all_weights_in_fp16_and_updates_fp32_copies(facts, workload):
    """DeepSpeed casts every weight, with its optimizer states and copies in fp32: bytes as measured by a run on two CPU processes."""
    plan = planned(workload, machine=machine_with(facts, "nvidia-t4", 2, 1), devices=2, strategy="zero2").plan
    assert (plan.precision.parameters, plan.trained, plan.autocast) == (Dtype.FP16, Dtype.FP16, False)
    assert plan.reasons["precision.parameters"].endswith("updates fp32 copies of the trained ones")
    lines = {line.key: line.bytes for line in state_lines(shape_of_plan(plan, facts.model(plan.model.key)))}
    trained = {"smoke-lora": 312_320, "smoke-full": 4_212_992}[workload]
    measured = {"smoke-lora": 1_249_284, "smoke-full": 16_851_972}[workload]
    assert lines["optimizer states"] == pytest.approx(measured, rel=1e-5)
    assert lines["fp32 master weights"] == 4 * trained // 2


def test_no_card_contradicts_its_architectures_generation(facts):
    backends = {"NVIDIA": Backend.CUDA, "AMD": Backend.ROCM}
    for card in facts.accelerators.values():
        backend = backends.get(card.vendor)
        if backend is None or card.unit == "cpu" or not card.peak_tflops:
            continue
        found = vendor_of(backend).family.generation(None, card.architecture)
        assert (Dtype.BF16 in card.peak_tflops) is (found is None or Feature.BF16 not in found.cannot), card.key


ARM = "processor\t: 0\nBogoMIPS\t: 2100.00\nCPU implementer\t: {}\nCPU architecture: 8\nCPU part\t: {}\n"


@pytest.mark.parametrize(
    ("implementer", "part", "maker", "name"),
    [
        ("0x41", "0xd4f", "Amazon EC2\n", "AWS Graviton4"),
        ("0x41", "0xd0c", "Google\n", "Ampere Altra Q64-30"),
        ("0x41", "0xd0c", None, "Neoverse-N1"),
        ("0x41", "0xd4f", "Google\n", "Neoverse-V2"),
    ],
)
def test_an_arm_cpu_is_named_by_its_core_and_the_maker_of_the_machine(tmp_path, implementer, part, maker, name):
    info, vendor = tmp_path / "cpuinfo", tmp_path / "sys_vendor"
    info.write_text(ARM.format(implementer, part))
    if maker:
        vendor.write_text(maker)
    assert cpu_model(info, vendor) == name


def test_the_committed_matrix_is_what_the_code_says():
    assert (project_root() / "data" / "support.json").read_bytes() == canonical_json(support_matrix()), "run `make support`"


def test_a_plan_with_more_processes_than_cores_says_so_and_is_shown(monkeypatch):
    monkeypatch.setattr("tunemark.harness.commands.run.planning.detect", lambda _backend: make_machine(cpu_usable_cores=2))
    done = CliRunner().invoke(app, ["plan", "smoke-lora", "--devices", "8"])
    assert done.exit_code == 0, done.stderr
    assert "warning: 8 processes share 2 cores" in done.stderr
    assert "device.count" in done.stdout
    assert "share" not in CliRunner().invoke(app, ["plan", "smoke-lora", "--devices", "2"]).stderr
