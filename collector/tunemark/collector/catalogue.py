"""Whether a record agrees with the fact base: its cards exist, its device is the one it reports, and its card is the one it ran."""

from collections.abc import Iterator, Mapping

from tunemark.collector.card_settings import card_problems
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import Backend, Division


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
