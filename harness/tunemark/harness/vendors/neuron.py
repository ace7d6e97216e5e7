"""AWS Trainium and Inferentia through torch-neuronx, which is PyTorch/XLA. Not yet run on such a device.

Work is recorded and handed to the device as one graph at each mark. There are no events to time it by: a mark is reached
when its result can be read, and it is read one step late, so that the device always has a step to work on
(definitions.md, 3: the ends of the window are waited for).
"""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tunemark.harness.vendors.protocol import HOPPER_ONLY, DeviceMemory, DeviceUnavailable, Feature, Found, Reading, Stamp
from tunemark.harness.vendors.vendor_tools import LineStream, ask_json, dicts, number, parse_json, positive, text_of, visible_ranges
from tunemark.schema.records.submission import DeviceFacts, MemoryReading

CANNOT: dict[Feature, str] = {
    Feature.QLORA: "optimum-neuron trains no quantised weights; use method lora",
    Feature.PACKING: "the attention kernels of optimum-neuron know no borders of documents; use data.document_borders=false",
    Feature.SELECTIVE_CHECKPOINTING: "PyTorch/XLA recomputes whole blocks; use gradient_checkpointing=full or none",
    Feature.FLASH_ATTENTION_3: HOPPER_ONLY,
    Feature.FLEX_ATTENTION: "without a kernel for these devices; use attention=sdpa",
    Feature.LIGER: "its kernels are written in Triton, which has no Neuron back end; use fused_kernels=none",
    Feature.COMPILE: "the Neuron compiler compiles each graph anyway; use compile=none",
    Feature.EIGHT_BIT_OPTIMIZER: "bitsandbytes has no kernels for Neuron; use optimizer.name=adamw",
    Feature.TF32: "a format of NVIDIA GPUs; use compute=bf16 or fp32",
    Feature.FP16: "optimum-neuron trains in bf16 and fp32; use compute=bf16",
    Feature.FSDP2: "optimum-neuron shares states by zero1, and layers by tensor and pipeline parallel",
    Feature.OFFLOAD: "optimum-neuron keeps nothing in host memory",
    Feature.PEAK_MEMORY: "the runtime counts no peak of tensors; neuron-monitor tells what is in use",
    Feature.ENERGY: "neuron-monitor tells no power",
}


class Fetched:
    """A small tensor of the device, copied to the host when its values are first asked for: that waits until they are there."""

    def __init__(self, tensor: Any) -> None:  # noqa: ANN401 - a torch tensor
        self._tensor = tensor
        self._values: Any = None

    def values(self) -> Any:  # noqa: ANN401 - a torch tensor
        """Return the tensor on the host."""
        if self._values is None:
            # As one transfer: to index it first would be another graph behind all that is queued.
            self._values, self._tensor = self._tensor.detach().cpu(), None
        return self._values

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - a torch tensor
        """Return one value."""
        return self.values()[index]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the queue of graphs."""

    number: int
    result: Fetched | None


class Neuron:
    """Trains on one NeuronCore."""

    collectives = "xla"

    def __init__(self, xm: Any) -> None:  # noqa: ANN401 - torch_xla.core.xla_model, imported late
        self._xm = xm
        self.torch_name = str(xm.xla_device())
        self._result: Fetched | None = None
        self._marks = 0
        self._waited_for = 0

    @classmethod
    def open(cls, threads: int | None, local_rank: int = 0) -> Self:  # noqa: ARG003 - the launcher gives each process its core
        """Check that the Neuron stack is there and has a core for this process."""
        try:
            import torch_neuronx  # noqa: F401, PLC0415 - registers the device with XLA
            import torch_xla.core.xla_model as xm  # noqa: PLC0415

            return cls(xm)
        except (ImportError, RuntimeError) as error:
            msg = f"no NeuronCore for this process ({type(error).__name__}); install torch-neuronx of the Neuron SDK, stop other users of the cores"
            raise DeviceUnavailable(msg) from error

    def now(self) -> float:
        """Return the host's clock."""
        return time.monotonic()

    def name(self) -> str | None:
        """Return None: XLA has no name for it."""
        return None

    def begin(self) -> None:
        """Wait for all work so far."""
        self.synchronise()

    def synchronise(self) -> None:
        """Hand over what is recorded and wait until the device has nothing left to do."""
        self._xm.mark_step()
        self._xm.wait_device_ops()
        self._waited_for = self._marks

    def host_copy(self, scalar: Any) -> Any:  # noqa: ANN401 - a torch tensor
        """Return what reads the tensor later, and let the next mark be reached when it can be read."""
        self._result = Fetched(scalar)
        return self._result

    def stamp(self) -> Stamp:
        """Hand the recorded graph to the device."""
        self._xm.mark_step()
        self._marks += 1
        mark, self._result = Mark(self._marks, self._result), None
        return mark

    def reached(self, stamp: Stamp) -> float | None:
        """Return when a mark's result was there; None for the last mark, unless all was waited for."""
        if stamp.number == self._marks and stamp.number > self._waited_for:
            return None
        if stamp.result is not None:
            stamp.result.values()
        return self.now()

    def held_bytes(self) -> int | None:
        """Return None: the runtime plans memory when it loads a graph."""
        return None

    def memory(self) -> DeviceMemory:
        """Return why there are no peaks."""
        missing = MemoryReading(reason=CANNOT[Feature.PEAK_MEMORY])
        return DeviceMemory(missing, missing)


def compiled_graphs() -> int:
    """Return how many graphs XLA has compiled in this process so far."""
    import torch_xla.debug.metrics as xla_metrics  # noqa: PLC0415

    return int(xla_metrics.counter_value("UncachedCompile") or 0)


# MOVE: was tunemark.harness.vendors.neuron: AWS Neuron devices, from neuron-ls. Each NeuronCore is a device of its own: a process trains on one.

ARCHITECTURE = Path("/sys/devices/virtual/neuron_device/neuron0/info/architecture")
DRIVER = Path("/sys/module/neuron/version")


def find(architecture: Path = ARCHITECTURE, driver: Path = DRIVER) -> list[Found]:
    """Return the cores that NEURON_RT_VISIBLE_CORES leaves; empty without a driver."""
    answer = ask_json("neuron-ls", "--json-output")
    return parse(answer, _word(architecture / "device_name"), _word(driver)) if answer else []


def parse(answer: Any, chip: str | None, driver: str | None) -> list[Found]:  # noqa: ANN401 - JSON of a tool
    """Return the visible cores of `neuron-ls --json-output`, which lists chips with their number of cores and memory."""
    cores = []
    for entry in dicts(answer):
        count = int(positive(entry.get("nc_count")) or 0)
        memory = positive(entry.get("memory_size"))
        facts = DeviceFacts(name=_core_name(chip, count), memory_bytes=int(memory / count) if memory and count else None, driver=driver)
        cores += [facts] * count
    return [Found(index, cores[index]) for index in visible_ranges(len(cores), "NEURON_RT_VISIBLE_CORES")]


def _core_name(chip: str | None, count: int) -> str:
    """Return the name of one core. It is not the chip's: the chip's peak and price are those of all its cores."""
    return f"{chip or 'Neuron'} core (1 of {count})"


def _word(path: Path) -> str | None:
    """Return the first line of a file of the driver, or None without it."""
    try:
        return text_of(path.read_text(encoding="ascii", errors="replace").split("\n")[0])
    except OSError:
        return None


# MOVE: was tunemark.harness.vendors.neuron: NeuronCores through neuron-monitor, which prints a JSON line a second. Written from its documentation; not yet run on such a device.

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
