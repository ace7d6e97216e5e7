"""Device families, one module each. A module of this package that defines `VENDOR` is found by its name; no list names it."""

import pkgutil
from importlib import import_module

from tunemark.harness.vendors.protocol import Device, Vendor
from tunemark.schema.vocabulary import Backend

__all__ = ["all_vendors", "open_device", "vendor_of"]


def all_vendors() -> list[Vendor]:
    """Return every vendor, the preferred one first."""
    modules = (import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    vendors = [module.VENDOR for module in modules if hasattr(module, "VENDOR")]
    return sorted(vendors, key=lambda vendor: -vendor.preference)


def vendor_of(backend: Backend) -> Vendor:
    """Return the vendor of a device family. Its module has the family's name."""
    vendor: Vendor = import_module(f"{__name__}.{backend.value}").VENDOR
    return vendor


def open_device(backend: Backend, threads: int | None, local_rank: int = 0) -> Device:
    """Return the device of a process, ready for work. Raises DeviceUnavailable when torch cannot use it."""
    return vendor_of(backend).device.open(threads, local_rank)
