"""Weights that devices draw or that are sharded block by block make the same model as those of the host."""

import json
import math
from pathlib import Path

import bitsandbytes
import pytest
import torch
from harness_making import make_machine, ran, warm
from sharding_process import SHARDED, plan_of, small

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker import models
from tunemark.harness.worker.engines import DeviceUnavailable, collectives
from tunemark.harness.worker.models import build_model, draw, drawn_on_device, loaded_sharded
from tunemark.schema.vocabulary import Method, Strategy


class Drawing(Cpu):
    """A CPU in the role of a device with a generator of its own."""

    draws_weights = True

    def __init__(self):
        self.released = 0

    def release_cache(self):
        self.released += 1


def plan_for(family, *, adapters):
    plan = plan_of(family, None)
    return plan if adapters else plan.model_copy(update={"method": Method.FULL, "lora": None})


FAMILIES = (*SHARDED, "mistral", "qwen2", "qwen3", "gemma", "phi3")
TRAINED_IN_FULL = ("gpt2", "bert")
"""Families whose smoke workload has no adapters."""


@pytest.mark.skipif(
    not models.NEWEST_INITIALISERS,
    reason="its initialisers set no buffers; the host draws the weights",
)
@pytest.mark.parametrize(
    ("family", "adapters"),
    [(family, adapters) for family in FAMILIES for adapters in (False, True)[: 1 if family in TRAINED_IN_FULL else 2]],
)
def test_a_drawn_model_equals_the_hosts_in_all_but_the_numbers(family, adapters):
    plan, card = plan_for(family, adapters=adapters), small(family)
    host = build_model(plan, card, None, None, Path(), Cpu())
    drawn = build_model(plan, card, None, None, Path(), Cpu(), empty=True)
    torch.manual_seed(7)
    draw(drawn, drawn, "cpu")
    ours, theirs = dict(drawn.named_parameters()), dict(host.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        one = ours[name]
        assert (one.shape, one.dtype, one.requires_grad) == (wanted.shape, wanted.dtype, wanted.requires_grad), name
        spread = float(wanted.float().std())
        tolerance = 6 * spread / math.sqrt(wanted.numel()) + 1e-9
        assert float(one.float().mean()) == pytest.approx(float(wanted.float().mean()), abs=tolerance), name
        assert float(one.float().std()) == pytest.approx(spread, rel=8 / math.sqrt(wanted.numel()), abs=1e-9), name
        # Random tensors have other numbers; tensors of ones or zeros are equal.
        assert torch.equal(one, wanted) is (spread == 0), name
    buffers = dict(host.named_buffers())
    assert {name: one.dtype for name, one in drawn.named_buffers()} == {name: one.dtype for name, one in buffers.items()}
    assert all(torch.equal(one, buffers[name]) for name, one in drawn.named_buffers())
    head, embedding = drawn.get_output_embeddings(), drawn.get_input_embeddings()
    if head is not None:
        assert (head.weight is embedding.weight) is card.tied_embeddings
    # The row of padding is zero where the model has one.
    assert bool(embedding.weight[0].any()) is bool(host.get_input_embeddings().weight[0].any())


def test_no_device_holds_the_whole_of_a_model_that_is_sharded_later(facts):
    plan = resolve("lora-8b", facts, make_machine(), Options(devices=2, strategy="zero3")).plan
    card = facts.model(plan.model.key)
    assert not drawn_on_device(plan, card, Drawing())
    assert loaded_sharded(plan, card)
    assert not loaded_sharded(plan.model_copy(update={"device": plan.device.model_copy(update={"strategy": Strategy.ZERO2})}), card)
    assert not loaded_sharded(plan, facts.model("tiny-llama"))


@pytest.mark.skipif(
    not models.NEWEST_INITIALISERS,
    reason="its initialisers set no buffers; random weights are saved and loaded",
)
def test_four_bit_layers_are_drawn_and_quantised_one_at_a_time_and_nothing_is_saved(facts, monkeypatch, tmp_path):
    plan = resolve("smoke-lora", facts, make_machine(), Options(overrides=("method=qlora", "compute=bf16"))).plan
    saved = build_model(plan, small("qwen2"), None, None, tmp_path / "saved", Cpu())
    monkeypatch.setattr(models, "DRAWN_ON_HOST", 0)
    owner, dense = type(saved.get_base_model()), []

    def initialise(self, module, real=owner._init_weights):
        layers = [layer.weight for layer in self.modules() if models.is_four_bit(layer)]
        dense.append(sum(weight.is_floating_point() and weight.device.type != "meta" for weight in layers))
        real(self, module)

    monkeypatch.setattr(owner, "_init_weights", initialise)
    drawn = build_model(plan, small("qwen2"), None, None, tmp_path / "drawn", Drawing())
    assert max(dense) == 1
    assert not (tmp_path / "drawn").exists()
    ours, theirs = dict(drawn.named_parameters()), dict(saved.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        one = ours[name]
        assert (one.shape, one.dtype, one.requires_grad) == (wanted.shape, wanted.dtype, wanted.requires_grad), name
        assert hasattr(one, "quant_state") is hasattr(wanted, "quant_state"), name
    assert models.model_facts(drawn)["parameter_bytes"] == models.model_facts(saved)["parameter_bytes"]
    ids = torch.arange(5, 21)[None]
    losses = [float(model(input_ids=ids, labels=ids).loss.detach()) for model in (drawn, saved)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    spreads = [weight_spread(model) for model in (drawn, saved)]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.05)


def weight_spread(model):
    layer = next(layer for layer in model.modules() if models.is_four_bit(layer))
    return float(bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float().std())


class Gpu(Cpu):
    torch_name = "cuda:1"


@pytest.mark.parametrize(
    ("strategy", "offload", "device", "expected"),
    [
        ("fsdp2", "all", Gpu(), "cpu:gloo,cuda:nccl"),
        ("fsdp2", "none", Gpu(), "nccl"),
        ("ddp", "none", Gpu(), "nccl"),
        ("fsdp2", "all", Cpu(), "gloo"),
    ],
)
def test_shards_in_host_memory_get_collectives_for_the_host_too(facts, strategy, offload, device, expected):
    plan = resolve("smoke-full", facts, make_machine(), Options(devices=2, strategy=strategy, offload=offload)).plan
    assert collectives(plan, device) == expected
    with pytest.raises(DeviceUnavailable, match="no back end for collectives between hpu devices is registered with torch"):
        collectives(plan, type("Hpu", (), {"torch_name": "hpu:0"}))


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What each of two processes saw while it sharded a model of each family, the second one's first."""
    folder = tmp_path_factory.mktemp("shards")
    build_model(plan_of("gpt2", None), small("llama"), None, None, folder, Cpu()).save_pretrained(folder / "weights")
    done = ran(warm("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "sharding_process", folder))
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (1, 0)]


CASES = [*(f"{family}, random" for family in SHARDED), "llama, pretrained"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_process_that_receives_its_weights_holds_one_block_at_a_time_and_computes_what_the_whole_model_does(two_processes, case):
    second = two_processes[0][case]
    assert (second["before"], second["at_once"], second["after"]) == (0, second["units"], 0)
    for seen in two_processes:
        assert not seen[case]["meta_left"]
        assert seen[case]["difference"] <= 1e-5 < seen[case]["moved"]


@pytest.mark.slow
@pytest.mark.parametrize("family", SHARDED)
def test_processes_that_draw_their_weights_hold_one_block_at_a_time_and_shards_of_the_same_model(two_processes, family):
    second, first = (seen[f"{family}, drawn"] for seen in two_processes)
    units = two_processes[0][f"{family}, random"]["units"]
    assert (first["before"], first["at_once"]) == (0, units)
    assert first["sums"] == second["sums"]
    # No shard repeats another one.
    assert first["repeated"] == 0
