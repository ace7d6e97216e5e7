"""The policy for text in submissions: which characters and lengths each field may have, and what no field may hold.

Most fields hold names, versions and sentences that the harness writes, in ASCII. Only the message of a failure and the reason of
a replacement may be in any language. Nothing may identify a person or a machine (`schema.privacy`), act on a reader's program, or hide from his eyes.
"""

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tunemark.schema.privacy import REMEMBERED, identity_leaks, is_hash, texts
from tunemark.schema.records.reading import Problem
from tunemark.schema.safe_text import is_visible, shortened, terminal


class Policy(NamedTuple):
    """What text a kind of field may hold."""

    fields: re.Pattern[str]
    characters: re.Pattern[str]
    """One character that is allowed; `_is_hidden` applies to all."""
    most: int
    """Largest number of characters."""
    what: str


RULES = tomllib.loads(Path(__file__).with_name("text_policy.toml").read_text(encoding="utf-8"))
POLICIES = [Policy(re.compile(each["fields"]), re.compile(each["characters"]), each["most"], each["what"]) for each in RULES["policies"]]
ABUSE = {
    what: re.compile(pattern.replace("{HOSTS}", RULES["hosts"]).replace("{TAGS}", RULES["tags"]))
    for what, pattern in RULES["abuse"].items()
}
FEWEST_WORDS, FEWEST_LETTERS, FEWEST_SIGNS = 2, 6, 4
"""Words and letters of a reason, or letters of a script outside ASCII."""
MOST_MARKS = 4
"""Combining marks on one letter; the scripts that stack them use two or three."""
JOINERS = "\u200c\u200d"
TWINS = frozenset("АВЕКМНОРСТХІЅЈΑΒΕΖΗΙΚΜΝΟΡΤΥΧ0123456789")
"""Capitals and digits that look like Latin ones."""


def text_problems(record: dict[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each text of a submission, as JSON content, that its field may not hold."""
    for field, value, what in identity_leaks(record):
        yield Problem(field, _shown(value), f"looks like {what}; a submission must not name a machine or a person")
    for field, text in texts(record):
        if is_hash(field):
            continue
        found = _first_problem(text, _policy_of(field)) or (_no_sentence(text) if field == "supersedes_reason" else None)
        if found is not None:
            yield Problem(terminal(field), _shown(text), found)


def _no_sentence(text: str) -> str | None:
    """Return the problem of a reason that says nothing. A script without blanks needs fewer letters."""
    letters = [character for character in text if character.isalpha()]
    words = [word for word in re.findall(r"[^\W\d_]+", text) if len(set(word)) > 1]
    short = len(letters) < FEWEST_LETTERS or len(words) < FEWEST_WORDS
    signs = sum(not letter.isascii() for letter in letters)
    return "is not a reason; say it in a few words" if short and signs < FEWEST_SIGNS else None


def _shown(text: str) -> str:
    return repr(terminal(shortened(text, 60)))


@lru_cache(maxsize=REMEMBERED)
def _policy_of(field: str) -> Policy:
    return next(each for each in POLICIES if each.fields.fullmatch(field))


@lru_cache(maxsize=REMEMBERED)
def _first_problem(text: str, policy: Policy) -> str | None:
    """Return the first thing that a text may not be; records share most of their texts."""
    return next(_found(text, policy), None)


def _found(text: str, policy: Policy) -> Iterator[str]:
    if len(text) > policy.most:
        yield f"has {len(text):,} characters; this field has {policy.most} at most"
        return
    if not text.strip() or text != text.strip(" "):
        yield "begins or ends with blanks, or has nothing else"
    hidden = next((character for index, character in enumerate(text) if _is_hidden(text, index)), None)
    if hidden is not None and not (hidden in "\n\t" and policy.characters.fullmatch(hidden)):
        yield f"contains the character U+{ord(hidden):04X}, which cannot be seen; remove it"
    other = next((character for character in text if not policy.characters.fullmatch(character)), None)
    if other is not None:
        yield f"contains U+{ord(other):04X}; this field is {policy.what}"
    if not text.isascii():
        yield from _disguised(text)
    plain = unicodedata.normalize("NFKC", text)
    for what, pattern in ABUSE.items():
        if pattern.search(plain):
            yield f"contains {what}, which would act where it is shown"


def _is_hidden(text: str, index: int) -> bool:
    """Return True for a character that shows nothing, that changes the direction of others, or that is no character."""
    character = text[index]
    if character in JOINERS:
        # Scripts of India and Persia need them between their letters.
        around = text[max(0, index - 1)] + text[min(len(text) - 1, index + 1)]
        return around.isascii() or not all(unicodedata.category(each)[0] in "LM" for each in around)
    if character == "\ufe0f":
        # Shows the symbol before it in colour.
        return unicodedata.category(text[max(0, index - 1)]) != "So"
    # The latter stands for an object that a text does not have.
    return not is_visible(character) or character == "\ufffc"


def _disguised(text: str) -> Iterator[str]:
    """Yield words that mix the letters of alphabets that look alike, and stacked marks."""
    for word in re.findall(r"\w+", text):
        alphabets = {unicodedata.name(letter, "").split(" ")[0] for letter in word if letter.isalpha()}
        if len(alphabets & {"LATIN", "CYRILLIC", "GREEK", "CHEROKEE", "ARMENIAN", "COPTIC", "LISU"}) > 1:
            yield f"the word {word!r} mixes letters of alphabets that look alike"
            return
        twins = len(word) > 1 and set(word) <= TWINS and any(map(str.isdigit, word))
        if alphabets and alphabets <= {"CYRILLIC", "GREEK"} and twins:
            yield f"the word {word!r} is written in letters that look like Latin ones"
            return
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) == "Mn" else 0
        if marks > MOST_MARKS:
            yield "stacks marks on a letter"
            return
