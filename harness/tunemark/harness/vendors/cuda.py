"""NVIDIA GPUs: timed by events in the stream; found and monitored through NVML (nvidia-ml-py), which needs no context on the GPU."""

import contextlib
import shutil
from typing import Any, ClassVar

from tunemark.harness.vendors import protocol
from tunemark.harness.vendors.protocol import DeviceUnavailable
from tunemark.harness.vendors.vendor_tools import text_of, visible_indexes
from tunemark.schema.formats import MIB
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend

ROW = protocol.TABLE[Backend.CUDA]


class Cuda(protocol.Gpu):
    """Trains on one GPU."""

    row = ROW
    libraries: ClassVar = {
        "cuda": lambda torch: torch.version.cuda,
        # 90100 is 9.1.0.
        "cudnn": lambda torch: (number := torch.backends.cudnn.version()) and f"{number // 10_000}.{number % 10_000 // 100}.{number % 100}",
        "nccl": lambda torch: torch.distributed.is_nccl_available() and ".".join(map(str, torch.cuda.nccl.version())),
    }

    def name(self) -> str | None:
        """Return the driver's name of the GPU."""
        return str(self._api.get_device_name(self._index))


def find() -> list[protocol.FoundDevice]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in PCI order; empty without a driver or nvidia-ml-py.

    Raises DeviceUnavailable that names the missing package, or the driver's error, on a machine with nvidia-smi.
    """
    problem = contextlib.nullcontext() if shutil.which("nvidia-smi") else contextlib.suppress(DeviceUnavailable)
    with problem, contextlib.closing(NvmlMonitor.open()) as monitor:
        return monitor.devices()
    return []


THROTTLE_REASONS, PCIE_PATHS = ROW.names["throttle_reasons"], ROW.names["pcie_paths"]


def _lowered(nvml: Any, gpu: Any) -> frozenset[str]:  # noqa: ANN401 - the module and a handle
    bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    return frozenset(name for constant, name in THROTTLE_REASONS.items() if bits & getattr(nvml, constant))


def _nvlinks(nvml: Any, gpu: Any) -> int:  # noqa: ANN401 - the module and a handle
    """Return the number of active NVLinks. Numbers beyond those of the GPU are errors, and so is the first without any."""
    active = nvml.nvmlDeviceGetNvLinkState(gpu, 0)
    with contextlib.suppress(nvml.NVMLError):
        for number in range(1, nvml.NVML_NVLINK_MAX_LINKS):
            active += nvml.nvmlDeviceGetNvLinkState(gpu, number)
    return int(active)


def _numa_node(nvml: Any, gpu: Any) -> int | None:  # noqa: ANN401 - the module and a handle
    """Return the lowest node in the mask of the nearest ones; None in virtual machines that hide them."""
    mask = nvml.nvmlDeviceGetMemoryAffinity(gpu, 1, nvml.NVML_AFFINITY_SCOPE_NODE)[0]
    return int(mask & -mask).bit_length() - 1 if mask else None


def _link(nvml: Any, gpu: Any, other: Any) -> str:  # noqa: ANN401 - the module and handles
    if nvml.nvmlDeviceGetP2PStatus(gpu, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
        return "NVLink"
    level = nvml.nvmlDeviceGetTopologyCommonAncestor(gpu, other)
    return next(path for constant, path in PCIE_PATHS.items() if getattr(nvml, constant) >= level)


class NvmlMonitor(protocol.LibraryMonitor):
    """Lists and monitors GPUs by their NVML numbers."""

    row, tool, module, begin, end, error = ROW, "NVML", "pynvml", "nvmlInit", "nvmlShutdown", "NVMLError"
    handles = staticmethod(lambda nvml, indexes: map(nvml.nvmlDeviceGetHandleByIndex, indexes or range(nvml.nvmlDeviceGetCount())))
    readings: ClassVar = {
        "busy": lambda nvml, gpu: min(1.0, nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100),
        "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
        "clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "memory_used_bytes": lambda nvml, gpu: int(nvml.nvmlDeviceGetMemoryInfo(gpu).used),
        "energy_j": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3,
        "throttle_reasons": _lowered,
        "memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    }
    since_last: ClassVar = {"errors": "_xids"}
    facts: ClassVar = {
        "name": lambda nvml, gpu: str(nvml.nvmlDeviceGetName(gpu)),
        # In whole MiB, as nvidia-smi reports it.
        "memory_bytes": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total // MIB * MIB,
        "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1e3,
        "target": lambda nvml, gpu: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(gpu)),
        "max_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "max_memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        "application_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetApplicationsClock(gpu, nvml.NVML_CLOCK_SM),
        "ecc": lambda nvml, gpu: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
        "partition": lambda nvml, gpu: "MIG" if nvml.nvmlDeviceGetMigMode(gpu)[0] else "none",
        "pcie_generation": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
        "pcie_width": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
        "numa_node": _numa_node,
        "nvlinks": _nvlinks,
    }
    link = staticmethod(_link)
    processes_on = staticmethod(lambda nvml, gpu: [int(process.pid) for process in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)])

    def _xids(self, nvml: Any, gpu: Any) -> frozenset[str]:  # noqa: ANN401 - the module and a handle
        """Return the Xid errors since the last call, without waiting."""
        found, place = set(), self._handles.index(gpu)
        if place not in self._before:
            self._before[place] = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, self._before[place])
        with contextlib.suppress(nvml.NVMLError_Timeout):
            while True:
                found.add(f"Xid {nvml.nvmlEventSetWait_v2(self._before[place], 0).eventData}")
        return frozenset(found)

    def devices(self) -> list[protocol.FoundDevice]:
        """Return the visible GPUs of all that the monitor was opened for."""
        uuids = [self.ask(place, lambda nvml, gpu: nvml.nvmlDeviceGetUUID(gpu)) or "" for place in range(len(self._handles))]
        places, driver = visible_indexes(len(uuids), names=uuids), text_of(self._library.nvmlSystemGetDriverVersion())
        return [protocol.FoundDevice(place, DeviceFacts(driver=driver, **self.described(place, places))) for place in places]


ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Settings of torch's allocator: the name since torch 2.9, and the older one."""
VENDOR = protocol.vendor(
    Backend.CUDA,
    device=Cuda,
    find=find,
    monitor=NvmlMonitor.open,
    # Rows of changing length would otherwise leave holes that no later tensor fits into.
    environment=lambda _, given: (
        {} if any(name in given for name in ALLOCATOR_VARIABLES) else {ALLOCATOR_VARIABLES[0]: "expandable_segments:True"}
    ),
)
