"""Intel GPUs through torch.xpu, timed by events in the queue; found and monitored through xpu-smi.

Written from the documentation of xpu-smi and sycl-ls; not yet run on such a GPU.
"""

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from tunemark.harness.vendors import protocol
from tunemark.harness.vendors.vendor_tools import ask, ask_json, dicts, number, positive, text_of, visible_indexes
from tunemark.schema.formats import MIB
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend

DISPLAY_ONLY = ("UHD Graphics", "HD Graphics", "Iris")
"""GPUs inside processors that torch does not train on: they must not be chosen over the CPU."""
SYCL_LINE = re.compile(
    r"^\[(?:ext_oneapi_)?level_zero:gpu(?::\d+)?\](?:\[level_zero:\d+\])?\s*(?P<platform>[^,]+),\s*(?P<device>.+?)\s*(?:\[(?P<driver>[\d.+]+)\])?\s*$"
)
ARCHITECTURE = re.compile(r"\s+\d+\.\d+(?:\.\d+)?$")
ECC = {"enabled": True, "disabled": False}
METRICS = "0,1,2,3,8,18"
"""Utilisation, power, frequency, core temperature, energy, memory used. The header names the columns."""


class Xpu(protocol.Gpu):
    """Trains on one GPU, or one tile. Its name is not compared: torch and Intel's tools spell the same GPU differently."""

    family = build = "xpu"
    row = protocol.TABLE[Backend.XPU]
    # The SYCL compiler: a day such as 20250302.
    libraries: ClassVar = {"dpcpp": lambda torch: torch.version.xpu}


def find() -> list[protocol.FoundDevice]:
    """Return the GPUs that ZE_AFFINITY_MASK leaves visible; empty without a driver."""
    answer = ask_json("xpu-smi", "discovery", "-j")
    indexes = [device.index for device in parse_discovery(answer, {})]
    details = {index: ask_json("xpu-smi", "discovery", "-d", str(index), "-j") for index in indexes if index is not None}
    devices = parse_discovery(answer, details) or parse_sycl_ls(ask("sycl-ls") or "")
    return [devices[index] for index in visible_indexes(len(devices), *Xpu.row.masks)]


def parse_discovery(answer: Any, details: dict[int, Any]) -> list[protocol.FoundDevice]:  # noqa: ANN401 - JSON of a tool
    """Return the GPUs of `xpu-smi discovery -j`; `details` holds the same command's answer for each one."""
    devices = []
    for entry in dicts(answer.get("device_list") if isinstance(answer, dict) else None):
        name, index = text_of(entry.get("device_name")), number(entry.get("device_id"))
        # Virtual functions are parts of a physical GPU that is listed too.
        if name is None or index is None or _display_only(name) or entry.get("device_function_type", "physical") != "physical":
            continue
        (detail,) = dicts([details.get(int(index))]) or [{}]
        memory, driver = positive(detail.get("memory_physical_size_byte")), text_of(detail.get("driver_version"))
        clock, ecc = positive(detail.get("core_clock_rate_mhz")), ECC.get(str(detail.get("memory_ecc_state")))
        facts = DeviceFacts(name=name, memory_bytes=memory and int(memory), driver=driver, max_clock_mhz=clock, ecc=ecc)
        devices.append(protocol.FoundDevice(int(index), facts))
    return devices


def parse_sycl_ls(text: str) -> list[protocol.FoundDevice]:
    """Return the Level Zero GPUs of `sycl-ls`, which prints a line per device without memory or power."""
    devices: list[protocol.FoundDevice] = []
    for line in text.splitlines():
        match = SYCL_LINE.match(line.strip())
        if match and not _display_only(match["device"]):
            facts = DeviceFacts(name=ARCHITECTURE.sub("", match["device"]), driver=match["driver"])
            devices.append(protocol.FoundDevice(len(devices), facts))
    return devices


def _display_only(name: str) -> bool:
    return any(word in name for word in DISPLAY_ONLY)


class XpuSmiMonitor(protocol.LineMonitor):
    """Monitors GPUs by their xpu-smi numbers. xpu-smi prints a CSV line per device and second."""

    command = staticmethod(lambda indexes: ["xpu-smi", "dump", "-d", ",".join(map(str, indexes)), "-m", METRICS, "-i", "1"])
    _header: Sequence[str] = ()

    def read(self) -> tuple[protocol.DeviceReading, ...]:
        """Return the readings of the last lines; empty without a new line."""
        latest: dict[int, protocol.DeviceReading] = {}
        for line in self.new_lines():
            cells = [cell.strip() for cell in line.split(",")]
            if cells[0] == "Timestamp":
                self._header = cells
                continue
            if len(cells) != len(self._header):
                continue
            row = list(zip(self._header, cells, strict=True))
            busy, memory = _value(row, "GPU Utilization"), _value(row, "GPU Memory Used")
            latest[int(_value(row, "DeviceId") or 0)] = protocol.DeviceReading(
                busy=None if busy is None else min(1.0, busy / 100),
                power_w=_value(row, "GPU Power"),
                clock_mhz=_value(row, "GPU Frequency"),
                temperature_c=_value(row, "GPU Core Temperature"),
                memory_used_bytes=None if memory is None else int(memory * MIB),
                energy_j=_value(row, "GPU Energy Consumed (J)"),
            )
        return tuple(latest.get(index, protocol.DeviceReading()) for index in self._indexes) if latest else ()


def _value(row: list[tuple[str, str]], column: str) -> float | None:
    """Return the value in the first column with a name that begins like this, or None."""
    return next((number(cell) for name, cell in row if name.startswith(column)), None)


VENDOR = protocol.vendor(Backend.XPU, device=Xpu, find=find, monitor=XpuSmiMonitor.open)
