"""What this machine is, read without torch: an allow-list of facts, nothing that identifies it."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Dtype

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
    "optimum-neuron",
    "numpy",
)
QUERY_TIMEOUT_S = 10
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Machine:
    """The device family that will be used, and the host around it."""

    backend: Backend
    backend_reason: str
    devices: tuple[DeviceFacts, ...]
    """All devices of the family; for the CPU one entry."""
    compute_dtypes: tuple[Dtype, ...]
    """Number formats its matrix unit has, fastest first."""
    os: str
    python: str
    packages: dict[str, str]
    cpu: str
    cpu_physical_cores: int | None
    cpu_logical_cores: int
    cpu_usable_cores: int
    memory_bytes: int
    free_disk_bytes: int


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
    backend, reason, devices, dtypes = chosen
    reason = "asked for" if asked else reason
    return Machine(
        backend=backend,
        backend_reason=reason,
        devices=devices,
        compute_dtypes=dtypes,
        os=_os_version(),
        python=platform.python_version(),
        packages=package_versions(),
        cpu=cpu_model(),
        cpu_physical_cores=psutil.cpu_count(logical=False),
        cpu_logical_cores=psutil.cpu_count() or 1,
        cpu_usable_cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        free_disk_bytes=shutil.disk_usage(Path.cwd()).free,
    )


Family = tuple[Backend, str, tuple[DeviceFacts, ...], tuple[Dtype, ...]]


def _families() -> Iterator[Family]:
    """Yield the device families of this machine, the fastest first: backend, reason, devices, number formats."""
    host = (DeviceFacts(name=cpu_model(), memory_bytes=psutil.virtual_memory().total),)
    nvidia = nvidia_devices()
    if nvidia:
        yield Backend.CUDA, "nvidia-smi lists a device", nvidia, (Dtype.BF16, Dtype.FP16, Dtype.TF32, Dtype.FP32)
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        yield Backend.MPS, "an Apple GPU shares the memory of this machine", host, (Dtype.BF16, Dtype.FP16, Dtype.FP32)
    yield Backend.CPU, "no accelerator was found", host, (Dtype.FP32, Dtype.BF16)


def nvidia_devices(command: str = "nvidia-smi") -> tuple[DeviceFacts, ...]:
    """Return the NVIDIA devices that the driver lists; empty without a driver."""
    if shutil.which(command) is None:
        return ()
    query = [command, "--query-gpu=name,memory.total,driver_version,power.limit", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True)  # noqa: S603 - a fixed command
    except (OSError, subprocess.SubprocessError):
        return ()
    lines = [line for line in done.stdout.splitlines() if line.count(",") == query[1].count(",")]
    return tuple(_nvidia_device(lines[index]) for index in visible_indexes(len(lines)))


def visible_indexes(count: int) -> list[int]:
    """Return which of the devices CUDA_VISIBLE_DEVICES leaves; names other than numbers leave all, and the worker checks."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None or not all(part.strip().isdecimal() for part in wanted.split(",") if part.strip()):
        return list(range(count))
    return [int(part) for part in wanted.split(",") if part.strip() and int(part) < count]


def _nvidia_device(line: str) -> DeviceFacts:
    name, memory_mib, driver, power_w = (part.strip() for part in line.split(","))
    return DeviceFacts(name=name, memory_bytes=int(float(memory_mib) * MIB), driver=driver, power_limit_w=_number(power_w))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that take part and are installed."""
    versions = {}
    for package in PACKAGES:
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
        done = subprocess.run(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
        if done.stdout.strip():
            return done.stdout.strip()
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
