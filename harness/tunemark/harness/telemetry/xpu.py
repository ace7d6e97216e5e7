"""Intel GPUs through xpu-smi, which prints a CSV line a device and second. Written from its documentation; not yet run on such a device."""

from collections.abc import Sequence
from typing import Self

from tunemark.harness.inventory.asking import MIB, number
from tunemark.harness.telemetry.protocol import Reading
from tunemark.harness.telemetry.stream import LineStream

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
