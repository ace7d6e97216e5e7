"""Find this machine's devices and facts, without torch: a fixed list that does not identify it."""

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path

import psutil

from tunemark.harness.vendors.protocol import FoundDevice, Vendor, all_vendors
from tunemark.harness.vendors.vendor_tools import UnusableMask, cpu_model, hides_all
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.plan.machine import Machine
from tunemark.schema.processes import usable_cores
from tunemark.schema.vocabulary import PACKAGES, VENDOR_PACKAGES, Backend


def detect(requested: Backend | None = None) -> Machine:
    """Return the facts of this machine. Takes well under a second and imports no torch.

    Raises TunemarkError when the requested device family is not here, and UnusableMask when a device mask
    selects none of its devices.
    """
    vendors = [(vendor, devices) for vendor in all_vendors() if (devices := _find(vendor, requested))]
    chosen = next(((vendor, devices) for vendor, devices in vendors if requested in {None, vendor.backend}), None)
    if chosen is None:
        here = ", ".join(vendor.backend.value for vendor, _ in vendors)
        raise TunemarkError("--set backend", str(requested), f"this machine has {here}{_missing_tools()}", exit_code=Exit.UNSUPPORTED)
    vendor, devices = chosen
    reason = vendor.found_by + (_missing_tools() + _hidden() if vendor.on_host else "")
    release = platform.release().split("-")[0].split(".")
    return Machine(
        backend=vendor.backend,
        family=vendor.family,
        backend_reason=reason,
        devices=tuple(device.facts for device in devices),
        # More of a kernel's release may name its builder or owner.
        os=f"{platform.system()} {'.'.join(release[:2])} {platform.machine()}",
        python=platform.python_version(),
        packages=package_versions(),
        cpu=cpu_model(),
        cpu_physical_cores=psutil.cpu_count(logical=False),
        cpu_logical_cores=psutil.cpu_count() or 1,
        cpu_usable_cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        swap_bytes=psutil.swap_memory().total,
        free_disk_bytes=shutil.disk_usage(Path.cwd()).free,
        indexes=tuple(device.index for device in devices if device.index is not None),
    )


def _find(vendor: Vendor, requested: Backend | None) -> list[FoundDevice]:
    """Return the visible devices of a family. A wrong mask matters only where these devices would be used."""
    try:
        return vendor.find()
    except UnusableMask:
        if requested in {None, vendor.backend}:
            raise
        return []


def _missing_tools() -> str:
    """Return the tools without which a vendor's devices cannot be found here, as the end of a sentence."""
    return "".join(f"; {problem}" for vendor in all_vendors() if (problem := vendor.missing_tool()))


def _hidden() -> str:
    """Return the environment variables that hide all devices, as the end of a sentence."""
    masks = ((name, os.environ[name]) for vendor in all_vendors() for name in vendor.masks if name in os.environ)
    return "".join(f"; {name}={value!r} hides all devices" for name, value in masks if hides_all(value))


def package_versions() -> dict[str, str]:
    """Return the versions of the installed packages that can affect a measurement."""
    versions = {}
    for package in (*PACKAGES, *VENDOR_PACKAGES):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
