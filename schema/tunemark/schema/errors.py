"""Errors that name the field, the value and the fix; exit codes; suggestions for misspelt names."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from enum import IntEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


class Exit(IntEnum):
    """Exit codes of the command line."""

    OK = 0
    INTERNAL = 1  # and a question that was answered with no
    USAGE = 2
    INVALID = 3
    UNSUPPORTED = 4
    OUT_OF_MEMORY = 5
    UNTRUSTWORTHY = 6


class TunemarkError(Exception):
    """An error that the user can fix: what is wrong, its value (None or "" is left out of the message), the fix, and the exit code."""

    def __init__(self, field: str, value: object, fix: str, *, exit_code: Exit = Exit.USAGE) -> None:
        self.field, self.value, self.fix, self.exit_code = field, value, fix, exit_code
        # The word of a vocabulary is shown as its text.
        shown = str(value) if isinstance(value, str) else value
        super().__init__(f"{field}: {fix}" if value is None or value == "" else f"{field}: {shown!r}: {fix}")


KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dictionary": "an object",
}
"""Pydantic's name of a kind of value -> ours."""
WRONG_KIND = re.compile(rf"must be a valid ({'|'.join(KINDS)})(?: or instance of .*|, (?:unable to|got a number) .*)?", re.DOTALL)


def must_be(message: str) -> str:
    """Return a message of pydantic as the end of one of ours: "Input should be a valid integer" becomes "must be a whole number"."""
    text = re.sub(r"^[A-Z]\w* should ", "must ", message.removeprefix("Value error, "))
    kind = WRONG_KIND.fullmatch(text)
    return f"must be {KINDS[kind[1]]}" if kind else text[:1].lower() + text[1:]


ONE_KIND = re.compile(r"(literal|str-enum|tuple)\[.*|(constrained-)?str|float|int|bool")
"""The last part of pydantic's path to a value that may be of several kinds."""


def problems_of(error: "ValidationError", model: "type[BaseModel]") -> Iterator[tuple[str, Any, str]]:
    """Yield the field, the value and the fix of each problem that pydantic found in a record; a rule between fields names no field.

    A value that may be of several kinds has one problem. The value is empty where it is missing or whole records contradict themselves.
    """
    by_path: dict[tuple[str, ...], list[Any]] = {}
    for detail in error.errors(include_url=False):
        path = tuple(map(str, detail["loc"]))
        by_path.setdefault(path[:-1] if path and ONE_KIND.fullmatch(path[-1]) else path, []).append(detail)
    for path, (detail, *others) in by_path.items():
        fixes = [must_be(each["msg"]) for each in (detail, *others)]
        # A text may be of the right kind, and too long.
        fix = min(fixes, key=lambda each: each.startswith("must be "))
        if others and fix.startswith("must be "):
            *first, last = dict.fromkeys(word for each in fixes for word in re.split(", | or ", each.removeprefix("must be ")))
            fix = f"must be {', '.join(first)} or {last}"
        elif detail["type"] == "missing":
            fix = "is missing; every record has it"
        elif detail["type"] == "extra_forbidden":
            fix = f"is not a field; {did_you_mean(path[-1], _fields_at(model, path[:-1]))}"
        yield ".".join(path), "" if detail["type"] in {"missing", "value_error"} else detail["input"], fix


def _fields_at(record: Any, path: tuple[str, ...]) -> list[str]:  # noqa: ANN401 - a record's class
    """Return the field names of the record in which the path ends."""
    for part in path:
        if part in getattr(record, "model_fields", ()):
            record = next(_records_in(record.model_fields[part].annotation), None)
    return list(getattr(record, "model_fields", ()))


def _records_in(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - any type expression
    if hasattr(annotation, "model_fields"):
        yield annotation
    for inner in get_args(annotation):
        yield from _records_in(inner)


MAX_LISTED = 20
"""List all known words if there are at most this many and none is similar."""
MIN_SIMILARITY = 0.5
"""Minimum difflib ratio of a suggestion."""
COMMON_PREFIX_BONUS = 0.3
"""Added to the similarity in proportion to the common beginning: it is misspelt less often."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests similar known words, or lists all of them if there are few."""
    words = sorted(set(map(str, known)))
    near = nearest(word, {candidate: (candidate,) for candidate in words})
    if near:
        return suggested(near)
    if len(words) <= MAX_LISTED:
        return f"known: {', '.join(words)}"
    if not word:
        return f"give a known name, such as {words[0]!r}"
    return f"none of the {len(words)} known names is similar"


def suggested(names: Iterable[str]) -> str:
    """Return the question whether one of these names was meant."""
    return f"did you mean {' or '.join(repr(name) for name in names)}?"


def nearest(word: str, spellings: Mapping[str, Iterable[str]], most: int = 3) -> list[str]:
    """Return the names most similar to a word, each once. `spellings` maps a name to all of its spellings.

    Names that begin with the word are preferred, then names that contain it, then the longest one that it contains, then similar names. Case and punctuation are ignored.
    """
    wanted = bare(word)
    if not wanted:
        return []
    plain = {name: [bare(spelling) for spelling in variants] for name, variants in spellings.items()}
    if len(wanted) > 1:
        starting = [name for name, variants in plain.items() if any(variant.startswith(wanted) for variant in variants)]
        containing = [name for name, variants in plain.items() if any(wanted in variant for variant in variants)]
        if starting or containing:
            return sorted(starting or containing, key=lambda name: (len(name), name))[: 2 * most]

    def similarity(candidate: str) -> float:
        if len(candidate) > most and candidate in wanted:
            return 1 + len(candidate)  # the longest name that the word contains
        ratio = SequenceMatcher(None, candidate, wanted).ratio()
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(candidate, wanted, strict=False)))
        return ratio + COMMON_PREFIX_BONUS * alike / len(wanted) if ratio >= MIN_SIMILARITY else 0.0

    ratios = {name: max(map(similarity, variants), default=0.0) for name, variants in plain.items()}
    return sorted((name for name, ratio in ratios.items() if ratio >= MIN_SIMILARITY), key=lambda name: (-ratios[name], name))[:most]


def bare(word: str) -> str:
    """Return the letters and digits of a word in lower case."""
    return re.sub(r"[^0-9a-z]+", "", word.lower())
