"""AMD devices through amdsmi, which comes with ROCm. Written from its documentation; not yet run on such a device."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Self

from tunemark.harness.inventory.asking import number
from tunemark.harness.telemetry.protocol import MonitorUnavailable, Reading

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
