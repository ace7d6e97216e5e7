"""Apply `--set` to a workload card. The card validates the value, and the submission declares the change."""

import json
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from tunemark.schema.errors import TunemarkError, did_you_mean, must_be
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.base import flattened
from tunemark.schema.records.division import Override
from tunemark.schema.records.plan import LoraSettings, Quantisation

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
    "sharding": "devices.strategy",
    "offload": "devices.offload",
}
"""Common name of a setting -> its field in the workload card."""
IDENTITY = ("key", "title", "description", "source", "tier", "not_stated", "axes", "points")
"""Fields of the card that describe it and are not settings."""


def apply_overrides(card: WorkloadCard, assignments: tuple[str, ...]) -> tuple[WorkloadCard, tuple[Override, ...]]:
    """Return the changed card and the overrides. A value that the card or its source has is not an override.

    Of several values for one setting, the last counts.
    """
    content = card.model_dump(mode="json")
    changes: dict[str, Override] = {}
    of_card: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise TunemarkError("--set", assignment, "give field=value, such as batch.micro_batch=16")
        alias = ALIASES.get(name, name)
        # Devices are chosen with options of their own, so those aliases are only for messages and series.
        if name not in _settings(content) and not alias.startswith("devices."):
            name = alias
        parent, last = _parent(content, name)
        before = of_card.setdefault(name, parent[last])
        try:
            parent[last] = json.loads(text)
        except ValueError:
            parent[last] = [part.strip() for part in text.split(",")] if isinstance(before, list) else text
        if name == "method":
            # A changed method gets its settings: the card's, or the defaults if the card has none.
            adapted, quantised = content["method"] in {"lora", "qlora"}, content["method"] == "qlora"
            content["lora"] = (content["lora"] or LoraSettings().model_dump(mode="json")) if adapted else None
            content["quantisation"] = (content["quantisation"] or Quantisation().model_dump(mode="json")) if quantised else None
        changes.pop(name, None)
        if parent[last] != before and parent[last] not in card.own_values(name):
            changes[name] = Override(field=name, card=_scalar(before), run=_scalar(parent[last]))
    overrides = tuple(changes.values())
    try:
        return WorkloadCard.model_validate(content), overrides
    except ValidationError as error:
        problem = error.errors()[0]
        place, fix = ".".join(map(str, problem["loc"])), must_be(problem["msg"])
        if place:
            raise TunemarkError(f"--set {place}", problem.get("input"), fix) from error
        # A rule over several settings names no field, so the message lists those that were set.
        values = ", ".join(json.dumps(override.run) for override in overrides)
        raise TunemarkError(f"--set {', '.join(override.field for override in overrides)}", values, fix) from error


def similar_settings(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the settings most similar to a name, and where to see all."""
    similar = did_you_mean(name, known)
    return f"{similar}{'' if similar.endswith('?') else ';'} `tunemark workloads --json` shows each card with its settings"


def _settings(content: dict[str, Any]) -> list[str]:
    return [path for path, _ in flattened(content) if path.split(".")[0] not in IDENTITY]


def _parent(content: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    """Return the dictionary that holds a field, and the field's key in it."""
    *path, last = name.split(".")
    parent: Any = content
    for part in path:
        parent = parent.get(part) if isinstance(parent, dict) else None
    if not isinstance(parent, dict) or last not in parent or name in IDENTITY:
        raise TunemarkError("--set", name, f"not a setting of the workload card; {similar_settings(name, _settings(content))}")
    return parent, last


def _scalar(value: Any) -> str | float | int | bool | None:  # noqa: ANN401 - any JSON value
    return value if isinstance(value, str | float | int | bool) or value is None else json.dumps(value)
