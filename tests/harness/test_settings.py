"""Settings of speed and memory: what is asked for takes effect, is read back, and is compared with the request."""

from types import FunctionType, MethodType

import pytest
import torch
from harness_making import make_machine
from study_making import FACTS, make_run

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run import process
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.harness.worker import levers
from tunemark.harness.worker.levers import effective, fuse, watch_compute
from tunemark.schema.plan.conflicts import LIGER_FAMILIES
from tunemark.schema.records.effective import compared
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.records.trace import Effective, StepTrace
from tunemark.schema.vocabulary import Backend, Dtype


def planned(facts, *settings, backend=Backend.CUDA, target="9.0"):
    machine = make_machine(
        backend=backend,
        devices=(DeviceFacts(name="A GPU that no card knows"),),
        compute_dtypes=vendor_of(backend).formats,
        target=target if backend is Backend.CUDA else None,
    )
    return resolve("smoke-lora", facts, machine, Options(overrides=settings))


@pytest.mark.parametrize(("kernel", "left"), [("cudnn", "cudnn"), ("efficient", "mem_efficient"), ("flash", "flash"), ("math", "math")])
def test_only_the_kernel_of_the_plan_is_left_to_torch(facts, monkeypatch, kernel, left):
    states = {}
    for name in ("flash", "mem_efficient", "cudnn", "math"):
        monkeypatch.setattr(torch.backends.cuda, f"enable_{name}_sdp", lambda on, name=name: states.update({name: on}))
    levers.limit_sdpa(planned(facts).plan)
    assert states == {}
    levers.limit_sdpa(planned(facts, f"sdpa_kernel={kernel}").plan)
    assert [name for name, on in states.items() if on] == [left]
    assert len(states) == 4


def test_another_kernel_than_the_requested_one_is_a_fallback(facts):
    plan = planned(facts, "sdpa_kernel=cudnn").plan
    fields = {"fused_kernels": "none", "compile": "none", "gradient_checkpointing": "none", "optimizer": "torch AdamW"}
    for kernel, agrees in (("cudnn", True), ("efficient", False), (None, True)):
        ran = Effective(attention="sdpa", attention_kernel=kernel, **fields, trainable_dtypes=("bfloat16",), processes=1)
        assert next(compared(plan, ran, StepTrace())).agrees is agrees


def test_segments_of_the_allocator_grow_on_cuda_unless_the_user_chose(facts, tmp_path, monkeypatch):
    for name in levers.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert process.run_environment(planned(facts).plan, tmp_path) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert process.run_environment(planned(facts, backend=Backend.CPU).plan, tmp_path) == {}
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert process.run_environment(planned(facts).plan, tmp_path) == {}


SETTINGS = ("fused_kernels=liger",)


@pytest.fixture
def plan(facts):
    return with_liger(facts, "smoke-lora").plan


def with_liger(facts, workload):
    gpu = make_machine(
        backend=Backend.CUDA,
        devices=(DeviceFacts(name="NVIDIA H100 80GB HBM3"),),
        compute_dtypes=(Dtype.BF16, Dtype.FP32),
        packages={"torch": "2.13.0", "liger-kernel": "0.8.5"},
    )
    return resolve(workload, facts, gpu, Options(overrides=SETTINGS))


def tiny_model(name="Llama", **settings):
    import transformers

    plain = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    config = getattr(transformers, f"{name}Config")(**plain | settings)
    auto = transformers.AutoModelForSequenceClassification if name == "Bert" else transformers.AutoModelForCausalLM
    return auto.from_config(config)


def kernels_seen(plan, model):
    return effective(plan, model, torch.optim.SGD([torch.zeros(1, requires_grad=True)]), 1, None, None)["fused_kernels"]


def test_a_module_that_kept_its_class_and_got_the_forward_of_liger_counts_as_fused(plan):
    model = tiny_model()
    assert kernels_seen(plan, model) == "none"
    norm = model.model.norm
    norm.forward = MethodType(FunctionType((lambda _self: None).__code__, {"__name__": "liger_kernel.transformers.rms_norm"}), norm)
    assert kernels_seen(plan, model) == "liger"


def test_what_the_installed_liger_puts_in_is_seen_and_what_it_leaves_alone_is_not(plan):
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed; it is an optional package")
    model, unknown = tiny_model(), tiny_model("Bert")
    for one in (model, unknown):
        assert kernels_seen(plan, one) == "none"
        fuse(plan, one)
    assert kernels_seen(plan, model) == "liger"
    assert kernels_seen(plan, unknown) == "none"


def test_the_families_with_kernels_are_those_of_the_installed_liger(facts):
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed; it is an optional package")
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    families = {card.family for card in facts.models.values()}
    assert set(LIGER_FAMILIES) == families & set(MODEL_TYPE_TO_APPLY_LIGER_FN)


AS_ASKED = Effective(
    attention="sdpa",
    fused_kernels="none",
    compile="none",
    compute="fp32",
    gradient_checkpointing="none",
    quantisation="none",
    optimizer="torch AdamW",
    trainable_dtypes=("float32",),
    parameters_on=("cpu",),
    optimizer_states_on=("cpu",),
    processes=1,
)
ASKED = make_run(resolve("smoke-lora", FACTS, make_machine(), Options()))


def verdicts(plan=ASKED.plan, trace=ASKED.trace, **seen):
    return {lever.setting: lever.agrees for lever in compared(plan, AS_ASKED.model_copy(update=seen), trace)}


def on(backend, **device):
    changed = ASKED.plan.device.model_copy(update={"backend": backend, **device})
    return ASKED.plan.model_copy(update={"device": changed})


def test_a_run_that_did_all_that_was_asked_differs_in_nothing():
    assert set(verdicts().values()) == {True}


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        ("compute_format", {"compute": "bf16"}),
        ("optimizer", {"optimizer": "torch SGD"}),
        ("quantisation", {"quantisation": "nf4, double"}),
        ("trained_format", {"trainable_dtypes": ("bfloat16",)}),
        ("attention", {"attention": "eager"}),
        ("stochastic_rounding", {"stochastic_rounding": True}),
    ],
)
def test_a_lever_that_is_not_as_asked_is_seen(setting, seen):
    assert [name for name, agrees in verdicts(**seen).items() if not agrees] == [setting]


def test_the_format_of_the_first_product_is_what_autocast_makes_it():
    seen, model = [], torch.nn.Sequential(torch.nn.Linear(4, 4))
    watch_compute(model, list(model), seen.append)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.zeros(1, 4))
    model(torch.zeros(1, 4))
    assert seen == ["bf16"]
