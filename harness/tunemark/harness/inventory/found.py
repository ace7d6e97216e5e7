"""A device as a vendor's tool lists it."""

from dataclasses import dataclass

from tunemark.schema.submission import DeviceFacts


@dataclass(frozen=True, slots=True)
class Found:
    """Facts of a device, and the number by which the same vendor's monitor knows it."""

    index: int
    facts: DeviceFacts
