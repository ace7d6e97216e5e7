"""AWS Trainium and Inferentia: how they are found and monitored, and how Neuron SDKs before 2.30 train on them.

Those train through PyTorch/XLA and optimum-neuron's trainer. From 2.30 on AWS does not support PyTorch/XLA for training, and native.py
has the device. Each NeuronCore is a device of its own. Not yet run on such a device. Several processes join as in optimum-neuron 0.4.5
(`utils/torch_xla_and_neuronx_initialization.py`).

Work is recorded and submitted as one graph at each mark. XLA has no events: a mark is reached when its result can be
read, and it is read one step late, so that the device always has work (definitions#step-time).
"""

import os
from collections import defaultdict
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from tunemark.harness.vendors import native, protocol
from tunemark.harness.vendors import vendor_tools as tools
from tunemark.schema.facts.names import CORE_OF_CHIP
from tunemark.schema.plan.capabilities import Feature
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import NEURON_ROUNDING, Backend, Dtype

DRIVER_INFO = Path("/sys/devices/virtual/neuron_device/neuron0/info/architecture")
DRIVER_VERSION = Path("/sys/module/neuron/version")


class Neuron(protocol.Device):
    """Trains on one NeuronCore. XLA has no name for it."""

    row = protocol.TABLE[Backend.NEURON_XLA]
    family = "xla"
    no_peaks = row.cannot[Feature.PEAK_MEMORY]

    def __init__(self, xm: Any) -> None:  # noqa: ANN401 - torch_xla.core.xla_model, imported late
        self._xm, self.torch_name = xm, str(xm.xla_device())
        self._copied: tuple[Any, list[float]] | None = None
        """A tensor, and the list for its values."""
        self._marks, self._waited_for = 0, 0

    @classmethod
    def opened(cls, torch: Any, local_rank: int) -> Self:  # noqa: ANN401, ARG003 - a module, imported late; the launcher gives each process its core
        """Return the core of this process. Several processes join their group first, as optimum-neuron does: it numbers the cores."""
        import torch_neuronx  # noqa: F401, PLC0415 - registers the device with XLA
        import torch_xla.core.xla_model as xm  # noqa: PLC0415

        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            import torch_xla.distributed.xla_backend  # noqa: F401, PLC0415 - registers the backend

            torch.distributed.init_process_group("xla")
        return cls(xm)

    def synchronise(self) -> None:
        """Submit the recorded work and wait until the device is idle."""
        self._xm.mark_step()
        self._xm.wait_device_ops()
        self._waited_for = self._marks

    def host_copy(self, scalar: Any) -> Any:  # noqa: ANN401 - a torch tensor
        """Return a list that holds the values once the next mark is reached, which is when they can be read."""
        self._copied = (scalar.detach(), [])
        return self._copied[1]

    def stamp(self) -> Any:  # noqa: ANN401 - a mark: its number, and the result that shows it was reached
        """Submit the recorded graph."""
        self._xm.mark_step()
        self._marks += 1
        copied, self._copied = self._copied, None
        return self._marks, copied

    def reached(self, stamp: Any) -> float | None:  # noqa: ANN401 - a mark
        """Return the time at which a mark's result was there; None for the last mark unless everything was waited for."""
        mark, copied = stamp
        if mark == self._marks and mark > self._waited_for:
            return None
        if copied is not None:
            tensor, values = copied
            # In one transfer: indexing the tensor first would queue another graph.
            values[:] = tensor.tolist()
        return self.now()


def find(info: Path = DRIVER_INFO, version: Path = DRIVER_VERSION) -> list[protocol.FoundDevice]:
    """Return the cores that NEURON_RT_VISIBLE_CORES leaves visible; empty without a driver."""
    answer = tools.ask_json("neuron-ls", "--json-output")
    words = (tools.text_of(path.read_text().split("\n")[0]) if path.is_file() else None for path in (info / "device_name", version))
    return parse(answer, *words) if answer else []


