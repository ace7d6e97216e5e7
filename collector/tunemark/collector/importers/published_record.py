"""Trainer logs as published results: what the log prints, and the conditions that only the person who ran it knows."""

from dataclasses import dataclass
from pathlib import Path

from tunemark.collector.importers.trainer_log import TrainerRun
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts import FactBase
from tunemark.schema.published import Conditions, Origin, PublishedResult
from tunemark.schema.vocabulary import Method, PublishedStatus

NUMBERS = 999


@dataclass(frozen=True, slots=True)
class Said:
    """What a log does not say and the command line does; it holds for all runs of the log."""

    source: str
    first_number: int
    section: str
    model: str | None = None
    method: Method | None = None
    accelerator: str | None = None
    accelerator_count: int | None = None
    instance: str | None = None


def record(run: TrainerRun, index: int, said: Said, facts: FactBase) -> PublishedResult:
    """Return the record of the index-th run (from 0) of a log.

    Raises
    ------
    TunemarkError
        Where the method is not given, a card does not exist, or the numbers of a source are used up.

    """
    number = said.first_number + index
    if number > NUMBERS:
        raise TunemarkError("--first-number", said.first_number, f"a source has numbers up to {NUMBERS}")
    if said.method is None:
        raise TunemarkError("--method", "", f"a log does not say how the weights were tuned; give one of {', '.join(Method)}")
    model = facts.model(said.model).key if said.model else None
    accelerator = facts.accelerator(said.accelerator).key if said.accelerator else None
    labels = {"model": said.model, "accelerator": said.accelerator, "instance": said.instance}
    return PublishedResult(
        id=f"{said.source}-{number:03d}",
        source=said.source,
        section=said.section,
        origin=Origin(kind="document"),
        labels={name: text for name, text in labels.items() if text},
        conditions=Conditions(
            model=model, method=said.method, accelerator=accelerator, accelerator_count=said.accelerator_count, instance=said.instance
        ),
        claims=dict(sorted(run.claims.items())),
        status=PublishedStatus.OK if run.finished else PublishedStatus.PARTIAL,
        note=None if run.finished else "The log ends without the final line of the Trainer.",
    )


def record_path(out: Path, result: PublishedResult) -> Path:
    """Return where a record is kept under a folder of published results."""
    return out / result.source / f"{result.id}.json"
