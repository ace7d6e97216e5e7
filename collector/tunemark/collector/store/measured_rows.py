"""What a run saw beside its steps, as rows: requested against effective, gates, ranks, events, device use, its study."""

from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite

import numpy as np

from tunemark.collector.predict.predicted_vs_measured import MemoryComparison, compare_memory
from tunemark.collector.store.rows import Row, Rows, as_text, flattened
from tunemark.schema.comparability import comparability_group
from tunemark.schema.derive import Derived, step_labels
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.utilisation import Physics, physics
from tunemark.schema.records.effective import compared
from tunemark.schema.records.submission import MemoryReading, Submission
from tunemark.schema.statistics.intervals import Interval
from tunemark.schema.vocabulary import Trust


def evidence_rows(submission: Submission, derived: Derived, result_id: str) -> Rows:
    """Return the rows by table."""
    tables: dict[str, Iterator[Row]] = {
        "step_events": _events(submission),
        "effective": _effective(submission),
        "gates": _gates(submission),
        "ranks": _ranks(submission, derived),
        "device_use": _device_use(submission),
    }
    return {name: [{"result_id": result_id, **row} for row in rows] for name, rows in tables.items()}


def evidence_columns(submission: Submission, derived: Derived) -> Row:
    """Return what the row of a result holds of it."""
    seen, study, probe, slowest = submission.effective, submission.study, submission.probe, derived.slowest_rank
    verdicts = [gate.passed for gate in submission.gates if gate.passed is not None]
    return {
        "nodes": submission.plan.device.nodes,
        **(
            {}
            if seen is None
            else seen.model_dump(include={"attention", "fused_kernels", "compile", "gradient_checkpointing", "process_group"})
        ),
        **(
            {}
            if study is None
            else {
                "study_id": study.study_id,
                "study_kind": study.kind,
                "study_point": study.point,
                "study_position": study.position,
            }
        ),
        "gates": None if not verdicts else "passed" if all(verdicts) else "failed",
        "compile_overhead_s": derived.compile_overhead_s,
        "probe_flop_per_s": probe.before_flop_per_s * submission.plan.device.count if probe else None,
        "probe_after_flop_per_s": probe.after_flop_per_s * submission.plan.device.count if probe and probe.after_flop_per_s else None,
        **({} if slowest is None else {"slowest_rank": slowest.rank, "rank_behind": slowest.behind}),
    }


def _events(submission: Submission) -> Iterator[Row]:
    for event in submission.events:
        yield event.model_dump()


def _gates(submission: Submission) -> Iterator[Row]:
    for gate in submission.gates:
        yield {"gate": gate.name, "passed": gate.passed, "detail": gate.detail}


def _effective(submission: Submission) -> Iterator[Row]:
    if submission.effective is None:
        return
    levers = compared(submission.plan, submission.effective, submission.trace)
    for position, lever in enumerate(levers, start=1):
        yield {"position": position, **lever._asdict()}


def _ranks(submission: Submission, derived: Derived) -> Iterator[Row]:
    window = derived.window
    part = slice(window.first, window.stop) if window is not None else slice(0)
    medians = {rank.rank: float(np.median(own)) if len(own := rank.own_work_s[part]) else None for rank in submission.ranks}
    known = [own for own in medians.values() if own is not None]
    typical = float(np.median(known)) if known else 0.0
    slowest = derived.slowest_rank.rank if derived.slowest_rank else None
    for rank in submission.ranks:
        own_s = medians[rank.rank]
        yield {
            "rank": rank.rank,
            "own_work_s": own_s,
            "behind": own_s / typical - 1 if own_s is not None and typical else None,
            "slowest": rank.rank == slowest,
            **rank.model_dump(include={"device_allocated_bytes", "device_reserved_bytes", "host_rss_bytes"}),
        }


def _device_use(submission: Submission) -> Iterator[Row]:
    for use in submission.utilisation.devices if submission.utilisation else ():
        row = use.model_dump(mode="json")
        yield {"device": row.pop("index"), **row}


# MOVE: was tunemark.collector.store.measured_rows: FLOPs, utilisation, energy and memory of a run as rows: computed with the cards of data/, each with its formula or its reason.

PEAK = "peak allocated"


