"""The CPU: synchronous, and its memory is the host's. Also its name, which Arm systems do not report."""

import platform
import tomllib
from pathlib import Path

import psutil

from tunemark.harness.vendors.protocol import Device, FoundDevice, vendor
from tunemark.harness.vendors.vendor_tools import ask
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend

ARM_CPUS = tomllib.loads(Path(__file__).with_name("arm_cpus.toml").read_text(encoding="utf-8"))
CPU_INFO, MACHINE_MAKER = Path("/proc/cpuinfo"), Path("/sys/class/dmi/id/sys_vendor")


def cpu_model(info: Path = CPU_INFO, maker: Path = MACHINE_MAKER) -> str:
    """Return the CPU's model name. Arm systems report only the core, so a cloud's CPU is recognised by the maker of the machine."""
    if info.exists():
        lines = (line.partition(":") for line in info.read_text(encoding="utf-8", errors="replace").splitlines())
        said = {name.strip(): value.strip() for name, _, value in lines}
        name = said.get("model name") or said.get("Model")
        core = ARM_CPUS["cores"].get(f"{said.get('CPU implementer')} {said.get('CPU part')}")
        if name is None and core is not None:
            made_by = maker.read_text(encoding="utf-8", errors="replace").strip() if maker.is_file() else ""
            return str(ARM_CPUS["clouds"].get(made_by, {}).get(core, core))
        if name:
            return name
    if platform.system() == "Darwin":
        brand = (ask("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string") or "").strip()
        if brand:
            return brand
    return platform.processor() or platform.machine() or "unknown CPU"


class Cpu(Device):
    """Trains on CPU threads, which all processes share."""

    free_marks = True


def find() -> list[FoundDevice]:
    """Return the host itself as one device."""
    return [FoundDevice(None, DeviceFacts(name=cpu_model(), memory_bytes=psutil.virtual_memory().total))]


VENDOR = vendor(Backend.CPU, device=Cpu, find=find, probe_size=1024)
