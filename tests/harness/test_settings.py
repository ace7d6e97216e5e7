"""Settings of speed and memory take effect, are read back and compared with the request; a cold compile cache is told from a warm one."""

import sys
from types import FunctionType, MethodType, SimpleNamespace

import pytest
import torch
from harness_making import gpus, planned, run_of, trained_on
from study_making import make_run

from tunemark.harness.run import launch
from tunemark.harness.vendors import cuda
from tunemark.harness.worker import levers
from tunemark.harness.worker.levers import effective, watch_compute
from tunemark.schema.records.trace import Effective, compared
from tunemark.schema.vocabulary import Status

GPU = gpus(target="9.0")


@pytest.mark.parametrize(("kernel", "left"), [("cudnn", "cudnn"), ("efficient", "mem_efficient"), ("flash", "flash"), ("math", "math")])
def test_only_the_kernel_of_the_plan_is_left_to_torch(monkeypatch, kernel, left):
    states = {}
    for name in ("flash", "mem_efficient", "cudnn", "math"):
        monkeypatch.setattr(torch.backends.cuda, f"enable_{name}_sdp", lambda on, name=name: states.update({name: on}))
    levers.limit_sdpa(planned("smoke-lora", machine=GPU).plan)
    assert states == {}
    levers.limit_sdpa(planned("smoke-lora", f"sdpa_kernel={kernel}", machine=GPU).plan)
    assert [name for name, on in states.items() if on] == [left]
    assert len(states) == 4


def test_segments_of_the_allocator_grow_on_cuda_unless_the_user_chose(tmp_path, monkeypatch):
    for name in cuda.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    variable, (on_gpu, on_cpu) = "PYTORCH_ALLOC_CONF", (planned("smoke-lora", machine=machine).plan for machine in (GPU, None))
    assert launch.environment(on_gpu, tmp_path)[variable] == "expandable_segments:True"
    assert variable not in launch.environment(on_cpu, tmp_path)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert variable not in launch.environment(on_gpu, tmp_path)


def test_a_module_that_kept_its_class_and_got_the_forward_of_liger_counts_as_fused(facts):
    plan = planned("smoke-lora", machine=GPU).plan
    model, _ = trained_on(plan, facts.model("tiny-llama"))

    def kernels():
        return effective(plan, model, torch.optim.SGD([torch.zeros(1, requires_grad=True)]), 1, None, None)["fused_kernels"]

    assert kernels() == "none"
    norm = model.get_base_model().model.norm
    norm.forward = MethodType(FunctionType((lambda _self: None).__code__, {"__name__": "liger_kernel.transformers.rms_norm"}), norm)
    assert kernels() == "liger"


SEEN = {"attention": "sdpa", "compute": "fp32", "optimizer": "torch AdamW", "trainable_dtypes": ("float32",), "processes": 1}
SEEN |= dict.fromkeys(("fused_kernels", "compile", "gradient_checkpointing", "quantisation"), "none")
AS_ASKED = Effective(**SEEN, parameters_on=("cpu",), optimizer_states_on=("cpu",))
ASKED = make_run(planned("smoke-lora"))


def verdicts(**seen):
    return {lever.setting: lever.agrees for lever in compared(ASKED.plan, AS_ASKED.model_copy(update=seen), ASKED.trace)}


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
def test_a_lever_that_is_not_as_asked_is_seen_and_no_other(setting, seen):
    assert [name for name, agrees in verdicts(**seen).items() if not agrees] == [setting]
    assert all(verdicts().values())


def test_the_format_of_the_first_product_is_what_autocast_makes_it():
    seen, model = [], torch.nn.Sequential(torch.nn.Linear(4, 4))
    watch_compute(model, list(model), seen.append)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.zeros(1, 4))
    model(torch.zeros(1, 4))
    assert seen == ["bf16"]


@pytest.mark.nightly
def test_a_compiled_run_names_the_step_and_one_with_cold_compiles_again_and_leaves_the_cache_as_it_was(tmp_path):
    cache, runs = tmp_path / "cache", []
    for name, settings in (("first", ()), ("again", ("cold=true",))):
        quick = ("compile=blocks", "data.sequence_length=16", "probe=false", "gates=false", *settings)
        done, submission = run_of(tmp_path / name, "smoke-full", *quick, steps=3, env={"TORCHINDUCTOR_CACHE_DIR": str(cache)})
        assert submission.outcome.status is Status.OK, done.stderr
        runs.append((submission, sorted(cache.rglob("*"))))
    (first, filled), (cold, left) = runs
    assert (first.events[0].step, first.events[0].kind) == (1, "compile")
    assert first.effective.compile == "blocks, inductor"
    assert (cold.process.compile_cache, cold.plan.measurement.cold) == ("cold", True)
    assert filled
    assert len(left) == len(filled)


def test_a_cold_run_overrules_a_cache_folder_in_the_flags_of_the_neuron_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("NEURON_CC_FLAGS", "--cache_dir=/var/shared -O1")
    assert launch.fresh(tmp_path)["NEURON_CC_FLAGS"] == "-O1"
    monkeypatch.setenv("NEURON_CC_FLAGS", "--cache_dir=/var/shared")
    assert launch.fresh(tmp_path)["NEURON_CC_FLAGS"] == ""


@pytest.mark.parametrize(
    ("counters", "state"),
    [
        ({"inductor": {}, "stats": {"unique_graphs": 0}}, "none"),
        ({"inductor": {"fxgraph_cache_hit": 2}, "stats": {"unique_graphs": 2}}, "warm"),
        ({"inductor": {"fxgraph_cache_hit": 2, "fxgraph_cache_miss": 1}, "stats": {"unique_graphs": 3}}, "cold"),
        ({"inductor": {"fxgraph_cache_bypass": 1}, "stats": {"unique_graphs": 1}}, "cold"),
        ({"inductor": {}, "stats": {"unique_graphs": 1}}, "cold"),
    ],
)
def test_a_graph_that_bypassed_the_cache_was_compiled(monkeypatch, counters, state):
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    assert levers.cache_state(planned("smoke-lora").plan)["state"] == state
