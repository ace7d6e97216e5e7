"""AMD GPUs: torch built for ROCm has the API of torch.cuda, and its collectives are named `nccl`.

Written from the documentation of amd-smi and amdsmi; not yet run on such a GPU.
"""

import contextlib
import os
from dataclasses import replace
from typing import Any, ClassVar

from tunemark.harness.vendors import protocol
from tunemark.harness.vendors import vendor_tools as tools
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend

ROW = protocol.TABLE[Backend.ROCM]
RUNTIME_MASK, HIP_MASKS = "ROCR_VISIBLE_DEVICES", ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""The runtime hides some devices, and HIP hides some of the rest. HIP reads the first of its two variables that is set, as torch does."""
MICRO = 1e-6
POWERS = ("current_socket_power", "average_socket_power", "socket_power")


class Rocm(protocol.Gpu):
    """Trains on one GPU. Its name is not compared: torch and AMD's tools spell the same GPU differently."""

    build = "hip"
    row = ROW
    libraries: ClassVar = {"hip": lambda torch: torch.version.hip}


def find() -> list[protocol.FoundDevice]:
    """Return the GPUs that the environment leaves visible; empty without a driver."""
    devices = parse_amd_smi(tools.ask_json("amd-smi", "static", "--asic", "--vram", "--driver", "--limit", "--json"))
    for variable in (RUNTIME_MASK, next((name for name in HIP_MASKS if name in os.environ), HIP_MASKS[0])):
        devices = [devices[index] for index in tools.visible_indexes(len(devices), variable)]
    with (
        contextlib.suppress(protocol.DeviceUnavailable),
        contextlib.closing(AmdMonitor.open([device.index or 0 for device in devices])) as smi,
    ):
        places = range(len(devices))
        devices = [replace(each, facts=each.facts.model_copy(update=smi.described(place, places))) for place, each in enumerate(devices)]
    return devices


def parse_amd_smi(answer: Any) -> list[protocol.FoundDevice]:  # noqa: ANN401 - JSON of a tool
    """Return the GPUs of `amd-smi static --json`: a list, since ROCm 7 inside `gpu_data`."""
    devices = []
    for place, entry in enumerate(tools.dicts(answer.get("gpu_data") if isinstance(answer, dict) else answer)):
        asic, limit = tools.nested(entry, "asic"), tools.nested(entry, "limit")
        name = tools.text_of(asic.get("market_name"))
        if name is None:
            continue
        facts = DeviceFacts(
            name=name,
            memory_bytes=tools.bytes_of(tools.nested(entry, "vram").get("size")),
            driver=tools.text_of(tools.nested(entry, "driver").get("version")),
            power_limit_w=tools.positive(limit.get("socket_power_limit", limit.get("socket_power", limit.get("max_power")))),
            target=tools.text_of(asic.get("target_graphics_version")),
        )
        index = int(tools.number(entry["gpu"]) or 0) if "gpu" in entry else place
        devices.append(protocol.FoundDevice(index, facts))
    return devices


def _energy_j(smi: Any, gpu: Any) -> float | None:  # noqa: ANN401 - the module and a handle
    """Return the counter, which counts steps of some microjoules; its key was renamed."""
    energy = smi.amdsmi_get_energy_count(gpu)
    return energy.get("energy_accumulator", energy.get("power")) * energy["counter_resolution"] * MICRO or None


LIMITERS = ROW.names["limiters"]


class AmdMonitor(protocol.LibraryMonitor):
    """Monitors GPUs by their amd-smi numbers, through amdsmi, which comes with ROCm."""

    row, tool, module, begin, end, error = ROW, "amdsmi", "amdsmi", "amdsmi_init", "amdsmi_shut_down", "AmdSmiException"
    handles = staticmethod(lambda smi, indexes: [smi.amdsmi_get_processor_handles()[index] for index in indexes])
    readings: ClassVar = {
        "busy": lambda smi, gpu: (percent := tools.number(smi.amdsmi_get_gpu_activity(gpu)["gfx_activity"])) and min(1.0, percent / 100),
        # Which of these is reported depends on the chip.
        "power_w": lambda smi, gpu: next(filter(None, (tools.number(smi.amdsmi_get_power_info(gpu).get(name)) for name in POWERS)), None),
        "clock_mhz": lambda smi, gpu: tools.number(smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType.GFX)["clk"]),
        "temperature_c": lambda smi, gpu: tools.number(
            smi.amdsmi_get_temp_metric(gpu, smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT)
        ),
        "memory_used_bytes": lambda smi, gpu: int(smi.amdsmi_get_gpu_memory_usage(gpu, smi.AmdSmiMemoryType.VRAM)),
        "energy_j": _energy_j,
        "memory_clock_mhz": lambda smi, gpu: tools.number(smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType.MEM)["clk"]),
    }
    since_last: ClassVar = {"throttle_reasons": "_lowered"}
    facts: ClassVar = {
        "max_clock_mhz": lambda smi, gpu: tools.positive(smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType.GFX)["max_clk"]),
        "max_memory_clock_mhz": lambda smi, gpu: tools.positive(smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType.MEM)["max_clk"]),
        "ecc": lambda smi, gpu: bool(smi.amdsmi_get_gpu_ecc_enabled(gpu)),
        "partition": lambda smi, gpu: tools.text_of(smi.amdsmi_get_gpu_compute_partition(gpu)),
        "pcie_generation": lambda smi, gpu: int(smi.amdsmi_get_pcie_info(gpu)["pcie_static"]["pcie_interface_version"]),
        "pcie_width": lambda smi, gpu: int(smi.amdsmi_get_pcie_info(gpu)["pcie_metric"]["pcie_width"]),
        "numa_node": lambda smi, gpu: int(smi.amdsmi_topo_get_numa_node_number(gpu)),
    }
    link = staticmethod(
        lambda smi, gpu, other: smi.AmdSmiLinkType(smi.amdsmi_topo_get_link_type(gpu, other)["type"]).name.removeprefix("AMDSMI_LINK_TYPE_")
    )
    processes_on = staticmethod(lambda smi, gpu: [int(process["pid"]) for process in tools.dicts(smi.amdsmi_get_gpu_process_list(gpu))])

    def _lowered(self, smi: Any, gpu: Any) -> frozenset[str] | None:  # noqa: ANN401 - the module and a handle
        """Return the causes of lowered clocks since the last call; older chips have bits, whose meaning differs: one name for all."""
        metrics, place = smi.amdsmi_get_gpu_metrics_info(gpu), self._handles.index(gpu)
        now = {name: value for name in LIMITERS if (value := tools.number(metrics.get(name))) is not None}
        before, self._before[place] = self._before.get(place), now
        if now:
            return None if before is None else frozenset(LIMITERS[name] for name, value in now.items() if value > before.get(name, value))
        bits = tools.number(metrics["indep_throttle_status"])
        # All ones mean that the chip does not report them.
        return None if bits is None or bits >= 2**63 else frozenset({"throttled"} if bits else ())


VENDOR = protocol.vendor(Backend.ROCM, device=Rocm, find=find, monitor=AmdMonitor.open)
