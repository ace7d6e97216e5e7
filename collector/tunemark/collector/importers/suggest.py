"""What was probably meant by a name that is neither an accelerator nor an instance."""

import re

from tunemark.schema.cards import AcceleratorCard
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts import FactBase

WITH_MEMORY = re.compile(r"(?P<name>.{1,200}?)[\s,-]*\(?\s*(?P<memory>\d{1,5})\s*(?:GB|GiB)\)?", re.IGNORECASE)
SAME = 0.15
"""Share by which a printed memory may differ from the card's: GB against GiB, and what the driver keeps."""


def suggestion(name: str, facts: FactBase) -> str:
    """Return a sentence: the nearest names, or what is wrong with the memory in a name that is known without it."""
    printed = WITH_MEMORY.fullmatch(name.strip())
    card = facts.recognise_accelerator(printed["name"].strip()) if printed else None
    if printed and card is not None and card.memory_gib is not None and not agrees(float(printed["memory"]), card):
        return _other_memory(card, int(printed["memory"]), facts)
    # Part of a key, such as h100, is the commonest slip, and means several cards.
    parts = [key for key in facts.accelerators if name.lower() in key]
    if parts:
        return f"did you mean {' or '.join(parts)}?"
    names = (alias for one in facts.accelerators.values() for alias in (one.key, one.name, *one.aliases))
    return did_you_mean(name, [*names, *(row.instance for row in facts.prices)])


def agrees(memory_gib: float, card: AcceleratorCard) -> bool:
    """Return whether a printed memory can be that of a card; a card of unknown memory agrees with any."""
    return card.memory_gib is None or abs(memory_gib - card.memory_gib) <= SAME * card.memory_gib


def _other_memory(card: AcceleratorCard, memory: int, facts: FactBase) -> str:
    others = [
        one.name
        for one in facts.accelerators.values()
        if one.vendor == card.vendor and one.architecture == card.architecture and one.memory_gib is not None and agrees(memory, one)
    ]
    also = f", or one with {memory} GB: {' or '.join(repr(other) for other in others)}" if others else ""
    short = min((card.name, *card.aliases), key=len)
    return f"the {card.name} has {card.memory_gib:g} GB, not {memory}; did you mean {short!r}{also}?"
