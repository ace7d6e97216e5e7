"""Intel GPUs through torch.xpu: asynchronous, timed by events in the queue. Not yet run on such a GPU."""

from typing import Self

from tunemark.harness.devices.events import WHOLE_LAYERS, EventDevice
from tunemark.harness.devices.features import HOPPER_ONLY, Feature
from tunemark.harness.devices.protocol import DeviceUnavailable

CANNOT: dict[Feature, str] = WHOLE_LAYERS | {
    Feature.FLASH_ATTENTION: "its kernels are for CUDA and ROCm; use attention=sdpa",
    Feature.FLASH_ATTENTION_3: HOPPER_ONLY,
    Feature.TF32: "a format of NVIDIA GPUs; use compute=bf16 or fp32",
    Feature.ENERGY: "xpu-smi tells power once a second, too seldom to integrate",
}


class Xpu(EventDevice):
    """Trains on one GPU, or on one of its tiles where the driver shows these as devices."""

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the CPU only feeds the GPU
        """Check that torch sees the GPU."""
        import torch  # noqa: PLC0415

        if not torch.xpu.is_available():
            msg = f"torch {torch.__version__} sees no Intel GPU; install a build with XPU and the Level Zero driver"
            raise DeviceUnavailable(msg)
        torch.xpu.set_device(local_rank)
        device = cls(torch, torch.xpu, "xpu", local_rank)
        # Torch has its own back end on oneCCL since 2.8; before, it came with a package of bindings.
        device.collectives = "xccl" if torch.distributed.is_xccl_available() else "ccl"
        return device

    def name(self) -> str | None:
        """Return None: torch and Intel's tools spell the same GPU differently, so a comparison would refuse the right one."""
        return None
