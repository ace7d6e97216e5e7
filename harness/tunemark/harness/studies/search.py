"""The largest whole number that fits, by doubling and then halving the gap. Pure: what fits is asked of a function."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Largest:
    """Where the frontier lies."""

    fits: int | None
    """The largest that was seen to fit; None when not even the smallest does."""
    fails: int | None
    """The smallest that was seen not to fit; None when the upper end fits too."""


def largest(fits: Callable[[int], bool], start: int, most: int, within: float = 0.0) -> Largest:
    """Search from 1 to `most`, first at `start`: about 2 log2(answer) questions.

    Parameters
    ----------
    fits
        Asked once for each number at most; true below the frontier, false above.
    start
        Where to begin: the nearer to the frontier, the fewer questions.
    most
        Nothing above is asked.
    within
        Stop once the gap is at most this share of what fits; 0 finds the frontier exactly.

    """
    low, high, at = 0, most + 1, min(max(start, 1), most)
    while low < at < high:
        if fits(at):
            low, at = at, min(2 * at, most)
        else:
            high = at
            break
    while low == 0 and high > 1:
        at = high // 2
        low, high = (at, high) if fits(at) else (low, at)
    while low and high - low > max(1, within * low):
        at = (low + high) // 2
        # Above `most` nothing is known to fail.
        low, high = (at, high) if fits(at) else (low, at)
    return Largest(low or None, high if high <= most else None)
