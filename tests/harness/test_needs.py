"""A feature needs the package that implements it on that family, under the name that libraries look for."""

import subprocess
import sys

import pytest
from harness_making import make_machine

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.harness.vendors.support import support_matrix
from tunemark.schema.features import Feature
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend

KERNEL = {"attention=flash_attention_2": "flash-attn", "attention=flash_attention_3": "flash-attn-3"}
LOOK = """
import sys
sys.path.insert(0, sys.argv[1])
from transformers.modeling_flash_attention_utils import FLASH_ATTENTION_COMPATIBILITY_MATRIX as known
from tunemark.harness.plan.machine import package_versions
print(known[3]["pkg_availability_check"](), known[2]["pkg_availability_check"](), "flash-attn-3" in package_versions())
"""


def refusal(facts, setting, *, target="9.0", name="A GPU that no card knows", packages=()):
    machine = make_machine(
        backend=Backend.CUDA,
        devices=(DeviceFacts(name=name),),
        compute_dtypes=vendor_of(Backend.CUDA).formats,
        target=target,
        packages=dict.fromkeys(("torch", *packages), "1"),
    )
    return resolve("smoke-lora", facts, machine, Options(overrides=(setting,))).unsupported


@pytest.mark.parametrize("setting", KERNEL)
def test_each_flash_attention_needs_its_own_package(facts, setting):
    other = next(package for asked, package in KERNEL.items() if asked != setting)
    assert f"needs {KERNEL[setting]}, which is not installed" in refusal(facts, setting, packages=[other])
    assert refusal(facts, setting, packages=[KERNEL[setting]]) is None


@pytest.mark.parametrize(("name", "target"), [("x", "8.0"), ("x", "8.9"), ("x", "10.0"), ("x", "12.0"), ("NVIDIA L4", None), ("x", "7.5")])
def test_flash_attention_3_is_for_hopper_only(facts, name, target):
    said = refusal(facts, "attention=flash_attention_3", name=name, target=target, packages=["flash-attn-3"])
    assert "Hopper" in said


def test_flash_attention_3_is_planned_on_a_hopper_gpu_by_its_card_too(facts):
    said = refusal(facts, "attention=flash_attention_3", name="NVIDIA H100 80GB HBM3", target=None, packages=["flash-attn-3"])
    assert said is None


def installed(folder, module, distribution):
    """Lay out what pip leaves of a package."""
    facts = folder / f"{distribution}-3.0.0.dist-info"
    facts.mkdir()
    (folder / f"{module}.py").write_text("")
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.0.0\n")
    (facts / "RECORD").write_text(f"{module}.py,,\n")
    (facts / "top_level.txt").write_text(f"{module}\n")


@pytest.mark.parametrize(
    ("module", "distribution", "seen"),
    [("flash_attn_interface", "flash_attn_3", "True False True"), ("flash_attn", "flash_attn", "False True False")],
)
def test_transformers_finds_flash_attention_3_by_the_required_package(tmp_path, module, distribution, seen):
    pytest.importorskip(
        "transformers", minversion="5", reason="transformers before 5 looks for FlashAttention 3 under another distribution name"
    )
    installed(tmp_path, module, distribution)
    done = subprocess.run([sys.executable, "-c", LOOK, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == seen.split()


def test_flash_attention_of_neuron_is_a_part_of_optimum_neuron():
    assert vendor_of(Backend.NEURON).needs[Feature.FLASH_ATTENTION].package == "optimum-neuron"
    needs = {backend: family.needs for backend, family in support_matrix().families.items()}
    assert needs[Backend.CUDA][Feature.FLASH_ATTENTION].package == "flash-attn"
    assert "flash-attn" not in {need.package for need in needs[Backend.NEURON].values()}


def test_no_package_is_needed_for_what_a_family_cannot():
    made = support_matrix()
    assert all(not set(family.needs) & set(family.cannot) for family in made.families.values())
