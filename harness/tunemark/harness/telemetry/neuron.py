"""NeuronCores through neuron-monitor, which prints a JSON line a second. Written from its documentation; not yet run on such a device."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tunemark.harness.inventory.asking import dicts, number, parse_json
from tunemark.harness.telemetry.protocol import Reading
from tunemark.harness.telemetry.stream import LineStream

PERIOD_S = 1.0
CONFIG = {
    "period": f"{PERIOD_S:g}s",
    "neuron_runtimes": [{"tag_filter": ".*", "metrics": [{"type": "neuroncore_counters"}, {"type": "memory_used"}]}],
    "system_metrics": [],
}


class NeuronMonitor:
    """Some NeuronCores, by their numbers on the instance."""

    interval_s = PERIOD_S
    memory_method = "neuron-monitor memory_used"
    energy_reason = "neuron-monitor tells no power"

    def __init__(self, lines: LineStream, indexes: Sequence[int]) -> None:
        self._lines = lines
        self._indexes = tuple(indexes)
        self._processes: tuple[frozenset[int], ...] | None = None

    @classmethod
    def open(cls, indexes: Sequence[int]) -> Self:
        """Start neuron-monitor with what is asked of it.

        Raises
        ------
        MonitorUnavailable
            Without neuron-monitor.

        """
        with tempfile.NamedTemporaryFile("w", suffix=".json", prefix="tunemark-", delete=False) as file:
            json.dump(CONFIG, file)
        try:
            monitor = cls(LineStream(["neuron-monitor", "-c", file.name]), indexes)
        except BaseException:
            Path(file.name).unlink()
            raise
        monitor._config = Path(file.name)
        return monitor

    _config: Path | None = None

    def read(self) -> tuple[Reading, ...]:
        """Return the readings of the last line; none when there is no new one."""
        lines = self._lines.new_lines()
        report = parse_json(lines[-1]) if lines else None
        if not isinstance(report, dict):
            return ()
        self._processes = processes_of(report, self._indexes)
        return readings_of(report, self._indexes)

    def processes(self) -> tuple[frozenset[int], ...] | None:
        """Return the processes on each core, of the last line."""
        return self._processes

    def close(self) -> None:
        """End neuron-monitor."""
        self._lines.close()
        if self._config is not None:
            self._config.unlink(missing_ok=True)


def readings_of(report: dict[str, Any], indexes: Sequence[int]) -> tuple[Reading, ...]:
    """Return a reading for each core out of one line: shares of busy time, and bytes of device memory, of all processes together."""
    busy: dict[int, float] = {}
    memory: dict[int, int] = {}
    for _, cores in _by_process(report):
        for index, (share, used) in cores.items():
            busy[index] = busy.get(index, 0.0) + share
            if used is not None:
                memory[index] = memory.get(index, 0) + used
    return tuple(Reading(busy=min(1.0, busy.get(index, 0.0)), memory_used_bytes=memory.get(index)) for index in indexes)


def processes_of(report: dict[str, Any], indexes: Sequence[int]) -> tuple[frozenset[int], ...]:
    """Return the processes that hold each core."""
    held = list(_by_process(report))
    return tuple(frozenset(pid for pid, cores in held if index in cores) for index in indexes)


def _by_process(report: dict[str, Any]) -> list[tuple[int, dict[int, tuple[float, int | None]]]]:
    """Return for each process its cores, each with its busy share and its bytes."""
    found = []
    for runtime in dicts(report.get("neuron_runtime_data")):
        counters = _at(runtime, "report", "neuroncore_counters", "neuroncores_in_use")
        memory = _at(runtime, "report", "memory_used", "neuron_runtime_used_bytes", "usage_breakdown", "neuroncore_memory_usage")
        cores = {}
        for key, value in counters.items():
            share, parts = number(_at(counters, key).get("neuroncore_utilization")), _at(memory, key)
            if key.isdecimal() and isinstance(value, dict):
                used = [part for part in map(number, parts.values()) if part is not None]
                cores[int(key)] = ((share or 0.0) / 100, int(sum(used)) if used else None)
        found.append((int(number(runtime.get("pid")) or 0), cores))
    return found


def _at(value: Any, *keys: str) -> dict[str, Any]:  # noqa: ANN401 - JSON of a tool
    """Return the object at a path of keys; an empty one where the tool left it out."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}
