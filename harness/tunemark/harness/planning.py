"""Workload card + options + machine -> plan. A pure function: no network, no torch, the same plan each time."""

from dataclasses import dataclass

from tunemark.harness.choices import (
    Options,
    Reasons,
    batch_choice,
    data_choice,
    device_choice,
    measurement_choice,
    model_choice,
    precision_choice,
    weights_choice,
)
from tunemark.harness.machine import Machine
from tunemark.harness.overrides import apply_overrides
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts import FactBase
from tunemark.schema.plan import Plan
from tunemark.schema.submission import Override
from tunemark.schema.vocabulary import Backend, Checkpointing, Method, Weights
from tunemark.schema.workload_cards import WorkloadCard

__all__ = ["Options", "Resolved", "refuse_unsupported", "resolve", "unsupported_reason"]

TORCH_BACKENDS = (Backend.CPU, Backend.CUDA, Backend.MPS, Backend.FAKE)


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


def resolve(name: str, facts: FactBase, machine: Machine, options: Options) -> Resolved:
    """Resolve a workload on a machine.

    Raises
    ------
    TunemarkError
        For an unknown workload, model, field or value, with a suggestion.

    """
    card, changed = apply_overrides(facts.workload(name), options.overrides)
    reasons = Reasons()
    weights, weights_from = weights_choice(card, facts, options)
    data, data_from = data_choice(card, options, reasons)
    device = device_choice(machine, facts, reasons)
    plan = Plan(
        workload=card.key,
        workload_sha256=facts.workload_sha256(card.key),
        method=card.method,
        lora=card.lora,
        model=model_choice(card, facts, weights, weights_from),
        data=data,
        batch=batch_choice(card, device, reasons),
        optimizer=card.optimizer,
        precision=precision_choice(card, machine, reasons),
        device=device,
        measurement=measurement_choice(card, options, reasons),
        reasons=reasons,
    )
    overrides = (*changed, *_source_overrides(card, plan, facts))
    return Resolved(plan, overrides, weights_from, data_from, unsupported_reason(plan, machine))


def unsupported_reason(plan: Plan, machine: Machine) -> str | None:
    """Return why a plan cannot be run on this machine, or None."""
    if plan.device.backend not in TORCH_BACKENDS:
        return f"no backend for {plan.device.backend.value} devices in this version; available are {', '.join(b.value for b in TORCH_BACKENDS)}"
    if plan.method is Method.QLORA:
        return "QLoRA is not in this version of the harness; use method lora"
    if plan.optimizer.name != "adamw":
        return f"optimizer {plan.optimizer.name} is not in this version of the harness; use optimizer.name=adamw"
    if plan.data.packing:
        return "packing of documents is not in this version of the harness; use data.packing=false"
    if plan.model.gradient_checkpointing is Checkpointing.SELECTIVE:
        return "selective checkpointing is not in this version of the harness; use gradient_checkpointing=full or none"
    if plan.precision.compute not in machine.compute_dtypes:
        return f"compute format {plan.precision.compute.value} is not one of {', '.join(d.value for d in machine.compute_dtypes)} that this device has"
    return None


def _source_overrides(card: WorkloadCard, plan: Plan, facts: FactBase) -> tuple[Override, ...]:
    """Return what `--weights` and `--data` changed against the card: they change the work, so they are declared.

    A seed, a number of steps and a time limit are no overrides: they say how long and on which draw the same work is done.
    """
    pairs = [
        ("weights", card.weights.value, plan.model.weights.value),
        ("data.source", card.data.source.value, plan.data.source.value),
        ("data.name", card.data.name, plan.data.name),
    ]
    if plan.model.weights is Weights.PRETRAINED:
        pairs.append(("weights.from", facts.model(card.model).hub_id or "none", plan.model.hub_id or "a local directory"))
    return tuple(Override(field=field, card=before, run=after) for field, before, after in pairs if before != after)


def refuse_unsupported(resolved: Resolved) -> None:
    """Raise TunemarkError with exit code 4 when the machine cannot do it."""
    if resolved.unsupported:
        raise TunemarkError("workload", resolved.plan.workload, resolved.unsupported, exit_code=Exit.UNSUPPORTED)
