"""NVIDIA GPUs: asynchronous, timed by events in the stream."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Self

from tunemark.harness.vendors.protocol import WHOLE_LAYERS, DeviceUnavailable, EventDevice, Feature, Found, MonitorUnavailable, Reading
from tunemark.harness.vendors.vendor_tools import MIB, ask, positive, text_of, visible_indexes
from tunemark.schema.records.submission import DeviceFacts

CANNOT: dict[Feature, str] = WHOLE_LAYERS


class Cuda(EventDevice):
    """Trains on one GPU."""

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the CPU only feeds the GPU
        """Check that torch sees the GPU."""
        import torch  # noqa: PLC0415

        if not torch.cuda.is_available():
            msg = f"torch {torch.__version__} sees no GPU; install a build for the driver of this machine"
            raise DeviceUnavailable(msg)
        torch.cuda.set_device(local_rank)
        return cls(torch, torch.cuda, "cuda", local_rank)


# MOVE: was tunemark.harness.vendors.cuda: NVIDIA devices, from nvidia-smi.

FIELDS = "name,memory.total,driver_version,power.limit,uuid"
CAPABILITY = "compute_cap"
"""A field that old drivers do not know: they refuse the whole query."""


def find(command: str = "nvidia-smi") -> list[Found]:
    """Return the devices that CUDA_VISIBLE_DEVICES leaves; empty without a driver."""
    answers = (ask(command, f"--query-gpu={fields}", "--format=csv,noheader,nounits") for fields in (f"{FIELDS},{CAPABILITY}", FIELDS))
    return parse(next(filter(None, answers), ""))


def parse(text: str) -> list[Found]:
    """Return the visible devices of nvidia-smi's CSV: a line a device, in PCI order."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines()]
    known = FIELDS.count(",") + 1
    rows = [[*row, ""][: known + 1] for row in rows if len(row) in {known, known + 1}]
    return [
        Found(index, _facts(rows[index]), text_of(rows[index][known]))
        for index in visible_indexes(len(rows), names=[row[4] for row in rows])
    ]


def _facts(row: list[str]) -> DeviceFacts:
    memory_mib = positive(row[1])
    return DeviceFacts(
        name=row[0],
        memory_bytes=None if memory_mib is None else int(memory_mib * MIB),
        driver=text_of(row[2]),
        power_limit_w=positive(row[3]),
    )


# MOVE: was tunemark.harness.vendors.cuda: NVIDIA devices through NVML, the library behind nvidia-smi. Reading it costs no context on the device.

REASONS = {
    "nvmlClocksEventReasonApplicationsClocksSetting": "application_clocks_setting",
    "nvmlClocksEventReasonSwPowerCap": "sw_power_cap",
    "nvmlClocksEventReasonHwSlowdown": "hw_slowdown",
    "nvmlClocksEventReasonSyncBoost": "sync_boost",
    "nvmlClocksEventReasonSwThermalSlowdown": "sw_thermal_slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hw_thermal_slowdown",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "hw_power_brake_slowdown",
    "nvmlClocksEventReasonDisplayClockSetting": "display_clock_setting",
}
"""Constant of pynvml -> nvidia-smi's name. Idle is no reason here: a device without work lowers its clocks."""


class NvmlMonitor:
    """Some NVIDIA devices, by their numbers in nvidia-smi."""

    interval_s = 0.1
    memory_method = "nvmlDeviceGetMemoryInfo"
    energy_reason = "NVML tells neither an energy counter nor power of this device"

    def __init__(self, nvml: Any, indexes: Sequence[int]) -> None:  # noqa: ANN401 - the module, imported late
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in indexes]
        self._bits = {getattr(nvml, constant): name for constant, name in REASONS.items()}
        self._untold: set[tuple[int, Callable[..., Any]]] = set()

    @classmethod
    def open(cls, indexes: Sequence[int]) -> Self:
        """Load NVML and find the devices.

        Raises
        ------
        MonitorUnavailable
            Without nvidia-ml-py or without a driver.

        """
        try:
            import pynvml  # noqa: PLC0415 - an optional package
        except ImportError as error:
            msg = "nvidia-ml-py is not installed: pip install 'tunemark[nvidia]'"
            raise MonitorUnavailable(msg) from error
        try:
            pynvml.nvmlInit()
            return cls(pynvml, indexes)
        except pynvml.NVMLError as error:
            msg = f"NVML answers {error}"
            raise MonitorUnavailable(msg) from error

    def read(self) -> tuple[Reading, ...]:
        """Return one reading for each device: seven short questions to the driver."""
        return tuple(self._read(place) for place in range(len(self._handles)))

    def _read(self, place: int) -> Reading:
        nvml = self._nvml
        use, memory = self._ask(place, nvml.nvmlDeviceGetUtilizationRates), self._ask(place, nvml.nvmlDeviceGetMemoryInfo)
        power_mw, energy_mj = self._ask(place, nvml.nvmlDeviceGetPowerUsage), self._ask(place, nvml.nvmlDeviceGetTotalEnergyConsumption)
        return Reading(
            busy=None if use is None else min(1.0, use.gpu / 100),
            power_w=None if power_mw is None else power_mw / 1e3,
            clock_mhz=self._ask(place, nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            temperature_c=self._ask(place, nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            memory_used_bytes=None if memory is None else int(memory.used),
            energy_j=None if energy_mj is None else energy_mj / 1e3,
            throttle_reasons=self._names(self._ask(place, nvml.nvmlDeviceGetCurrentClocksEventReasons) or 0),
        )

    def _ask(self, place: int, question: Callable[..., Any], *further: Any) -> Any:  # noqa: ANN401 - NVML's answers
        """Return NVML's answer, or None; what a device does not know is not asked of it again."""
        if (place, question) in self._untold:
            return None
        try:
            return question(self._handles[place], *further)
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                self._untold.add((place, question))
            return None

    def _names(self, bits: int) -> frozenset[str]:
        return frozenset(name for bit, name in self._bits.items() if bits & bit)

    def processes(self) -> tuple[frozenset[int], ...] | None:
        """Return the processes with a compute context on each device."""
        listed = [self._ask(place, self._nvml.nvmlDeviceGetComputeRunningProcesses) for place in range(len(self._handles))]
        return None if None in listed else tuple(frozenset(int(process.pid) for process in found) for found in listed)

    def close(self) -> None:
        """Unload NVML."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
