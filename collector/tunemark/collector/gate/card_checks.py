"""Whether a run is what its workload card says: every setting that card and plan both hold, compared one by one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import WorkloadCard
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import Backend, Division, Weights


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that the card gives and the plan holds."""

    field: str
    """Dotted path in the card, as overrides name it."""
    place: str
    """Dotted path in the plan."""
    said: object
    """What the card says."""
    run: object
    """What was run."""


def settings(plan: Plan, card: WorkloadCard) -> Iterator[Setting]:
    """Yield every setting of a card that a plan holds, as JSON values. Seed and stop are none: they change no rate."""
    yield Setting("method", "method", card.method.value, plan.method.value)
    yield from _section("lora", card.lora, plan.lora)
    yield Setting("model", "model.key", card.model, plan.model.key)
    yield Setting("task", "model.task", card.task.value, plan.model.task.value)
    yield Setting("labels", "model.labels", card.labels, plan.model.labels)
    yield Setting("weights", "model.weights", card.weights.value, plan.model.weights.value)
    checkpointing = card.gradient_checkpointing.value, plan.model.gradient_checkpointing.value
    yield Setting("gradient_checkpointing", "model.gradient_checkpointing", *checkpointing)
    for lever in ("attention", "fused_kernels", "compile"):
        yield Setting(lever, f"model.{lever}", getattr(card, lever), getattr(plan.model, lever))
    yield from _section("quantisation", card.quantisation, plan.quantisation)
    yield from _section("data", card.data, plan.data)
    yield from _section("batch", card.batch, plan.batch)
    yield from _section("optimizer", card.optimizer, plan.optimizer)
    if card.devices.count > 1:
        yield Setting("devices.count", "device.count", card.devices.count, plan.device.count)
    if card.devices.strategy != "auto":
        yield Setting("devices.strategy", "device.strategy", card.devices.strategy.value, plan.device.strategy.value)
    yield Setting("devices.offload", "device.offload", card.devices.offload, plan.device.offload)
    if card.compute != "auto":
        yield Setting("compute", "precision.compute", card.compute, plan.precision.compute.value)


def card_problems(submission: Submission, card: WorkloadCard, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each setting that differs from the card and is not declared."""
    declared = {override.field for override in submission.overrides}
    for setting in (*settings(submission.plan, card), *_weights_from(submission.plan, card, facts)):
        if setting.run not in (setting.said, *card.own_values(setting.field)) and not _covers(declared, setting.field):
            yield Problem(
                f"plan.{setting.place}", repr(setting.run), f"the card {card.key} says {setting.said!r}; {_fix(submission, setting)}"
            )


def _weights_from(plan: Plan, card: WorkloadCard, facts: FactBase) -> Iterator[Setting]:
    """Yield where pretrained weights came from: those of a card are the ones its model card names."""
    if plan.model.weights is Weights.PRETRAINED and card.model in facts.models:
        yield Setting("weights.from", "model.hub_id", facts.models[card.model].hub_id, plan.model.hub_id)


def _fix(submission: Submission, setting: Setting) -> str:
    if submission.division is Division.STANDARD:
        return "a run of division 'standard' follows its card, a changed one is 'open' and lists its overrides"
    return f"a run of division 'open' lists what it changed, and {setting.field} is not among its overrides"


def _section(name: str, said: BaseModel | None, run: BaseModel | None) -> Iterator[Setting]:
    """Yield each setting of a section of the card; the section itself where one side has none."""
    if said is None and run is None:
        return
    if said is None or run is None:
        yield Setting(name, name, said and said.model_dump(mode="json"), run and run.model_dump(mode="json"))
        return
    ran = run.model_dump(mode="json")
    for field, value in said.model_dump(mode="json").items():
        yield Setting(f"{name}.{field}", f"{name}.{field}", value, ran[field])


def _covers(declared: set[str], field: str) -> bool:
    """Return whether an override names the setting, the section that it is in, or the method that such a section goes with."""
    section = field.partition(".")[0]
    return field in declared or section in declared or ("method" in declared and section in {"lora", "quantisation"})


# MOVE: was tunemark.collector.gate.card_checks: Whether a record agrees with the fact base: its cards exist, its device is the one it reports, and its card is the one it ran.


def submission_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each card that does not exist, each false device, and each setting that silently differs from the workload card."""
    plan = submission.plan
    yield from _unknown("plan.workload", plan.workload, facts.workloads, "workloads")
    yield from _unknown("plan.model.key", plan.model.key, facts.models, "models")
    yield from _unknown("plan.device.accelerator", plan.device.accelerator, facts.accelerators, "accelerators")
    yield from _backend(submission)
    yield from _accelerator(submission, facts)
    if ran_the_current_card(submission, facts):
        yield from card_problems(submission, facts.workloads[plan.workload], facts)


def outdated(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield what was right when it was measured, if the facts have changed since: of a new submission these are problems."""
    plan = submission.plan
    if plan.workload in facts.workloads and submission.division is Division.STANDARD and not ran_the_current_card(submission, facts):
        fix = f"the card {plan.workload} has changed since this run; run it again, or mark it 'open' with its overrides"
        yield Problem("plan.workload_sha256", repr(plan.workload_sha256), fix)
    known = facts.recognise_accelerator(submission.environment.devices[0].name)
    if plan.device.accelerator is None and known is not None:
        yield Problem("plan.device.accelerator", "null", f"the device is in the catalogue as {known.key}; run it again with this catalogue")


def ran_the_current_card(submission: Submission, facts: FactBase) -> bool:
    """Return whether the run is of the workload card as it is now; a card that has changed since is another workload."""
    plan = submission.plan
    return plan.workload in facts.workloads and plan.workload_sha256 == facts.workload_sha256(plan.workload)


def published_problems(result: PublishedResult | ConvertedResult, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each card that a published or converted result names and that does not exist."""
    yield from _unknown("conditions.model", result.conditions.model, facts.models, "models")
    yield from _unknown("conditions.accelerator", result.conditions.accelerator, facts.accelerators, "accelerators")


def _unknown(field: str, key: str | None, cards: Mapping[str, object], folder: str) -> Iterator[Problem]:
    if key is not None and key not in cards:
        yield Problem(field, repr(key), f"no such card in data/{folder}; {did_you_mean(key, cards)}")


def _backend(submission: Submission) -> Iterator[Problem]:
    planned, found = submission.plan.device.backend, submission.environment.backend
    if planned is not found:
        yield Problem(
            "environment.backend",
            repr(found.value),
            f"plan.device.backend is {planned.value!r}; a run is on the devices it was planned for",
        )
    if Backend.FAKE in {planned, found}:
        yield Problem("plan.device.backend", repr(planned.value), "a scripted device measures nothing; run it on a real one")


def _accelerator(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each device that reports another name than those of the card the plan names."""
    key = submission.plan.device.accelerator
    if key not in facts.accelerators:
        return
    for name in dict.fromkeys(device.name for device in submission.environment.devices):
        card = facts.recognise_accelerator(name)
        if card is None or card.key != key:
            shown = "a device of no card" if card is None else f"the device of {card.key}"
            fix = f"environment.devices reports {name!r}, {shown}; name the card whose alias it is, null when there is none"
            yield Problem("plan.device.accelerator", repr(key), fix)
