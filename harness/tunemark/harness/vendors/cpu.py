"""The CPU: synchronous, and its memory is the host's."""

import psutil

from tunemark.harness.vendors.protocol import Device, FoundDevice, Vendor, declared
from tunemark.harness.vendors.vendor_tools import cpu_model
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend


class Cpu(Device):
    """Trains on CPU threads, which all processes share."""

    free_marks = True


def find() -> list[FoundDevice]:
    """Return the host itself as one device."""
    return [FoundDevice(None, DeviceFacts(name=cpu_model(), memory_bytes=psutil.virtual_memory().total))]


VENDOR = Vendor(**declared(Backend.CPU), device=Cpu, find=find, probe_size=1024)
