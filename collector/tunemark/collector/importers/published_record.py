"""Trainer logs as published results: what the log prints, and the conditions that only the person who ran it knows."""

import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from tunemark.collector.importers.trainer_log import TrainerRun
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.published import Conditions, Origin, PublishedResult, SourceDocument
from tunemark.schema.vocabulary import Method, PublishedStatus

NUMBERS = 999
DOCUMENT = "source.json"
UNFINISHED = "The log ends without the final line of the Trainer."


@dataclass(frozen=True, slots=True)
class StatedConditions:
    """What a log does not say and the command line does; it holds for all runs of the log."""

    source: str
    first_number: int
    section: str
    model: str | None = None
    method: Method | None = None
    accelerator: str | None = None
    accelerator_count: int | None = None
    instance: str | None = None


def conditions_of(said: StatedConditions, facts: FactBase) -> dict[str, Any]:
    """Return the conditions that were said, with the names of cards; raises TunemarkError for a name that no card has."""
    model = facts.model(said.model).key if said.model else None
    accelerator = facts.accelerator(said.accelerator).key if said.accelerator else None
    instance = facts.instance(said.instance) if said.instance else None
    held = {row.accelerator for row in facts.prices if row.instance == instance}
    if accelerator and held and accelerator not in held:
        raise TunemarkError("--accelerator", said.accelerator, f"an instance {instance} has {' or '.join(sorted(held))}")
    return {"model": model, "accelerator": accelerator, "accelerator_count": said.accelerator_count, "instance": instance}


def method_of(text: str | None) -> Method | None:
    """Return the method that was said; raises TunemarkError for a word that is none."""
    if text is None:
        return None
    if text not in list(Method):
        raise TunemarkError("--method", text, did_you_mean(text, Method))
    return Method(text)


def record(run: TrainerRun, index: int, said: StatedConditions, facts: FactBase) -> PublishedResult:
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
    labels = {"model": said.model, "accelerator": said.accelerator, "instance": said.instance}
    status, why = _ended(run)
    return PublishedResult(
        id=f"{said.source}-{number:03d}",
        source=said.source,
        section=said.section,
        origin=Origin(kind="document"),
        labels={name: text for name, text in labels.items() if text},
        conditions=Conditions(method=said.method, **conditions_of(said, facts)),
        claims=dict(sorted(run.claims.items())),
        status=status,
        note=" ".join([*why, *run.notes]) or None,
    )


def _ended(run: TrainerRun) -> tuple[PublishedStatus, list[str]]:
    """Return how a run ended and why that is known."""
    if run.out_of_memory is not None:
        return PublishedStatus.OOM, [f"Out of memory in line {run.out_of_memory} of the log."]
    if run.not_a_number is not None:
        return PublishedStatus.FAILED, [f"The training diverged: {run.not_a_number} of the log."]
    return (PublishedStatus.OK, []) if run.finished else (PublishedStatus.PARTIAL, [UNFINISHED])


def record_path(out: Path, result: PublishedResult) -> Path:
    """Return where a record is kept under a folder of published results."""
    return out / result.source / f"{result.id}.json"


def document_of(folder: Path, source: str, more: int, read_on: date) -> bytes:
    """Return the document of a source with more results than before: a skeleton of it where there is none yet.

    Raises
    ------
    TunemarkError
        With exit code 3 when the document that is there cannot be read.

    """
    path = folder / DOCUMENT
    if not path.exists():
        title = f"Trainer logs, source {source}"
        summary = "Imported from trainer logs; say here what they measure, and in `url` and `authors` where they come from."
        return canonical_json(SourceDocument(id=source, title=title, summary=summary, results=more, read_on=read_on))
    try:
        content = json.loads(path.read_bytes())
        before = int(content["results"])
    except (ValueError, KeyError, TypeError) as error:
        raise TunemarkError(str(path), "", "is no document of a source; mend it first", exit_code=Exit.INVALID) from error
    return canonical_json(content | {"results": before + more})
