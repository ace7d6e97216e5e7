"""Requested against effective: a lever that was silently ignored is detected, and a library's own word for the same setting is no difference."""

import pytest
import torch
from harness_making import make_machine
from study_making import FACTS, make_run

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.worker.levers import watch_compute
from tunemark.schema.records.effective import compared
from tunemark.schema.records.trace import Effective
from tunemark.schema.vocabulary import Backend, Padding

RAN = Effective(
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
RUN = make_run(resolve("smoke-lora", FACTS, make_machine(), Options()))


def verdicts(plan=RUN.plan, trace=RUN.trace, **seen):
    return {lever.setting: lever.agrees for lever in compared(plan, RAN.model_copy(update=seen), trace)}


def on(backend, **device):
    changed = RUN.plan.device.model_copy(update={"backend": backend, **device})
    return RUN.plan.model_copy(update={"device": changed})


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


@pytest.mark.parametrize(
    ("offload", "parameters", "states", "differ"),
    [
        ("none", "cuda", "cuda", []),
        ("optimizer", "cuda", "cpu", []),
        ("optimizer", "cuda", "cuda", ["optimizer_states_on"]),
        ("all", "cuda", "cpu", ["parameters_on"]),
        ("none", "cuda", "cpu", ["optimizer_states_on"]),
    ],
)
def test_offload_is_seen_by_where_parameters_and_states_live(offload, parameters, states, differ):
    found = verdicts(on(Backend.CUDA, offload=offload), parameters_on=(parameters,), optimizer_states_on=(states,))
    assert [name for name, agrees in found.items() if not agrees] == differ


def test_packing_that_put_one_document_in_each_row_is_seen():
    packed = RUN.plan.model_copy(update={"data": RUN.plan.data.model_copy(update={"packing": True, "padding": Padding.NONE})})
    one_each = tuple(real - rows for real, rows in zip(RUN.trace.real_tokens, RUN.trace.rows, strict=True))
    assert verdicts(packed, RUN.trace.model_copy(update={"supervised_tokens": one_each}))["packing"] is False
    more = tuple(tokens - 5 for tokens in one_each)
    assert verdicts(packed, RUN.trace.model_copy(update={"supervised_tokens": more}))["packing"] is True


def test_on_neuron_sdpa_means_the_only_fused_kernel():
    neuron = on(Backend.NEURON)
    seen = {"parameters_on": (), "optimizer_states_on": ()}
    assert verdicts(neuron, attention="flash_attention_2", **seen)["attention"] is True
    assert verdicts(neuron, attention="eager", **seen)["attention"] is False


def test_the_format_of_the_first_product_is_what_autocast_makes_it():
    seen, model = [], torch.nn.Sequential(torch.nn.Linear(4, 4))
    watch_compute(model, list(model), seen.append)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.zeros(1, 4))
    model(torch.zeros(1, 4))
    assert seen == ["bf16"]
