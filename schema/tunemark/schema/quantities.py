"""The registry of quantities, one row of quantities.txt each. Validation, tables and documentation read the same rows."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from tunemark.schema import formats

Better = Literal["lower", "higher"] | None


@dataclass(frozen=True, slots=True)
class Quantity:
    """A measured, derived or claimed quantity."""

    key: str
    """Name, including its unit if it has one."""
    label: str
    """Column heading."""
    unit: str
    """Unit of the stored value; `1` for counts, shares and ratios."""
    show: Callable[[float], str]
    """Formats a value for readers."""
    better: Better
    """The better direction, or None."""
    meaning: str
    """One or two sentences."""

    def text(self, value: float | None) -> str:
        """Return the formatted value, or a dash if it is unknown."""
        return formats.MISSING if value is None else self.show(value)


_LINES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
QUANTITIES: dict[str, Quantity] = {
    key: Quantity(key, label, unit, getattr(formats, show), None if better == "-" else cast("Better", better), meaning)
    for key, label, unit, show, better, meaning in (line.split(" | ") for line in _LINES if line and not line.startswith("#"))
}
"""Quantities by key."""
