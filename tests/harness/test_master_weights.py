"""With fp32 copies of bf16 weights, small updates add up instead of being rounded away."""

import pytest
import torch
from harness_making import make_machine

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker import optimizers
from tunemark.harness.worker.data import load_samples, micro_batches, shape_of
from tunemark.harness.worker.models import build_model, gradients_of, model_facts
from tunemark.harness.worker.optimizers import MasterAdamW, build_optimizer

MASTER = ("compute=bf16", "optimizer.master_weights=true")


def planned(facts, *settings, workload="smoke-full", **options):
    return resolve(workload, facts, make_machine(), Options(overrides=settings, **options))


def weights(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter((0.02 * torch.randn(8, size, generator=generator)).bfloat16()) for size in range(4, 4 + count)]


@pytest.mark.parametrize("chunk", [1, 2**26])
@pytest.mark.parametrize("fused", [False, True])
def test_the_copies_follow_adamw_in_fp32_and_the_weights_are_their_rounding(monkeypatch, chunk, fused):
    monkeypatch.setattr(optimizers, "MASTER_CHUNK", chunk)
    ours, exact = weights(3), [torch.nn.Parameter(one.detach().float()) for one in weights(3)]
    settings = {"lr": 2e-5, "weight_decay": 0.1}
    optimizer, reference = MasterAdamW([{"params": ours}], **settings, fused=fused), torch.optim.AdamW(exact, **settings)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        for one, wanted in zip(ours, exact, strict=True):
            one.grad = torch.randn(one.shape, generator=generator).bfloat16()
            wanted.grad = one.grad.float()
        optimizer.step()
        reference.step()
        optimizer.zero_grad()
        assert all(one.grad is None for one in ours)
    for master, one, wanted in zip(optimizer._masters, ours, exact, strict=True):
        torch.testing.assert_close(master, wanted.detach(), rtol=1e-5, atol=1e-7)
        assert torch.equal(one, master.bfloat16())


def test_learning_rates_of_groups_and_schedules_reach_the_copies():
    first, second = weights(2)
    before = [one.detach().clone() for one in (first, second)]
    optimizer = MasterAdamW([{"params": [first], "lr": 0.0}, {"params": [second]}], lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _step: 1.0)
    first.grad, second.grad = torch.ones_like(first), torch.ones_like(second)
    optimizer.step()
    schedule.step()
    assert torch.equal(first, before[0])
    assert not torch.equal(second, before[1])


def test_a_model_trains_and_its_states_are_counted_with_the_copies(facts, tmp_path):
    plan = planned(facts, *MASTER, "data.sequence_length=16").plan
    card = facts.model(plan.model.key)
    model = build_model(plan, card, None, None, tmp_path, Cpu())
    optimizer = build_optimizer(plan, model, fused=False)
    batches = micro_batches(plan, load_samples(plan, card.vocabulary, None, None).training, shape_of(plan, card))
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    for _ in range(3):
        model(**next(batches).tensors).loss.backward()
        gradients = gradients_of(model)
        optimizer.step()
        optimizer.zero_grad()
    found = model_facts(model, optimizer, gradients)
    assert all(not torch.equal(one, before[name]) for name, one in model.named_parameters())
    assert found["parameter_bytes"] == {"bf16": 2 * found["parameters"]}
    assert found["gradient_bytes"] == 2 * found["parameters"]
    assert 0 <= found["optimizer_state_bytes"] - 12 * found["parameters"] < 1_000
