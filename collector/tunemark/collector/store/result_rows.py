"""Rows of results: of submissions, with their log, evidence and physics; of documents and the results in them; and of converted results."""

import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

import numpy as np

from tunemark.collector.audit.evidence import grouped
from tunemark.collector.audit.printed_figures import Figure, derived_figures, precision_class, printed_rows
from tunemark.collector.importers.mlperf import BENCHMARK, count
from tunemark.collector.predict.predicted_vs_measured import compare_memory
from tunemark.collector.store.database import Row, Rows, as_text, columns_of, fact, merge
from tunemark.schema.comparability import comparability_group
from tunemark.schema.derive import Derived, warnings_now
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.utilisation import physics, units_per_node
from tunemark.schema.records.base import flattened
from tunemark.schema.records.converted import ConvertedResult, run_energy, training_rate
from tunemark.schema.records.published import Claim, Conditions, PublishedResult, SourceDocument
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import compared
from tunemark.schema.statistics.intervals import Interval
from tunemark.schema.vocabulary import Task

TRAINING_LIBRARIES = ("torch", "transformers", "peft", "accelerate", "deepspeed", "bitsandbytes", "liger-kernel", "optimum-neuron")
ORDERED = ("phases", "effective", "flops", "memory_lines")
"""Tables whose rows have a position."""


def measured_rows(submission: Submission, derived: Derived, facts: FactBase, result_id: str, file: str, sha256: str) -> Rows:
    """Return the rows of a submission by table."""
    physics_columns, physics_tables = _physics(submission, derived, facts)
    accelerator = facts.accelerators.get(submission.plan.device.accelerator or "")
    headline = {
        "source": "measured",
        "trust": "measured",
        "file": file,
        "sha256": sha256,
        **_headline(submission, derived),
        **physics_columns,
        "accelerator_units": submission.plan.device.nodes * units_per_node(submission, accelerator),
    }
    wall_s, effective, trace, window = submission.process.wall_s, submission.effective, submission.trace, derived.window
    labels = ["steady" if window and window.first <= step < window.stop else "warmup" for step in range(len(trace))]
    tables: Rows = {
        "result_rows": [headline],
        "step_logs": [{"label": labels, **columns_of("step_logs", trace)}] if window is not None else [],
        "phases": [
            {"phase": phase, "duration_s": seconds, "share": seconds / wall_s if wall_s else 0.0}
            for phase, seconds in derived.phases.items()
        ],
        "result_facts": [*_facts(submission, derived), *physics_tables.pop("result_facts")],
        "step_events": [event.model_dump() for event in submission.events],
        "effective": [lever._asdict() for lever in (compared(submission.plan, effective, trace) if effective else ())],
        "gates": [columns_of("gates", gate) for gate in submission.gates],
        "ranks": list(_ranks(submission, derived)),
        "device_use": [
            columns_of("device_use", use)
            | {
                "throttle_share": max(use.throttle_shares.values(), default=None),
                "why_unknown": [f"{name}: {why}" for name, why in use.unknown.items()],
            }
            for use in (submission.utilisation.devices if submission.utilisation else ())
        ],
        "warnings": [{"kind": warning.kind.value, "message": warning.message} for warning in warnings_now(submission, derived)],
        **physics_tables,
    }
    for table in ORDERED:
        tables[table] = _placed(tables[table])
    return {table: [{"result_id": result_id, **row} for row in rows] for table, rows in tables.items()}


def _placed(rows: Iterable[Row]) -> list[Row]:
    return [{"position": position, **row} for position, row in enumerate(rows, start=1)]


# Columns of the result row -------------------------------------------------------------------------


def _headline(submission: Submission, derived: Derived) -> Row:
    """Return the columns of the result row that follow from the record, its derived figures and its evidence."""
    plan, packages, effective, probe = submission.plan, submission.environment.packages, submission.effective, submission.probe
    model, count = submission.model, submission.plan.device.count
    verdicts = [gate.passed for gate in submission.gates if gate.passed is not None]
    row = columns_of("submission", submission) | columns_of("derived", derived)
    row |= {
        # The versions of the libraries that determine the speed of training.
        "software": ", ".join(f"{name} {packages[name]}" for name in TRAINING_LIBRARIES if name in packages),
        # The format of frozen weights is free in the tuned division, so it is no condition of a comparison.
        "precision": plan.product_formats if plan.model.fp8_training != "none" else plan.precision.compute.value,
        "fp8": "frozen weights" if plan.model.frozen_weights == "fp8" else plan.model.fp8_training,
        "step_definition": "optimizer_step",
        "steps": len(submission.trace),
        "epochs": epochs_done(submission),
        **_interval("tokens_per_s", derived.tokens_per_s),
        **_interval("samples_per_s", derived.samples_per_s),
        "epoch_time_s": epoch_time_s(submission, derived),
        "model_memory_bytes": sum(model.parameter_bytes.values()) if model else None,
        "gates": None if not verdicts else "passed" if all(verdicts) else "failed",
        "probe_flop_per_s": probe.before_flop_per_s * count if probe else None,
        "probe_after_flop_per_s": probe.after_flop_per_s * count if probe and probe.after_flop_per_s else None,
    }
    if effective is not None and effective.loss == "chunked":
        row["fused_kernels"] = "chunked loss"
    return row | {"comparability_group": comparability_group(row | {"document_borders": plan.data.document_borders})}


