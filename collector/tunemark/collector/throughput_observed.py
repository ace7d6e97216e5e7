"""Which accepted results teach the model of throughput: those whose tokens a second are known and not refuted by the audit."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tunemark.collector.audit.evidence import AuditedResult as Run
from tunemark.collector.audit.evidence import Evidence as Base
from tunemark.collector.audit.load import load_evidence as base_of
from tunemark.collector.audit.rule import Finding, all_rules, audit
from tunemark.collector.audit.token_rates import Rate, token_rates
from tunemark.collector.predict.published_memory import published_shape
from tunemark.collector.predict.rows import Combination, Observed, observe, without_copies
from tunemark.collector.predict.work import Missing
from tunemark.collector.record_files import SUBMISSIONS, read_or_none, records_in, submission_id
from tunemark.schema.derive import Derived, derive
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.training_shape import TrainingShape, shape_of_plan, shape_problem, work_in
from tunemark.schema.physics.utilisation import part_of_card
from tunemark.schema.records.converted import ConvertedResult, training_rate
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.records.submission import Submission
from tunemark.schema.vocabulary import AuditVerdict, Dtype, Method, Status

COUNTED = ("tokens_per_s", "tokens", "step_time_s")
"""Figures that tokens a second follow from without guessing how far rows were filled."""
REFUTED = (AuditVerdict.IMPOSSIBLE, AuditVerdict.INCONSISTENT)
OF_THE_RATE = frozenset({"utilisation", "scaling"})
"""Families of rules that judge how fast something was."""
OF_THE_RUN = frozenset({"context-length", "precision-on-device"})
"""Rules by which the run itself cannot have been."""
MLPERF_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


Lesson = tuple[str, Observed | Missing]
"""A result, and what it teaches or why it teaches nothing."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What may be learnt from, and what may not."""

    rows: tuple[Observed, ...]
    """Copies left out."""
    refused: dict[str, str]
    """Result -> why its rate teaches nothing."""


def learn_from(
    root: Path,
    facts: FactBase | None = None,
    base: Base | None = None,
    findings: Collection[Finding] | None = None,
    measured: Iterable[Lesson] | None = None,
) -> Learnt:
    """Return the rows of a checkout; the audit is run when its findings are not given, and submissions are read when what they teach is not."""
    facts = facts or FactBase(root / "data")
    base = base or base_of(root, facts)
    findings = audit(base) if findings is None else findings
    found = [
        *_published(base, facts, findings),
        *_converted(base, facts),
        *(_measured(root, facts, {run.id for run in base.results if run.measured}) if measured is None else measured),
    ]
    rows = without_copies(row for _, row in found if isinstance(row, Observed))
    return Learnt(rows, {result: row.reason for result, row in found if isinstance(row, Missing)})


def _published(base: Base, facts: FactBase, findings: Collection[Finding]) -> Iterator[Lesson]:
    refuted: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.verdict in REFUTED:
            refuted.setdefault(finding.records[0], []).append(finding)
    excluded = excluded_readings(findings)
    for result in base.records:
        run = base.by_id.get(result.id)
        rates = [] if run is None else possible_rates(run, excluded.get(run.source, frozenset()))
        if run is None or not rates or not isinstance(result, PublishedResult):
            continue
        doubt = next((one for one in refuted.get(result.id, ()) if _concerns(one, rates[0])), None)
        shape = published_shape(result, facts)
        if doubt is not None:
            yield result.id, Missing(f"the audit calls it {doubt.verdict.value}: {doubt.rule}")
        elif run.accelerator is None or shape is None:
            yield result.id, Missing("accelerator, model, row length or micro-batch is not said")
        else:
            of = Combination(
                run.accelerator, run.devices, as_run(shape, run, facts), stack_of(run), "", run.devices / (run.replicas or run.devices)
            )
            yield result.id, observe(result.id, of, rates[0].tokens_per_s.value)


def excluded_readings(findings: Iterable[Finding]) -> dict[str, frozenset[str]]:
    """Return by document the readings of a step that the audit excludes for one of its rows: a document means one thing by a word."""
    excluded: dict[str, set[str]] = {}
    for finding in findings:
        for name, share in finding.numbers.items():
            if finding.rule == "utilisation" and name.startswith("utilisation, ") and isinstance(share, float) and share > 1:
                excluded.setdefault(finding.records[0].split("-")[0], set()).add(meaning_of(name.removeprefix("utilisation, ")))
    return {document: frozenset(meanings) for document, meanings in excluded.items()}


