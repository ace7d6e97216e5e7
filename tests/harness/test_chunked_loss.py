"""A loss in chunks of tokens: that of whole logits, with its gradients, in less memory, where it is supported."""

from dataclasses import replace

import pytest
import torch
from fake_device import LiveBytes
from harness_making import trained_on
from study_making import FACTS
from test_adapters import planned as adapters_of

from tunemark.harness.worker import levers
from tunemark.harness.worker.engines import fused_adamw
from tunemark.schema.physics.memory import head_line
from tunemark.schema.physics.training_shape import FUSED_ADAMW, TrainingShape
from tunemark.schema.records.trace import DEVICE_TYPES
from tunemark.schema.vocabulary import Dtype, Method

PACKED = ("data.packing=true", "data.name=random-documents")


def learned(family, folder, *settings):
    """Return the loss of a micro-batch of a tiny model of a family, its gradients, and its logits without labels."""
    resolved, card = adapters_of(FACTS, family, *settings)
    model, batches = trained_on(resolved.plan, card, folder)
    tensors = next(batches).tensors
    loss = model(**tensors).loss
    (0.37 * loss).backward()
    logits = model(**{name: value for name, value in tensors.items() if name != "labels"}).logits
    return loss.item(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}, logits.detach()


@pytest.mark.parametrize(("method", "data"), [("full", PACKED), ("lora", ()), ("lora", PACKED)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "granite", "gpt2", "gemma3_text", "cohere2", "gpt_oss", "deepseek_v3"])
def test_loss_and_gradients_are_those_of_whole_logits(monkeypatch, tmp_path, family, method, data):
    # Seven tokens of a vocabulary of 256 words at a time: the last chunk is shorter.
    monkeypatch.setattr(levers, "LOSS_CHUNK", 7 * 256)
    arms = [learned(family, tmp_path, f"method={method}", *data, f"loss={form}") for form in ("whole", "chunked")]
    (whole, wanted, logits), (chunked, gradients, same) = arms
    assert chunked == pytest.approx(whole, rel=1e-6)
    assert torch.equal(logits, same)
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        # Sums in another order: some CPUs differ by 2e-6 of the largest.
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-5, atol=1e-5 * float(wanted[name].abs().max()))


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
def test_the_memory_of_a_loss_on_a_cpu_is_what_the_model_predicts(monkeypatch, method):
    card = FACTS.model("tiny-llama").model_copy(update={"vocabulary": 8192, "hidden_size": 64})
    monkeypatch.setattr(levers, "LOSS_CHUNK", 64 * card.vocabulary)
    monkeypatch.setattr("tunemark.schema.physics.memory.LOSS_CHUNK", 64 * card.vocabulary)
    states, labels = torch.randn(1, 1024, 64, requires_grad=True), torch.randint(card.vocabulary, (1, 1024))
    weight = torch.randn(card.vocabulary, 64, requires_grad=method is Method.FULL)
    seen = LiveBytes()
    with seen.watch(states, weight, labels):
        levers.mean_loss(states, weight, labels)
    shape = TrainingShape(card, method, 1024, loss="streamed", parameters=Dtype.FP32, activations=Dtype.FP32)
    assert seen.peak == pytest.approx(head_line(shape).bytes, rel=0.05)
    assert seen.peak < head_line(replace(shape, loss="upcast")).bytes / 4


def test_gradients_are_freed_in_the_backward_pass_while_the_loss_lives():
    given, freed = [torch.randn(*size, requires_grad=True) for size in ((1, 8, 4), (16, 4))], []
    # The gradient of a leaf would be kept as its own.
    states, weight = (each * 1 for each in given)
    for each in (states, weight):
        each.register_hook(lambda gradient: freed.append(torch.multiprocessing.reductions.StorageWeakRef(gradient.untyped_storage())))
    loss = levers.mean_loss(states, weight, torch.arange(8)[None])
    loss.backward()
    assert loss.isfinite()
    assert [each.expired() for each in freed] == [True, True]


def test_the_memory_model_has_fused_adamw_for_the_devices_for_which_torch_has_it():
    names = torch.utils._foreach_utils._get_fused_kernels_supported_devices()
    assert fused_adamw("cpu")
    assert not fused_adamw("xla")
    assert {DEVICE_TYPES[backend] for backend in FUSED_ADAMW if backend in DEVICE_TYPES} <= set(names)
    assert all(backend in FUSED_ADAMW for backend, name in DEVICE_TYPES.items() if name in names)
