"""A process of test_warm_worker.py on a machine that claims to have two CUDA devices, and that reports who opens them."""

import json
import os
import sys
import traceback

import torch

from tunemark.harness.run import warm_worker
from tunemark.schema.vocabulary import Backend

CAPABILITIES = [(9, 0), (8, 0)]
PARENT = os.getpid()
opened = []


def opening(*_arguments, **_settings):
    """Note the stack that opens the device in the warm process; the device opens in a child."""
    if os.getpid() == PARENT:
        opened.append("".join(traceback.format_stack(limit=6)))
        raise RuntimeError("the device was opened in the warm process")


def capability(device=None):
    opening()
    return CAPABILITIES[getattr(device, "idx", device) or 0]


torch.version.cuda = "13.0"
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: len(CAPABILITIES)
torch.cuda._lazy_init = torch.cuda.init = torch.cuda.current_device = torch.cuda.get_device_properties = opening
torch.cuda.get_device_name = torch.cuda.mem_get_info = opening
torch.cuda._is_in_bad_fork = lambda: bool(opened)
torch.cuda.get_device_capability = capability
# Builds of torch for CPUs lack it, and bitsandbytes reads it at import where it sees CUDA.
torch._C._cuda_getCurrentRawStream = opening

with_answers = "--without-answers" not in sys.argv
if not with_answers:
    warm_worker.capabilities_from_child = warm_worker.contextlib.nullcontext
reason = warm_worker.unusable_reason(Backend.CUDA)
import bitsandbytes.cuda_specs  # noqa: E402 - as the worker finds it

seen = {"reason": reason, "opened": opened, "asked by bitsandbytes": "bitsandbytes" in "".join(opened)}
if with_answers:
    with warm_worker.capabilities_from_child():
        seen["capabilities"] = bitsandbytes.cuda_specs.get_compute_capabilities()
        seen["forms"] = [torch.cuda.get_device_capability(device) for device in (None, 1, "cuda:1", "cuda", torch.device("cuda", 1))]
    seen["restored"] = torch.cuda.get_device_capability is capability
sys.stdout.write(json.dumps(seen))
