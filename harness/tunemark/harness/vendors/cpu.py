"""The CPU: synchronous, and its memory is the host's."""

import psutil

from tunemark.harness.vendors.protocol import NO_VARLEN, NVIDIA_ONLY, Device, FoundDevice, Vendor
from tunemark.harness.vendors.vendor_tools import cpu_model
from tunemark.schema.plan.capabilities import Feature
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Dtype


class Cpu(Device):
    """Trains on CPU threads, which all processes share."""

    free_marks = True


def find() -> list[FoundDevice]:
    """Return the host itself as one device."""
    return [FoundDevice(None, DeviceFacts(name=cpu_model(), memory_bytes=psutil.virtual_memory().total))]


VENDOR = Vendor(
    backend=Backend.CPU,
    device=Cpu,
    formats=(Dtype.FP32, Dtype.BF16),
    find=find,
    found_by="no accelerator was found",
    preference=0,
    probe_size=1024,
    on_host=True,
    cannot={
        Feature.FLASH_ATTENTION: "its kernels are for GPUs; use attention=sdpa",
        Feature.FLEX_ATTENTION: "it has no backward pass on CPUs; use attention=sdpa",
        **NVIDIA_ONLY,
        **NO_VARLEN,
        Feature.LIGER: "its kernels are for GPUs; use fused_kernels=none",
        Feature.EIGHT_BIT_OPTIMIZER: "bitsandbytes has these optimizers for GPUs only; use optimizer.name=adamw",
        Feature.TF32: "a format of GPUs; use compute=fp32",
        Feature.FP16: "no gradient scaling on CPUs; use compute=bf16 or fp32",
        Feature.TENSOR_PARALLEL: "on Neuron devices only in this version",
        Feature.PIPELINE_PARALLEL: "on Neuron devices only in this version",
        Feature.PEAK_MEMORY: "torch counts no peak of host memory; the resident memory of the process tree is used instead",
        Feature.UTILISATION: "its busy cores are the host's",
        Feature.ENERGY: "no counter that an ordinary user may read",
    },
)
