"""The Python API: `import tunemark`. Read, check and derive results, and ask what the command line answers.

Paths are files or folders. Facts and results are those of the checkout around the current folder; elsewhere the facts are those of
the installed package. Errors that a user can fix are `tunemark.schema.errors.TunemarkError`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tunemark.collector.commands.options import read_number, row_length, software_of
from tunemark.collector.gate.check import Validation, validate_all
from tunemark.collector.gate.read import SUBMISSIONS, find_records, read_valid, records_in
from tunemark.collector.predict.estimate import Estimate, estimates, read_evidence
from tunemark.schema.derive import derive
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.any_model import any_model
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.option_rates import rates_for, usual_startup_s
from tunemark.schema.physics.stacks import STACKS
from tunemark.schema.plan_search import Asked
from tunemark.schema.recommendation import Answer, Question
from tunemark.schema.recommendation import recommend as best_options
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.published import PublishedResult, published_results
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import Method

__all__ = ["Estimate", "derive", "estimate", "load_results", "recommend", "validate"]

Result = Submission | PublishedResult | ConvertedResult


def load_results(*paths: Path | str) -> list[Result]:
    """Return the results in files and folders, in the order of their paths; by default those in `submissions/`.

    A set of published results gives all of them. Raises TunemarkError (exit code 3) for a file that is not a valid record.
    """
    results: list[Result] = []
    for path in _files(paths):
        record = read_valid(path)
        results += [record] if isinstance(record, Submission | ConvertedResult) else published_results(record)
    return results


def validate(*paths: Path | str) -> Validation:
    """Return the problems of files and folders, as `tunemark validate` reports them; by default of `submissions/`."""
    root = project_root()
    return validate_all(_files(paths), root, FactBase.of_root(root))


def estimate(
    model: str,
    method: str = "lora",
    *,
    accelerators: Iterable[str] = (),
    sequence_length: int | None = None,
    micro_batch: int | None = None,
    tokens: int | None = None,
    usd_per_hour: float | None = None,
    software: str | None = None,
    stack: str | None = None,
    devices: int = 1,
    **settings: Any,  # noqa: ANN401 - fields of TrainingShape
) -> tuple[Estimate, ...]:
    """Return memory, speed, time and cost of a training on accelerators (by name; all by default), before anything runs.

    They are those of the fastest plan that fits; a given micro-batch, `checkpointing` or `sharding` stays.
    `tokens` counts every epoch; without it there is no time and cost. `software` is plain, tuned or vendor, and `stack` a name in
    `tunemark.schema.physics.stacks`, whose memory and speed count.
    Further settings are fields of `TrainingShape`, such as `lora_rank=16` or `checkpointing=Checkpointing.FULL`.
    """
    root = project_root()
    facts = FactBase.of_root(root)
    card = any_model(facts, model)
    names = list(accelerators)
    cards = [facts.accelerator(name) for name in names] if names else [card for card in facts.accelerators.values() if card.memory_gib]
    if "world_size" in settings:
        fix = "follows from devices; give devices, and tensor_parallel if they share matrices"
        raise TunemarkError("world_size", settings["world_size"], fix)
    shared = settings.get("tensor_parallel", 1)
    if devices % shared:
        raise TunemarkError("devices", devices, f"is not a multiple of the {shared} that share each matrix")
    evidence = read_evidence(root, facts)
    stack, level = software_of(stack, software)
    asked = Asked(settings | ({} if micro_batch is None else {"micro_batch": micro_batch}), stack)
    job: dict[str, Any] = {"level": level, "asked": asked, "tokens": tokens, "usd_per_hour": usd_per_hour}
    places = [(each, devices) for each in cards if names or not stack or STACKS[stack].runs_on(each.vendor)]
    step: dict[str, Any] = {"model": card, "method": Method(method), "length": sequence_length or row_length(card)}
    return tuple(estimates(facts, evidence, places, **step, **job))


def recommend(
    model: str,
    tokens: float | str,
    *,
    method: str = "lora",
    sequence_length: int | None = None,
    **limits: Any,  # noqa: ANN401 - fields of Question
) -> Answer:
    """Return the options to rent for a job, best first. `tokens` counts every epoch, as a number or as text such as `10M`.

    Limits are fields of `Question`, such as `deadline_s=7200`, `budget_usd=20` or `objective="fastest"`.
    """
    from tunemark.collector.commands.recommend import read_offers  # noqa: PLC0415 - imports every option

    root = project_root()
    facts = FactBase.of_root(root)
    card = any_model(facts, model)
    length = row_length(card) if sequence_length is None else sequence_length
    size = read_number("tokens", tokens) if isinstance(tokens, str) else tokens
    question = Question(method, size, length, **({"startup_s": usual_startup_s(card)} | limits))
    evidence = read_evidence(root, facts)
    offers = read_offers(facts)
    return best_options(question, rates_for(question, card, facts.accelerators, offers, evidence), offers)


def _files(paths: Iterable[Path | str]) -> list[Path]:
    named = [Path(path) for path in paths]
    return (find_records(named) if named else records_in(project_root() / SUBMISSIONS)).files
