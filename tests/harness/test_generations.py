"""A plan uses number formats that the GPU's generation has, not those of the newest one of its family."""

import pytest
from harness_making import make_machine

from tunemark.harness.commands.doctor import report
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.plan.target import find_target
from tunemark.harness.vendors.protocol import all_vendors, vendor_of
from tunemark.schema.features import Feature
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Dtype


def make_gpu(name="A GPU that no card knows", target=None, backend=Backend.CUDA):
    return make_machine(backend=backend, devices=(DeviceFacts(name=name),), compute_dtypes=vendor_of(backend).formats, target=target)


def planned(facts, machine, *settings, **options):
    return resolve("smoke-lora", facts, machine, Options(overrides=settings, **options))


@pytest.mark.parametrize(
    ("name", "target"),
    [("Tesla T4", "7.5"), ("Tesla T4", None), ("Tesla V100-SXM2-16GB", "7.0"), ("Tesla V100-SXM2-16GB", None), ("Quadro RTX 6000", "7.5")],
)
def test_auto_takes_fp16_on_volta_and_turing_and_says_why(facts, name, target):
    plan = planned(facts, make_gpu(name, target)).plan
    assert (plan.precision.compute, plan.precision.parameters) == (Dtype.FP16, Dtype.FP32)
    assert plan.reasons["precision.compute"].startswith("the fastest format of a Volta or Turing GPU; bf16: ")
    assert "8.0" in plan.reasons["precision.compute"]


@pytest.mark.parametrize("compute", ["bf16", "tf32"])
def test_a_format_that_a_generation_lacks_is_unsupported_before_anything_runs(facts, compute):
    said = planned(facts, make_gpu("Tesla T4", "7.5"), f"compute={compute}").unsupported
    assert said.startswith(f"{compute} on a Volta or Turing GPU: ")
    assert "use compute=fp16" in said


def test_before_volta_auto_takes_fp32(facts):
    resolved = planned(facts, make_gpu("Tesla P100-PCIE-16GB", "6.0"))
    assert resolved.plan.precision.compute is Dtype.FP32
    assert resolved.unsupported is None
    assert "compute=fp32" in planned(facts, make_gpu("Tesla P100-PCIE-16GB", "6.0"), "compute=fp16").unsupported


@pytest.mark.parametrize("target", ["8.0", "8.6", "8.9", "9.0", "10.0", "12.0", None])
def test_since_ampere_and_where_nothing_is_known_auto_takes_bf16(facts, target):
    resolved = planned(facts, make_gpu(target=target))
    assert resolved.plan.precision.compute is Dtype.BF16
    assert resolved.unsupported is None


@pytest.mark.parametrize(
    ("target", "compute"),
    [
        ("gfx906", Dtype.FP16),
        ("gfx1030", Dtype.FP16),
        *((new, Dtype.BF16) for new in ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")),
    ],
)
def test_amd_gpus_get_bf16_since_they_have_matrix_units_for_it(facts, target, compute):
    machine = make_gpu("AMD Radeon", target, Backend.ROCM)
    assert planned(facts, machine).plan.precision.compute is compute
    assert (planned(facts, machine, "compute=bf16").unsupported is None) is (compute is Dtype.BF16)


def test_the_devices_own_target_overrides_its_card(facts):
    assert planned(facts, make_gpu("Tesla T4", "8.6")).plan.precision.compute is Dtype.BF16


def test_a_plan_for_another_machine_goes_by_the_card(facts):
    there = find_target(facts, "nvidia-t4", None, None, 1).machine()
    assert planned(facts, there).plan.precision.compute is Dtype.FP16
    assert planned(facts, find_target(facts, "nvidia-l4", None, None, 1).machine()).plan.precision.compute is Dtype.BF16


def test_no_card_contradicts_its_architectures_generation(facts):
    backends = {"NVIDIA": Backend.CUDA, "AMD": Backend.ROCM}
    for card in facts.accelerators.values():
        backend = backends.get(card.vendor)
        if backend is None or card.unit == "cpu" or not card.peak_tflops:
            continue
        found = vendor_of(backend).family.generation(None, card.architecture)
        assert (Dtype.BF16 in card.peak_tflops) is (found is None or Feature.BF16 not in found.cannot), card.key


def test_the_doctor_lists_the_formats_of_the_generation(facts):
    assert report(facts, make_gpu("Tesla T4", "7.5"))["machine"]["compute_dtypes"] == (Dtype.FP16, Dtype.FP32)


def test_fp16_is_not_asked_of_shards_that_would_multiply_in_fp32(facts):
    two = make_machine(backend=Backend.CUDA, devices=(DeviceFacts(name="Tesla T4"),) * 2, compute_dtypes=vendor_of(Backend.CUDA).formats)
    assert "fsdp2" in planned(facts, two, devices=2, strategy="fsdp2").unsupported
    assert planned(facts, two, devices=2, strategy="ddp").unsupported is None


def test_no_device_belongs_to_two_generations():
    for backend, one in [(vendor.backend, one) for vendor in all_vendors() for one in vendor.generations]:
        for name in one.architectures:
            assert vendor_of(backend).family.generation(None, name) is one
