"""Checks of all facts: text and names, and the facts beside them. What a field can say about itself is a bound of the field (`schema.facts`).

A check yields problems; the caller knows the file.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import cpu_name
from tunemark.schema.records.reading import Problem
from tunemark.schema.safe_text import is_visible

Content = TypeVar("Content")
PRINTED_SIZE = re.compile(r"(?i)(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")

DAY = re.compile(r'(?:_on"?\s*[:=]\s*"?|=\s*|,|^)(20\d\d-\d\d-\d\d)(?=[",\s}\]]|$)')
"""A day as a value of TOML, JSON or CSV."""


def missing(field: str, key: str | None, known: Collection[str], folder: str) -> Iterator[Problem]:
    """Yield a problem for the key of a card that does not exist."""
    if key is not None and key not in known:
        yield Problem(field, repr(key), f"no such card in data/{folder}; {did_you_mean(key, known)}")


def future_days(text: str) -> Iterator[tuple[int, Problem]]:
    """Yield line and problem for each day that has not come in the time zone that is furthest ahead."""
    last = (datetime.now(tz=UTC) + timedelta(days=1)).date().isoformat()
    for number, line in enumerate(text.splitlines(), start=1):
        for match in DAY.finditer(line):
            if match[1] > last:
                yield number, Problem("day", match[1], "is in the future; correct the day")


@dataclass(frozen=True)
class Neighbours(FactBase):
    """The facts that a fact is compared with. Those that cannot be read are left out: they have their own problem."""

    def read_folder(self, folder: str, reader: Callable[[Path], Content]) -> Iterator[Content]:
        """Yield the contents of the readable files of a folder."""
        for path in sorted((self.root / folder).glob("*.toml")):
            with suppress(TunemarkError):
                yield reader(path)

    @cached_property
    def aws_sizes(self) -> dict[str, tuple[str, ...]]:
        """Sizes of AWS instance families with accelerators, by family."""
        try:
            return FactBase(self.root).aws_sizes
        except (TunemarkError, TypeError):
            return {}

    @cached_property
    def spellings(self) -> dict[str, dict[str, set[str]]]:
        """Keys of the cards by spelling, for GPUs, CPUs and models: a GPU and a CPU may report one name, such as Apple M3 Max."""
        found: dict[str, dict[str, set[str]]] = {"device": {}, "cpu": {}, "model": {}}
        cards: list[AcceleratorCard | ModelCard] = [*self.accelerators.values(), *self.models.values()]
        for card in cards:
            for name in _names(card):
                found[_kind(card)].setdefault(_spelling(name, card), set()).add(card.key)
        return found


# Text ----------------------------------------------------------------------------------------------------

URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{1,20})://([^\s\"'<>()\\,;]*)|\b(javascript:|vbscript:|data:[a-z]+/|file:/)")
HOST = re.compile(r"(?i)(?!.*xn--)[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}(?::\d+)?(?:[/?#].*)?")
ESCAPE = re.compile(r"\\[uU]([0-9a-fA-F]{8}|[0-9a-fA-F]{4})")
_LIKE_LATIN = r"[\u0391\u0392\u0395-\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03bf\u0400-\u052f\uff01-\uff5e]"
MIXED = re.compile(rf"[A-Za-z0-9]{_LIKE_LATIN}|{_LIKE_LATIN}[A-Za-z0-9]")
"""A Latin letter or digit beside a Cyrillic or full-width one, or a Greek one that looks Latin; not as in \u0394t."""
MARKUP = re.compile(r"<(?=[A-Za-z/!?])|\{\{|\{%|(?m:^|[,\"'])\s*[=+@-]\s*[A-Za-z.]+\s*[(|]")
"""What a browser, a template or a spreadsheet would run: the beginning of a tag, an expression, a formula that calls."""


def text_problems(text: str) -> Iterator[tuple[int, Problem]]:
    """Yield problems of the text of a file with their lines: hidden characters, look-alike letters, addresses that are not web pages.

    Names and sources reach tables, terminals and links of the site: an address is `http(s)` with a host name written in
    ASCII, without a user name in front of it; what cannot be seen does not belong into a fact.
    """
    plain = text.isascii() and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
    for number, line in enumerate(text.splitlines() if not plain or "\\u" in text or "\\U" in text else (), start=1):
        shown = ESCAPE.sub(lambda match: chr(min(int(match[1], 16), 0x10FFFF)), line)
        hidden = next((character for character in shown if character != "\t" and not is_visible(character)), None)
        if hidden is not None:
            yield number, Problem("text", f"U+{ord(hidden):04X}", "a character that nobody can see; remove it")
        elif mixed := MIXED.search(shown):
            yield number, Problem("text", ascii(mixed[0]), "letters of two scripts in one word look like another name; use Latin letters")
    if match := MARKUP.search(text):
        fix = "facts are plain text: no tags, template expressions or formulas; write what it says in words"
        yield text.count("\n", 0, match.end()) + 1, Problem("text", repr(match[0].strip()), fix)
    for match in URL.finditer(text):
        if (match[1] or "").lower() not in {"http", "https"} or not HOST.fullmatch(match[2]):
            fix = "an address is https:// and a host name; name files and repositories without a scheme"
            yield text.count("\n", 0, match.start()) + 1, Problem("source", repr(match[0][:80]), fix)


def name_problems(card: AcceleratorCard | ModelCard, beside: Neighbours) -> Iterator[Problem]:
    """Yield a problem for a name of another card, in any spelling, for a repeated alias, and for letters that are not plain Latin.

    Devices are recognised and models found by these names; names compare without case, blanks and punctuation, and with
    the digits 0 and 1 as the letters that they look like.
    """
    vendor = (card.vendor, card.architecture or "") if isinstance(card, AcceleratorCard) else ()
    for name in (card.name, *card.aliases, *vendor):
        strange = next((letter for letter in name if not letter.isascii() and unicodedata.category(letter)[0] in "LNZM"), None)
        if strange is not None or name != name.strip():
            fix = "only Latin letters without accents, digits and single blanks are in names"
            yield Problem("aliases" if name in card.aliases else "name", ascii(name), fix)
    for alias in sorted(alias for alias, times in Counter(card.aliases).items() if times > 1):
        yield Problem("aliases", repr(alias), "is listed twice; list each alias once")
    for name in _names(card):
        others = beside.spellings[_kind(card)].get(_spelling(name, card), set()) - {card.key}
        if others:
            where = "key" if name == card.key else "name" if name == card.name else "hub_id" if name not in card.aliases else "aliases"
            yield Problem(where, repr(name), f"is a name of {' and '.join(sorted(others))} too; a name belongs to one card")


def _names(card: AcceleratorCard | ModelCard) -> tuple[str, ...]:
    return (card.key, card.name, *card.aliases, *((card.hub_id,) if isinstance(card, ModelCard) and card.hub_id else ()))


def _kind(card: AcceleratorCard | ModelCard) -> str:
    return "model" if isinstance(card, ModelCard) else "cpu" if card.unit == "cpu" else "device"


def _spelling(name: str, card: AcceleratorCard | ModelCard) -> str:
    return skeleton(cpu_name(name) if _kind(card) == "cpu" else name)


def printed_sizes(text: str) -> Iterator[tuple[str, float]]:
    """Yield each number of parameters in a text, as it is printed and as a number: `8x7B` and 5.6e10."""
    for match in PRINTED_SIZE.finditer(text):
        experts, size, scale = match.groups()
        yield match[0], int(experts or 1) * float(size) * (1e9 if scale in "bB" else 1e6)


def skeleton(name: str) -> str:
    """Return a name by its looks: lower case, no blanks and punctuation, l for 1, i and |, o for 0. A plus counts: 8480+."""
    looks = unicodedata.normalize("NFKC", name).casefold().translate(str.maketrans("01i|", "olll"))
    return re.sub(r"[^\w+]|_", "", looks)
