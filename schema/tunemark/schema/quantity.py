"""What the registry knows of one quantity."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tunemark.schema import formats

Better = Literal["lower", "higher"] | None


@dataclass(frozen=True, slots=True)
class Quantity:
    """A measured, derived or claimed quantity."""

    key: str
    """Name, with its unit where it has one."""
    label: str
    """Column head."""
    unit: str
    """Unit of the stored value; `1` for counts, shares and ratios."""
    show: Callable[[float], str]
    """Formats a value for readers."""
    better: Better
    """Which direction is better; None when neither."""
    meaning: str
    """One sentence."""

    def text(self, value: float | None) -> str:
        """Return the value for readers; a dash when unknown."""
        return formats.MISSING if value is None else self.show(value)
