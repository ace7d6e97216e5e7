"""Levers of speed: one kernel of attention, modes of torch.compile, and the allocator's segments."""

from functools import partial

import pytest
import torch
from harness_making import make_machine
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run import process
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.harness.worker import levers
from tunemark.schema.records.effective import compared
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.records.trace import Effective, StepTrace
from tunemark.schema.vocabulary import Backend


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


class CheckpointedCall(nn.Module):
    """A block of transformers 5.17, which recomputes its whole call, and not its `forward` as later ones do."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def __call__(self, *arguments, **settings):
        return self._gradient_checkpointing_func(partial(super().__call__, **settings), *arguments)

    def forward(self, hidden):
        return self.outer(torch.relu(self.inner(hidden)))


class CheckpointedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([CheckpointedCall(), CheckpointedCall()])

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs):
        for layer in self.layers:
            layer._gradient_checkpointing_func = partial(checkpoint, **gradient_checkpointing_kwargs)

    def forward(self, hidden):
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.name() == "aten::mm"
        return function(*args, **(kwargs or {}))


def products_of_backward(plan):
    model = CheckpointedModel()
    levers.recompute(plan, model)
    if plan.model.compile == "blocks":
        for layer in model.layers:
            layer.compile(backend="aot_eager")
    loss = model(torch.randn(4, 8, requires_grad=True)).sum()
    with Products() as products:
        loss.backward()
    return products.count


@pytest.mark.parametrize("compiled", ["none", "blocks"])
def test_selective_checkpointing_repeats_no_product_also_where_the_library_recomputes_whole_calls(facts, compiled):
    # Two layers of two products, each with a gradient of its input and one of its weight.
    counts = {
        kind: products_of_backward(planned(facts, f"gradient_checkpointing={kind}", f"compile={compiled}").plan)
        for kind in ("selective", "full")
    }
    assert counts["selective"] == 8
    assert counts["full"] > 8


def test_segments_of_the_allocator_grow_on_cuda_unless_the_user_chose(facts, tmp_path, monkeypatch):
    for name in levers.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert process.run_environment(planned(facts).plan, tmp_path) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert process.run_environment(planned(facts, backend=Backend.CPU).plan, tmp_path) == {}
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert process.run_environment(planned(facts).plan, tmp_path) == {}
