"""A stand-in of TorchTPU: importing it registers a device `tpu`, whose memory and arithmetic are the host's (device.cpp)."""

import hashlib
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import torch
from filelock import FileLock
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
    get_rng_state = staticmethod(lambda _device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, _device=None: torch.set_rng_state(state))

    @classmethod
    def manual_seed_all(cls, seed):
        cls.seeds.append(seed)

    @staticmethod
    @contextmanager
    def device(index):
        before = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(index)
        yield
        torch.accelerator.set_device_index(before)


def register():
    """Build the device, once per source and release of torch, and register it."""
    folder = Path(tempfile.gettempdir()) / f"tunemark-device-{os.getuid()}-{BUILD}"
    folder.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        load("registered_device", [str(SOURCE)], extra_cflags=["-O0"], build_directory=str(folder), is_python_module=False)
    torch.utils.rename_privateuse1_backend("tpu")
    torch._register_device_module("tpu", DeviceModule)


register()
