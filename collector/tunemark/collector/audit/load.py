"""Load the evidence of a checkout: documents and results of data/published, converted results, and submissions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.collector.gate.read import CONVERTED, PUBLISHED, SUBMISSIONS, read_or_none, read_valid, records_in, submission_id
from tunemark.collector.store.database import columns_of
from tunemark.schema.derive import Derived, derive
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import physics
from tunemark.schema.records.converted import ConvertedResult, training_rate
from tunemark.schema.records.published import Claim, Conditions, PublishedResult, SourceDocument, published_results
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import PublishedStatus, Status


def load_evidence(
    root: Path, facts: FactBase | None = None, measured: Iterable[AuditedResult] | None = None, read: Sequence[BaseModel | None] = ()
) -> Evidence:
    """Return the evidence of a checkout. Unreadable files are skipped; `tunemark validate` reports them.

    Facts, measured submissions, and the records of published and converted results (`read`), are read from the checkout unless they are given.
    """
    facts = facts or FactBase.of_root(root)
    read = read or [read_or_none(path) for folder in (PUBLISHED, CONVERTED) for path in records_in(facts.root.parent / folder).files]
    records: list[PublishedResult | ConvertedResult] = [result for record in read for result in published_results(record)]
    records += [record for record in read if isinstance(record, ConvertedResult)]
    documents = tuple(record for record in read if isinstance(record, SourceDocument))
    if measured is None:
        measured = _submissions(root, facts)
    return Evidence((*(audited_record(record, facts) for record in records), *measured), documents, facts, tuple(records))


def add_files(evidence: Evidence, paths: Sequence[Path]) -> tuple[Evidence, list[str]]:
    """Return the evidence with the records of further files, and the ids of these records.

    Raises TunemarkError with exit code 3 for a file that is not a record.
    """
    if not paths:
        return evidence, []
    read, facts = [(path, read_valid(path)) for path in paths], evidence.facts
    measured = [audited_submission(record, submission_id(path), facts) for path, record in read if isinstance(record, Submission)]
    added = load_evidence(facts.root.parent, facts, measured, [record for _, record in read])
    together: dict[str, Any] = {
        name: tuple({each.id: each for each in (*getattr(evidence, name), *getattr(added, name))}.values())
        for name in ("results", "documents", "records")
    }
    return replace(evidence, **together), [*added.by_id, *added.statements]


def audited_record(record: PublishedResult | ConvertedResult, facts: FactBase) -> AuditedResult:
    """Return a result of a document, or an entry of another harness with its rate over all runs that reached the target."""
    conditions = record.conditions
    shared: dict[str, Any] = {
        "conditions": conditions,
        "model": facts.models.get(conditions.model or ""),
        "accelerator": facts.accelerators.get(conditions.accelerator or ""),
        "dataset": facts.known.dataset(conditions.dataset),
    }
    if isinstance(record, PublishedResult):
        return AuditedResult(**columns_of("audited", record), out_of_memory=record.status is PublishedStatus.OOM, **shared)
    rate = training_rate(record)
    return AuditedResult(
        id=record.id,
        source=f"{record.harness}-{record.round}",
        section=record.submitter,
        claims=_as_claims({"samples_per_s": rate.value if rate else None}),
        labels={"accelerator": record.system.accelerator_printed or ""},
        converted=True,
        **shared,
    )


def audited_submission(submission: Submission, result_id: str, facts: FactBase, known: Derived | None = None) -> AuditedResult:
    """Return a submission with its derived figures, all digits included, in place of claims."""
    from tunemark.collector.predict.calibration_rows import calibration_outcome  # noqa: PLC0415 - builds on the audit of published results

    plan = submission.plan
    model, accelerator = facts.models.get(plan.model.key), facts.accelerators.get(plan.device.accelerator or "")
    derived = known or derive(submission)
    figures: dict[str, float | None] = {
        "tokens_per_s": derived.tokens_per_s.value if derived.tokens_per_s else None,
        "peak_memory_bytes": submission.memory.device_allocated.peak_bytes,
        "wall_s": submission.process.wall_s,
    }
    if submission.outcome.status is Status.OK:
        figures |= {name: figure.value for name, figure in physics(submission, derived, model, accelerator).figures.items()}
    return AuditedResult(
        id=result_id,
        source="measured",
        section=plan.workload,
        conditions=Conditions(
            **columns_of("submission_conditions", submission),
            settings={
                "gradient_checkpointing": plan.model.gradient_checkpointing.value != "none",
                "data_parallel": plan.batch.data_parallel,
            },
        ),
        claims=_as_claims(figures),
        labels={"accelerator": submission.environment.devices[0].name},
        out_of_memory=submission.outcome.status in {Status.OOM_DEVICE, Status.OOM_HOST},
        model=model,
        accelerator=accelerator,
        measured=True,
        calibration=calibration_outcome(submission, result_id, facts, derived),
    )


def _submissions(root: Path, facts: FactBase) -> Iterator[AuditedResult]:
    for path in records_in(root / SUBMISSIONS).files:
        # `tunemark validate` rejects a submission from which nothing can be derived.
        with suppress(ArithmeticError, ValueError, IndexError):
            if isinstance(submission := read_or_none(path), Submission):
                yield audited_submission(submission, submission_id(path), facts)


def _as_claims(figures: Mapping[str, float | None]) -> dict[str, Claim]:
    return {name: Claim(value=value, printed=f"{value:.12g}") for name, value in figures.items() if value is not None}
