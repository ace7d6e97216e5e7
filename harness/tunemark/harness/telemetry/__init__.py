"""What is seen of a run from outside of its worker, so that the measurement is not disturbed: the host, and the devices."""

from tunemark.harness.telemetry.host import INTERVAL_S, Sample, Sampler, Telemetry
from tunemark.harness.telemetry.sampling import DeviceSampler

__all__ = ["INTERVAL_S", "DeviceSampler", "Sample", "Sampler", "Telemetry"]
