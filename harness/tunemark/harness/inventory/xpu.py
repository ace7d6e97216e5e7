"""Intel GPUs, from xpu-smi, or from sycl-ls where that is all there is."""

import re
from typing import Any

from tunemark.harness.inventory.asking import ask, ask_json, dicts, number, positive, text_of, visible_indexes
from tunemark.harness.inventory.found import Found
from tunemark.schema.records.submission import DeviceFacts

DISPLAY_ONLY = ("UHD Graphics", "HD Graphics", "Iris")
"""GPUs inside of processors that torch does not train on: they must not take the place of the CPU."""
SYCL_LINE = re.compile(
    r"^\[(?:ext_oneapi_)?level_zero:gpu(?::\d+)?\](?:\[level_zero:\d+\])?\s*(?P<platform>[^,]+),\s*(?P<device>.+?)\s*(?:\[(?P<driver>[\d.+]+)\])?\s*$"
)
ARCHITECTURE = re.compile(r"\s+\d+\.\d+(?:\.\d+)?$")


def devices() -> list[Found]:
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
