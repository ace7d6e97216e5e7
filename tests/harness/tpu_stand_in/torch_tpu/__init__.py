"""A stand-in of TorchTPU: importing it registers a device `tpu`, whose memory and arithmetic are the host's (device.cpp), and collectives."""

import hashlib
import os
import tempfile
from functools import partial, partialmethod
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist
from filelock import FileLock
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.cpp_extension import load

SOURCE = Path(__file__).with_name("device.cpp")
BUILD = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]


class DeviceModule:
    """`torch.tpu`: what torch itself asks of a device's module. As in TorchTPU it has no memory peaks: torch.accelerator has them."""

    seeds: ClassVar = []

    is_available = staticmethod(lambda: True)
    current_device = staticmethod(torch.accelerator.current_device_index)
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 2)
    _is_in_bad_fork = staticmethod(lambda: False)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])
    Event, Stream = partial(torch.Event, "tpu"), staticmethod(lambda **_: torch.accelerator.current_stream())
    current_stream, stream = staticmethod(torch.accelerator.current_stream), staticmethod(lambda stream: stream)
    get_rng_state = staticmethod(lambda _device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, _device=None: torch.set_rng_state(state))
    manual_seed_all, device = staticmethod(seeds.append), torch.accelerator.device_index


class Collectives(dist.ProcessGroup):
    """The back end `tpu_dist`: each collective is gloo's, between copies of its tensors in host memory."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        # Torch keeps the name of a group in a back end of it.
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._gloo)

    def _staged(self, name, *given, **options):
        on_host = tree_map_only(torch.Tensor, torch.Tensor.cpu, given)
        getattr(self._gloo, name)(*on_host, **options).wait()
        pairs = [pair for pair in zip(tree_leaves(given), tree_leaves(on_host), strict=True) if isinstance(pair[0], torch.Tensor)]
        with torch.no_grad():
            for own, host in pairs:
                own.copy_(host)
        done = torch.futures.Future(devices={own.device for own, _ in pairs if own.device.type == "tpu"})
        done.set_result(given[0] if given else None)
        return torch._C._distributed_c10d._create_work_from_future(done)


# Torch 2.13 has other names for two of them in a group than in its back ends.
NAMES = {name: name for name in ("allreduce", "broadcast", "allgather", "barrier", "_allgather_base", "_reduce_scatter_base")}
for name, of_gloo in (NAMES | {"all_gather_single": "_allgather_base", "reduce_scatter_single": "_reduce_scatter_base"}).items():
    setattr(Collectives, name, partialmethod(Collectives._staged, of_gloo))


def register():
    """Build the device, once per source and release of torch, and register it."""
    folder = Path(tempfile.gettempdir()) / f"tunemark-device-{os.getuid()}-{BUILD}"
    folder.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        load("registered_device", [str(SOURCE)], extra_cflags=["-O0"], build_directory=str(folder), is_python_module=False)
    torch.utils.rename_privateuse1_backend("tpu")
    torch._register_device_module("tpu", DeviceModule)
    dist.Backend.register_backend("tpu_dist", Collectives, devices=["tpu"])


register()
