"""Updates of bf16 weights are not lost to rounding: with fp32 copies of the weights, or rounded up or down at random."""

from types import SimpleNamespace

import pytest
import torch
from harness_making import planned

from tunemark.harness.run.record import observed_warnings
from tunemark.harness.run.run_log import RunLog
from tunemark.harness.run.telemetry import Telemetry
from tunemark.harness.worker import optimizers
from tunemark.harness.worker.levers import compiled_graphs
from tunemark.harness.worker.optimizers import MasterAdamW, StochasticAdamW, key, random_bits, rounded_stochastically, rounding_seed
from tunemark.schema.vocabulary import EAGER_UPDATE, WarningKind


@pytest.mark.parametrize(("chunk", "fused"), [(1, False), (2**26, True)])
def test_the_copies_follow_adamw_in_fp32_and_the_weights_are_their_rounding(monkeypatch, chunk, fused):
    monkeypatch.setattr(optimizers, "MASTER_CHUNK", chunk)
    ours, exact = weights(4, 5, 6), [torch.nn.Parameter(one.detach().float()) for one in weights(4, 5, 6)]
    settings = {"lr": 2e-5, "weight_decay": 0.1}
    optimizer, reference = MasterAdamW([{"params": ours}], **settings, fused=fused), torch.optim.AdamW(exact, **settings)
    draw = generator(1)
    for _ in range(20):
        for one, wanted in zip(ours, exact, strict=True):
            one.grad = torch.randn(one.shape, generator=draw).bfloat16()
            wanted.grad = one.grad.float()
        optimizer.step()
        reference.step()
        optimizer.zero_grad()
        assert all(one.grad is None for one in ours)
    for master, one, wanted in zip(optimizer._masters, ours, exact, strict=True):
        torch.testing.assert_close(master, wanted.detach(), rtol=1e-5, atol=1e-7)
        assert torch.equal(one, master.bfloat16())


ROUNDED = ("compute=bf16", "optimizer.stochastic_rounding=true")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn_bits(count, weight=0, step=0):
    """Return the random bits of the first places of a weight in a step."""
    keys = (key(f"place {weight}"), key(f"order {weight}") ^ key(f"step {step}"))
    return random_bits(torch.arange(count, dtype=torch.int32), *(torch.tensor(number, dtype=torch.int32) for number in keys))


def weights(*sizes, seed=0):
    return [torch.nn.Parameter((0.02 * torch.randn(size, generator=generator(seed))).bfloat16()) for size in sizes]


def test_numbers_of_bf16_infinities_and_zeros_are_never_changed_and_nan_stays_nan():
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    exact = patterns.view(torch.bfloat16).float()
    for seed in range(5):
        rounded = rounded_stochastically(exact, drawn_bits(len(exact), seed))
        number = ~exact.isnan()
        assert torch.equal(rounded[number].view(torch.int32), exact[number].view(torch.int32))
        assert rounded[~number].isnan().all()
    # The NaN that CUDA makes has all bits set.
    assert rounded_stochastically(torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32), drawn_bits(2)).isnan().all()


@pytest.mark.parametrize(("chunk", "compiled"), [(3, False), (2**16, False), pytest.param(2**16, True, marks=pytest.mark.nightly)])
def test_a_step_is_torchs_in_fp32_and_each_weight_is_one_of_the_two_neighbours(monkeypatch, chunk, compiled):
    monkeypatch.setattr(optimizers, "ROUNDING_CHUNK", chunk)
    ours = weights((8, 5), 7)
    settings = {"lr": 2e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-6}
    optimizer, draw = StochasticAdamW([{"params": ours}], seed=0, compiled=compiled, **settings), generator(1)
    assert optimizer.eager_reason is None
    for step in range(6):
        exact = [torch.nn.Parameter(weight.detach().float()) for weight in ours]
        reference = torch.optim.AdamW(exact, **settings)
        for weight, wanted in zip(ours, exact, strict=True):
            weight.grad = torch.randn(weight.shape, generator=draw).bfloat16()
            wanted.grad = weight.grad.float()
            if step:
                state = optimizer.state[weight]
                moments = {name: state[name].float() for name in ("exp_avg", "exp_avg_sq")}
                reference.state[wanted] = {"step": torch.tensor(float(state["step"])), **moments}
        reference.step()
        optimizer.step()
        for weight, wanted in zip(ours, exact, strict=True):
            state, moments = optimizer.state[weight], reference.state[wanted]
            assert (weight.dtype, state["step"]) == (torch.bfloat16, step + 1)
            for name in ("exp_avg", "exp_avg_sq"):
                torch.testing.assert_close(state[name], moments[name].bfloat16(), rtol=2**-7, atol=0)
            spacing = wanted.detach().abs() * 2**-7 + 1e-12
            assert ((weight.detach().float() - wanted.detach()).abs() <= spacing).all()


