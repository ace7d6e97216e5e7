"""Checks of a record against the cards of data/: its cards exist, and its device and settings match them."""

from collections.abc import Iterator, Mapping

from tunemark.collector.gate.claim_checks import override_problems
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import SharedSetting, WorkloadCard, shared_settings
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import Backend, Division, Weights


def submission_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each unknown card, each wrong device, and each undeclared difference from the workload card."""
    plan = submission.plan
    yield from _unknown("plan.workload", plan.workload, facts.workloads, "workloads")
    yield from _unknown("plan.model.key", plan.model.key, facts.models, "models")
    yield from _unknown("plan.device.accelerator", plan.device.accelerator, facts.accelerators, "accelerators")
    planned, reported = plan.device.backend, submission.environment.backend
    if planned is not reported:
        fix = f"plan.device.backend is {planned.value!r}; a run must use the devices that it was planned for"
        yield Problem("environment.backend", repr(reported.value), fix)
    if Backend.FAKE in {planned, reported}:
        yield Problem("plan.device.backend", repr(planned.value), "a scripted device measures nothing; run it on a real one")
    yield from _accelerator(submission, facts)
    if ran_current_card(submission, facts):
        yield from card_problems(submission, facts.workloads[plan.workload], facts)
        yield from override_problems(submission, facts.workloads[plan.workload])


def outdated(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each fact that has changed since the run. It is a reason to reject only new submissions."""
    plan = submission.plan
    # In every division: without its card, nothing that a run declares could be compared.
    if plan.workload in facts.workloads and not ran_current_card(submission, facts):
        fix = f"is not the card {plan.workload} of this catalogue, which may have changed since the run; run it again"
        yield Problem("plan.workload_sha256", repr(plan.workload_sha256), fix)
    known = facts.recognise_device(submission.environment.devices[0].name, submission.environment.backend)
    if plan.device.accelerator is None and known is not None:
        yield Problem(
            "plan.device.accelerator", "null", f"the catalogue now has the device as {known.key}; run it again with this catalogue"
        )


def ran_current_card(submission: Submission, facts: FactBase) -> bool:
    """Return True if the workload card has not changed since the run; a changed card is another workload."""
    plan = submission.plan
    return plan.workload in facts.workloads and plan.workload_sha256 == facts.workload_sha256(plan.workload)


def _unknown(field: str, key: str | None, cards: Mapping[str, object], folder: str) -> Iterator[Problem]:
    if key is not None and key not in cards:
        yield Problem(field, repr(key), f"no such card in data/{folder}; {did_you_mean(key, cards)}")


def _accelerator(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each device that reports the name of another card than the planned one."""
    key = submission.plan.device.accelerator
    if key not in facts.accelerators:
        return
    for name in dict.fromkeys(device.name for device in submission.environment.devices):
        card = facts.recognise_device(name, submission.environment.backend)
        if card is None or card.key != key:
            owner = "a device without a card" if card is None else f"the device of {card.key}"
            fix = f"environment.devices reports {name!r}, {owner}; use the card that has this alias, or null if there is none"
            yield Problem("plan.device.accelerator", repr(key), fix)


def card_problems(submission: Submission, card: WorkloadCard, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each setting that differs from the card without a declared override."""
    plan, declared = submission.plan, {override.field for override in submission.overrides}
    settings = list(shared_settings(plan, card))
    if plan.model.weights is Weights.PRETRAINED and card.model in facts.models:
        # The model card names the repository of pretrained weights.
        settings.append(SharedSetting("weights.from", "model.hub_id", facts.models[card.model].hub_id, plan.model.hub_id))
    for setting in settings:
        # An override names the setting, its section, or the method that the section belongs to.
        section = setting.field.partition(".")[0]
        covering = {setting.field, section, *(("method",) if section in {"lora", "quantisation"} else ())}
        if setting.run in (setting.card, *card.own_values(setting.field)) or covering & declared:
            continue
        if submission.division is Division.STANDARD:
            fix = "a run in division 'standard' must follow its card; use 'open' and list the overrides"
        else:
            fix = f"a run in division 'open' must list its changes; add {setting.field} to the overrides"
        yield Problem(f"plan.{setting.place}", repr(setting.run), f"the card {card.key} has {setting.card!r}; {fix}")