def epochs_done(submission: Submission) -> float | None:
    """Return passes over the rows; None when rows are generated without end."""
    rows = submission.plan.data.training_rows
    return sum(submission.trace.rows) / rows if rows else None


def epoch_time_s(submission: Submission, derived: Derived) -> float | None:
    """Return seconds of one pass over the rows at steady speed; None without a known number of documents in it."""
    data = submission.plan.data
    if data.training_rows is None or data.packing or derived.samples_per_s is None or not derived.samples_per_s.value:
        return None
    return data.training_rows / derived.samples_per_s.value


def _interval(name: str, interval: Interval | None) -> Row:
    if interval is None:
        return {}
    # Without an interval its ends are unknown, not zero and infinity.
    return {name: interval.value} | ({f"{name}_low": interval.low, f"{name}_high": interval.high} if interval.bounded else {})


def _ranks(submission: Submission, derived: Derived) -> Iterator[Row]:
    window = derived.window
    part = slice(window.first, window.stop) if window is not None else slice(0)
    medians = {rank.rank: float(np.median(own)) if len(own := rank.own_work_s[part]) else None for rank in submission.ranks}
    known = [own for own in medians.values() if own is not None]
    typical = float(np.median(known)) if known else 0.0
    slowest = derived.slowest_rank.rank if derived.slowest_rank else None
    for rank in submission.ranks:
        own_s = medians[rank.rank]
        behind = own_s / typical - 1 if own_s is not None and typical else None
        yield columns_of("ranks", rank) | {"own_work_s": own_s, "behind": behind, "slowest": rank.rank == slowest}


# Facts: environment, settings and derived figures --------------------------------------------------


def _facts(submission: Submission, derived: Derived) -> Iterator[Row]:
    record = submission.model_dump(mode="json")
    reasons, environment = {"plan": record["plan"].pop("reasons")}, record["environment"]
    record["packages"] = environment.pop("packages") | environment.pop("runtime")
    for topic in ("environment", "packages", "plan", "harness", "process", "row_lengths", "model", "utilisation", "evaluation"):
        for name, value in flattened(record[topic] or {}):
            yield fact(topic, name, value, reasons.get(topic, {}).get(name))
    yield fact("requested", "command", shlex.join(["tunemark", "run", *submission.requested.arguments()]), None)
    for override in submission.overrides:
        yield fact("overrides", override.field, override.run, f"the card has {as_text(override.card)}")
    for name, reading in submission.memory:
        yield fact("memory", name, reading.peak_bytes, reading.method or reading.reason)
    micro = derived.micro_steps
    which = "in steady steps" if micro and micro.steady else "in the steps after the first, none of them steady"
    yield from _derived_facts(
        {
            "slot_tokens_per_s": (derived.slot_tokens_per_s, "tensor elements over time in the steady window, padding included"),
            "epoch_time_s": (epoch_time_s(submission, derived), "rows of an epoch / steady samples per second"),
            "epochs": (epochs_done(submission), "rows of all steps / rows of an epoch"),
            "micro_step_time_s": (micro and micro.time.p50, f"median of {micro and micro.count} micro-steps {which}, without the update"),
        }
    )
    if derived.step_time is not None:
        for name, value in asdict(derived.step_time).items():
            yield fact("derived", f"step_time.{name}", value, f"of {derived.step_time.n} steady steps; times in seconds")


def _derived_facts(figures: Mapping[str, tuple[object, str]]) -> Iterator[Row]:
    for name, (value, origin) in figures.items():
        if value is not None:
            yield fact("derived", name, value, origin)


# Physics: FLOPs, utilisation, energy and memory, each with its formula or the reason why it is unknown ----