class PhysicsRows:
    """What follows from a submission and the facts."""

    def __init__(self, submission: Submission, derived: Derived, facts: FactBase) -> None:
        plan = submission.plan
        model = facts.models.get(plan.model.key)
        accelerator = facts.accelerators.get(plan.device.accelerator or "")
        self._submission = submission
        self._found: Physics = physics(submission, derived, model, accelerator)
        self._memory, self._no_memory = compare_memory(submission, model)

    def columns(self) -> Row:
        """Return what the row of a result holds of it."""
        used = self._submission.utilisation.energy if self._submission.utilisation else None
        ledger = self._found.flops
        return {
            **{name: known.value for name, known in self._found.figures().items()},
            "flop_per_step": ledger.model_flops if ledger else None,
            "predicted_memory_bytes": next((line.predicted_bytes for line in self._memory if line.key == PEAK), None),
            **({} if used is None else {"energy_source": used.source, "energy_j": used.joules, "energy_window_s": used.window_s}),
        }

    def tables(self, result_id: str) -> Rows:
        """Return the rows of `flops` and `memory_lines`."""
        lines = self._found.flops.lines if self._found.flops else ()
        return {
            "flops": [
                {"result_id": result_id, "position": position, "class": line.key, "flop": line.flops, "formula": line.formula}
                for position, line in enumerate(lines, start=1)
            ],
            "memory_lines": [_memory_row(result_id, position, line) for position, line in enumerate(self._memory, start=1)],
        }

    def facts(self) -> Iterator[Row]:
        """Yield each figure with its formula, and each that is not known with its reason."""
        for name, known in self._found.figures().items():
            yield {"topic": "derived", "name": name, "value": as_text(known.value), "reason": known.reason}
        if self._no_memory is not None:
            yield {"topic": "derived", "name": "predicted_memory_bytes", "value": None, "reason": self._no_memory}


def _memory_row(result_id: str, position: int, line: MemoryComparison) -> Row:
    return {
        "result_id": result_id,
        "position": position,
        "line": line.key,
        "kind": line.group,
        "predicted_bytes": line.predicted_bytes,
        "measured_bytes": line.measured_bytes,
        "note": line.note,
    }


# MOVE: was tunemark.collector.store.measured_rows: How a submission becomes rows: headline numbers derived from its raw log, the log itself, and the facts around it.


def measured_rows(submission: Submission, derived: Derived, facts: FactBase, result_id: str, file: str, sha256: str) -> Rows:
    """Return the rows of a submission by table."""
    physics = PhysicsRows(submission, derived, facts)
    return {
        "result_rows": [
            {
                "result_id": result_id,
                "source": "measured",
                "trust": Trust.MEASURED.value,
                "file": file,
                "sha256": sha256,
                **_identity(submission),
                **_conditions(submission),
                **_headlines(submission, derived),
                **evidence_columns(submission, derived),
                **physics.columns(),
            }
        ],
        "steps": _steps(submission, derived, result_id),
        "phases": _phases(submission, derived, result_id),
        "result_facts": [{"result_id": result_id, **fact} for fact in (*_facts(submission, derived), *physics.facts())],
        **evidence_rows(submission, derived, result_id),
        **physics.tables(result_id),
        "warnings": [{"result_id": result_id, "doubt": warned.doubt.value, "message": warned.message} for warned in submission.warnings],
    }


def _identity(submission: Submission) -> Row:
    plan, outcome = submission.plan, submission.outcome
    return {
        "division": submission.division.value,
        "workload": plan.workload,
        "accelerator": plan.device.accelerator,
        "accelerator_printed": submission.environment.devices[0].name,
        "accelerator_count": plan.device.count,
        "backend": plan.device.backend.value,
        "strategy": plan.device.strategy.value,
        "status": outcome.status.value,
        "message": outcome.message,
        "fix": outcome.fix,
        "started_at": submission.started_at,
        "weights": plan.model.weights.value,
        "harness_version": submission.harness.version,
        "harness_commit": submission.harness.commit,
    }


def _conditions(submission: Submission) -> Row:
    plan = submission.plan
    compared: Row = {
        "model": plan.model.key,
        "task": plan.model.task.value,
        "method": plan.method.value,
        "dataset": plan.data.name,
        "sequence_length": plan.data.sequence_length,
        "padding": plan.data.padding.value,
        "packing": plan.data.packing,
        "global_batch": plan.batch.global_batch,
        "precision": plan.precision.compute.value,
        "optimizer": plan.optimizer.name,
        "step_definition": "optimizer_step",
    }
    return {
        **compared,
        "micro_batch": plan.batch.micro_batch,
        "gradient_accumulation": plan.batch.gradient_accumulation,
        "comparability_group": comparability_group({**compared, "document_borders": plan.data.document_borders}),
    }


def _headlines(submission: Submission, derived: Derived) -> Row:
    step, window, memory = derived.step_time, derived.window, derived.peak_memory
    evaluation, model = submission.evaluation, submission.model
    return {
        "steps": len(submission.trace),
        "epochs": epochs_done(submission),
        **(
            {}
            if step is None
            else {"step_time_s": step.p50, "step_time_p5_s": step.p5, "step_time_p95_s": step.p95, "step_time_cv": step.cv}
        ),
        **_interval("tokens_per_s", derived.tokens_per_s),
        **_interval("samples_per_s", derived.samples_per_s),
        "padding_efficiency": derived.padding_efficiency,
        "peak_memory_bytes": memory.peak_bytes,
        "peak_memory_method": memory.method,
        "model_memory_bytes": None if model is None else sum(model.parameter_bytes.values()),
        "train_time_s": derived.train_time_s,
        "epoch_time_s": epoch_time_s(submission, derived),
        "wall_s": submission.process.wall_s,
        "loss_start": derived.loss_start,
        "train_loss": derived.train_loss,
        **(
            {}
            if evaluation is None
            else {
                "eval_loss": evaluation.loss,
                "eval_loss_se": evaluation.loss_standard_error,
                "accuracy": evaluation.accuracy,
                "accuracy_se": derived.accuracy_standard_error,
                "evaluation_rows": evaluation.rows,
            }
        ),
        **({} if window is None else {"stable": window.stable, "steady_steps": window.steps, "steady_verdict": window.verdict}),
        **({} if model is None else {"parameters": model.parameters, "trainable_parameters": model.trainable_parameters}),
        "rankable": derived.rankable,
    }


