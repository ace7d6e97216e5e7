"""Updated bf16 weights are rounded up or down at random, so that small updates add up on average without an fp32 copy."""

import copy

import pytest
import torch
from device_reads import Syncs
from harness_making import make_machine

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.record import build_submission
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker import optimizers
from tunemark.harness.worker.data import load_samples, micro_batches, shape_of
from tunemark.harness.worker.models import build_model, gradients_of, model_facts
from tunemark.harness.worker.optimizers import StochasticAdamW, build_optimizer, rounded_stochastically, rounding_seed
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.training_shape import shape_of_plan
from tunemark.schema.vocabulary import Backend, Dtype, Strategy

ROUNDED = ("compute=bf16", "optimizer.stochastic_rounding=true")
LARGEST = 2.0**127 * (2 - 2**-7)
"""The largest number of bf16."""


def planned(facts, *settings, workload="smoke-full", machine=None, **options):
    return resolve(workload, facts, machine or make_machine(), Options(overrides=settings, **options))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def weights(*sizes, seed=0):
    return [torch.nn.Parameter((0.02 * torch.randn(size, generator=generator(seed))).bfloat16()) for size in sizes]


def stepped(kind, ours, steps, seed=1, **settings):
    """Train weights with random gradients and return the optimizer."""
    optimizer, draw = kind([{"params": ours}], lr=2e-5, **settings), generator(seed)
    for _ in range(steps):
        for weight in ours:
            weight.grad = torch.randn(weight.shape, generator=draw).bfloat16()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("exact", [1.0 + 2**-9, -1.0 - 2**-10, 3.3e-5, -0.7, 1e-40, 1.7e38, -2.0**-126 * 1.001])
def test_the_expectation_is_the_exact_value_and_each_result_is_one_of_its_two_neighbours(exact):
    count = 200_000
    value = torch.full((count,), exact)
    rounded = rounded_stochastically(value, generator())
    assert torch.equal(rounded, rounded.bfloat16().float())
    low, high = (float(edge(rounded)) for edge in (torch.min, torch.max))
    assert low < float(value[0]) < high
    bits = [int(torch.tensor(edge).bfloat16().view(torch.int16)) for edge in (low, high)]
    assert abs(bits[0] - bits[1]) == 1
    # Three standard errors of the share that is rounded up.
    share = (float(value[0]) - low) / (high - low)
    error = 3 * (share * (1 - share) / count) ** 0.5
    assert float((rounded == high).double().mean()) == pytest.approx(share, abs=error)


def test_numbers_of_bf16_infinities_and_zeros_are_never_changed_and_nan_stays_nan():
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    exact = patterns.view(torch.bfloat16).float()
    for seed in range(5):
        rounded = rounded_stochastically(exact, generator(seed))
        number = ~exact.isnan()
        assert torch.equal(rounded[number].view(torch.int32), exact[number].view(torch.int32))
        assert rounded[~number].isnan().all()
    # The NaN that CUDA makes has all bits set.
    assert rounded_stochastically(torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32), generator()).isnan().all()


def test_signs_the_smallest_and_the_largest_numbers_keep_their_magnitude():
    exact = torch.tensor([1e-45, -1e-45, LARGEST, -LARGEST, 1e-41, -1e-41]).repeat(2000, 1)
    rounded = rounded_stochastically(exact, generator())
    assert torch.equal(rounded.signbit(), exact.signbit())
    assert torch.equal(rounded[:, 2:4], exact[:, 2:4])
    assert (rounded[:, :2].abs() <= 2.0**-133).all()