def meaning_of(reading: str) -> str:
    """Return the words of a reading without its figures."""
    return reading.split(" (", maxsplit=1)[0]


def possible_rates(run: Run, excluded: Collection[str]) -> list[Rate]:
    """Return the rates that count tokens: plain ones, and an ambiguous one of which one reading is left."""
    counted = [rate for rate in token_rates(run) if rate.quantity in COUNTED]
    left = [rate for rate in counted if rate.meaning and meaning_of(rate.meaning) not in excluded]
    return [rate for rate in counted if not rate.meaning] or (left if len(left) == 1 else [])


def _concerns(finding: Finding, rate: Rate) -> bool:
    """Return whether a finding is about how fast it was: by its rule, or by arithmetic on the figure that the rate follows from."""
    family = next((rule.family for rule in all_rules() if rule.id == finding.rule), "")
    return family in OF_THE_RATE or finding.rule in OF_THE_RUN or (family == "arithmetic" and rate.quantity in finding.claim)


def stack_of(run: Run) -> str:
    """Return whose software it was: the document's, and apart from its GPU rows that of Neuron devices."""
    return f"{run.source} neuron" if any("neuron" in name for name in run.conditions.framework) else run.source


def as_run(shape: TrainingShape, run: Run, facts: FactBase) -> TrainingShape:
    """Return the shape as it was run: Gemma 2 attends eagerly in transformers; quantised layers multiply in fp32 where that is known, else in 16 bits."""
    if shape.model.family == "gemma2":
        shape = replace(shape, attention="eager")
    if shape.method is Method.QLORA and not facts.known.memory_reading(run.source).because:
        shape = replace(shape, parameters=Dtype.BF16, activations=Dtype.BF16)
    return shape


def _converted(base: Base, facts: FactBase) -> Iterator[Lesson]:
    for record in base.records:
        rate = training_rate(record) if isinstance(record, ConvertedResult) else None
        if not isinstance(record, ConvertedResult) or rate is None:
            continue
        said = record.conditions
        model, accelerator = facts.models.get(said.model or ""), facts.accelerators.get(said.accelerator or "")
        count, batch, length = said.accelerator_count, said.global_batch, said.sequence_length
        if model is None or accelerator is None or not count or not batch or not length:
            yield record.id, Missing("accelerator, devices or batch is not said")
            continue
        # Loops of this benchmark are fused throughout; a packed row is what each device, or a group of them, computes.
        rank = said.settings.get("lora_rank")
        shape = TrainingShape(
            model,
            said.method,
            length,
            lora_rank=rank if isinstance(rank, int) else 16,
            lora_targets=MLPERF_TARGETS,
            lora_dropout=0.1,
            adapters=Dtype.BF16,
            loss="fused",
        )
        of = Combination(accelerator, count, shape, record.harness, record.round, max(1.0, count / batch))
        yield record.id, observe(record.id, of, rate.value * length)


def _measured(root: Path, facts: FactBase, accepted: Collection[str]) -> Iterator[Lesson]:
    for path in records_in(root / SUBMISSIONS).files:
        record = read_or_none(path)
        if isinstance(record, Submission) and submission_id(path) in accepted:
            found = measured_found(record, submission_id(path), facts, derive(record))
            if found is not None:
                yield found


def measured_found(submission: Submission, result_id: str, facts: FactBase, derived: Derived) -> Lesson | None:
    """Return what a submission teaches: rankable ones on devices with a card; None for one that failed. Slots are counted, as padding is computed too."""
    if submission.outcome.status is not Status.OK:
        return None
    plan = submission.plan
    model, accelerator = facts.models.get(plan.model.key), facts.accelerators.get(plan.device.accelerator or "")
    if model is None or accelerator is None or not derived.rankable or derived.window is None:
        return result_id, Missing("not rankable, or a device or model without a card")
    problem, part = shape_problem(plan, model), part_of_card(submission, accelerator)
    if problem is not None or part != 1:
        return result_id, Missing(problem or "a device that is a part of what its card describes")
    work, count = work_in(submission.trace, derived.window), plan.device.count
    of = Combination(accelerator, count, shape_of_plan(plan, model), "measured", "", max(1.0, count / plan.batch.data_parallel))
    return result_id, observe(result_id, of, work.slot_tokens / work.seconds)
