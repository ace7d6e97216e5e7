"""A plan uses number formats that the GPU's generation has, not those of the newest one of its family."""

import pytest
from harness_making import make_machine

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.plan.target import find_target
from tunemark.harness.vendors.protocol import vendor_of
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
