"""NVIDIA GPUs: asynchronous, timed by events in the stream."""

from typing import Self

from tunemark.harness.devices.events import WHOLE_LAYERS, EventDevice
from tunemark.harness.devices.features import Feature
from tunemark.harness.devices.protocol import DeviceUnavailable

CANNOT: dict[Feature, str] = WHOLE_LAYERS


class Cuda(EventDevice):
    """Trains on one GPU."""

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the CPU only feeds the GPU
        """Check that torch sees the GPU."""
        import torch  # noqa: PLC0415

        if not torch.cuda.is_available():
            msg = f"torch {torch.__version__} sees no GPU; install a build for the driver of this machine"
            raise DeviceUnavailable(msg)
        torch.cuda.set_device(local_rank)
        return cls(torch, torch.cuda, "cuda", local_rank)