def parse(answer: Any, chip: str | None, driver: str | None) -> list[protocol.FoundDevice]:  # noqa: ANN401 - JSON of a tool
    """Return the visible cores of `neuron-ls --json-output`, which lists chips with their number of cores and memory."""
    cores = []
    for entry in tools.dicts(answer):
        count, memory = int(tools.positive(entry.get("nc_count")) or 0), tools.positive(entry.get("memory_size"))
        # A core does not have the chip's name: the chip's peak and price are for all of its cores.
        name = f"{chip or 'Neuron'}{CORE_OF_CHIP}{count})"
        cores += [DeviceFacts(name=name, memory_bytes=int(memory / count) if memory and count else None, driver=driver)] * count
    return [protocol.FoundDevice(index, cores[index]) for index in tools.visible_indexes(len(cores), *Neuron.row.masks)]


def environment(plan: Plan, already: Mapping[str, str]) -> dict[str, str]:
    """Return settings of the Neuron compiler and runtime, added to the flags that the user has set."""
    settings = plan.neuron
    flags = [already.get("NEURON_CC_FLAGS", ""), "--model-type transformer"]
    if plan.precision.compute is Dtype.FP32 and "--auto-cast" not in flags[0]:
        # fp32 is fp32, whatever the compiler's default is.
        flags.append("--auto-cast none")
    if settings and settings.optimisation_level is not None:
        flags.append(f"-O{settings.optimisation_level}")
    return {"NEURON_CC_FLAGS": " ".join(filter(None, flags)), NEURON_ROUNDING: str(int(plan.rounds_stochastically))}


MONITOR_CONFIG = Path(__file__).with_name("neuron_monitor.json")


class NeuronMonitor(protocol.LineMonitor):
    """Monitors NeuronCores by their numbers on the instance. neuron-monitor prints a JSON line per second."""

    command = staticmethod(lambda _indexes: ["neuron-monitor", "-c", str(MONITOR_CONFIG)])

    def read(self) -> tuple[protocol.DeviceReading, ...]:
        """Return the readings of the last line, summed over processes; empty without a new line."""
        report = tools.last_object(self.new_lines())
        if report is None:
            return ()
        busy, memory = defaultdict[int, float](float), dict[int, int]()
        pids = defaultdict[int, set[int]](set)
        for runtime in tools.dicts(report.get("neuron_runtime_data")):
            counters = tools.nested(runtime, "report", "neuroncore_counters", "neuroncores_in_use")
            used = tools.nested(runtime, "report", "memory_used", "neuron_runtime_used_bytes", "usage_breakdown", "neuroncore_memory_usage")
            for key, counter in counters.items():
                if not key.isdecimal() or not isinstance(counter, dict):
                    continue
                core = int(key)
                pids[core].add(int(tools.number(runtime.get("pid")) or 0))
                busy[core] += (tools.number(counter.get("neuroncore_utilization")) or 0.0) / 100
                parts = [part for part in map(tools.number, tools.nested(used, key).values()) if part is not None]
                if parts:
                    memory[core] = memory.get(core, 0) + int(sum(parts))
        self._processes = tuple(frozenset(pids[index]) for index in self._indexes)
        return tuple(protocol.DeviceReading(busy=min(1.0, busy[index]), memory_used_bytes=memory.get(index)) for index in self._indexes)


def through_xla() -> bool:
    """Return True if the software here is that of a Neuron SDK before 2.30."""
    return find_spec("torch_xla") is not None


VENDORS = [
    protocol.vendor(
        Backend.NEURON_XLA,
        device=Neuron,
        find=lambda: find() if through_xla() else [],
        monitor=NeuronMonitor.open,
        environment=environment,
        probe_size=None,  # The compiler keeps one of several equal products in a graph, so the rate would be a multiple.
    ),
    native.vendor(Backend.NEURON, find=lambda: [] if through_xla() else find(), monitor=NeuronMonitor.open),
]
