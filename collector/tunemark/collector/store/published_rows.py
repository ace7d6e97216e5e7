"""Rows of results measured by others: documents, the published results in them, and converted results of other harnesses."""

import statistics
from collections.abc import Iterable, Iterator, Mapping

from tunemark.collector.audit.printed_figures import Figure, derived_figures, precision_class, printed_rows
from tunemark.collector.importers.mlperf import BENCHMARK, count
from tunemark.collector.store.database import Row, Rows, columns_of, fact, merge
from tunemark.schema.comparability import comparability_group
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.records.converted import ConvertedResult, TimeToTarget, run_energy, time_to_target, training_rate
from tunemark.schema.records.published import Claim, Conditions, PublishedResult, SourceDocument
from tunemark.schema.statistics.intervals import Interval
from tunemark.schema.vocabulary import Task, Trust

OF_FIGURES = ("step_time_s", "tokens_per_s", "samples_per_s", "epoch_time_s", "train_time_s", "wall_s", "evaluation_rows")
"""Derived figures that are columns of a published result."""
PRINTED = {"framework", "settings", "assumed", "from_repository"}
"""Fields of conditions that have a topic of their own, or describe other fields."""


def document_rows(document: SourceDocument) -> Rows:
    """Return the rows of a source document by table."""
    tables = [
        {"source": document.id, "table_id": table.id, "position": position, **columns_of("document_tables", table)}
        for position, table in enumerate(document.tables, start=1)
    ]
    rows: Rows = {"sources": [columns_of("sources", document)], "document_tables": tables}
    for statement in document.statements:
        row = columns_of("statements", statement) | {"source": document.id}
        merge(rows, {"statements": [row], **_claims(statement.id, statement.claims, statement.labels)})
    return rows


def _claims(record_id: str, claims: Mapping[str, Claim], labels: Mapping[str, str]) -> Rows:
    return {
        "claims": [{"record_id": record_id, "quantity": quantity, **columns_of("claims", claim)} for quantity, claim in claims.items()],
        "readings": [
            {"record_id": record_id, "quantity": quantity, **columns_of("readings", reading)}
            for quantity, claim in claims.items()
            for reading in claim.readings
        ],
        "labels": [{"record_id": record_id, "label": label, "printed": printed} for label, printed in labels.items()],
    }


def _headline(result: PublishedResult | ConvertedResult, compared: Row, *, source: str, trust: Trust, rankable_group: bool = True) -> Row:
    """Return the columns of a result that published and converted results state in the same way."""
    compared = columns_of("conditions", result.conditions) | compared
    return {
        "result_id": result.id,
        "source": source,
        "trust": trust.value,
        **compared,
        "comparability_group": comparability_group(compared) if rankable_group else None,
        "rankable": False,
    }


# Published results ---------------------------------------------------------------------------------


def published_rows(result: PublishedResult, facts: FactBase, file: str, sha256: str) -> Rows:
    """Return the rows of a published result by table."""
    printed, dataset = result.conditions.dataset, facts.known.dataset(result.conditions.dataset)
    rows = printed_rows(printed) or (dataset.training_rows if dataset else None)
    figures = derived_figures(result.claims, result.conditions, rows, dataset.test_rows if dataset else None)
    return {
        "result_rows": [_published_headline(result, figures, facts) | {"file": file, "sha256": sha256}],
        "result_facts": [{"result_id": result.id, **row} for row in _published_facts(result, figures)],
        **_claims(result.id, result.claims, result.labels),
    }


def _published_headline(result: PublishedResult, figures: Mapping[str, Figure], facts: FactBase) -> Row:
    conditions, claims = result.conditions, result.claims
    optimizer = conditions.settings.get("optimizer")
    ambiguous, card = "step_time_s" in claims and bool(claims["step_time_s"].readings), facts.models.get(conditions.model or "")
    compared: Row = {
        # Every encoder of the sources classifies; all other models predict the next token.
        "task": card and (Task.SEQUENCE_CLASSIFICATION if FAMILIES[card.family].encoder else Task.CAUSAL_LM).value,
        "global_batch": int(figures["global_batch"].value) if "global_batch" in figures else None,
        "precision": precision_class(conditions.precision),
        "optimizer": None if optimizer is None else str(optimizer).rsplit(".", 1)[-1].lower(),
        "step_definition": "ambiguous" if ambiguous else "optimizer_step" if "step_time_s" in figures else None,
    }
    row = _headline(result, compared, source=result.source, trust=Trust.PUBLISHED, rankable_group=not ambiguous)
    # Memory printed in GiB or GB differs by 7%: the printed reading is kept here, all readings in `readings`.
    row |= columns_of("published", result)
    row |= {name: figures[name].value for name in OF_FIGURES if name in figures}
    row |= {name: round(claims[name].value) for name in ("steps", "parameters") if name in claims}
    if "peak_memory_bytes" in claims:
        row["peak_memory_method"] = claims["peak_memory_bytes"].note or "as claimed"
    return row


