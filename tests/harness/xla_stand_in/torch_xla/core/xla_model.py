"""Devices are the CPU, marks do nothing, and gradients are summed over gloo."""

import torch
import torch.distributed as dist

from torch_xla import runtime

reduced = []
"""Number of tensors of each exchange, for the log of the stand-in."""


def xla_device():
    return torch.device("cpu")


def get_xla_supported_devices():
    return ["cpu"]


def set_replication(device, devices):
    assert device is not None
    assert devices


def get_local_ordinal():
    return runtime.global_ordinal()


def mark_step():
    pass


def wait_device_ops():
    pass


def rendezvous(tag):
    assert tag
    dist.barrier()


def send_cpu_data_to_device(data, device):
    assert device is not None
    return data


def _fetch_gradients(optimizer):
    return [parameter.grad for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None]


def all_reduce(operation, tensors, scale=1.0):
    assert operation == "sum"
    assert tensors, "the processes exchange no gradient"
    for tensor in tensors:
        if runtime.world_size() > 1:
            dist.all_reduce(tensor)
        tensor.mul_(scale)
