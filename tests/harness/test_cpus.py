"""The CPU as a device: its name, its card, and the warning without one."""

import pytest
from harness_making import make_machine

from tunemark.harness.commands.doctor import report
from tunemark.harness.plan.options import Options
from tunemark.harness.plan.resolve import resolve
from tunemark.harness.plan.target import find_target
from tunemark.harness.vendors.vendor_tools import cpu_model
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.submission import DeviceFacts

ARM = "processor\t: 0\nBogoMIPS\t: 2100.00\nCPU implementer\t: {}\nCPU architecture: 8\nCPU part\t: {}\n"


@pytest.fixture(scope="module")
def facts():
    return FactBase.of_project()


def machine_with(name, **changes):
    return make_machine(devices=(DeviceFacts(name=name, memory_bytes=8 * 2**30),), cpu=name, **changes)


@pytest.mark.parametrize(
    ("implementer", "part", "maker", "name"),
    [
        ("0x41", "0xd0c", "Amazon EC2\n", "AWS Graviton2"),
        ("0x41", "0xd40", "Amazon EC2\n", "AWS Graviton3"),
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


@pytest.mark.parametrize("name", ["Intel(R) Xeon(R) Processor", "AMD EPYC"])
def test_an_anonymous_cpu_has_no_card_and_the_reason_says_why(facts, name):
    plan = resolve("smoke-lora", facts, machine_with(name), Options()).plan
    assert plan.device.accelerator is None
    assert "which many models share; peaks and prices are unknown" in plan.reasons["device.accelerator"]


def test_doctor_shows_the_card_of_a_cpu_with_its_peak_cores_and_clock(facts):
    content = report(facts, machine_with("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz"))
    assert content["accelerator"] == "intel-xeon-platinum-8375c"
    assert content["catalogue"] == (
        "intel-xeon-platinum-8375c: dense peak in TFLOP/s: fp32 7.168 with 32 cores at 3.5 GHz (all-core clock)"
    )


def test_a_plan_for_another_machines_cpu_is_refused(facts):
    for chosen in (("aws-graviton3", None), (None, "c7i.8xlarge")):
        with pytest.raises(TunemarkError, match="is a CPU; plan on the CPU itself"):
            find_target(facts, *chosen, None, 1)