def epochs_done(submission: Submission) -> float | None:
    """Return passes over the rows; None when rows are generated without end."""
    rows = submission.plan.data.training_rows
    return sum(submission.trace.rows) / rows if rows else None


def epoch_time_s(submission: Submission, derived: Derived) -> float | None:
    """Return what one pass over the rows takes at steady speed; None without a known number of documents in it."""
    data = submission.plan.data
    if data.training_rows is None or data.packing or derived.samples_per_s is None or not derived.samples_per_s.value:
        return None
    return data.training_rows / derived.samples_per_s.value


def _interval(name: str, interval: Interval | None) -> Row:
    if interval is None:
        return {}
    # Too few steps for an interval: its ends are unknown, not zero and infinity.
    known = isfinite(interval.high)
    return {name: interval.value, f"{name}_low": interval.low if known else None, f"{name}_high": interval.high if known else None}


def _steps(submission: Submission, derived: Derived, result_id: str) -> list[Row]:
    trace = submission.trace
    if derived.window is None:
        return []
    names = (
        "step",
        "label",
        "completed_at_s",
        "step_time_s",
        "slot_tokens",
        "real_tokens",
        "supervised_tokens",
        "documents",
        "rows",
        "loss",
    )
    columns = (
        range(1, len(trace) + 1),
        step_labels(derived.window, len(trace)),
        trace.completed_at_s,
        trace.step_times_s,
        trace.slot_tokens,
        trace.real_tokens,
        trace.supervised_tokens,
        trace.documents,
        trace.rows,
        trace.loss,
    )
    return [{"result_id": result_id, **dict(zip(names, values, strict=True))} for values in zip(*columns, strict=True)]


def _phases(submission: Submission, derived: Derived, result_id: str) -> list[Row]:
    wall_s = submission.process.wall_s
    return [
        {"result_id": result_id, "position": position, "phase": phase, "duration_s": seconds, "share": seconds / wall_s if wall_s else 0.0}
        for position, (phase, seconds) in enumerate(derived.phases.items(), start=1)
    ]


def _facts(submission: Submission, derived: Derived) -> Iterator[Row]:
    record = submission.model_dump(mode="json")
    reasons = submission.plan.reasons
    environment = record["environment"]
    packages, runtime = environment.pop("packages"), environment.pop("runtime")
    yield from _topic("environment", environment)
    yield from _topic("packages", {**packages, **runtime})
    plan = {name: value for name, value in record["plan"].items() if name != "reasons"}
    for name, value in flattened(plan):
        yield {"topic": "plan", "name": name, "value": as_text(value), "reason": reasons.get(name)}
    for override in submission.overrides:
        yield {
            "topic": "overrides",
            "name": override.field,
            "value": as_text(override.run),
            "reason": f"the card says {as_text(override.card)}",
        }
    yield from _topic("harness", record["harness"])
    yield from _topic("process", record["process"])
    for name in type(submission.memory).model_fields:
        yield _reading(name, getattr(submission.memory, name))
    yield from _topic("model", record["model"] or {})
    yield from _topic("utilisation", record["utilisation"] or {})
    yield from _topic("evaluation", record["evaluation"] or {})
    yield from _derived_facts(submission, derived)


def _topic(topic: str, values: Row) -> Iterator[Row]:
    for name, value in flattened(values):
        yield {"topic": topic, "name": name, "value": as_text(value), "reason": None}


def _reading(name: str, reading: MemoryReading) -> Row:
    return {"topic": "memory", "name": name, "value": as_text(reading.peak_bytes), "reason": reading.method or reading.reason}


def _derived_facts(submission: Submission, derived: Derived) -> Iterator[Row]:
    if derived.step_time is not None:
        reason = f"of {derived.step_time.n} steady steps; times in seconds"
        for name, value in asdict(derived.step_time).items():
            yield {"topic": "derived", "name": f"step_time.{name}", "value": as_text(value), "reason": reason}
    if derived.slot_tokens_per_s is not None:
        yield {
            "topic": "derived",
            "name": "slot_tokens_per_s",
            "value": as_text(derived.slot_tokens_per_s),
            "reason": "tensor elements over time in the steady window, padding included",
        }
    if epoch_time_s(submission, derived) is not None:
        yield {
            "topic": "derived",
            "name": "epoch_time_s",
            "value": as_text(epoch_time_s(submission, derived)),
            "reason": "rows of an epoch / steady samples a second",
        }
    if epochs_done(submission) is not None:
        yield {
            "topic": "derived",
            "name": "epochs",
            "value": as_text(epochs_done(submission)),
            "reason": "rows of all steps / rows of an epoch",
        }
