"""AMD GPUs: torch built for ROCm answers to torch.cuda, and its collectives to `nccl`. Not yet run on such a GPU."""

from typing import Self

from tunemark.harness.devices.events import WHOLE_LAYERS, EventDevice
from tunemark.harness.devices.features import HOPPER_ONLY, Feature
from tunemark.harness.devices.protocol import DeviceUnavailable

CANNOT: dict[Feature, str] = WHOLE_LAYERS | {
    Feature.FLASH_ATTENTION_3: HOPPER_ONLY,
    Feature.TF32: "a format of NVIDIA GPUs; use compute=bf16 or fp32",
}


class Rocm(EventDevice):
    """Trains on one GPU."""

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the CPU only feeds the GPU
        """Check that this torch is built for ROCm and sees the GPU."""
        import torch  # noqa: PLC0415

        if torch.version.hip is None:
            msg = f"torch {torch.__version__} is not built for ROCm; install a build that is"
            raise DeviceUnavailable(msg)
        if not torch.cuda.is_available():
            msg = f"torch {torch.__version__} sees no GPU; may this user open /dev/kfd, and does the build suit the driver?"
            raise DeviceUnavailable(msg)
        torch.cuda.set_device(local_rank)
        return cls(torch, torch.cuda, "cuda", local_rank)

    def name(self) -> str | None:
        """Return None: torch and AMD's tools spell the same GPU differently, so a comparison would refuse the right one."""
        return None
