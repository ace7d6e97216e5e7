"""Find this machine's devices and facts, without torch: a fixed list that does not identify it. Or make those of another to plan for.

`python -m tunemark.harness.plan.machine` writes data/support.json, which the gate plans with and the site shows.
"""

import importlib.metadata
import math
import os
import platform
import re
import shutil
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil

from tunemark.harness.vendors.cpu import cpu_model
from tunemark.harness.vendors.protocol import FoundDevice, UnusableMask, Vendor, all_vendors
from tunemark.harness.vendors.vendor_tools import hides_all
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.any_model import hub_address
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root, usable_cores, write_atomically
from tunemark.schema.plan.capabilities import Feature, Machine, SupportMatrix
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import PACKAGES, VENDOR_PACKAGES, Backend


def detect(requested: Backend | None = None) -> Machine:
    """Return the facts of this machine. Takes well under a second and imports no torch.

    Raises TunemarkError when the requested device family is not here, and UnusableMask when a device mask
    selects none of its devices.
    """
    here: list[tuple[Vendor, list[FoundDevice]]] = []
    possible = all_vendors(here=True)
    for vendor in possible:
        try:
            here += [(vendor, devices)] if (devices := vendor.find()) else []
        except UnusableMask:
            # A wrong mask matters only where these devices would be used.
            if requested in {None, vendor.backend}:
                raise
    chosen = next(((vendor, devices) for vendor, devices in here if requested in {None, vendor.backend}), None)
    missing = hidden = ""
    if chosen is None or chosen[0].on_host:
        # The tools without which a vendor's devices cannot be found here, and the variables that hide all devices.
        missing = "".join(f"; {problem}" for vendor in possible if (problem := vendor.missing_tool()))
        masks = ((name, os.environ[name]) for vendor in possible for name in vendor.masks if name in os.environ)
        hidden = "".join(f"; {name}={value!r} hides all devices" for name, value in masks if hides_all(value))
    if chosen is None:
        names = ", ".join(vendor.backend.value for vendor, _ in here)
        raise TunemarkError("--set backend", str(requested), f"this machine has {names}{missing}", exit_code=Exit.UNSUPPORTED)
    vendor, devices = chosen
    release = platform.release().split("-")[0].split(".")
    return Machine(
        backend=vendor.backend,
        family=vendor.family,
        backend_reason=f"{vendor.found_by}{missing}{hidden}",
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
        container=container(),
    )


CONTAINER_FILES = Path("/run/.containerenv"), Path("/.dockerenv")
"""Written by Podman, with the name of the image, and by Docker, without."""


def container() -> str | None:
    """Return the image of this process's container without its registry, or else the kind of container; None outside."""
    podman, docker = CONTAINER_FILES
    named = re.search(r'^image="(.+)"', podman.read_text(encoding="utf-8") if podman.is_file() else "", re.MULTILINE)
    image = os.environ.get("TUNEMARK_IMAGE") or (named and named[1])
    if image:
        return image.rsplit("/", 1)[-1].partition("@")[0]
    if "NVIDIA_PYTORCH_VERSION" in os.environ:
        return f"nvidia pytorch:{os.environ['NVIDIA_PYTORCH_VERSION']}"
    return "docker" if docker.exists() else "podman" if podman.exists() else None


def package_versions() -> dict[str, str]:
    """Return the versions of the installed packages that can affect a measurement."""
    versions = {}
    for package in (*PACKAGES, *VENDOR_PACKAGES):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


HUB_LIMIT_S = 3.0
"""Seconds in which the hub must answer: a page takes well under one."""


def hub() -> str:
    """Return the state of the model hub in words: it must answer within a few seconds."""
    address = hub_address()
    if address is None:
        return "offline (HF_HUB_OFFLINE is set)"
    try:
        with urlopen(Request(address, method="HEAD"), timeout=HUB_LIMIT_S):  # noqa: S310 - the address that the user's own hub library asks
            return f"reachable ({address})"
    except HTTPError as error:
        return f"reachable ({address}, which answers {error.code})"
    except (OSError, ValueError) as error:
        return f"NOT reachable ({address}: {getattr(error, 'reason', error)}); set HF_HUB_OFFLINE=1 to save the retries"


# Another machine to plan for: that of an accelerator card, never the local one


def machine_with(facts: FactBase, accelerator: str, devices: int, nodes: int) -> Machine:
    """Return one of the machines that together have some devices of an accelerator, with all packages.

    Raises TunemarkError for a name that is not in data/, and for a number of devices that the machines cannot share.
    """
    if devices % nodes:
        raise TunemarkError("--devices", devices, f"is for all {nodes} nodes together; give a multiple of {nodes}")
    card = facts.accelerator(accelerator, "--accelerator", usual=True)
    vendor = _vendor(card)
    memory = card.device_bytes or None
    names = {*PACKAGES, *(need.package for need in vendor.needs.values())}
    return detect().model_copy(
        update={
            "backend": vendor.backend,
            "family": vendor.family,
            "backend_reason": f"{card.name} was requested",
            "devices": (DeviceFacts(name=card.name, memory_bytes=memory),) * (devices // nodes),
            "memory_bytes": None,
            "packages": dict.fromkeys(names, "to be installed"),
        }
    )


def too_large(facts: FactBase, accelerator: str, devices: int, nodes: int) -> str | None:
    """Return a note if no instance has this number of accelerators, else None."""
    card = facts.accelerator(accelerator, "--accelerator", usual=True)
    each = math.ceil(devices / nodes / card.devices_per_unit)
    most = max((row.accelerator_count for row in facts.prices if row.accelerator == card.key), default=math.inf)
    if each <= most:
        return None
    fix = f"use --set nodes={math.ceil(each * nodes / most)} to split them"
    return f"no instance in data/prices has {each} x {card.name} (at most {most:g}); {fix}"


def _vendor(card: AcceleratorCard) -> Vendor:
    if card.unit == "cpu":
        raise TunemarkError("--accelerator", card.key, "is a CPU; plan on the CPU itself, without this option")
    known = [vendor for vendor in all_vendors() if vendor.cards]
    vendor = next((each for each in known if re.fullmatch(str(each.cards), f"{card.vendor} {card.architecture}")), None)
    if vendor is None:
        makers = sorted({str(each.cards).partition(" ")[0] for each in known})
        fix = f"plans are for accelerators of {', '.join(makers)}, not of {card.vendor} {card.architecture or ''}".rstrip()
        raise TunemarkError("--accelerator", card.key, fix)
    return vendor


def support_matrix() -> SupportMatrix:
    """Return what each device family can do."""
    return SupportMatrix(features=tuple(Feature), families={vendor.backend: vendor.family for vendor in all_vendors()})


if __name__ == "__main__":
    write_atomically(project_root() / "data" / "support.json", canonical_json(support_matrix()))
