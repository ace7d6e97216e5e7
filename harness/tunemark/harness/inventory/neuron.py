"""AWS Neuron devices, from neuron-ls. Each NeuronCore is a device of its own: a process trains on one."""

from pathlib import Path
from typing import Any

from tunemark.harness.inventory.asking import ask_json, dicts, positive, text_of, visible_ranges
from tunemark.harness.inventory.found import Found
from tunemark.schema.records.submission import DeviceFacts

ARCHITECTURE = Path("/sys/devices/virtual/neuron_device/neuron0/info/architecture")
DRIVER = Path("/sys/module/neuron/version")


def devices(architecture: Path = ARCHITECTURE, driver: Path = DRIVER) -> list[Found]:
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
