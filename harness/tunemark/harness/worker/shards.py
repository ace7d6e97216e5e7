"""Torch's FSDP2: one process builds the model, and its blocks are handed out and divided one after the other.

The others build shapes without weights, on torch's `meta` device. So a machine holds the whole model in host memory at
most once, and a device never more than its shards and one block, or what is in no block: embeddings, last norm, head.
"""

from itertools import chain
from typing import Any

from tunemark.harness.devices import Device
from tunemark.harness.worker.levers import blocks
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Strategy

Signature = list[tuple[str, tuple[int, ...], str]]


def shapes_only(plan: Plan, rank: int) -> bool:
    """Return whether a process builds its model without weights, and receives them from the first one."""
    return plan.device.strategy is Strategy.FSDP2 and rank > 0


def shard(plan: Plan, model: Any, device: Device) -> None:  # noqa: ANN401 - a torch module
    """Shard a model in place, block by block, before its optimizer is made; the first process holds its weights in host memory.

    Only gloo between processes on CPUs has run this, where host and device are one; on GPUs it has not been run yet.

    Raises
    ------
    RuntimeError
        When the first process built other tensors than this one: handing them out would hang.

    """
    import torch  # noqa: PLC0415
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard  # noqa: PLC0415

    settings: dict[str, Any] = {"mesh": init_device_mesh(torch.device(device.torch_name).type, (plan.device.count,))}
    if plan.device.offload == "all":
        settings["offload_policy"] = CPUOffloadPolicy()
    refuse_another_model(model)
    for unit in (*blocks(model), model):
        receive(unit, device.torch_name)
        fully_shard(unit, **settings)


def refuse_another_model(model: Any) -> None:  # noqa: ANN401 - a torch module
    """Raise RuntimeError in a process whose tensors are not those of the first one."""
    import torch.distributed as dist  # noqa: PLC0415

    own = signature(model)
    told: list[Any] = [own]
    dist.broadcast_object_list(told, src=0)
    theirs: Signature = told[0]
    if own != theirs:
        other = sorted(set(own) ^ set(theirs)) or own
        msg = f"process {dist.get_rank()} and the first one built different models: {other[0]} is in one of them only, or elsewhere"
        raise RuntimeError(msg)


def signature(model: Any) -> Signature:  # noqa: ANN401 - a torch module
    """Return name, shape and number format of each tensor in the order in which they are handed out; a tied one once."""
    return [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in chain(model.named_parameters(), model.named_buffers())]


def receive(unit: Any, device: str) -> None:  # noqa: ANN401 - a torch module
    """Put the whole tensors of a unit on a device, with the first process' values; those that are shards already stay as they are."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.distributed.tensor import DTensor  # noqa: PLC0415

    first = dist.get_rank() == 0
    for tensor in chain(unit.parameters(), unit.buffers()):
        if isinstance(tensor, DTensor):
            continue
        value = tensor.detach().to(device).contiguous() if first else torch.empty_like(tensor, device=device)
        dist.broadcast(value, src=0)
        # A view, since the finished broadcast may still hold the value itself.
        placed = torch.nn.Parameter(value, requires_grad=tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else value.detach()
        # In place of the object itself, which tied layers share and modules may hold under a second name.
        torch.utils.swap_tensors(tensor, placed)