def _physics(submission: Submission, derived: Derived, facts: FactBase) -> tuple[Row, Rows]:
    """Return columns of the result row, and rows of `flops`, `memory_lines` and `result_facts`."""
    plan = submission.plan
    model, accelerator = facts.models.get(plan.model.key), facts.accelerators.get(plan.device.accelerator or "")
    known = physics(submission, derived, model, accelerator)
    lines, no_memory = compare_memory(submission, model)
    figures, ledger = known.figures, known.flops
    columns: Row = {
        **{name: figure.value for name, figure in figures.items()},
        "flop_per_step": ledger.model_flops if ledger else None,
        "predicted_memory_bytes": next((line["predicted_bytes"] for line in lines if line["line"] == "peak allocated"), None),
    }
    reasons = [fact("derived", name, figure.value, figure.reason) for name, figure in figures.items()]
    if no_memory is not None:
        reasons.append(fact("derived", "predicted_memory_bytes", None, no_memory))
    flops = [columns_of("flops", line) for line in (ledger.lines if ledger else ())]
    tables: Rows = {"flops": flops, "memory_lines": lines, "result_facts": reasons}
    return columns, tables


# Documents, published and converted results --------------------------------------------------------

AMBIGUOUS_STEP = "ambiguous"
PRINTED = {"framework", "settings", "assumed", "from_repository"}
"""Fields of conditions that have a topic of their own, or describe other fields."""


def document_rows(document: SourceDocument) -> Rows:
    """Return the rows of a source document by table."""
    tables = _placed({"source": document.id, **columns_of("document_tables", table)} for table in document.tables)
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


def _stated_columns(result: PublishedResult | ConvertedResult, compared: Row, *, source: str, trust: str) -> Row:
    """Return the columns of a result that published and converted results state in the same way."""
    optimizer = result.conditions.settings.get("optimizer")
    compared = columns_of("conditions", result.conditions) | compared
    compared["precision"] = precision_class(result.conditions.precision)
    compared["optimizer"] = None if optimizer is None else str(optimizer).rsplit(".", 1)[-1].lower()
    # Nothing compares with a step of unknown meaning.
    group = None if compared["step_definition"] == AMBIGUOUS_STEP else comparability_group(compared)
    return {"result_id": result.id, "source": source, "trust": trust, **compared, "comparability_group": group, "rankable": False}


# Published results ---------------------------------------------------------------------------------


def published_rows(result: PublishedResult, facts: FactBase, file: str, sha256: str) -> Rows:
    """Return the rows of a published result by table."""
    printed, dataset = result.conditions.dataset, facts.known.dataset(result.conditions.dataset)
    rows = printed_rows(printed) or (dataset.training_rows if dataset else None)
    figures = derived_figures(result, rows, dataset.test_rows if dataset else None)
    facts_of_result = [
        *_derived_facts({name: (figure.value, figure.formula) for name, figure in figures.items() if figure.formula is not None}),
        *_condition_facts(result.conditions, "assumed: implied, not stated"),
        fact("origin", result.origin.kind, result.origin.reference),
    ]
    return {
        "result_rows": [_published_headline(result, figures, facts) | {"file": file, "sha256": sha256}],
        "result_facts": [{"result_id": result.id, **row} for row in facts_of_result],
        **_claims(result.id, result.claims, result.labels),
    }


def _published_headline(result: PublishedResult, figures: Mapping[str, Figure], facts: FactBase) -> Row:
    claims, card = result.claims, facts.models.get(result.conditions.model or "")
    ambiguous = "step_time_s" in claims and claims["step_time_s"].readings
    compared: Row = {
        # Every encoder of the sources classifies; all other models predict the next token.
        "task": card and (Task.SEQUENCE_CLASSIFICATION if FAMILIES[card.family].encoder else Task.CAUSAL_LM).value,
        "global_batch": int(figures["global_batch"].value) if "global_batch" in figures else None,
        "step_definition": AMBIGUOUS_STEP if ambiguous else "optimizer_step" if "step_time_s" in figures else None,
    }
    # Memory printed in GiB or GB differs by 7%: the printed reading is kept here, all readings in `readings`.
    row = _stated_columns(result, compared, source=result.source, trust="published") | columns_of("published", result)
    row |= {name: figure.value for name, figure in figures.items() if name not in {"steps_per_s", "global_batch"}}
    row |= {name: round(claims[name].value) for name in ("steps", "parameters") if name in claims}
    if "peak_memory_bytes" in claims:
        row["peak_memory_method"] = claims["peak_memory_bytes"].note or "as claimed"
    return row


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

