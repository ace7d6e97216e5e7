"""What this machine is, read without torch: an allow-list of facts, nothing that identifies it."""

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tunemark.harness.plan.capabilities import FORMATS
from tunemark.harness.vendors import cuda, neuron, rocm, xpu
from tunemark.harness.vendors.protocol import Found
from tunemark.harness.vendors.vendor_tools import ask, visible_indexes
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Dtype

__all__ = ["OF_VENDORS", "PACKAGES", "Machine", "cpu_model", "detect", "package_versions", "usable_cores", "visible_indexes"]

PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "datasets",
    "tokenizers",
    "bitsandbytes",
    "deepspeed",
    "liger-kernel",
    "flash-attn",
    "flash-attn-3",
    "optimum-neuron",
    "nvidia-ml-py",
    "numpy",
)
OF_VENDORS = ("torch-xla", "torch-neuronx", "neuronx-cc", "neuronx-distributed")
"""What comes with a vendor's stack and is never missed elsewhere."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The device family that will be used, and the host around it."""

    backend: Backend
    backend_reason: str
    devices: tuple[DeviceFacts, ...]
    """All devices of the family; for the CPU one entry."""
    compute_dtypes: tuple[Dtype, ...]
    """Number formats that matrix units of the family have, fastest first; its generation may lack some."""
    os: str
    python: str
    packages: dict[str, str]
    cpu: str
    cpu_physical_cores: int | None
    cpu_logical_cores: int
    cpu_usable_cores: int
    memory_bytes: int
    free_disk_bytes: int
    target: str | None = None
    """What the first device's kernels are compiled for, such as compute capability 9.0 or gfx942; None where no tool tells."""
    indexes: tuple[int, ...] = ()
    """Number of each device in its vendor's tools; empty for the CPU."""


def detect(asked: Backend | None = None) -> Machine:
    """Look at this machine. Takes well under a second and imports no torch.

    Raises
    ------
    TunemarkError
        When the device family that was asked for is not here.

    """
    found = list(_families())
    chosen = next((family for family in found if asked in {None, family[0]}), None)
    if chosen is None:
        here = ", ".join(family[0].value for family in found)
        raise TunemarkError("--backend", str(asked), f"this machine has {here}", exit_code=Exit.UNSUPPORTED)
    backend, reason, devices = chosen
    reason = "asked for" if asked else reason
    host = (Found(0, DeviceFacts(name=cpu_model(), memory_bytes=psutil.virtual_memory().total)),)
    return Machine(
        backend=backend,
        backend_reason=reason,
        devices=tuple(found.facts for found in devices or host),
        compute_dtypes=FORMATS[backend],
        os=_os_version(),
        python=platform.python_version(),
        packages=package_versions(),
        cpu=cpu_model(),
        cpu_physical_cores=psutil.cpu_count(logical=False),
        cpu_logical_cores=psutil.cpu_count() or 1,
        cpu_usable_cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        free_disk_bytes=shutil.disk_usage(Path.cwd()).free,
        target=devices[0].target if devices else None,
        indexes=tuple(found.index for found in devices),
    )


Family = tuple[Backend, str, list[Found]]
TOOLS: tuple[tuple[Backend, Callable[[], list[Found]], str], ...] = (
    (Backend.CUDA, cuda.find, "nvidia-smi lists a device"),
    (Backend.ROCM, rocm.find, "amd-smi or rocm-smi lists a device"),
    (Backend.NEURON, neuron.find, "neuron-ls lists a device"),
    (Backend.XPU, xpu.find, "xpu-smi or sycl-ls lists a device"),
)
"""Families whose vendor has a tool that lists devices."""


def _families() -> Iterator[Family]:
    """Yield the device families of this machine, accelerators first: backend, reason, devices."""
    for backend, devices, reason in TOOLS:
        found = devices()
        if found:
            yield backend, reason, found
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        yield Backend.MPS, "an Apple GPU shares the memory of this machine", []
    yield Backend.CPU, "no accelerator was found", []


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that take part and are installed."""
    versions = {}
    for package in (*PACKAGES, *OF_VENDORS):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def cpu_model() -> str:
    """Return the CPU's model name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Model")) and ":" in line:
                return line.split(":", 1)[1].strip() or platform.machine()
    if platform.system() == "Darwin":
        told = (ask("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string") or "").strip()
        if told:
            return told
    return platform.processor() or platform.machine() or "unknown CPU"


def usable_cores() -> int:
    """Return how many hardware threads this process may use: its affinity, and the container's quota if lower."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        limit, _, period = quota.read_text(encoding="ascii").strip().partition(" ")
        if limit != "max":
            return max(1, min(affinity, int(limit) // int(period)))
    return affinity


def _os_version() -> str:
    """Return system and major.minor version: more of a kernel's release may name its builder or owner."""
    release = platform.release().split("-")[0].split(".")
    return f"{platform.system()} {'.'.join(release[:2])} {platform.machine()}"
