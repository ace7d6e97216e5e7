"""Intel GPUs through torch.xpu: asynchronous, timed by events in the queue. Not yet run on such a GPU."""

import re
from collections.abc import Sequence
from typing import Any, Self

from tunemark.harness.vendors.protocol import HOPPER_ONLY, WHOLE_LAYERS, DeviceUnavailable, EventDevice, Feature, Found, Reading
from tunemark.harness.vendors.vendor_tools import MIB, LineStream, ask, ask_json, dicts, number, positive, text_of, visible_indexes
from tunemark.schema.records.submission import DeviceFacts

CANNOT: dict[Feature, str] = WHOLE_LAYERS | {
    Feature.FLASH_ATTENTION: "its kernels are for CUDA and ROCm; use attention=sdpa",
    Feature.FLASH_ATTENTION_3: HOPPER_ONLY,
    Feature.TF32: "a format of NVIDIA GPUs; use compute=bf16 or fp32",
    Feature.ENERGY: "xpu-smi tells power once a second, too seldom to integrate",
}


class Xpu(EventDevice):
    """Trains on one GPU, or on one of its tiles where the driver shows these as devices."""

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the CPU only feeds the GPU
        """Check that torch sees the GPU."""
        import torch  # noqa: PLC0415

        if not torch.xpu.is_available():
            msg = f"torch {torch.__version__} sees no Intel GPU; install a build with XPU and the Level Zero driver"
            raise DeviceUnavailable(msg)
        torch.xpu.set_device(local_rank)
        device = cls(torch, torch.xpu, "xpu", local_rank)
        # Torch has its own back end on oneCCL since 2.8; before, it came with a package of bindings.
        device.collectives = "xccl" if torch.distributed.is_xccl_available() else "ccl"
        return device

    def name(self) -> str | None:
        """Return None: torch and Intel's tools spell the same GPU differently, so a comparison would refuse the right one."""
        return None


# MOVE: was tunemark.harness.vendors.xpu: Intel GPUs, from xpu-smi, or from sycl-ls where that is all there is.

DISPLAY_ONLY = ("UHD Graphics", "HD Graphics", "Iris")
"""GPUs inside of processors that torch does not train on: they must not take the place of the CPU."""
SYCL_LINE = re.compile(
    r"^\[(?:ext_oneapi_)?level_zero:gpu(?::\d+)?\](?:\[level_zero:\d+\])?\s*(?P<platform>[^,]+),\s*(?P<device>.+?)\s*(?:\[(?P<driver>[\d.+]+)\])?\s*$"
)
ARCHITECTURE = re.compile(r"\s+\d+\.\d+(?:\.\d+)?$")


def find() -> list[Found]:
    """Return the GPUs that ZE_AFFINITY_MASK leaves; empty without a driver."""
    answer = ask_json("xpu-smi", "discovery", "-j")
    listed = parse_discovery(answer, {found.index: _details(found.index) for found in parse_discovery(answer, {})})
    listed = listed or parse_sycl_ls(ask("sycl-ls") or "")
    return [listed[index] for index in visible_indexes(len(listed), "ZE_AFFINITY_MASK")]


def _details(index: int) -> dict[str, Any]:
    answer = ask_json("xpu-smi", "discovery", "-d", str(index), "-j")
    return answer if isinstance(answer, dict) else {}


def parse_discovery(answer: Any, details: dict[int, dict[str, Any]]) -> list[Found]:  # noqa: ANN401 - JSON of a tool
    """Return the GPUs of `xpu-smi discovery -j`, with what the same command tells of each one."""
    found = []
    for entry in dicts(answer.get("device_list") if isinstance(answer, dict) else None):
        name, index = text_of(entry.get("device_name")), number(entry.get("device_id"))
        # Virtual functions are parts of a physical one that is listed too.
        if name is None or index is None or _displays(name) or entry.get("device_function_type", "physical") != "physical":
            continue
        further = details.get(int(index), {})
        memory = positive(further.get("memory_physical_size_byte"))
        facts = DeviceFacts(name=name, memory_bytes=None if memory is None else int(memory), driver=text_of(further.get("driver_version")))
        found.append(Found(int(index), facts))
    return found


def parse_sycl_ls(text: str) -> list[Found]:
    """Return the Level Zero GPUs of `sycl-ls`: a line a device, with neither memory nor power."""
    found: list[Found] = []
    for line in text.splitlines():
        match = SYCL_LINE.match(line.strip())
        if match and not _displays(match["device"]):
            found.append(Found(len(found), DeviceFacts(name=ARCHITECTURE.sub("", match["device"]), driver=match["driver"])))
    return found


def _displays(name: str) -> bool:
    return any(word in name for word in DISPLAY_ONLY)


# MOVE: was tunemark.harness.vendors.xpu: Intel GPUs through xpu-smi, which prints a CSV line a device and second. Written from its documentation; not yet run on such a device.

METRICS = "0,1,2,3,8,18"
"""Utilisation, power, frequency, core temperature, energy, memory used. What came is read from the header."""


class XpuSmiMonitor:
    """Some Intel GPUs, by their numbers in xpu-smi."""

    interval_s = 1.0
    memory_method = "xpu-smi, GPU Memory Used"
    energy_reason = "xpu-smi tells no energy counter of this device, and power once a second, too seldom to integrate"

    def __init__(self, lines: LineStream, indexes: Sequence[int]) -> None:
        self._lines = lines
        self._indexes = tuple(indexes)
        self._header: list[str] = []

    @classmethod
    def open(cls, indexes: Sequence[int]) -> Self:
        """Start xpu-smi.

        Raises
        ------
        MonitorUnavailable
            Without xpu-smi.

        """
        return cls(LineStream(["xpu-smi", "dump", "-d", ",".join(map(str, indexes)), "-m", METRICS, "-i", "1"]), indexes)

    def read(self) -> tuple[Reading, ...]:
        """Return the readings of the last lines; none when there is no new one."""
        latest: dict[int, Reading] = {}
        for line in self._lines.new_lines():
            cells = [cell.strip() for cell in line.split(",")]
            if cells[0] == "Timestamp":
                self._header = cells
            elif len(cells) == len(self._header):
                index, reading = reading_of(dict(zip(self._header, cells, strict=True)))
                latest[index] = reading
        return tuple(latest.get(index, Reading()) for index in self._indexes) if latest else ()

    def processes(self) -> tuple[frozenset[int], ...] | None:
        """Return None: it lists processes to administrators only."""
        return None

    def close(self) -> None:
        """End xpu-smi."""
        self._lines.close()


def reading_of(row: dict[str, str]) -> tuple[int, Reading]:
    """Return device number and reading of a line."""

    def value(start: str) -> float | None:
        return next((number(cell) for name, cell in row.items() if name.startswith(start)), None)

    busy, memory = value("GPU Utilization"), value("GPU Memory Used")
    reading = Reading(
        busy=None if busy is None else min(1.0, busy / 100),
        power_w=value("GPU Power"),
        clock_mhz=value("GPU Frequency"),
        temperature_c=value("GPU Core Temperature"),
        memory_used_bytes=None if memory is None else int(memory * MIB),
        energy_j=value("GPU Energy Consumed (J)"),
    )
    return int(value("DeviceId") or 0), reading
