"""`--set field=value` on a workload card: typed by the card itself, and declared in the submission."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from tunemark.harness.plan import capabilities
from tunemark.harness.plan.capabilities import generation_of, unsupported_reason
from tunemark.harness.plan.machine import Machine
from tunemark.harness.plan.sections import (
    Options,
    Reasons,
    batch_choice,
    data_choice,
    device_choice,
    lora_choice,
    measurement_choice,
    model_choice,
    precision_choice,
    weights_choice,
)
from tunemark.harness.run.process import Node
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.plan import Attention, LoraSettings, Plan, Quantisation
from tunemark.schema.records.submission import Override
from tunemark.schema.vocabulary import Backend, Weights

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


# MOVE: was tunemark.harness.plan.resolve: Workload card + options + machine -> plan. A pure function: no network, no torch, the same plan each time.

__all__ = ["Options", "Resolved", "refuse_unsupported", "resolve", "unsupported_reason"]


LEARNED_POSITIONS = ("bert", "gpt2")
"""Families with a table of positions, which ends."""
WITH_LIGER = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "phi3")
"""Families that Liger has kernels for; it leaves another model as it is and says nothing."""
WITHOUT_ATTENTION: dict[tuple[str, Attention], str] = {
    (
        "gemma2",
        "sdpa",
    ): "it caps its attention scores, which torch's kernel cannot, and transformers refuses to load it so; use attention=eager",
}
"""Family and attention kernel that transformers does not load together, with the reason."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A plan with what the worker needs beside it and a submission must not hold: paths of this machine."""

    plan: Plan
    overrides: tuple[Override, ...]
    weights_from: str | None
    """Hub id or directory of pretrained weights."""
    data_from: str | None
    """Hub id or path of the samples."""
    unsupported: str | None
    """Why this machine cannot do it, decided before any time is spent."""
    node: Node = field(default_factory=Node)
    """This machine among several."""
    limit_memory_bytes: int | None = None
    """Memory of the host that each process of the worker may take; None leaves it all of it."""


def resolve(name: str, facts: FactBase, machine: Machine, options: Options) -> Resolved:
    """Resolve a workload on a machine.

    Raises
    ------
    TunemarkError
        For an unknown workload, model, field or value, with a suggestion.

    """
    card, changed = apply_overrides(facts.workload(name), options.overrides)
    reasons = Reasons()
    accelerator = facts.recognise_accelerator(machine.devices[0].name)
    generation = generation_of(machine.backend, machine.target, accelerator.architecture if accelerator else None)
    weights, weights_from = weights_choice(card, facts, options)
    data, data_from = data_choice(card, machine, options, reasons)
    device = device_choice(card, machine, accelerator, options, reasons)
    plan = Plan(
        workload=card.key,
        workload_sha256=facts.workload_sha256(card.key),
        method=card.method,
        lora=lora_choice(card, facts, reasons),
        quantisation=card.quantisation,
        neuron=card.neuron if device.backend is Backend.NEURON else None,
        model=model_choice(card, facts, weights, weights_from),
        data=data,
        batch=batch_choice(card, device, reasons),
        optimizer=card.optimizer,
        precision=precision_choice(card, machine, generation, reasons),
        device=device,
        measurement=measurement_choice(card, options, reasons),
        reasons=reasons,
    )
    overrides = (*_with_targets(changed, card, plan), *_source_overrides(card, plan, facts))
    unsupported = unsupported_reason(plan, machine, generation) or _of_model(plan, facts)
    return Resolved(plan, overrides, weights_from, data_from, unsupported, options.node)


def _of_model(plan: Plan, facts: FactBase) -> str | None:
    """Return why a model cannot be trained this way, or None."""
    card = facts.model(plan.model.key)
    # A model that turns its positions can read longer rows than it was made for.
    if card.family in LEARNED_POSITIONS and plan.data.sequence_length > card.context_length:
        return f"{card.key} has positions for {card.context_length} tokens, data.sequence_length is {plan.data.sequence_length}"
    without = WITHOUT_ATTENTION.get((card.family, plan.model.attention))
    if without is not None:
        return f"{card.key} with attention={plan.model.attention}: {without}"
    if plan.device.backend is Backend.NEURON:
        return capabilities.family_reason(plan, card.family)
    if plan.model.fused_kernels == "liger" and card.family not in WITH_LIGER:
        return f"Liger has kernels for {', '.join(WITH_LIGER)}, not for {card.family}; use fused_kernels=none"
    return None


def _with_targets(changed: tuple[Override, ...], card: WorkloadCard, plan: Plan) -> tuple[Override, ...]:
    """Return what was changed, with the layers that get adapters by the names that the model has."""
    if card.lora is None or plan.lora is None or plan.lora.target_modules == card.lora.target_modules:
        return changed
    field = "lora.target_modules"
    before = next((one.card for one in changed if one.field == field), json.dumps(card.lora.target_modules))
    others = (one for one in changed if one.field != field)
    return (*others, Override(field=field, card=before, run=json.dumps(plan.lora.target_modules)))


def _source_overrides(card: WorkloadCard, plan: Plan, facts: FactBase) -> tuple[Override, ...]:
    """Return what `--weights` and `--data` changed against the card: they change the work, so they are declared.

    A seed, a number of steps and a time limit are no overrides: they say how long and on which draw the same work is done.
    """
    pairs: list[tuple[str, str | int, str | int]] = [
        ("weights", card.weights.value, plan.model.weights.value),
        ("data.source", card.data.source.value, plan.data.source.value),
        ("data.name", card.data.name, plan.data.name),
        ("data.padding", card.data.padding.value, plan.data.padding.value),
        ("data.document_borders", card.data.document_borders, plan.data.document_borders),
        *_sharing(card, plan),
    ]
    if plan.model.weights is Weights.PRETRAINED:
        pairs.append(("weights.from", facts.model(card.model).hub_id or "none", plan.model.hub_id or "a local directory"))
    return tuple(
        Override(field=field, card=before, run=after) for field, before, after in pairs if after not in (before, *card.own_values(field))
    )


def _sharing(card: WorkloadCard, plan: Plan) -> Iterator[tuple[str, str | int, str | int]]:
    """Yield what is shared otherwise than the card says. A card for one device is run on several as it is: each gets its batch."""
    pairs: list[tuple[str, str | int, str | int]] = [("devices.offload", card.devices.offload, plan.device.offload)]
    if card.devices.count > 1:
        pairs.append(("devices.count", card.devices.count, plan.device.count))
    if card.devices.strategy != "auto":
        pairs.append(("devices.strategy", card.devices.strategy.value, plan.device.strategy.value))
    yield from ((field, said, run) for field, said, run in pairs if run not in (said, *card.own_values(field)))


def refuse_unsupported(resolved: Resolved) -> None:
    """Raise TunemarkError with exit code 4 when the machine cannot do it."""
    if resolved.unsupported:
        raise TunemarkError("workload", resolved.plan.workload, resolved.unsupported, exit_code=Exit.UNSUPPORTED)
