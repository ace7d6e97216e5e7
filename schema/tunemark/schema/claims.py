"""A printed figure: its value, the digits it was printed in, and the readings that an ambiguous one allows."""

import re

from tunemark.schema.base import Frozen, Text

Scalar = str | float | int | bool | None


class Reading(Frozen):
    """One way to read an ambiguous figure."""

    meaning: Text
    """What the figure would mean."""
    value: float
    """Its value then, in the unit of its quantity."""


class Claim(Frozen):
    """One printed figure."""

    value: float
    """In the unit of its quantity (seconds, bytes, shares of 1, ...)."""
    printed: Text
    """The figure exactly as printed, unit included, such as `78 GiB` or `2h 15m`."""
    readings: tuple[Reading, ...] = ()
    """All readings, when the document leaves open what it means; `value` is then the literal one."""
    note: Text | None = None
    """What is doubtful about it."""

    @property
    def resolution(self) -> float | None:
        """Half of the last printed digit, relative to the figure; null where the figure is not one plain number with a unit.

        A duration in parts (`2h 15m`, `1:26:57`) or a word has no single last digit, and tolerance rules must treat it apart.
        """
        found = re.fullmatch(r"[~$]?\s*([0-9][0-9,]*(?:\.([0-9]+))?)\s*([^\d:]*)", self.printed)
        if not found:
            return None
        number = float(found[1].replace(",", ""))
        return 0.5 * 10.0 ** -len(found[2] or "") / number if number else None
