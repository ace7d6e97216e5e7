"""One of the two processes of test_random_weights.py, started by torchrun with a folder: shards small models and writes down what it saw."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from harness_making import FACTS, make_machine
from tiny_models import tiny_card
from torch.distributed import fsdp
from torch.distributed.tensor import DTensor

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker import engines
from tunemark.harness.worker.levers import blocks
from tunemark.harness.worker.models import build_model
from tunemark.schema.vocabulary import Weights

SHARDED = ("llama", "mixtral", "gemma2", "gpt2", "bert")
"""Families whose blocks differ: with experts, tied and soft-capped, of another kind of layer, of an encoder."""


def small(family):
    """Return a card of a family that is tied as its model is."""
    return tiny_card(family, layers=3, vocabulary=64)


def plan_of(family, folder):
    workload = {"bert": "smoke-bert", "gpt2": "smoke-full"}.get(family, "smoke-lora")
    plan = resolve(workload, FACTS, make_machine(), Options(devices=2, strategy="fsdp2")).plan
    weights = Weights.PRETRAINED if folder else Weights.RANDOM
    attention = "eager" if family == "gemma2" else plan.model.attention
    return plan.model_copy(update={"model": plan.model.model_copy(update={"weights": weights, "attention": attention})})


def plain_bytes(tensors):
    """Return the bytes of tensors that are neither shards nor without weights."""
    return sum(one.nbytes for one in tensors if not isinstance(one, DTensor) and one.device.type != "meta")


def shard_and_watch(plan, model, seen, *, drawn):
    """Shard a model, and note the bytes that are not sharded yet before each unit."""
    seen["at_once"] = []
    real = fsdp.fully_shard

    def watched(unit, **settings):
        seen["at_once"].append(plain_bytes(model.parameters()))
        return real(unit, **settings)

    fsdp.fully_shard = watched
    engines.shard(plan, model, Cpu(), drawn=drawn)
    fsdp.fully_shard = real


def case(family, folder, seen):
    rank, plan, card = dist.get_rank(), plan_of(family, folder), small(family)
    whole = build_model(plan, card, folder, None, Path(), Cpu())
    model = build_model(plan, card, folder, None, Path(), Cpu(), empty=engines.shapes_only(plan, rank, drawn=False))
    units = [plain_bytes(block.parameters()) for block in blocks(whole)]
    seen["units"] = [*units, plain_bytes(whole.parameters()) - sum(units)]
    seen["before"] = plain_bytes(model.parameters())
    shard_and_watch(plan, model, seen, drawn=False)
    seen["after"] = plain_bytes(model.parameters())
    seen["meta_left"] = [name for name, one in (*model.named_parameters(), *model.named_buffers()) if one.device.type == "meta"]
    ids = torch.arange(24).reshape(2, 12) % 60 + 1
    whole.eval(), model.eval()
    with torch.no_grad():
        outputs = [one(input_ids=ids, attention_mask=torch.ones_like(ids)).logits for one in (whole, model)]
    seen["difference"] = float((outputs[0] - outputs[1]).abs().max())
    seen["moved"] = float(outputs[0].std())


def drawn_case(family, seen):
    """Shard a model that each process draws itself, and gather what the shards hold."""
    plan, card = plan_of(family, None), small(family)
    model = build_model(plan, card, None, None, Path(), Cpu(), empty=engines.shapes_only(plan, 0, drawn=True))
    seen["before"] = plain_bytes(model.parameters())
    shard_and_watch(plan, model, seen, drawn=True)
    seen["sums"] = {name: float(one.full_tensor().double().abs().sum()) for name, one in model.named_parameters()}
    random = [one.full_tensor() for name, one in model.named_parameters() if "lora_B" not in name and one.ndim > 1]
    seen["repeated"] = sum(torch.equal(one[: len(one) // 2], one[len(one) // 2 : 2 * (len(one) // 2)]) for one in random)


def main():
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    report = {}
    cases = [(family, None) for family in SHARDED] + [("llama", str(folder / "weights"))]
    for family, weights in cases:
        case(family, weights, report.setdefault(f"{family}, {'pretrained' if weights else 'random'}", {}))
    for family in SHARDED:
        drawn_case(family, report.setdefault(f"{family}, drawn", {}))
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
