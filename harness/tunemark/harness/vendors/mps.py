"""Apple GPUs: torch has no event times across the queue, so each step is waited for. Monitored through macmon, which needs no root.

Not yet run on such a GPU.
"""

import platform
import sys
from dataclasses import replace
from typing import Any, Self

from tunemark.harness.vendors import cpu, protocol
from tunemark.harness.vendors import vendor_tools as tools
from tunemark.harness.vendors.protocol import Device, FoundDevice, functions_of
from tunemark.schema.facts.cards import metal_bytes
from tunemark.schema.plan.capabilities import Feature
from tunemark.schema.vocabulary import DEVICE_INTERVAL_S, Backend


class Mps(Device):
    """Trains on an Apple GPU through Metal."""

    row = protocol.TABLE[Backend.MPS]
    family = torch_name = "mps"
    no_peaks = row.cannot[Feature.PEAK_MEMORY]

    @classmethod
    def opened(cls, torch: Any, local_rank: int) -> Self:  # noqa: ANN401, ARG003 - a module, imported late; there is one GPU
        """Return the GPU."""
        torch.mps.synchronize()
        device = cls()
        device._torch, device._api = torch, functions_of(synchronize=torch.mps.synchronize, empty_cache=torch.mps.empty_cache)
        return device

    def memory(self) -> dict[str, dict[str, Any]]:
        """Return the size of the Metal heap; MPS counts no peak of tensors."""
        method = "torch.mps.driver_allocated_memory at the end: the Metal heap does not shrink by itself"
        return super().memory() | {"reserved": {"peak_bytes": self._torch.mps.driver_allocated_memory(), "method": method}}


def find() -> list[FoundDevice]:
    """Return the GPU of an Apple chip, which shares the host's memory."""
    here = (platform.system(), platform.machine()) == ("Darwin", "arm64")
    return [replace(device, index=0) for device in cpu.find()] if here else []


LIMIT = "import torch; print(torch.mps.recommended_max_memory())"


def usable_bytes(memory: int, here: bool) -> int:  # noqa: FBT001 - as in `Vendor`
    """Return the bytes that Metal recommends a process to use at most: as torch reports them here, else by the size of the memory."""
    reported = tools.positive((tools.ask(sys.executable, "-c", LIMIT) or "").strip()) if here else None
    return int(reported or metal_bytes(memory))


class MacmonMonitor(protocol.LineMonitor):
    """Monitors the GPU of an Apple chip through macmon, which prints a JSON line per period: means of the period, by IOReport.

    Fields of the readme of vladkens/macmon at 0e8f26f; before, `gpu_usage` held the clock and the busy share.
    """

    command = staticmethod(lambda _indexes: ["macmon", "-i", f"{DEVICE_INTERVAL_S[Backend.MPS] * 1000:.0f}", "pipe"])

    def read(self) -> tuple[protocol.DeviceReading, ...]:
        """Return the reading of the last line; empty without a new line."""
        line = tools.last_object(self.new_lines())
        if line is None:
            return ()
        clock, busy = (*(line.get("gpu_usage") or ()), None, None)[:2]
        busy = tools.number(line.get("gpu_active_ratio", busy))
        reading = protocol.DeviceReading(
            busy=None if busy is None else min(1.0, busy),
            power_w=tools.number(line.get("gpu_power")),
            clock_mhz=tools.number(line.get("gpu_freq_mhz", clock)),
            temperature_c=tools.positive(tools.nested(line, "temp").get("gpu_temp_avg")),
        )
        return (reading,)


VENDOR = protocol.vendor(Backend.MPS, device=Mps, find=find, monitor=MacmonMonitor.open, usable_bytes=usable_bytes, probe_size=4096)
