"""Rows of a submission: headline numbers derived from its raw log, the log itself, its evidence, and its physics."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite

import numpy as np

from tunemark.collector.predict.predicted_vs_measured import compare_memory
from tunemark.collector.store.database import Row, Rows, as_text, columns_of, fact
from tunemark.schema.comparability import comparability_group
from tunemark.schema.derive import Derived, step_labels, warnings_now
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import physics, units_per_node
from tunemark.schema.records.base import flattened
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import compared
from tunemark.schema.statistics.intervals import Interval
from tunemark.schema.vocabulary import Trust

TRAINING_LIBRARIES = ("torch", "transformers", "peft", "accelerate", "deepspeed", "bitsandbytes", "liger-kernel", "optimum-neuron")


def measured_rows(submission: Submission, derived: Derived, facts: FactBase, result_id: str, file: str, sha256: str) -> Rows:
    """Return the rows of a submission by table."""
    physics_columns, physics_tables = _physics(submission, derived, facts)
    accelerator = facts.accelerators.get(submission.plan.device.accelerator or "")
    headline = {
        "source": "measured",
        "trust": Trust.MEASURED.value,
        "file": file,
        "sha256": sha256,
        **_headline(submission, derived),
        **physics_columns,
        "accelerator_units": submission.plan.device.nodes * units_per_node(submission, accelerator),
    }
    wall_s, effective, trace, window = submission.process.wall_s, submission.effective, submission.trace, derived.window
    tables: Rows = {
        "result_rows": [headline],
        "step_logs": [{"label": step_labels(window, len(trace)), **columns_of("step_logs", trace)}] if window is not None else [],
        "phases": [
            {"position": position, "phase": phase, "duration_s": seconds, "share": seconds / wall_s if wall_s else 0.0}
            for position, (phase, seconds) in enumerate(derived.phases.items(), start=1)
        ],
        "result_facts": [*_facts(submission, derived), *physics_tables.pop("result_facts")],
        "step_events": [event.model_dump() for event in submission.events],
        "effective": [
            {"position": position, **lever._asdict()}
            for position, lever in enumerate(compared(submission.plan, effective, trace) if effective else (), start=1)
        ],
        "gates": [columns_of("gates", gate) for gate in submission.gates],
        "ranks": list(_ranks(submission, derived)),
        "device_use": [
            {
                "device": use.index,
                "throttle_share": max(use.throttle_shares.values(), default=None),
                "why_unknown": [f"{name}: {why}" for name, why in use.unknown.items()],
                **use.model_dump(mode="json", exclude={"index", "throttle_shares", "unknown"}),
            }
            for use in (submission.utilisation.devices if submission.utilisation else ())
        ],
        "warnings": [{"kind": warning.kind.value, "message": warning.message} for warning in warnings_now(submission, derived)],
        **physics_tables,
    }
    return {table: [{"result_id": result_id, **row} for row in rows] for table, rows in tables.items()}


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
    # With too few steps for an interval its ends are unknown, not zero and infinity.
    known = isfinite(interval.high)
    return {name: interval.value, f"{name}_low": interval.low if known else None, f"{name}_high": interval.high if known else None}


# Tables of the log and the evidence ----------------------------------------------------------------


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
    plan, environment = record["plan"], record["environment"]
    reasons = plan.pop("reasons")
    packages = environment.pop("packages") | environment.pop("runtime")
    yield from _topic("environment", environment)
    yield from _topic("packages", packages)
    yield fact("requested", "command", shlex.join(["tunemark", "run", *submission.requested.arguments()]), None)
    yield from _topic("plan", plan, reasons)
    for override in submission.overrides:
        yield fact("overrides", override.field, override.run, f"the card has {as_text(override.card)}")
    yield from _topic("harness", record["harness"])
    yield from _topic("process", record["process"])
    for name in type(submission.memory).model_fields:
        reading = getattr(submission.memory, name)
        yield fact("memory", name, reading.peak_bytes, reading.method or reading.reason)
    for topic in ("row_lengths", "model", "utilisation", "evaluation"):
        yield from _topic(topic, record[topic] or {})
    if derived.slot_tokens_per_s is not None:
        reason = "tensor elements over time in the steady window, padding included"
        yield fact("derived", "slot_tokens_per_s", derived.slot_tokens_per_s, reason)
    epoch_s, epochs = epoch_time_s(submission, derived), epochs_done(submission)
    if epoch_s is not None:
        yield fact("derived", "epoch_time_s", epoch_s, "rows of an epoch / steady samples per second")
    if epochs is not None:
        yield fact("derived", "epochs", epochs, "rows of all steps / rows of an epoch")
    if derived.step_time is not None:
        for name, value in asdict(derived.step_time).items():
            yield fact("derived", f"step_time.{name}", value, f"of {derived.step_time.n} steady steps; times in seconds")
    micro = derived.micro_steps
    if micro is not None:
        which = "in steady steps" if micro.steady else "in the steps after the first, none of them steady"
        yield fact("derived", "micro_step_time_s", micro.time.p50, f"median of {micro.count} micro-steps {which}, without the update")


def _topic(topic: str, values: Row, reasons: dict[str, str] | None = None) -> Iterator[Row]:
    for name, value in flattened(values):
        yield fact(topic, name, value, (reasons or {}).get(name))


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
    tables: Rows = {
        "flops": [
            {"position": position, **columns_of("flops", line)} for position, line in enumerate(ledger.lines if ledger else (), start=1)
        ],
        "memory_lines": [{"position": position, **line} for position, line in enumerate(lines, start=1)],
        "result_facts": reasons,
    }
    return columns, tables
