"""What was probably meant by a name that is no accelerator and no instance: one matcher for every command."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from tunemark.schema.errors import bare, nearest, suggested
from tunemark.schema.facts.cards import AcceleratorCard

WITH_MEMORY = re.compile(r"(?P<name>.{1,200}?)[\s,-]*\(?\s*(?P<memory>\d{1,5})\s*(?:GB|GiB)\)?", re.IGNORECASE)
AWS = re.compile(r"(?P<family>(?:dl|gr|g|inf|p|trn|vt)\d[a-z0-9]*(?:-[a-z0-9]+)?)\.(?P<size>[a-z0-9-]*(?:large|metal)[a-z0-9-]*)")
"""Names of AWS instances with accelerators: no other provider has names of this form."""
SAME = 0.15
"""Share by which a printed memory may differ from the card's: GB against GiB, and what the driver keeps."""
WHERE = '`tunemark query "select accelerator, aliases from accelerators"` lists all'


class Named(Protocol):
    """A card with a key, a name and other names."""

    @property
    def key(self) -> str:
        """Name of the card."""

    @property
    def name(self) -> str:
        """Name for readers."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Other names."""


def spellings(cards: Iterable[Named]) -> dict[str, tuple[str, ...]]:
    """Return all spellings of each card by its key: distinct cards are suggested, not spellings of one."""
    return {card.key: (card.key, card.name, *card.aliases) for card in cards}


def suggest_card(name: str, cards: Collection[Named]) -> str:
    """Return a sentence with the cards whose names are nearest."""
    near = nearest(name, spellings(cards))
    return suggested(near) if near else f"{len(cards)} are known, none like it"


def suggest_accelerator(name: str, cards: Mapping[str, AcceleratorCard], instances: Collection[str] = ()) -> str:
    """Return a sentence: the nearest accelerators and instances, or what is wrong with the memory in a name that is known without it."""
    printed = WITH_MEMORY.fullmatch(name.strip())
    card = _card_of(printed["name"], cards) if printed else None
    if printed and card is not None and card.memory_gib is not None and not agrees(float(printed["memory"]), card):
        return _other_memory(card, int(printed["memory"]), cards)
    if instances and AWS.fullmatch(name.strip().lower()):
        return suggest_instance(name, instances)
    near = nearest(name, spellings(cards.values()) | {instance: (instance,) for instance in instances})
    return suggested(near) if near else f"{len(cards)} accelerators are known, none like it; {WHERE}"


def suggest_instance(name: str, instances: Collection[str]) -> str:
    """Return a sentence with the nearest instances: those of the same family first, nearest size first."""
    found = AWS.fullmatch(name.strip().lower())
    family = sorted({one for one in instances if found and one.startswith(f"{found['family']}.")}, key=lambda one: _steps(one, name))
    near = family[:2] or nearest(name, {instance: (instance,) for instance in instances})
    return suggested(near) if near else f"{len(set(instances))} instances are known, none like it"


def agrees(memory_gib: float, card: AcceleratorCard) -> bool:
    """Return whether a printed memory can be that of a card; a card of unknown memory agrees with any."""
    return card.memory_gib is None or abs(memory_gib - card.memory_gib) <= SAME * card.memory_gib


def _steps(one: str, other: str) -> tuple[int, str]:
    first, second = (int(found[1]) if (found := re.search(r"\.(\d{1,6})", text)) else 1 for text in (one, other))
    return abs(first - second), one


def _card_of(name: str, cards: Mapping[str, AcceleratorCard]) -> AcceleratorCard | None:
    wanted = bare(name)
    return next((card for card in cards.values() if wanted in {bare(one) for one in (card.key, card.name, *card.aliases)}), None)


def _other_memory(card: AcceleratorCard, memory: int, cards: Mapping[str, AcceleratorCard]) -> str:
    others = [
        one.name
        for one in cards.values()
        if one.vendor == card.vendor and one.architecture == card.architecture and one.memory_gib is not None and agrees(memory, one)
    ]
    also = f", or one with {memory} GB: {' or '.join(repr(other) for other in others)}" if others else ""
    short = min((card.name, *card.aliases), key=len)
    return f"the {card.name} has {card.memory_gib:g} GB, not {memory}; did you mean {short!r}{also}?"
