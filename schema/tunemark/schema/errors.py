"""Errors a person can act on, and the exit codes scripts can act on."""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line; documented in the command reference and tested."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INVALID = 3
    UNSUPPORTED = 4
    OUT_OF_MEMORY = 5
    UNTRUSTWORTHY = 6


class TunemarkError(Exception):
    """Something the user can mend: says the field, the value, and the fix.

    Parameters
    ----------
    field, value, fix
        What is wrong, what it is now, and what to do about it.
    exit_code
        What the command line returns.

    """

    def __init__(self, field: str, value: object, fix: str, *, exit_code: Exit = Exit.USAGE) -> None:
        self.field, self.value, self.fix, self.exit_code = field, value, fix, exit_code
        super().__init__(f"{field}: {value!r}: {fix}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the nearest known words, or lists them when there are few."""
    words = sorted(set(known))
    lowered = {candidate.lower(): candidate for candidate in words}
    near = [lowered[match] for match in get_close_matches(word.lower(), lowered, n=3, cutoff=0.5)]
    if near:
        return f"did you mean {' or '.join(repr(match) for match in near)}?"
    few = 12
    if len(words) <= few:
        return f"known are {', '.join(words)}"
    return f"{len(words)} are known, none like it"
