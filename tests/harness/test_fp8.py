"""Matrices that multiply in fp8: frozen weights of LoRA in torch alone, trained ones through torchao."""

import pytest
import torch
from harness_making import make_machine, planned, trained_on
from tiny_models import tiny_card

from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker.engines import build_optimizer
from tunemark.harness.worker.fp8 import FrozenFp8Linear
from tunemark.harness.worker.levers import blocks, compile_model, compiled_graphs, effective, layers_in_fp8
from tunemark.harness.worker.models import adapter_gradient, build_model, model_facts
from tunemark.schema.physics.memory import state_lines
from tunemark.schema.physics.training_shape import shape_of_plan

HALF_STEP = 2.0**-4
"""Largest relative rounding error of three bits of mantissa."""
OF_A_CHAIN = HALF_STEP / 3**0.5 * 28**0.5
"""Relative error of gradients behind up to 28 products, forward and backward, whose errors add up like random ones."""
TINY = ("data.sequence_length=32", "batch.micro_batch=2")
multiplies_rows = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 12),
    reason="torch has fp8 products with a scale per row on CPUs since 2.12",
)
FROZEN = "frozen_weights=fp8"


def built(facts, *settings, machine=None, card=None):
    plan = planned("smoke-lora", *TINY, *settings, machine=machine).plan
    model, batches = trained_on(plan, card or facts.model("tiny-llama"))
    return plan, model, next(batches)


def with_gradients(model, batch):
    """Return the loss, and the gradients of the adapters after `lora_B` has left zero, without which half of them are zero."""
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    loss = model(**batch.tensors).loss
    loss.backward()
    return loss.detach(), {name: p.grad.float().clone() for name, p in model.named_parameters() if p.grad is not None}


def distance(found, expected):
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def restored(stored):
    """Return the weight of a layer in fp8, in fp32."""
    return stored.weight.view(stored.form).float() * stored.weight_scales.float().view(-1, 1)


def exact(model):
    """Return the model in fp32, with the stored weights in place of layers in fp8."""
    for unit in blocks(model):
        for path in [path for path, one in unit.named_modules() if isinstance(one, FrozenFp8Linear)]:
            one, (parent, _, name) = unit.get_submodule(path), path.rpartition(".")
            plain = torch.nn.Linear(one.in_features, one.out_features, bias=False)
            plain.weight = torch.nn.Parameter(restored(one), requires_grad=False)
            setattr(unit.get_submodule(parent), name, plain)
    return model.float()


@multiplies_rows
def test_loss_and_gradients_of_adapters_are_those_of_the_stored_weights_but_for_rounding(facts):
    plan, model, batch = built(facts, FROZEN)
    assert adapter_gradient(plan, model, batch.tensors)["passed"]
    loss, found = with_gradients(model, batch)
    model.zero_grad()
    wanted_loss, wanted = with_gradients(exact(model), batch)
    assert float(loss) == pytest.approx(float(wanted_loss), rel=2e-3)
    assert found.keys() == wanted.keys()
    assert max(distance(found[name], wanted[name]) for name in wanted) < OF_A_CHAIN


def test_only_the_matrices_of_the_blocks_are_stored_in_fp8_and_take_the_predicted_bytes(facts):
    plan, model, _ = built(facts, FROZEN)
    _, plain, _ = built(facts, "compute=bf16")
    sizes, whole = model_facts(model), model_facts(plain)
    assert sizes["parameters"] == whole["parameters"]
    assert sizes["trainable_parameters"] == whole["trainable_parameters"]
    linear = sum(p.numel() for name, p in plain.named_parameters() if "base_layer" in name)
    predicted = {line.key: line.bytes for line in state_lines(shape_of_plan(plan, facts.model("tiny-llama")))}
    assert sizes["parameter_bytes"]["fp8"] == linear == predicted["fp8 weights"]
    assert sizes["parameter_bytes"]["scales of fp8 weights"] == predicted["fp8 scales"]
    assert sizes["parameter_bytes"]["bf16"] == whole["parameter_bytes"]["bf16"] - 2 * linear
    assert type(model.get_output_embeddings()) is torch.nn.Linear
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.bfloat16}


@pytest.mark.nightly
def test_compiled_blocks_are_as_exact_as_those_that_are_not_compiled(facts):
    """Inductor keeps other intermediate results in bf16, and a number near the middle of two steps is rounded to the other one."""
    _, plain, batch = built(facts, FROZEN)
    plan, model, _ = built(facts, FROZEN, "compile=blocks")
    compile_model(plan, model)
    (one, wanted), (other, found) = with_gradients(exact(plain), batch), with_gradients(model, batch)
    assert compiled_graphs() > 0
    assert float(one) == pytest.approx(float(other), rel=2e-3)
    assert max(distance(found[name], wanted[name]) for name in wanted) < OF_A_CHAIN


@multiplies_rows
def test_pretrained_weights_are_stored_layer_by_layer(facts, tmp_path):
    _, plain, batch = built(facts, "compute=bf16")
    base = plain.unload()
    base.save_pretrained(tmp_path)
    plan = planned("smoke-lora", *TINY, FROZEN, weights=f"pretrained:{tmp_path}").plan
    model = build_model(plan, facts.model("tiny-llama"), str(tmp_path), None, tmp_path, Cpu())
    linear = [module for unit in blocks(base) for module in unit.modules() if type(module) is torch.nn.Linear]
    assert len(linear) == len(layers_in_fp8(model))
    for one, other in zip(layers_in_fp8(model), linear, strict=True):
        assert distance(restored(one), other.weight) < HALF_STEP / 3**0.5
    assert float(model(**batch.tensors).loss) == pytest.approx(float(base(**batch.tensors).loss), rel=5e-3)


@multiplies_rows
def test_torchao_trains_the_matrices_of_the_blocks_in_fp8(facts, monkeypatch):
    pytest.importorskip("torchao", reason="torchao is not installed; it is an optional package")
    ready = make_machine(packages={"torch": "2.13.0", "torchao": "0.18.0"})
    settings = ("method=full", "optimizer.learning_rate=1e-2", "fp8_training=rowwise")
    # A CPU takes seconds for each product in fp8 of a model of 4 million parameters.
    plan, model, batch = built(facts, *settings, machine=ready, card=tiny_card("llama"))
    optimizer = build_optimizer(plan, model, fused=False)
    assert effective(plan, model, optimizer, 1, None, None)["fp8_training"] == "rowwise"
    assert type(model.get_output_embeddings()) is torch.nn.Linear
    losses, products, product = [], [], torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *matrices, **settings: products.append(1) or product(*matrices, **settings))
    for _ in range(8):
        loss = model(**batch.tensors).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    linear = [module for unit in blocks(model) for module in unit.modules() if isinstance(module, torch.nn.Linear)]
    assert len(products) == 8 * 3 * len(linear)
    assert losses[-1] < losses[0] - 0.5
