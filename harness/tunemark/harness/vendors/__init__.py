"""Device families behind one small protocol, one file each."""

from tunemark.harness.vendors.protocol import Device, Stamp
from tunemark.schema.vocabulary import Backend

__all__ = ["Device", "Stamp", "open_device"]


def open_device(backend: Backend, threads: int | None, local_rank: int = 0) -> Device:
    """Return the device of a process, ready for work.

    Raises
    ------
    DeviceUnavailable
        When torch cannot use the device that the plan asks for.

    """
    from tunemark.harness.vendors import cpu, cuda, fake, mps, neuron, rocm, xpu  # noqa: PLC0415 - the worker's, which imports torch

    families: dict[Backend, type[Device]] = {
        Backend.CPU: cpu.Cpu,
        Backend.CUDA: cuda.Cuda,
        Backend.ROCM: rocm.Rocm,
        Backend.NEURON: neuron.Neuron,
        Backend.XPU: xpu.Xpu,
        Backend.MPS: mps.Mps,
        Backend.FAKE: fake.Fake,
    }
    return families[backend].open(threads, local_rank)