@pytest.mark.nightly
def test_the_compiled_update_draws_the_same_bits_and_no_step_size_or_schedule_compiles_it_again():
    sizes = [(64, 48), (7, 9), 3, 16, 33, (3, 5, 32), 2**17, (2, 16), 1]
    runs = []
    for compiled in (False, True):
        ours, draw = weights(*sizes), generator(1)
        groups = [{"params": ours[:4]}, {"params": ours[4:], "lr": 1e-3}]
        optimizer = StochasticAdamW(groups, lr=2e-3, seed=1, compiled=compiled)
        before = compiled_graphs()
        for step in range(4):
            for group in optimizer.param_groups:
                group["lr"] *= 1 + step
            for weight in ours:
                weight.grad = torch.randn(weight.shape, generator=draw).bfloat16()
            optimizer.step()
        assert optimizer.eager_reason is None
        assert compiled_graphs() == before
        runs.append(torch.cat([weight.detach().view(-1) for weight in ours]))
    # A compiler may fuse a product and a sum, which rounds once: then another neighbour is right once in 2**16 times.
    assert float((runs[0] != runs[1]).double().mean()) < 1e-3


def test_where_nothing_can_be_compiled_the_operators_run_one_by_one_and_the_record_says_so(monkeypatch):
    def no_compiler(*_arguments, **_settings):
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")

    monkeypatch.setattr(torch, "compile", lambda *_arguments, **_settings: no_compiler)
    ours, alike = weights(100), weights(100)
    runs = [StochasticAdamW([{"params": each}], lr=2e-3, seed=0, compiled=wanted) for each, wanted in ((ours, True), (alike, False))]
    assert [optimizer.eager_reason for optimizer in runs] == [
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        None,
    ]
    for each, optimizer in zip((ours, alike), runs, strict=True):
        each[0].grad = torch.ones_like(each[0])
        optimizer.step()
    assert torch.equal(ours[0], alike[0])
    notes = [{"source": EAGER_UPDATE, "level": "warning", "message": runs[0].eager_reason}, {"source": "another", "message": "x"}]
    ended = SimpleNamespace(log=RunLog(notes=notes), telemetry=Telemetry())
    (warned,) = observed_warnings(SimpleNamespace(free_disk_bytes=2**40), ended)
    assert warned.kind is WarningKind.FALLBACK
    assert warned.message.startswith("update of the weights: not compiled")
    assert "Failed to find C compiler" in warned.message


def mean_move(kind, dtype, **settings):
    """Return the mean move of weights that start at 1, where the spacing of bf16 below is 2**-8, in 50 equal updates of 2e-5."""
    ours = torch.nn.Parameter(torch.ones(20_000, dtype=dtype))
    optimizer = kind([{"params": [ours]}], lr=2e-5, weight_decay=0.0, **settings)
    for _ in range(50):
        ours.grad = torch.ones_like(ours)
        optimizer.step()
    return float((ours.detach().double() - 1).mean())


def test_over_many_tiny_updates_the_mean_weight_moves_as_in_fp32_and_rounding_to_nearest_stands_still():
    exact = mean_move(torch.optim.AdamW, torch.float32)
    assert exact == pytest.approx(-50 * 2e-5, rel=2e-3)
    assert mean_move(torch.optim.AdamW, torch.bfloat16) == 0
    # Almost every weight has moved by 2**-8 once or not at all: four standard errors of that mean.
    assert mean_move(StochasticAdamW, torch.bfloat16, seed=0) == pytest.approx(exact, abs=4 * (1e-3 * 2**-8 / 20_000) ** 0.5)


def test_each_shard_has_bits_of_its_own_and_replicas_have_the_same(monkeypatch):
    seeds = {}
    for strategy in ("ddp", "fsdp2"):
        plan = planned("smoke-full", *ROUNDED, devices=2, strategy=strategy, seed=5).plan
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            seeds[strategy, rank] = rounding_seed(plan)
    assert seeds["ddp", "0"] == seeds["ddp", "1"]
    assert seeds["fsdp2", "0"] != seeds["fsdp2", "1"]