@pytest.mark.parametrize("chunk", [3, 2**24])
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_is_torchs_in_fp32_and_each_weight_is_one_of_the_two_neighbours(monkeypatch, chunk, fused):
    monkeypatch.setattr(optimizers, "ROUNDING_CHUNK", chunk)
    ours = weights((8, 5), 7)
    settings = {"lr": 2e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-6}
    optimizer, draw = StochasticAdamW([{"params": ours}], seed=0, fused=fused, **settings), generator(1)
    for step in range(6):
        exact = [torch.nn.Parameter(weight.detach().float()) for weight in ours]
        reference = torch.optim.AdamW(exact, **settings)
        for weight, wanted in zip(ours, exact, strict=True):
            weight.grad = torch.randn(weight.shape, generator=draw).bfloat16()
            wanted.grad = weight.grad.float()
            if step:
                state = optimizer.state[weight]
                reference.state[wanted] = {"step": state["step"].clone(), **{key: state[key].float() for key in ("exp_avg", "exp_avg_sq")}}
        reference.step()
        optimizer.step()
        for weight, wanted in zip(ours, exact, strict=True):
            state, moments = optimizer.state[weight], reference.state[wanted]
            assert (weight.dtype, state["step"]) == (torch.bfloat16, step + 1)
            for key in ("exp_avg", "exp_avg_sq"):
                torch.testing.assert_close(state[key], moments[key].bfloat16(), rtol=2**-7, atol=0)
            spacing = wanted.detach().abs() * 2**-7 + 1e-12
            assert ((weight.detach().float() - wanted.detach()).abs() <= spacing).all()


def test_over_many_tiny_updates_the_mean_weight_moves_as_in_fp32_and_rounding_to_nearest_stands_still():
    def moved(kind, **settings):
        ours = [torch.nn.Parameter(torch.ones(20_000, dtype=kind is torch.optim.AdamW and torch.float32 or torch.bfloat16))]
        if settings.pop("nearest", False):
            ours = [torch.nn.Parameter(torch.ones(20_000, dtype=torch.bfloat16))]
        optimizer = kind([{"params": ours}], lr=2e-5, weight_decay=0.0, **settings)
        for _ in range(50):
            ours[0].grad = torch.ones_like(ours[0])
            optimizer.step()
        return float((ours[0].double() - 1).mean())

    exact = moved(torch.optim.AdamW)
    assert exact == pytest.approx(-50 * 2e-5, rel=1e-3)
    assert moved(torch.optim.AdamW, nearest=True) == 0
    # The spacing below 1 is 2**-8: a weight has moved by it or not, with a standard error of 0.0014 x sqrt(50 x 2e-5 x 2**-8 / 20,000).
    assert moved(StochasticAdamW, seed=0) == pytest.approx(exact, abs=4 * (1e-3 * 2**-8 / 20_000) ** 0.5)


def test_rounding_to_nearest_loses_most_updates_of_a_small_model_at_the_cards_learning_rate(facts, tmp_path):
    """Most weights of the standard deviation that transformers draws do not move at 2e-5 in the first step, where Adam's is largest."""

    def moved(*settings):
        plan = planned(facts, "compute=bf16", "data.sequence_length=16", "optimizer.learning_rate=2e-5", *settings).plan
        card = facts.model(plan.model.key)
        model = build_model(plan, card, None, None, tmp_path, Cpu())
        optimizer = build_optimizer(plan, model, fused=False)
        batch = next(iter(micro_batches(plan, load_samples(plan, card.vocabulary, None, None).training, shape_of(plan, card))))
        before = [weight.detach().clone() for weight in model.parameters()]
        model(**batch.tensors).loss.backward()
        reached = [weight.grad != 0 for weight in model.parameters()]
        optimizer.step()
        changed = sum(int(((now != old) & has).sum()) for now, old, has in zip(model.parameters(), before, reached, strict=True))
        return changed / sum(int(has.sum()) for has in reached)

    nearest, rounded = moved(), moved(ROUNDED[1])
    print(f"share of weights with a gradient that a step moves: {nearest:.1%} to nearest, {rounded:.1%} stochastically")
    assert nearest < 0.5


def test_equal_seeds_give_equal_runs_and_others_do_not():
    runs = {}
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        runs[name] = weights(100, (7, 9))
        stepped(StochasticAdamW, runs[name], 20, seed=1) if False else stepped_with(runs[name], seed)
    assert all(torch.equal(one, other) for one, other in zip(runs["first"], runs["again"], strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(runs["first"], runs["other"], strict=True))
