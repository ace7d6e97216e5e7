"""Liger's kernels are seen where they took effect, and refused where it has none.

Proven on a CPU with liger-kernel 0.8.5, transformers 5.23.0, torch 2.13.0 and triton 3.9.0: its way for an instance keeps
each module's class and gives the norms, the feed-forward layers and the model itself another `forward`, and does nothing to
a family that it does not know. Not proven: that the kernels run and are right; they need a GPU and an active Triton driver.
"""

from types import FunctionType, MethodType

import pytest
import torch
from harness_making import make_machine

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.worker.levers import effective, fuse
from tunemark.schema.plan.conflicts import LIGER_FAMILIES
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Dtype

SETTINGS = ("fused_kernels=liger",)


@pytest.fixture
def plan(facts):
    return planned(facts, "smoke-lora").plan


def planned(facts, workload):
    gpu = make_machine(
        backend=Backend.CUDA,
        devices=(DeviceFacts(name="NVIDIA H100 80GB HBM3"),),
        compute_dtypes=(Dtype.BF16, Dtype.FP32),
        packages={"torch": "2.13.0", "liger-kernel": "0.8.5"},
    )
    return resolve(workload, facts, gpu, Options(overrides=SETTINGS))


def tiny(name="Llama", **settings):
    import transformers

    plain = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    config = getattr(transformers, f"{name}Config")(**plain | settings)
    auto = transformers.AutoModelForSequenceClassification if name == "Bert" else transformers.AutoModelForCausalLM
    return auto.from_config(config)


def seen(plan, model):
    return effective(plan, model, torch.optim.SGD([torch.zeros(1, requires_grad=True)]), 1, None, None)["fused_kernels"]


def test_a_module_that_kept_its_class_and_got_the_forward_of_liger_counts_as_fused(plan):
    model = tiny()
    assert seen(plan, model) == "none"
    norm = model.model.norm
    norm.forward = MethodType(FunctionType((lambda _self: None).__code__, {"__name__": "liger_kernel.transformers.rms_norm"}), norm)
    assert seen(plan, model) == "liger"


def test_what_the_installed_liger_puts_in_is_seen_and_what_it_leaves_alone_is_not(plan):
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed; it is an optional package")
    model, unknown = tiny(), tiny("Bert")
    for one in (model, unknown):
        assert seen(plan, one) == "none"
        fuse(plan, one)
    assert seen(plan, model) == "liger"
    assert seen(plan, unknown) == "none"


def test_the_families_with_kernels_are_those_of_the_installed_liger(facts):
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed; it is an optional package")
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    families = {card.family for card in facts.models.values()}
    assert set(LIGER_FAMILIES) == families & set(MODEL_TYPE_TO_APPLY_LIGER_FN)
