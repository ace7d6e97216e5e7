"""Which layers of a model get adapters: groups of layers, and names, as each family calls them."""

from collections.abc import Iterator
from typing import Literal

from tunemark.schema.cards import ModelCard
from tunemark.schema.errors import TunemarkError
from tunemark.schema.linear_layers import NAMES, Linear, block_linears, endings
from tunemark.schema.plan import LoraSettings

Group = Literal["all-linear", "attention"]
GROUPS: tuple[Group, ...] = ("all-linear", "attention")
"""What may stand for the names of layers: all linear layers of a block, and those of attention only."""
DEFAULT = LoraSettings().target_modules
"""All linear layers of a block in the names of llama: of another family its own names are meant."""


def targets_in(card: ModelCard, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names by which peft finds the layers that are asked for in a model.

    Raises
    ------
    TunemarkError
        For a name that adapters can go on nowhere in the model, with those that they can.

    """
    if asked == DEFAULT:
        return group(card, "all-linear")
    known = layer_names(card)
    found: list[str] = []
    for name in asked:
        of_group = next((group(card, one) for one in GROUPS if one == name), None)
        if of_group is None and name not in known:
            has = ", ".join((*group(card, "all-linear"), *NAMES[card.family].outside))
            fix = f"adapters go on no layer of {card.key} by this name; it has {has}, and {' and '.join(GROUPS)} stand for several"
            raise TunemarkError("lora.target_modules", name, fix)
        found.extend(of_group or (name,))
    return tuple(dict.fromkeys(found))


def group(card: ModelCard, which: Group) -> tuple[str, ...]:
    """Return the names of a group of layers, each as short as tells it from the others of a block."""
    return tuple(_short(card, one) for one in _adaptable(card) if which == "all-linear" or one.part == "attention")


def layer_names(card: ModelCard) -> tuple[str, ...]:
    """Return every name that peft finds layers by: ends of paths that lie inside of blocks only, and the layers outside."""
    outside = NAMES[card.family].outside
    elsewhere = {end for path in outside for end in endings(path)}
    inside = {end for one in _adaptable(card) for end in endings(one.path)}
    return (*sorted(inside - elsewhere), *outside)


def _adaptable(card: ModelCard) -> Iterator[Linear]:
    """Yield the linear layers of a block that are layers to peft: experts are parameters of one module."""
    return (one for one in block_linears(card) if one.part == "attention" or NAMES[card.family].router is None)


def _short(card: ModelCard, linear: Linear) -> str:
    others = {end for one in block_linears(card) if one != linear for end in endings(one.path)} | set(NAMES[card.family].outside)
    alone = [end for end in endings(linear.path) if end not in others]
    # Where even the whole path is the end of another's, both are in the group.
    return alone[-1] if alone else linear.path
