"""NVIDIA devices, from nvidia-smi."""

from tunemark.harness.inventory.asking import MIB, ask, positive, text_of, visible_indexes
from tunemark.harness.inventory.found import Found
from tunemark.schema.records.submission import DeviceFacts

FIELDS = "name,memory.total,driver_version,power.limit,uuid"
CAPABILITY = "compute_cap"
"""A field that old drivers do not know: they refuse the whole query."""


def devices(command: str = "nvidia-smi") -> list[Found]:
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
