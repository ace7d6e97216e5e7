"""The monitor of a device family, or the reason why there is none."""

from collections.abc import Callable, Sequence

from tunemark.harness.devices.features import Feature
from tunemark.harness.support import cannot
from tunemark.harness.telemetry.cuda import NvmlMonitor
from tunemark.harness.telemetry.neuron import NeuronMonitor
from tunemark.harness.telemetry.protocol import DeviceMonitor, MonitorUnavailable
from tunemark.harness.telemetry.rocm import AmdMonitor
from tunemark.harness.telemetry.sampling import DeviceSampler
from tunemark.harness.telemetry.xpu import XpuSmiMonitor
from tunemark.schema.vocabulary import Backend

MONITORS: dict[Backend, Callable[[Sequence[int]], DeviceMonitor]] = {
    Backend.CUDA: NvmlMonitor.open,
    Backend.ROCM: AmdMonitor.open,
    Backend.NEURON: NeuronMonitor.open,
    Backend.XPU: XpuSmiMonitor.open,
}


def sampler_of(backend: Backend, indexes: Sequence[int]) -> DeviceSampler:
    """Return the sampler of some devices, by their numbers in the vendor's tools; where nothing can be asked, one that says why."""
    if backend not in MONITORS:
        reason = cannot(backend).get(Feature.ENERGY, "this device family has no monitor")
        return DeviceSampler(None, (), reason)
    try:
        return DeviceSampler(MONITORS[backend](indexes), tuple(indexes), "")
    except MonitorUnavailable as error:
        return DeviceSampler(None, tuple(indexes), str(error))
