"""AMD GPUs: torch built for ROCm answers to torch.cuda, and its collectives to `nccl`. Not yet run on such a GPU."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Self

from tunemark.harness.vendors.protocol import (
    HOPPER_ONLY,
    WHOLE_LAYERS,
    DeviceUnavailable,
    EventDevice,
    Feature,
    Found,
    MonitorUnavailable,
    Reading,
)
from tunemark.harness.vendors.vendor_tools import MIB, ask_json, dicts, number, positive, text_of, visible_indexes
from tunemark.schema.records.submission import DeviceFacts

CANNOT: dict[Feature, str] = WHOLE_LAYERS | {
    Feature.FLASH_ATTENTION_3: HOPPER_ONLY,
    Feature.TF32: "a format of NVIDIA GPUs; use compute=bf16 or fp32",
}


class Rocm(EventDevice):
    """Trains on one GPU."""

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the CPU only feeds the GPU
        """Check that this torch is built for ROCm and sees the GPU."""
        import torch  # noqa: PLC0415

        if torch.version.hip is None:
            msg = f"torch {torch.__version__} is not built for ROCm; install a build that is"
            raise DeviceUnavailable(msg)
        if not torch.cuda.is_available():
            msg = f"torch {torch.__version__} sees no GPU; may this user open /dev/kfd, and does the build suit the driver?"
            raise DeviceUnavailable(msg)
        torch.cuda.set_device(local_rank)
        return cls(torch, torch.cuda, "cuda", local_rank)

    def name(self) -> str | None:
        """Return None: torch and AMD's tools spell the same GPU differently, so a comparison would refuse the right one."""
        return None


# MOVE: was tunemark.harness.vendors.rocm: AMD devices, from amd-smi, or from rocm-smi where that is all there is.

VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""The runtime leaves some devices, and of these HIP leaves some."""
UNITS = {"B": 1, "KB": 2**10, "MB": MIB, "GB": 2**30}


def find() -> list[Found]:
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


# MOVE: was tunemark.harness.vendors.rocm: AMD devices through amdsmi, which comes with ROCm. Written from its documentation; not yet run on such a device.

MICRO = 1e-6


class AmdMonitor:
    """Some AMD devices, by their numbers in amd-smi."""

    interval_s = 0.1
    memory_method = "amdsmi_get_gpu_memory_usage"
    energy_reason = "amdsmi tells neither an energy counter nor power of this device"

    def __init__(self, smi: Any, indexes: Sequence[int]) -> None:  # noqa: ANN401 - the module, imported late
        self._smi = smi
        handles = smi.amdsmi_get_processor_handles()
        self._handles = [handles[index] for index in indexes]

    @classmethod
    def open(cls, indexes: Sequence[int]) -> Self:
        """Load amdsmi and find the devices.

        Raises
        ------
        MonitorUnavailable
            Without amdsmi or without a driver.

        """
        try:
            import amdsmi  # noqa: PLC0415 - comes with ROCm

            amdsmi.amdsmi_init()
            return cls(amdsmi, indexes)
        except Exception as error:  # without ROCm the import itself fails with a KeyError
            msg = f"amdsmi cannot be used here ({type(error).__name__}); install the one that comes with ROCm"
            raise MonitorUnavailable(msg) from error

    def read(self) -> tuple[Reading, ...]:
        """Return one reading for each device."""
        return tuple(self._read(handle) for handle in self._handles)

    def _read(self, handle: Any) -> Reading:  # noqa: ANN401 - a handle of amdsmi
        smi = self._smi
        activity = self._ask(smi.amdsmi_get_gpu_activity, handle) or {}
        power = self._ask(smi.amdsmi_get_power_info, handle) or {}
        clock = self._ask(smi.amdsmi_get_clock_info, handle, smi.AmdSmiClkType.GFX) or {}
        busy = number(activity.get("gfx_activity"))
        # Which of the two is told depends on the chip.
        watts = (number(power.get(key)) for key in ("current_socket_power", "average_socket_power", "socket_power"))
        memory = self._ask(smi.amdsmi_get_gpu_memory_usage, handle, smi.AmdSmiMemoryType.VRAM)
        heat = self._ask(smi.amdsmi_get_temp_metric, handle, smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT)
        return Reading(
            busy=None if busy is None else min(1.0, busy / 100),
            power_w=next((found for found in watts if found), None),
            clock_mhz=number(clock.get("clk")),
            temperature_c=number(heat),
            memory_used_bytes=None if memory is None else int(memory),
            energy_j=_joules(self._ask(smi.amdsmi_get_energy_count, handle) or {}),
            throttle_reasons=_reasons(self._ask(smi.amdsmi_get_gpu_metrics_info, handle) or {}),
        )

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - amdsmi's answers
        try:
            return question(*arguments)
        except self._smi.AmdSmiException:
            return None

    def processes(self) -> tuple[frozenset[int], ...] | None:
        """Return the processes on each device."""
        listed = [self._ask(self._smi.amdsmi_get_gpu_process_list, handle) for handle in self._handles]
        return None if None in listed else tuple(frozenset(_pids(found)) for found in listed)

    def close(self) -> None:
        """Unload amdsmi."""
        with contextlib.suppress(self._smi.AmdSmiException):
            self._smi.amdsmi_shut_down()


def _joules(count: dict[str, Any]) -> float | None:
    """Return joules: the counter counts steps of some microjoules; its key was renamed."""
    steps, step_uj = number(count.get("energy_accumulator", count.get("power"))), number(count.get("counter_resolution"))
    return steps * step_uj * MICRO if steps and step_uj else None


def _reasons(metrics: dict[str, Any]) -> frozenset[str]:
    """Return whether the firmware lowers the clocks: one word for all causes, which it counts by chip in its own way."""
    bits = number(metrics.get("indep_throttle_status"))
    # All ones stand for a value that this chip does not tell.
    return frozenset({"throttled"}) if bits and bits < 2**63 else frozenset()


def _pids(listed: Any) -> list[int]:  # noqa: ANN401 - amdsmi's answers
    return [int(process["pid"]) for process in listed if isinstance(process, dict) and "pid" in process]
