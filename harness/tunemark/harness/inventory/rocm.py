"""AMD devices, from amd-smi, or from rocm-smi where that is all there is."""

from typing import Any

from tunemark.harness.inventory.asking import MIB, ask_json, dicts, number, positive, text_of, visible_indexes
from tunemark.harness.inventory.found import Found
from tunemark.schema.records.submission import DeviceFacts

VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""The runtime leaves some devices, and of these HIP leaves some."""
UNITS = {"B": 1, "KB": 2**10, "MB": MIB, "GB": 2**30}


def devices() -> list[Found]:
    """Return the devices that the environment leaves; empty without a driver."""
    listed = parse_amd_smi(ask_json("amd-smi", "static", "--asic", "--vram", "--driver", "--limit", "--json"))
    if not listed:
        query = ("--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--showmaxpower", "--json")
        listed = parse_rocm_smi(ask_json("rocm-smi", *query))
    for variable in VISIBLE:
        listed = [listed[index] for index in visible_indexes(len(listed), variable)]
    return listed


def parse_amd_smi(answer: Any) -> list[Found]:  # noqa: ANN401 - JSON of a tool
    """Return the devices of `amd-smi static --json`: a list, since ROCm 7 inside of `gpu_data`."""
    entries = dicts(answer.get("gpu_data") if isinstance(answer, dict) else answer)
    found = []
    for place, entry in enumerate(entries):
        asic, vram, driver, limit = (_part(entry, name) for name in ("asic", "vram", "driver", "limit"))
        name = text_of(asic.get("market_name"))
        if name is None:
            continue
        facts = DeviceFacts(
            name=name,
            memory_bytes=_bytes(vram.get("size")),
            driver=text_of(driver.get("version")),
            power_limit_w=positive(limit.get("socket_power_limit", limit.get("socket_power", limit.get("max_power")))),
        )
        index = int(number(entry.get("gpu")) or 0) if "gpu" in entry else place
        found.append(Found(index, facts, text_of(asic.get("target_graphics_version"))))
    return found


def parse_rocm_smi(answer: Any) -> list[Found]:  # noqa: ANN401 - JSON of a tool
    """Return the devices of `rocm-smi --json`: an object with an entry a card, and one called `system`."""
    if not isinstance(answer, dict):
        return []
    # The capitals of its keys have changed between versions.
    entries = {str(key).lower(): {str(k).lower(): v for k, v in _part(answer, key).items()} for key in answer}
    driver = text_of(entries.get("system", {}).get("driver version"))
    found = []
    for key in sorted((key for key in entries if key.startswith("card") and key[4:].isdecimal()), key=lambda key: int(key[4:])):
        card = entries[key]
        name = next((name for name in (text_of(card.get("card series")), text_of(card.get("card model"))) if name), None)
        if name is None:
            continue
        memory = positive(card.get("vram total memory (b)"))
        facts = DeviceFacts(
            name=name,
            memory_bytes=None if memory is None else int(memory),
            driver=driver,
            power_limit_w=positive(card.get("max graphics package power (w)")),
        )
        found.append(Found(int(key[4:]), facts, text_of(card.get("gfx version"))))
    return found


def _part(entry: dict[str, Any], name: str) -> dict[str, Any]:
    part = entry.get(name)
    return part if isinstance(part, dict) else {}


def _bytes(size: Any) -> int | None:  # noqa: ANN401 - JSON of a tool
    unit = str(size.get("unit", "MB")).upper() if isinstance(size, dict) else "MB"
    amount = positive(size)
    return None if amount is None or unit not in UNITS else int(amount * UNITS[unit])
