"""`--set field=value` on a workload card: typed by the card itself, and declared in the submission."""

import json
from typing import Any

from pydantic import ValidationError

from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.plan import LoraSettings, Quantisation
from tunemark.schema.records.submission import Override

ALIASES = {
    "batch_size": "batch.micro_batch",
    "micro_batch": "batch.micro_batch",
    "batch": "batch.micro_batch",
    "gradient_accumulation": "batch.gradient_accumulation",
    "accumulation": "batch.gradient_accumulation",
    "length": "data.sequence_length",
    "max_length": "data.sequence_length",
    "seq": "data.sequence_length",
    "seq_len": "data.sequence_length",
    "sequence_length": "data.sequence_length",
    "packing": "data.packing",
    "padding": "data.padding",
    "learning_rate": "optimizer.learning_rate",
    "lr": "optimizer.learning_rate",
    "optim": "optimizer.name",
    "optimizer": "optimizer.name",
    "layer_decay": "optimizer.layer_decay",
    "rank": "lora.rank",
    "lora_rank": "lora.rank",
    "lora_alpha": "lora.alpha",
    "checkpointing": "gradient_checkpointing",
    "precision": "compute",
    "devices": "devices.count",
    "strategy": "devices.strategy",
    "offload": "devices.offload",
}
"""What people call a setting, and where it is in the workload card."""

IDENTITY = ("key", "title", "description", "source", "tier", "not_stated", "axes", "points")


def apply_overrides(card: WorkloadCard, assignments: tuple[str, ...]) -> tuple[WorkloadCard, tuple[Override, ...]]:
    """Return the changed card and what was changed; the card's own value, or one that its source has too, is no override."""
    content = card.model_dump(mode="json")
    changed = []
    for assignment in assignments:
        field, equals, text = assignment.partition("=")
        if not equals:
            raise TunemarkError("--set", assignment, "give field=value, such as batch.micro_batch=16")
        field = _named(content, field)
        place, last = _place(content, field)
        before = place[last]
        place[last] = _value(text, listed=isinstance(before, list))
        if field == "method":
            _follow_method(content)
        if place[last] != before and place[last] not in card.own_values(field):
            changed.append((field, before, place[last]))
    try:
        result = WorkloadCard.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        # A rule over several settings has no place of its own: what was set is named then.
        field = ".".join(str(part) for part in first["loc"]) or ", ".join(name for name, _, _ in changed)
        value = first.get("input") if first["loc"] else ", ".join(json.dumps(after) for _, _, after in changed)
        raise TunemarkError(f"--set {field}", value, first["msg"].removeprefix("Value error, ")) from error
    return result, tuple(Override(field=field, card=_scalar(before), run=_scalar(after)) for field, before, after in changed)


def _follow_method(content: dict[str, Any]) -> None:
    """Give a changed method the settings that go with it: the default ones where the card has none."""
    adapted, quantised = content["method"] in {"lora", "qlora"}, content["method"] == "qlora"
    content["lora"] = (content["lora"] or LoraSettings().model_dump(mode="json")) if adapted else None
    content["quantisation"] = (content["quantisation"] or Quantisation().model_dump(mode="json")) if quantised else None


def _named(content: dict[str, Any], name: str) -> str:
    """Return the field of a name: its own, or what people call it; devices are chosen with options of their own."""
    known = ALIASES.get(name, name)
    return name if name in _settings(content) or known.startswith("devices.") else known


def _place(content: dict[str, Any], field: str) -> tuple[dict[str, Any], str]:
    *path, last = field.split(".")
    place: Any = content
    for part in path:
        place = place.get(part) if isinstance(place, dict) else None
    if not isinstance(place, dict) or last not in place or field in IDENTITY:
        raise TunemarkError("--set", field, f"not a setting of the workload card; {did_you_mean(field, _settings(content))}")
    return place, last


def _settings(content: dict[str, Any], prefix: str = "") -> list[str]:
    names = []
    for key, value in content.items():
        if isinstance(value, dict):
            names.extend(_settings(value, f"{prefix}{key}."))
        elif f"{prefix}{key}" not in IDENTITY:
            names.append(f"{prefix}{key}")
    return names


def _value(text: str, *, listed: bool) -> Any:  # noqa: ANN401 - any JSON value
    """Return a value as JSON, or the text itself; where a list is asked for, the words between commas."""
    try:
        return json.loads(text)
    except ValueError:
        return [part.strip() for part in text.split(",")] if listed else text


def _scalar(value: Any) -> str | float | int | bool | None:  # noqa: ANN401 - any JSON value
    return value if isinstance(value, str | float | int | bool) or value is None else json.dumps(value)
