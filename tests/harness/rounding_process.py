"""One of the two processes of test_optimizers.py: replicas with rows of their own, then shards, and what came of them."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tunemark.harness.worker.optimizers import StochasticAdamW

ROWS, WIDTH = 7, 6


def layer():
    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, ROWS, bias=False, dtype=torch.bfloat16)


def trained_replicas(rank):
    """Return the share of weights that differ between two replicas, and that moved, after 20 steps."""
    replica = DistributedDataParallel(layer())
    optimizer, draw = StochasticAdamW([{"params": list(replica.parameters())}], lr=2e-3, seed=0), torch.Generator().manual_seed(rank)
    for _ in range(20):
        optimizer.zero_grad()
        replica(torch.randn(4, WIDTH, generator=draw).bfloat16()).float().square().sum().backward()
        optimizer.step()
    weight = replica.module.weight.detach()
    both = [torch.empty_like(weight.float()) for _ in range(2)]
    dist.all_gather(both, weight.float())
    return float((both[0] != both[1]).float().mean()), float((weight != layer().weight).float().mean())


def trained_shards(rank):
    """Return a step of shards: the shape of each, whether the states are shards too, and the farthest weight in spacings of bf16."""
    sharded, whole = layer(), layer().float()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (2,)))
    optimizer = StochasticAdamW([{"params": list(sharded.parameters())}], lr=2e-3, seed=rank)
    reference = torch.optim.AdamW(whole.parameters(), lr=2e-3)
    row = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0)).bfloat16()
    sharded(row).float().square().sum().backward()
    whole.weight.grad = sharded.weight.grad.full_tensor().float()
    optimizer.step()
    reference.step()
    away = (sharded.weight.full_tensor().float() - whole.weight).abs() / (whole.weight.abs() * 2**-7)
    shapes = [None, None]
    dist.all_gather_object(shapes, list(sharded.weight.to_local().shape))
    states = optimizer.state[sharded.weight]
    return shapes, all(isinstance(states[name], DTensor) for name in ("exp_avg", "exp_avg_sq")), float(away.max())


dist.init_process_group("gloo")
number = dist.get_rank()
differ, moved = trained_replicas(number)
shards, states_sharded, farthest = trained_shards(number)
if number == 0:
    seen = {"replicas differ": differ, "replicas moved": moved, "shards": shards, "sharded states": states_sharded, "farthest": farthest}
    Path(sys.argv[1]).write_text(json.dumps(seen))
dist.destroy_process_group()
