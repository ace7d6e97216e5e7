"""Points of a series: which settings differ from run to run, under the field's own names or their friendly ones."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from tunemark.harness.plan.resolve import ALIASES, apply_overrides
from tunemark.harness.plan.sections import Options
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.workloads import WorkloadCard

Values = tuple[str, tuple[str, ...]]
"""A setting and the values it takes, as they are written in `--set`."""

OPTIONS = {"devices.count": "devices", "devices.strategy": "strategy", "devices.offload": "offload", "seed": "seed"}
"""Settings that an option of `run` makes: a seed or a number of devices is no override of the card."""

AS_GIVEN = "as given"
"""What the point without a changed setting is called."""


@dataclass(frozen=True, slots=True)
class Point:
    """Settings of one run of a series."""

    settings: tuple[tuple[str, str], ...]
    """Field of the card and value as it is written in `--set`."""

    @property
    def text(self) -> str:
        """Return how the point is called in records, tables and messages."""
        return ", ".join(f"{field}={value}" for field, value in self.settings) or AS_GIVEN

    def applied(self, options: Options) -> Options:
        """Return the options of a run of this point; it is set after what the person set for all."""
        chosen: dict[str, Any] = {
            OPTIONS[field]: int(value) if value.isdecimal() else value for field, value in self.settings if field in OPTIONS
        }
        sets = tuple(f"{field}={value}" for field, value in self.settings if field not in OPTIONS)
        return replace(options, overrides=(*options.overrides, *sets), **chosen)


def field_named(name: str, option: str, card: WorkloadCard) -> str:
    """Return the card's field of a name, which may be a friendly one.

    Raises
    ------
    TunemarkError
        When there is none, with the nearest names.

    """
    field = ALIASES.get(name.strip().lower(), name.strip())
    if field in OPTIONS:
        return field
    known = fields_of(card.model_dump(mode="json"))
    if field not in known:
        raise TunemarkError(option, name, f"not a setting of {card.key}; {did_you_mean(name, [*known, *ALIASES])}")
    return field


def fields_of(content: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted paths of all settings in a card's content."""
    names: list[str] = []
    for key, value in content.items():
        names.extend(fields_of(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"])
    return names


def axis_of(text: str, card: WorkloadCard) -> Values:
    """Return field and values of `--over field=v1,v2`; of `--over field` those of the card's own axis.

    Raises
    ------
    TunemarkError
        Where there is no value, or one twice.

    """
    name, equals, listed = text.partition("=")
    field = field_named(name, "--over", card)
    own = tuple(dict.fromkeys(written(value) for axis in card.axes if axis.field == field for value in axis.values))
    values = tuple(value.strip() for value in listed.split(",") if value.strip()) if equals else own
    if not values:
        raise TunemarkError("--over", text, "give a setting and its values, such as batch_size=8,16,32")
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise TunemarkError("--over", text, f"{', '.join(twice)} is there twice; name each value once, and repeat with --repeats")
    return field, values


def star_of_card(card: WorkloadCard) -> list[Point]:
    """Return the card as it is, each value of its axes, and its points, with all else as the card has it.

    An axis is gone along where its source did; all combinations would be thousands.
    """
    along = [{**axis.at, axis.field: value} for axis in card.axes for value in axis.values]
    return [Point(tuple((field, written(value)) for field, value in settings.items())) for settings in ({}, *along, *card.points)]


def written(value: object) -> str:
    """Return a value as it is written in `--set`."""
    return value if isinstance(value, str) else json.dumps(value)


def grid(axes: Sequence[Values]) -> list[Point]:
    """Return every combination of the axes' values, the last axis fastest; raises TunemarkError for a field named twice."""
    fields = [field for field, _ in axes]
    for field in fields:
        if fields.count(field) > 1:
            raise TunemarkError("--over", field, "is there twice; give all of its values in one --over")
    return [Point(tuple(zip(fields, values, strict=True))) for values in product(*(values for _, values in axes))]


def settings_of(text: str, option: str, card: WorkloadCard) -> Point:
    """Return the point of `field=value,field=value`; raises TunemarkError where a setting has no value."""
    settings = []
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise TunemarkError(option, text, "give field=value, and several parted by commas, such as compile=blocks,lr=1e-3")
        settings.append((field_named(name, option, card), value.strip()))
    return Point(tuple(settings))


def card_with(card: WorkloadCard, options: Options) -> WorkloadCard:
    """Return the card as `--set` changes it for the whole series."""
    return apply_overrides(card, options.overrides)[0]
