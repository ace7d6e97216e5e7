"""Errors a person can act on, and the exit codes scripts can act on."""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher
from enum import IntEnum
from functools import partial
from itertools import takewhile


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

    def __reduce__(self) -> "tuple[Callable[[], TunemarkError], tuple[()]]":
        """Return how it is made again: an error of a worker process is raised in its parent."""
        return partial(type(self), self.field, self.value, self.fix, exit_code=self.exit_code), ()


FEW = 12
"""So many known words are listed when none is near."""
LIKE = 0.5
"""Least similarity of a suggestion, as difflib's ratio."""
BEGUN_ALIKE = 0.3
"""What the same beginning adds to the similarity, for all of the word."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the nearest known words, or lists them when there are few."""
    words = sorted({str(one) for one in known})
    near = nearest(word, {candidate: (candidate,) for candidate in words})
    if near:
        return suggested(near)
    if len(words) <= FEW:
        return f"known are {', '.join(words)}"
    return f"{len(words)} are known, none like it"


def suggested(names: Iterable[str]) -> str:
    """Return names as the question whether one of them was meant."""
    return f"did you mean {' or '.join(repr(name) for name in names)}?"


def nearest(word: str, spellings: Mapping[str, Iterable[str]], most: int = 3) -> list[str]:
    """Return the names that a word is nearest to, each once, whatever the number of its spellings.

    Names that begin with the word come first; where there are none, those that hold it; where there are none either,
    the longest that it holds, and similar ones. Case and punctuation do not count.
    """
    wanted = bare(word)
    if not wanted:
        return []
    plain = {name: [bare(spelling) for spelling in every] for name, every in spellings.items()}
    long_enough = len(wanted) > 1
    begin = [name for name, every in plain.items() if long_enough and any(one.startswith(wanted) for one in every)]
    hold = [name for name, every in plain.items() if long_enough and any(wanted in one for one in every)]
    if begin or hold:
        return sorted(begin or hold, key=lambda name: (len(name), name))[: 2 * most]
    held = {name: max((len(one) for one in every if len(one) > most and one in wanted), default=0) for name, every in plain.items()}
    inside = [name for name, length in held.items() if length and length == max(held.values())]
    alike = {name: max((_likeness(wanted, one) for one in every), default=0.0) for name, every in plain.items() if name not in inside}
    similar = sorted((name for name, share in alike.items() if share >= LIKE), key=lambda name: (-alike[name], name))
    return [*inside, *similar][:most]


def bare(word: str) -> str:
    """Return the letters and digits of a word, small."""
    return re.sub(r"[^0-9a-z]+", "", word.lower())


def _likeness(wanted: str, one: str) -> float:
    matcher = SequenceMatcher(None, one, wanted)
    # The cheap bounds leave the dear ratio to the few that can reach it.
    if matcher.real_quick_ratio() < LIKE or matcher.quick_ratio() < LIKE or (share := matcher.ratio()) < LIKE:
        return 0.0
    # Names are begun right more often than they are ended right.
    begun = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, wanted, strict=False)))
    return share + BEGUN_ALIKE * begun / len(wanted)
