"""How a published result becomes rows: what it claims, and what follows from that."""

from collections.abc import Iterable, Iterator, Mapping

from tunemark.collector.audit import printed_figures as rates
from tunemark.collector.document_rows import claim_rows, label_rows
from tunemark.collector.rows import Row, Rows, text
from tunemark.schema.comparability import comparability_group
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.published import PublishedResult, SourceDocument
from tunemark.schema.vocabulary import Task, Trust


def published_rows(result: PublishedResult, facts: FactBase, dataset_rows: Mapping[str, int], file: str, sha256: str) -> Rows:
    """Return the rows of a published result by table."""
    figures = derived_figures(result, dataset_rows)
    return {
        "result_rows": [_result(result, figures, facts) | {"file": file, "sha256": sha256}],
        "result_facts": [*_derived_facts(result, figures), *_printed_facts(result)],
        **claim_rows(result.id, result.claims),
        "labels": label_rows(result.id, result.labels),
    }


def derived_figures(result: PublishedResult, dataset_rows: Mapping[str, int]) -> dict[str, rates.Figure]:
    """Return time, rate and batch figures that are claimed without ambiguity or follow from such claims."""
    rows = rates.printed_rows(result.conditions.dataset) or dataset_rows.get(result.conditions.dataset or "")
    claims, conditions = result.claims, result.conditions
    figures = {
        "step_time_s": rates.step_time_s(claims),
        "steps_per_s": rates.steps_per_s(claims),
        "tokens_per_s": rates.tokens_per_s(claims, conditions),
        "samples_per_s": rates.samples_per_s(claims, conditions, rows),
        "epoch_time_s": rates.epoch_time_s(claims),
        "train_time_s": rates.claimed(claims, "train_time_s"),
        "wall_s": rates.claimed(claims, "wall_s"),
        "global_batch": rates.global_batch(conditions),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def known_dataset_rows(facts: FactBase, documents: Iterable[SourceDocument]) -> dict[str, int]:
    """Return training rows of data sets that a workload card or a statement of a document gives."""
    known = {card.data.name: card.data.training_rows for card in facts.workloads.values() if card.data.training_rows is not None}
    for document in documents:
        for statement in document.statements:
            rows = rates.stated_training_rows(statement.note)
            if rows is not None and "dataset" in statement.labels:
                known.setdefault(statement.labels["dataset"], rows)
    return known


def _task(result: PublishedResult, facts: FactBase) -> str | None:
    """Return the task of the model's family: every BERT of the sources classifies, all others predict the next token."""
    card = facts.models.get(result.conditions.model or "")
    if card is None:
        return None
    return (Task.SEQUENCE_CLASSIFICATION if card.family == "bert" else Task.CAUSAL_LM).value


def _result(result: PublishedResult, figures: Mapping[str, rates.Figure], facts: FactBase) -> Row:
    conditions = result.conditions
    printed_optimizer = conditions.settings.get("optimizer")
    ambiguous = rates.is_ambiguous(result.claims, "step_time_s")
    has_step = "step_time_s" in figures
    compared: Row = {
        "model": conditions.model,
        "task": _task(result, facts),
        "method": conditions.method.value,
        "dataset": conditions.dataset,
        "sequence_length": conditions.sequence_length,
        "padding": None if conditions.padding is None else conditions.padding.value,
        "packing": conditions.packing,
        "global_batch": int(figures["global_batch"].value) if "global_batch" in figures else None,
        "precision": rates.precision_class(conditions.precision),
        "optimizer": None if printed_optimizer is None else str(printed_optimizer).rsplit(".", 1)[-1].lower(),
        "step_definition": "ambiguous" if ambiguous else "optimizer_step" if has_step else None,
    }
    return {
        "result_id": result.id,
        "source": result.source,
        "trust": Trust.PUBLISHED.value,
        "section": result.section,
        **compared,
        "comparability_group": None if ambiguous else comparability_group(compared),
        "rankable": False,
        "accelerator": conditions.accelerator,
        "accelerator_printed": result.labels.get("accelerator"),
        "accelerator_count": conditions.accelerator_count,
        "instance": conditions.instance,
        "status": result.status.value,
        "micro_batch": conditions.micro_batch,
        "gradient_accumulation": conditions.gradient_accumulation,
        "note": result.note,
        **{
            name: figures[name].value
            for name in ("step_time_s", "tokens_per_s", "samples_per_s", "epoch_time_s", "train_time_s", "wall_s")
            if name in figures
        },
        **_quality_and_memory(result),
    }


def _quality_and_memory(result: PublishedResult) -> Row:
    # Memory printed in GiB or GB differs by 7%: the printed reading is kept here, all readings in `readings`.
    names = ("peak_memory_bytes", "model_memory_bytes", "loss_start", "train_loss", "eval_loss", "accuracy", "epochs")
    row: Row = {name: result.claims[name].value for name in names if name in result.claims}
    for count in ("steps", "parameters"):
        if count in result.claims:
            row[count] = round(result.claims[count].value)
    if "peak_memory_bytes" in result.claims:
        row["peak_memory_method"] = result.claims["peak_memory_bytes"].note or "as claimed"
    return row


def _derived_facts(result: PublishedResult, figures: Mapping[str, rates.Figure]) -> Iterator[Row]:
    for name, figure in figures.items():
        if figure.formula is not None:
            yield {"result_id": result.id, "topic": "derived", "name": name, "value": text(figure.value), "reason": figure.formula}


def _printed_facts(result: PublishedResult) -> Iterator[Row]:
    conditions = result.conditions
    for name, version in conditions.framework.items():
        yield {"result_id": result.id, "topic": "packages", "name": name, "value": version, "reason": _where(result, "framework")}
    for name, setting in conditions.settings.items():
        yield {
            "result_id": result.id,
            "topic": "settings",
            "name": name,
            "value": text(setting),
            "reason": _where(result, f"settings.{name}", "settings"),
        }
    printed = conditions.model_dump(mode="json", exclude={"framework", "settings", "from_repository", "assumed"})
    for name, value in printed.items():
        if value is not None:
            yield {"result_id": result.id, "topic": "conditions", "name": name, "value": text(value), "reason": _where(result, name)}
    yield {"result_id": result.id, "topic": "origin", "name": result.origin.kind, "value": result.origin.reference, "reason": None}


def _where(result: PublishedResult, *names: str) -> str | None:
    """Return where a condition was read, when it is not the document itself."""
    conditions = result.conditions
    if any(name in conditions.assumed for name in names):
        return "assumed: implied, not stated"
    if any(name in conditions.from_repository for name in names):
        return "only the origin repository states it"
    return None
