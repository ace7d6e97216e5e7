"""A device as a vendor's tool lists it."""

from dataclasses import dataclass

from tunemark.schema.records.submission import DeviceFacts


@dataclass(frozen=True, slots=True)
class Found:
    """Facts of a device, and the number by which the same vendor's monitor knows it."""

    index: int
    facts: DeviceFacts
    target: str | None = None
    """What its kernels are compiled for, such as compute capability 9.0 or gfx942; None where the tool does not tell."""