def _published_facts(result: PublishedResult, figures: Mapping[str, Figure]) -> Iterator[Row]:
    for name, figure in figures.items():
        if figure.formula is not None:
            yield fact("derived", name, figure.value, figure.formula)
    yield from _condition_facts(result.conditions, "assumed: implied, not stated")
    yield fact("origin", result.origin.kind, result.origin.reference)


def _condition_facts(conditions: Conditions, assumed: str) -> Iterator[Row]:
    """Yield packages, settings and other conditions, with the origin of those that the document itself does not state."""

    def origin(*names: str) -> str | None:
        if any(name in conditions.assumed for name in names):
            return assumed
        return "only the origin repository states it" if any(name in conditions.from_repository for name in names) else None

    for name, version in conditions.framework.items():
        yield fact("packages", name, version, origin("framework"))
    for name, setting in conditions.settings.items():
        yield fact("settings", name, setting, origin(f"settings.{name}", "settings"))
    for name, value in conditions.model_dump(mode="json", exclude=PRINTED).items():
        if value is not None:
            yield fact("conditions", name, value, origin(name))


# Converted results ---------------------------------------------------------------------------------

HEADLINES = (
    *("step_time_s", "eval_loss", "epochs", "energy_per_run_j", "energy_per_sample_j", "train_time_s", "mlperf_score_s", "samples_per_s"),
)
"""Statistics over the runs that are columns of the result."""


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def converted_rows(results: Iterable[tuple[ConvertedResult, str, str]]) -> Rows:
    """Return the rows of converted results, each given with its file and that file's hash, and of their rounds."""
    rows: Rows = {}
    rounds: dict[str, list[ConvertedResult]] = {}
    for result, file, sha256 in results:
        rounds.setdefault(f"{result.harness}-{result.round}", []).append(result)
        merge(rows, _converted_result(result, file, sha256))
    merge(rows, {"sources": [_round(name, members) for name, members in sorted(rounds.items())]})
    return rows


def _converted_result(result: ConvertedResult, file: str, sha256: str) -> Rows:
    times, rate = time_to_target(result), training_rate(result)
    derived = _converted_figures(result, times, rate)
    facts = [fact("derived", name, value, reason) for name, (value, reason) in derived.items() if value is not None]
    headline = _converted_headline(result, times, rate) | {name: derived[name][0] for name in HEADLINES}
    return {
        "result_rows": [headline | {"file": file, "sha256": sha256}],
        "runs": [{"result_id": result.id, "run": number, **columns_of("runs", run)} for number, run in enumerate(result.runs, start=1)],
        "run_logs": [
            {"result_id": result.id, "run": number, **columns_of("run_logs", run.curve)} for number, run in enumerate(result.runs, start=1)
        ],
        "result_facts": [{"result_id": result.id, **row} for row in (*facts, *_converted_printed(result))],
    }


