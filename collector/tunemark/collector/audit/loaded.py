"""The evidence of a checkout: documents and results of data/published, and the submissions, as rules see them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.gate.read import CONVERTED, DOCUMENT, RESULT, SUBMISSIONS, read_or_none, records_in, submission_id
from tunemark.schema.derive import Derived, derive
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import physics
from tunemark.schema.records.converted import ConvertedResult, training_rate
from tunemark.schema.records.published import Claim, Conditions, PublishedResult, SourceDocument
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.upgrade import InvalidRecord, read_record
from tunemark.schema.vocabulary import PublishedStatus, Status


def base_of(root: Path, facts: FactBase | None = None, measured: Iterable[Run] | None = None) -> Base:
    """Return the evidence of a checkout. Files that cannot be read are left out: `tunemark validate` names them.

    Parameters
    ----------
    root
        The checkout.
    facts
        Its facts, when they are read already.
    measured
        Its submissions, when they are read already.

    """
    facts = facts or FactBase(root / "data")
    published = records_in(root / "data" / "published").files
    files = [*(path for path in published if RESULT.fullmatch(path.name)), *records_in(root / CONVERTED).files]
    records = [one for path in files if isinstance(one := read_or_none(path), PublishedResult | ConvertedResult)]
    documents = [read_or_none(path) for path in published if path.name == DOCUMENT]
    submissions = (_measured(path, facts) for path in records_in(root / SUBMISSIONS).files) if measured is None else measured
    runs = [*(foreign_run(one, facts) for one in records), *(run for run in submissions if run is not None)]
    return Base(tuple(runs), tuple(one for one in documents if isinstance(one, SourceDocument)), facts, tuple(records))


def with_files(base: Base, paths: Iterable[Path]) -> tuple[Base, list[str]]:
    """Return the evidence with records of further files, and the ids of all records in these files.

    Raises
    ------
    TunemarkError
        With exit code 3 for a file that is no record.

    """
    runs, documents, ids = dict(base.by_id), dict(base.document_of), []
    for path in paths:
        try:
            record = read_record(path.read_bytes())
        except (InvalidRecord, ValueError, OSError) as error:
            raise TunemarkError(str(path), "", f"is no record: {error}; `tunemark validate` says more", exit_code=Exit.INVALID) from error
        if isinstance(record, PublishedResult | ConvertedResult):
            runs[record.id] = foreign_run(record, base.facts)
            ids.append(record.id)
        elif isinstance(record, Submission):
            run = measured_run(record, submission_id(path), base.facts)
            runs[run.id] = run
            ids.append(run.id)
        elif isinstance(record, SourceDocument):
            documents[record.id] = record
            ids.extend(statement.id for statement in record.statements)
    return replace(base, runs=tuple(runs.values()), documents=tuple(documents.values())), ids


def foreign_run(record: PublishedResult | ConvertedResult, facts: FactBase) -> Run:
    """Return a result that others measured as rules see it."""
    return published_run(record, facts) if isinstance(record, PublishedResult) else converted_run(record, facts)


def published_run(result: PublishedResult, facts: FactBase) -> Run:
    """Return a published result as rules see it."""
    conditions = result.conditions
    return Run(
        id=result.id,
        source=result.source,
        section=result.section,
        conditions=conditions,
        claims=dict(result.claims),
        labels=dict(result.labels),
        out_of_memory=result.status is PublishedStatus.OOM,
        model=facts.models.get(conditions.model or ""),
        accelerator=facts.accelerators.get(conditions.accelerator or ""),
        dataset=facts.known.dataset(conditions.dataset),
    )


def converted_run(result: ConvertedResult, facts: FactBase) -> Run:
    """Return an entry of another harness as rules see it: its rate over all runs that reached the target."""
    conditions, rate = result.conditions, training_rate(result)
    return Run(
        id=result.id,
        source=f"{result.harness}-{result.round}",
        section=result.submitter,
        conditions=conditions,
        claims=_as_claims({"samples_per_s": rate.value if rate else None}),
        labels={"accelerator": result.system.accelerator_printed or ""},
        out_of_memory=False,
        model=facts.models.get(conditions.model or ""),
        accelerator=facts.accelerators.get(conditions.accelerator or ""),
        dataset=facts.known.dataset(conditions.dataset),
        converted=True,
    )


def measured_run(submission: Submission, result_id: str, facts: FactBase, known: Derived | None = None) -> Run:
    """Return a submission as rules see it: its derived figures in place of claims, with all of their digits."""
    plan = submission.plan
    model, accelerator = facts.models.get(plan.model.key), facts.accelerators.get(plan.device.accelerator or "")
    ok = submission.outcome.status is Status.OK
    derived = known or derive(submission)
    figures: dict[str, float | None] = {
        "tokens_per_s": derived.tokens_per_s.value if derived.tokens_per_s else None,
        "peak_memory_bytes": submission.memory.device_allocated.peak_bytes,
        "wall_s": submission.process.wall_s,
    }
    if ok:
        figures |= {name: known.value for name, known in physics(submission, derived, model, accelerator).figures().items()}
    return Run(
        id=result_id,
        source="measured",
        section=plan.workload,
        conditions=_conditions(submission),
        claims=_as_claims(figures),
        labels={"accelerator": submission.environment.devices[0].name},
        out_of_memory=submission.outcome.status in {Status.OOM_DEVICE, Status.OOM_HOST},
        model=model,
        accelerator=accelerator,
        dataset=None,
        measured=True,
    )


def _measured(path: Path, facts: FactBase) -> Run | None:
    submission = read_or_none(path)
    if not isinstance(submission, Submission):
        return None
    try:
        return measured_run(submission, submission_id(path), facts)
    except (ArithmeticError, ValueError, IndexError):
        # What cannot be derived is refused by `tunemark validate`.
        return None


def _conditions(submission: Submission) -> Conditions:
    plan = submission.plan
    return Conditions(
        model=plan.model.key,
        method=plan.method,
        accelerator=plan.device.accelerator,
        accelerator_count=plan.device.count,
        micro_batch=plan.batch.micro_batch,
        gradient_accumulation=plan.batch.gradient_accumulation,
        sequence_length=plan.data.sequence_length,
        padding=plan.data.padding,
        packing=plan.data.packing,
        precision=plan.precision.compute.value,
        framework=dict(submission.environment.packages),
        settings={"gradient_checkpointing": plan.model.gradient_checkpointing.value != "none", "data_parallel": plan.batch.data_parallel},
    )


def _as_claims(figures: Mapping[str, float | None]) -> dict[str, Claim]:
    return {name: Claim(value=value, printed=f"{value:.12g}") for name, value in figures.items() if value is not None}
