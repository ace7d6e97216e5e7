"""Whether a record agrees with the fact base: its cards exist, and a standard run is what its card says."""

from collections.abc import Iterator, Mapping

from tunemark.schema.cards import WorkloadCard
from tunemark.schema.converted import ConvertedResult
from tunemark.schema.errors import did_you_mean
from tunemark.schema.facts import FactBase
from tunemark.schema.history import Problem
from tunemark.schema.plan import Plan
from tunemark.schema.published import PublishedResult
from tunemark.schema.submission import Submission
from tunemark.schema.vocabulary import Division


def submission_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each card that does not exist and each setting that silently differs from the workload card."""
    plan = submission.plan
    yield from _unknown("plan.workload", plan.workload, facts.workloads, "workloads")
    yield from _unknown("plan.model.key", plan.model.key, facts.models, "models")
    yield from _unknown("plan.device.accelerator", plan.device.accelerator, facts.accelerators, "accelerators")
    card = facts.workloads.get(plan.workload)
    # A card that has changed since is another workload: nothing can be said about this run from it.
    if card is not None and submission.division is Division.STANDARD and plan.workload_sha256 == facts.workload_sha256(card.key):
        yield from _card_problems(plan, card)


def published_problems(result: PublishedResult | ConvertedResult, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each card that a published or converted result names and that does not exist."""
    yield from _unknown("conditions.model", result.conditions.model, facts.models, "models")
    yield from _unknown("conditions.accelerator", result.conditions.accelerator, facts.accelerators, "accelerators")


def _unknown(field: str, key: str | None, cards: Mapping[str, object], folder: str) -> Iterator[Problem]:
    if key is not None and key not in cards:
        yield Problem(field, repr(key), f"no such card in data/{folder}; {did_you_mean(key, cards)}")


def _card_problems(plan: Plan, card: WorkloadCard) -> Iterator[Problem]:
    pairs: dict[str, tuple[object, object]] = {
        "method": (plan.method.value, card.method.value),
        "lora": (plan.lora, card.lora),
        "model.key": (plan.model.key, card.model),
        "model.task": (plan.model.task.value, card.task.value),
        "model.weights": (plan.model.weights.value, card.weights.value),
        "model.gradient_checkpointing": (plan.model.gradient_checkpointing.value, card.gradient_checkpointing.value),
        "data.source": (plan.data.source.value, card.data.source.value),
        "data.name": (plan.data.name, card.data.name),
        "data.sequence_length": (plan.data.sequence_length, card.data.sequence_length),
        "data.padding": (plan.data.padding.value, card.data.padding.value),
        "data.packing": (plan.data.packing, card.data.packing),
        "batch.micro_batch": (plan.batch.micro_batch, card.batch.micro_batch),
        "batch.gradient_accumulation": (plan.batch.gradient_accumulation, card.batch.gradient_accumulation),
        "optimizer.name": (plan.optimizer.name, card.optimizer.name),
        "optimizer.learning_rate": (plan.optimizer.learning_rate, card.optimizer.learning_rate),
        "precision.compute": (plan.precision.compute.value, plan.precision.compute.value if card.compute == "auto" else card.compute),
    }
    for field, (run, said) in pairs.items():
        if run != said:
            fix = f"the card {card.key} says {said!r}; a run of division 'standard' follows its card, a changed one is 'open' and lists its overrides"
            yield Problem(f"plan.{field}", repr(run), fix)
