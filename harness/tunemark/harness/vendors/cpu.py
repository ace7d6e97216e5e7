"""The CPU: synchronous, its memory is the host's."""

from typing import Self

from tunemark.harness.vendors.protocol import HOPPER_ONLY, Feature, SynchronousDevice

CANNOT: dict[Feature, str] = {
    Feature.FLASH_ATTENTION: "its kernels are for GPUs; use attention=sdpa",
    Feature.FLASH_ATTENTION_3: HOPPER_ONLY,
    Feature.FLEX_ATTENTION: "without a backward pass on CPUs; use attention=sdpa",
    Feature.LIGER: "its kernels are for GPUs; use fused_kernels=none",
    Feature.EIGHT_BIT_OPTIMIZER: "bitsandbytes has these optimizers for GPUs only; use optimizer.name=adamw",
    Feature.TF32: "a format of GPUs; use compute=fp32",
    Feature.FP16: "no gradient scaling on CPUs; use compute=bf16 or fp32",
    Feature.TENSOR_PARALLEL: "on Neuron devices only in this version",
    Feature.PIPELINE_PARALLEL: "on Neuron devices only in this version",
    Feature.PEAK_MEMORY: "torch counts no peak of host memory; the resident memory of the process tree is taken instead",
    Feature.UTILISATION: "its busy cores are the host's",
    Feature.ENERGY: "no counter that an ordinary user may read",
}


class Cpu(SynchronousDevice):
    """Trains on CPU threads."""

    torch_name = "cpu"

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - all processes share the CPU
        """Limit torch to so many threads: more than cores only adds noise."""
        import torch  # noqa: PLC0415

        if threads is not None:
            torch.set_num_threads(threads)
        return cls()