HEADLINES = ("step_time_s", "eval_loss", "epochs", "energy_per_run_j", "energy_per_sample_j", "train_time_s", "mlperf_score_s")
"""Statistics over the runs that are columns of the result."""


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def converted_rows(results: Iterable[tuple[ConvertedResult, str, str]]) -> Rows:
    """Return the rows of converted results, each given with its file and that file's hash, and of their rounds."""
    rows: Rows = {}
    rounds = grouped(results, lambda each: f"{each[0].harness}-{each[0].round}")
    for name, members in sorted(rounds.items()):
        for member in members:
            merge(rows, _converted_result(*member))
        merge(rows, {"sources": [_round(name, [result for result, *_ in members])]})
    return rows


def _converted_result(result: ConvertedResult, file: str, sha256: str) -> Rows:
    rate = training_rate(result)
    derived = _converted_figures(result, rate)
    headline = _converted_headline(result, rate) | {name: derived[name][0] for name in HEADLINES}
    runs = [({"result_id": result.id, "run": number}, run) for number, run in enumerate(result.runs, start=1)]
    return {
        "result_rows": [headline | {"file": file, "sha256": sha256}],
        **{name: [place | columns_of(name, run) for place, run in runs] for name in ("runs", "run_logs")},
        "result_facts": [{"result_id": result.id, **row} for row in (*_derived_facts(derived), *_converted_printed(result))],
    }


def _converted_figures(result: ConvertedResult, rate: Interval | None) -> dict[str, tuple[object, str]]:
    """Return the statistics over the runs of a result: name -> (value, origin). An unknown value is None."""
    times = [run.time_to_target_s for run in result.runs if run.time_to_target_s is not None]
    batch, median, finished = result.conditions.global_batch, result.median_time, [run for run in result.runs if run.status == "ok"]
    samples, rows = _median(run.samples for run in finished if run.samples), count(result.conditions.settings.get("train_samples"))
    interval = "order statistics of the runs; at least 95%"
    all_runs = "median of all runs; one that did not reach the target counts as longer than any other"
    rate_origin = "samples of all runs / seconds in their training blocks; 95% interval over the runs"
    energy, factor = run_energy(result), result.scaling_factor or 1
    scope = energy.scope if energy else ""
    last_losses = _median(run.curve.eval_loss[-1] for run in finished if run.curve.eval_loss)
    return {
        "time_to_target.runs": (len(result.runs), "logs of the entry"),
        "time_to_target.reached": (len(times), "runs with a successful run_stop after an evaluation at the target"),
        "mlperf_score_s": (result.score_s, f"mean without the fastest and the slowest run x scaling factor {factor:.6g}"),
        "energy_per_run_j": (energy and energy.per_run_j, f"median of {energy.runs if energy else 0} runs; {scope}"),
        "energy_per_sample_j": (energy and energy.per_sample_j, f"energy of all runs / their training samples; {scope}"),
        "time_to_target.median_s": (median and median.value, all_runs),
        "time_to_target.low_s": (median and median.low, interval),
        "time_to_target.high_s": (median.high if median and median.bounded else None, interval),
        "time_to_target.fastest_s": (min(times, default=None), "fastest run"),
        "time_to_target.slowest_s": (max(times, default=None), "slowest run that reached the target"),
        "train_time_s": (median and median.value, "median time to target, evaluation included"),
        "samples_per_s": (rate and rate.value, rate_origin),
        "step_time_s": (batch / rate.value if batch and rate and rate.value else None, "global batch / samples per second"),
        "eval_loss": (last_losses, "median of the last evaluations"),
        "epochs": (samples / rows if samples and rows else None, "median samples of the runs / train_samples"),
    }


def _converted_headline(result: ConvertedResult, rate: Interval | None) -> Row:
    conditions, median, reached = result.conditions, result.median_time, sum(run.time_to_target_s is not None for run in result.runs)
    compared = {"task": Task.CAUSAL_LM.value, "global_batch": conditions.global_batch, "step_definition": "optimizer_step"}
    notes = [f"{result.label}."]
    if reached < len(result.runs):
        notes.append(f"{reached} of {len(result.runs)} runs reached the target; the others count as longer than any of them.")
    return _stated_columns(result, compared, source=f"{result.harness}-{result.round}", trust="converted") | {
        "section": f"{result.submitter}: {result.system.name}",
        **columns_of("converted", result),
        "status": "ok" if result.score_s is not None else "partial",
        "time_to_target_s": None if median is None else median.value,
        "time_to_target_low_s": median.low if median and median.bounded else None,
        "time_to_target_high_s": median.high if median and median.bounded else None,
        **_interval("samples_per_s", rate),
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
