"""Turn a workload card, options and a machine into a plan. A pure function: no network, no torch, the same plan each time."""

import json
from dataclasses import dataclass, field

from tunemark.harness.plan.capabilities import generation_of, unsupported_reason
from tunemark.harness.plan.machine import Machine
from tunemark.harness.plan.options import Options
from tunemark.harness.plan.overrides import apply_overrides
from tunemark.harness.plan.sections import (
    Node,
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
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard, shared_settings
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import Override
from tunemark.schema.vocabulary import Backend, Weights

__all__ = ["Options", "Resolved", "refuse_unsupported", "resolve"]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A plan with facts that the worker needs and a submission must not hold, such as paths of this machine."""

    plan: Plan
    overrides: tuple[Override, ...]
    weights_from: str | None
    """Hub id or directory of pretrained weights."""
    data_from: str | None
    """Hub id or path of the samples."""
    unsupported: str | None
    """Why this machine cannot run it, decided before any time is spent."""
    node: Node = field(default_factory=Node)
    """This machine among several."""
    limit_memory_bytes: int | None = None
    """Host memory that each worker process may use; None for all of it."""


def resolve(name: str, facts: FactBase, machine: Machine, options: Options) -> Resolved:
    """Return the plan of a workload on a machine. Raises TunemarkError, with a suggestion, for an unknown name or value."""
    card, changes = apply_overrides(facts.workload(name), options.overrides)
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
    overrides = (*changes, *_option_overrides(card, plan, facts))
    if plan.lora and card.lora and plan.lora.target_modules != card.lora.target_modules:
        # Adapter layers are declared by the names that the model has.
        name = "lora.target_modules"
        before = next((change.card for change in changes if change.field == name), json.dumps(card.lora.target_modules))
        renamed = Override(field=name, card=before, run=json.dumps(plan.lora.target_modules))
        overrides = (*(override for override in overrides if override.field != name), renamed)
    unsupported = unsupported_reason(plan, facts.model(plan.model.key), machine, generation)
    return Resolved(plan, overrides, weights_from, data_from, unsupported, Node(options.node_rank, options.rendezvous))


SET_BY_OPTIONS = frozenset(
    {"weights", "data.source", "data.name", "data.padding", "data.document_borders", "devices.count", "devices.strategy", "devices.offload"}
)
"""Settings of a card that options can change without `--set`."""


def _option_overrides(card: WorkloadCard, plan: Plan, facts: FactBase) -> tuple[Override, ...]:
    """Return the differences from the card that options such as `--weights`, `--data` and `--strategy` cause.

    A seed, a number of steps and a time limit are not overrides: they only set how long the same work runs, and on which
    draw. A card for one device may run on several: each device gets the card's batch.
    """
    changed = [(setting.field, setting.card, setting.run) for setting in shared_settings(plan, card) if setting.field in SET_BY_OPTIONS]
    if plan.model.weights is Weights.PRETRAINED:
        changed.append(("weights.from", facts.model(card.model).hub_id or "none", plan.model.hub_id or "a local directory"))
    return tuple(
        Override(field=field, card=before, run=after) for field, before, after in changed if after not in (before, *card.own_values(field))
    )


def refuse_unsupported(resolved: Resolved) -> None:
    """Raise TunemarkError with exit code 4 when the machine cannot run the plan."""
    if resolved.unsupported:
        raise TunemarkError("workload", resolved.plan.workload, resolved.unsupported, exit_code=Exit.UNSUPPORTED)