def _converted_figures(result: ConvertedResult, times: TimeToTarget, rate: Interval | None) -> dict[str, tuple[object, str]]:
    """Return the statistics over the runs of a result: name -> (value, origin). An unknown value is None."""
    batch, median, finished = result.conditions.global_batch, times.median, [run for run in result.runs if run.status == "ok"]
    samples, rows = _median(run.samples for run in finished if run.samples), count(result.conditions.settings.get("train_samples"))
    interval = "order statistics of the runs; at least 95%"
    all_runs = "median of all runs; one that did not reach the target counts as longer than any other"
    rate_origin = "samples of all runs / seconds in their training blocks; 95% interval over the runs"
    energy = run_energy(result)
    scope = energy.scope if energy else ""
    last_losses = _median(run.curve.eval_loss[-1] for run in finished if run.curve.eval_loss)
    return {
        "time_to_target.runs": (times.runs, "logs of the entry"),
        "time_to_target.reached": (times.reached, "runs with a successful run_stop after an evaluation at the target"),
        "mlperf_score_s": (
            times.score_s,
            f"mean without the fastest and the slowest run x scaling factor {result.scaling_factor or 1:.6g}",
        ),
        "energy_per_run_j": (energy and energy.per_run_j, f"median of {energy.runs if energy else 0} runs; {scope}"),
        "energy_per_sample_j": (energy and energy.per_sample_j, f"energy of all runs / their training samples; {scope}"),
        "time_to_target.median_s": (median and median.value, all_runs),
        "time_to_target.low_s": (median and median.low, interval),
        "time_to_target.high_s": (median.high if median and median.bounded else None, interval),
        "time_to_target.fastest_s": (times.fastest_s, "fastest run"),
        "time_to_target.slowest_s": (times.slowest_s, "slowest run that reached the target"),
        "train_time_s": (median and median.value, "median time to target, evaluation included"),
        "samples_per_s": (rate and rate.value, rate_origin),
        "step_time_s": (batch / rate.value if batch and rate and rate.value else None, "global batch / samples per second"),
        "eval_loss": (last_losses, "median of the last evaluations"),
        "epochs": (samples / rows if samples and rows else None, "median samples of the runs / train_samples"),
    }


def _converted_headline(result: ConvertedResult, times: TimeToTarget, rate: Interval | None) -> Row:
    conditions, median = result.conditions, times.median
    optimizer = conditions.settings.get("optimizer")
    compared = {
        "task": Task.CAUSAL_LM.value,
        "global_batch": conditions.global_batch,
        "precision": conditions.precision,
        "optimizer": None if optimizer is None else str(optimizer),
        "step_definition": "optimizer_step",
    }
    notes = [f"{result.label}."]
    if times.reached < times.runs:
        notes.append(f"{times.reached} of {times.runs} runs reached the target; the others count as longer than any of them.")
    return _headline(result, compared, source=f"{result.harness}-{result.round}", trust=Trust.CONVERTED) | {
        "section": f"{result.submitter}: {result.system.name}",
        **columns_of("converted", result),
        "status": "ok" if times.score_s is not None else "partial",
        "time_to_target_s": None if median is None else median.value,
        "time_to_target_low_s": median.low if median and median.bounded else None,
        "time_to_target_high_s": median.high if median and median.bounded else None,
        "samples_per_s_low": rate.low if rate and rate.bounded else None,
        "samples_per_s_high": rate.high if rate and rate.bounded else None,
        "evaluation_rows": count(conditions.settings.get("eval_samples")),
        "note": " ".join((*notes, *result.notes)),
    }


def _converted_printed(result: ConvertedResult) -> Iterator[Row]:
    by_rules, assumed = "fixed by the rules of the benchmark; the logs do not record it", result.conditions.assumed
    entry = {"label", "benchmark", "round", "division", "submitter", "source", "folder", "target_eval_loss"}
    for topic, values in (("entry", result.model_dump(mode="json", include=entry)), ("system", result.system.model_dump(mode="json"))):
        for name, value in values.items():
            if value not in (None, []):
                # The system is always printed.
                yield fact(topic, name, value, by_rules if topic == "entry" and name in assumed else None)
    yield from _condition_facts(result.conditions, by_rules)


def _round(name: str, results: list[ConvertedResult]) -> Row:
    first = results[0]
    submitters = len({result.submitter for result in results})
    runs = sum(len(result.runs) for result in results)
    targets = sorted({result.target_eval_loss for result in results if result.target_eval_loss is not None})
    target = f"an eval loss of {targets[0]:g}" if len(targets) == 1 else "the target"
    return {
        "source": name,
        "title": f"MLPerf Training {first.round}, Llama 2 70B LoRA",
        "authors": f"{submitters} submitters; MLCommons Association",
        "published_on": BENCHMARK["rounds"]["published_on"].get(first.round),
        "url": BENCHMARK["rounds"]["repository"].format(first.round),
        "origin_repository": first.source,
        "licence": first.source.rpartition(", ")[2],
        "summary": f"Time to tune LoRA adapters of Llama 2 70B to {target}: {len(results)} entries of {submitters} submitters, {runs} runs.",
        "caveats": [f"{first.label}.", *BENCHMARK["rounds"]["caveats"]],
    }
