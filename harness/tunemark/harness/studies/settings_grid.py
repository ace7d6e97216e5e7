"""What a series varies: points with their settings, by the card's field names or their aliases, and the question of a frontier."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Any

from tunemark.harness.plan.options import Options
from tunemark.harness.plan.overrides import ALIASES, apply_overrides, similar_settings
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.base import flattened

Axis = tuple[str, tuple[str, ...]]
"""A setting and its values, as they are written in `--set`."""
OPTIONS = {"devices.count": "devices", "devices.strategy": "strategy", "devices.offload": "offload", "seed": "seed"}
"""Settings that are options of `run`: a seed or a number of devices does not override the card."""
AS_GIVEN = "as given"
"""Name of the point without a changed setting."""


class Over(StrEnum):
    """The setting that is maximised."""

    MICRO_BATCH = "micro_batch"
    SEQUENCE_LENGTH = "sequence_length"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a frontier searches for."""

    over: Over = Over.MICRO_BATCH
    lengths: tuple[int, ...] = ()
    """Sequence lengths at which to find the largest micro-batch; empty: the card's, or those that fit."""
    limit_bytes: int | None = None
    """Host memory that the worker's processes may use together."""
    most: int = 65_536
    """Largest micro-batch to try."""
    within: float = 0.0
    """Tolerance as a fraction; 0 is exact."""


@dataclass(frozen=True, slots=True)
class Point:
    """Settings of one run of a series."""

    settings: tuple[tuple[str, str], ...]
    """Field of the card and value as it is written in `--set`."""

    @property
    def text(self) -> str:
        """Return the point's name in records, tables and messages."""
        return ", ".join(f"{field}={value}" for field, value in self.settings) or AS_GIVEN

    def applied(self, options: Options) -> Options:
        """Return the options of a run of this point. The point's settings override those that the user set for all."""
        chosen: dict[str, Any] = {
            OPTIONS[field]: int(value) if value.isdecimal() else value for field, value in self.settings if field in OPTIONS
        }
        sets = tuple(f"{field}={value}" for field, value in self.settings if field not in OPTIONS)
        return replace(options, overrides=(*options.overrides, *sets), **chosen)


def field_named(name: str, option: str, card: WorkloadCard) -> str:
    """Return the card's field for a name or alias. Raises TunemarkError with the nearest names when there is none."""
    field = ALIASES.get(name.strip().lower(), name.strip())
    if field in OPTIONS:
        return field
    known = dict(flattened(card.model_dump(mode="json", exclude={"axes", "points"})))
    if field not in known:
        raise TunemarkError(option, name, f"not a setting of {card.key}; {similar_settings(name, [*known, *ALIASES])}")
    return field


def axis_of(text: str, card: WorkloadCard) -> Axis:
    """Return field and values of `--over field=v1,v2`; for `--over field`, the values of the card's own axis."""
    name, equals, listed = text.partition("=")
    field = field_named(name, "--over", card)
    own = tuple(dict.fromkeys(written(value) for axis in card.axes if axis.field == field for value in axis.values))
    values = tuple(value.strip() for value in listed.split(",") if value.strip()) if equals else own
    if not values:
        raise TunemarkError("--over", text, "give a setting and its values, such as batch_size=8,16,32")
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise TunemarkError("--over", text, f"{', '.join(repeated)} is given twice; name each value once, and repeat with --repeats")
    return field, values


def star_of_card(card: WorkloadCard) -> list[Point]:
    """Return the points that the card lists: the card itself, each value of its axes with the rest unchanged, and its points.

    Axes are varied one at a time, as their source did; all combinations would be thousands.
    """
    along = [{**axis.at, axis.field: value} for axis in card.axes for value in axis.values]
    return [Point(tuple((field, written(value)) for field, value in settings.items())) for settings in ({}, *along, *card.points)]


def written(value: object) -> str:
    """Return a value as it is written in `--set`."""
    return value if isinstance(value, str) else json.dumps(value)


def grid(axes: Sequence[Axis]) -> list[Point]:
    """Return every combination of the axes' values, the last axis varying fastest."""
    fields = [field for field, _ in axes]
    for field in fields:
        if fields.count(field) > 1:
            raise TunemarkError("--over", field, "is given twice; give all of its values in one --over")
    return [Point(tuple(zip(fields, values, strict=True))) for values in product(*(values for _, values in axes))]


def settings_of(text: str, option: str, card: WorkloadCard) -> Point:
    """Return the point of `field=value,field=value`. Raises TunemarkError for a setting without a value."""
    settings = []
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise TunemarkError(option, text, "give field=value, separated by commas, such as compile=blocks,lr=1e-3")
        settings.append((field_named(name, option, card), value.strip()))
    return Point(tuple(settings))


def card_with(card: WorkloadCard, options: Options) -> WorkloadCard:
    """Return the card as `--set` changes it for the whole series."""
    return apply_overrides(card, options.overrides)[0]
