"""How the runs of an A/B comparison are named: the arm, what it sets, and the pair. Written by the harness, read by the site."""

import re
from typing import NamedTuple

ARMS = ("a", "b")
_POINT = re.compile(r"(?P<arm>[ab]): (?P<settings>.+?)(?:, pair (?P<pair>\d+))?")


class ArmRun(NamedTuple):
    """A run of an arm."""

    arm: str
    """One of `ARMS`."""
    settings: str
    """What the arm sets, such as `compile=blocks`."""
    pair: int
    """From 1; 0 for the arm as such."""

    @property
    def point(self) -> str:
        """The name of this run in its series."""
        return f"{self.arm}: {self.settings}" + (f", pair {self.pair}" if self.pair else "")


def arm_run(point: str) -> ArmRun | None:
    """Return which run a name is, or None for the name of another kind of series."""
    found = _POINT.fullmatch(point)
    return ArmRun(found["arm"], found["settings"], int(found["pair"] or 0)) if found else None
