"""Device families behind one small protocol, one file each."""

from tunemark.harness.devices.protocol import Device, Stamp
from tunemark.schema.vocabulary import Backend

__all__ = ["Device", "Stamp", "open_device"]


def open_device(backend: Backend, threads: int | None, local_rank: int = 0) -> Device:
    """Return the device of a process, ready for work.

    Raises
    ------
    DeviceUnavailable
        When torch cannot use the device that the plan asks for.

    """
    from tunemark.harness.devices import cpu, cuda, fake, mps  # noqa: PLC0415 - torch is imported in the worker only

    families: dict[Backend, type[Device]] = {Backend.CPU: cpu.Cpu, Backend.CUDA: cuda.Cuda, Backend.MPS: mps.Mps, Backend.FAKE: fake.Fake}
    return families[backend].open(threads, local_rank)
