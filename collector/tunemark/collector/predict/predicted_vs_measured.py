"""Predicted memory beside what was measured, line by line."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tunemark.collector.store.rows import Row
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import MemoryReading as PublishedReading
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.memory_states import MemoryLedger, MemoryLine
from tunemark.schema.physics.training_shape import ALL_LINEAR, TrainingShape, shape_of_plan, shape_problem
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.published import Claim, Conditions, PublishedResult
from tunemark.schema.records.submission import MemoryReading, ModelFacts, Submission
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

MEASURED = {
    "base weights": ("weights", "4-bit weights", "4-bit scales"),
    "adapters": ("adapters",),
    "gradients": ("gradients",),
    "optimizer states": ("optimizer states", "fp32 master weights"),
}
"""What the harness weighs -> the lines of the estimate that it is made of."""


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """Bytes of one kind, predicted and measured."""

    key: str
    """What it is."""
    group: str
    """`state`: tensors that were weighed. `peak`: of the allocator. `part`: predicted only."""
    predicted_bytes: int | None
    measured_bytes: int | None
    note: str
    """The formula, and what keeps the two from being compared."""

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1."""
        return self.predicted_bytes / self.measured_bytes - 1 if self.predicted_bytes is not None and self.measured_bytes else None


def compare_memory(submission: Submission, card: ModelCard | None) -> tuple[tuple[MemoryComparison, ...], str | None]:
    """Return the lines, and why there is no prediction, or None."""
    reason = _no_prediction(submission.plan, card)
    if reason is not None or card is None:
        return (), reason
    ledger = estimate_memory(shape_of_plan(submission.plan, card))
    lines = [*_states(ledger, submission), *_peaks(ledger, submission)]
    return (*lines, *_parts(ledger.lines)), None


def _no_prediction(plan: Plan, card: ModelCard | None) -> str | None:
    if card is None:
        return f"there is no card of the model {plan.model.key}"
    if plan.device.offload == "optimizer":
        return "the memory model does not know states of the optimizer in host memory while parameters stay on the device"
    if plan.device.pipeline_parallel > 1:
        return "the memory model does not know pipeline stages"
    return shape_problem(plan, card)


def _states(ledger: MemoryLedger, submission: Submission) -> Iterable[MemoryComparison]:
    """Yield tensors of one process: those that are sharded with the part that it holds."""
    model = submission.model
    for key, names in MEASURED.items():
        parts = [line for line in ledger.lines if line.key in names]
        weighed = _weighed(key, model, stateless=_stateless(submission))
        if parts or weighed:
            formula = "; ".join(line.formula for line in parts)
            yield MemoryComparison(key, "state", sum(line.bytes for line in parts), weighed, _sentence(formula, _not_weighed(key, model)))


def _stateless(submission: Submission) -> bool:
    """Return whether the optimizer took its steps without keeping anything between them."""
    return submission.plan.optimizer.name == "sgd" and len(submission.trace) > 0


def _weighed(key: str, model: ModelFacts | None, *, stateless: bool) -> int | None:
    if model is None:
        return None
    return {
        "base weights": sum(model.parameter_bytes.values()) - model.adapter_bytes,
        "adapters": model.adapter_bytes,
        # Nothing is trained without gradients: in older records 0 stands for gradients that were not seen.
        "gradients": model.gradient_bytes or None,
        # In older records 0 also stands for a run that ended before there were states to be weighed.
        "optimizer states": model.optimizer_state_bytes if stateless else model.optimizer_state_bytes or None,
    }[key]


def _not_weighed(key: str, model: ModelFacts | None) -> str:
    if model is None:
        return "the run ended before the model was weighed"
    reasons = {"gradients": model.gradient_bytes_reason, "optimizer states": model.optimizer_state_bytes_reason}
    return reasons.get(key) or ""


def _peaks(ledger: MemoryLedger, submission: Submission) -> Iterable[MemoryComparison]:
    memory = submission.memory
    formula = f"all that is alive when {_MOMENTS[ledger.peak_moment]}"
    yield MemoryComparison("peak allocated", "peak", ledger.peak_allocated, *_read(memory.device_allocated, formula))
    yield MemoryComparison(
        "peak reserved", "peak", ledger.peak_reserved, *_read(memory.device_reserved, "the same, and what the allocator caches")
    )


_MOMENTS = {
    "loss": "the loss is computed",
    "backward begins": "the backward pass begins",
    "backward ends": "the backward pass ends",
    "optimizer": "weights are updated",
}


def _read(reading: MemoryReading, formula: str) -> tuple[int | None, str]:
    return reading.peak_bytes, _sentence(formula, reading.method or "", reading.reason or "")


def _parts(lines: Iterable[MemoryLine]) -> Iterable[MemoryComparison]:
    """Yield the lines of the estimate that nothing weighs one by one."""
    weighed = {name for names in MEASURED.values() for name in names}
    for line in lines:
        if line.key not in weighed:
            yield MemoryComparison(line.key, "part", line.bytes, None, line.formula)


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


# MOVE: was tunemark.collector.predict.predicted_vs_measured: What other calculators say, to stand beside the estimate: their published rules, applied to a model card.

GB = 10**9

SOURCE_004: dict[Method, tuple[float, float]] = {Method.FULL: (2, 20), Method.LORA: (2, 4), Method.QLORA: (0.5, 2)}
"""Method -> (bytes of precision, factor) of source 004: Memory (GB) = parameters x precision bytes x factor / 1e9."""


def source_004_bytes(model: ModelCard, method: Method) -> float:
    """Return what the formula of source 004 gives; it knows neither batch nor length."""
    size, factor = SOURCE_004[method]
    return count_parameters(model).total * size * factor


def accelerate_bytes(shape: TrainingShape) -> float | None:
    """Return what `accelerate estimate-memory` (1.15) prints under "Training using Adam" for bf16: 2 x the fp32 model.

    The command needs a repository on the hub; this is its rule (`estimate_training_usage`), applied to the card. It
    knows full fine-tuning only, neither batch nor length, and gives no training figure for 4-bit weights.
    """
    return None if shape.method is Method.QLORA else 2.0 * 4 * count_parameters(shape.model).total


# MOVE: was tunemark.collector.predict.predicted_vs_measured: Predicted against published memory: how each document's figures were read, and the error of every row.


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One published row beside its predictions, in bytes."""

    id: str
    """The published result."""
    model: str
    """The model card."""
    method: Method
    """full, lora or qlora."""
    accelerator: str | None
    """The accelerator card."""
    devices: int
    """How many of them."""
    published: float
    """The figure, read as data/known/memory_readings.toml says."""
    predicted: int
    """The same quantity, from `estimate_memory`."""
    formula_004: float
    """The formula of source 004."""
    accelerate: float | None
    """`accelerate estimate-memory`, where it gives a figure."""

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        return self.predicted / self.published - 1


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Absolute relative errors of many rows."""

    rows: int
    """How many."""
    median: float
    """Their median."""
    worst: float
    """The largest."""


def memory_errors(results: Iterable[PublishedResult], facts: FactBase) -> tuple[MemoryRow, ...]:
    """Return the error of each result that has a peak of memory and enough conditions to predict it, in their order."""
    rows = []
    for result in results:
        claim, shape = result.claims.get("peak_memory_bytes"), published_shape(result, facts)
        if claim is None or shape is None:
            continue
        reading, conditions, ledger = facts.known.memory_reading(result.source), result.conditions, estimate_memory(shape)
        rows.append(
            MemoryRow(
                id=result.id,
                model=shape.model.key,
                method=shape.method,
                accelerator=conditions.accelerator,
                devices=conditions.accelerator_count or 1,
                published=_bytes(claim, reading),
                predicted=ledger.peak_reserved if reading.quantity == "reserved" else ledger.peak_allocated,
                formula_004=source_004_bytes(shape.model, shape.method),
                accelerate=accelerate_bytes(shape),
            )
        )
    return tuple(rows)


def summarise(pairs: Iterable[tuple[float | None, float]]) -> ErrorSummary:
    """Summarise pairs of predicted and published; those without prediction are left out."""
    errors = [abs(predicted / published - 1) for predicted, published in pairs if predicted is not None]
    return ErrorSummary(len(errors), median(errors), max(errors))


def published_results(data: Path, source: str) -> tuple[PublishedResult, ...]:
    """Return the results of one document, read from the folder data/."""
    files = sorted((data / "published" / source).glob(f"{source}-*.json"))
    return tuple(PublishedResult.model_validate(json.loads(file.read_text(encoding="utf-8"))) for file in files)


def published_shape(result: PublishedResult, facts: FactBase) -> TrainingShape | None:
    """Return the shape of a published result, or None when model, length or micro-batch is not known."""
    conditions, reading = result.conditions, facts.known.memory_reading(result.source)
    if conditions.model is None or conditions.sequence_length is None or conditions.micro_batch is None:
        return None
    devices, qlora = conditions.accelerator_count or 1, conditions.method is Method.QLORA
    # peft's recipe for quantised models leaves or makes fp32 whatever is not quantised.
    stored = Dtype.FP32 if qlora else _dtype(conditions)
    return TrainingShape(
        facts.model(conditions.model),
        conditions.method,
        conditions.sequence_length,
        conditions.micro_batch,
        gradient_accumulation=conditions.gradient_accumulation or 1,
        lora_rank=_whole(conditions, "lora_r", 8),
        lora_targets=_targets(conditions),
        lora_dropout=_number(conditions, "lora_dropout"),
        checkpointing=Checkpointing.FULL if conditions.settings.get("gradient_checkpointing") else Checkpointing.NONE,
        reentrant=reading.reentrant,
        loss=reading.loss,
        parameters=stored,
        activations=stored,
        double_quantisation="double" in str(conditions.settings.get("quantisation", "double")),
        sharding="fsdp1" if devices > 1 else "single",
        world_size=devices,
        offload=bool(conditions.settings.get("fsdp_cpu_offload")),
    )


def _bytes(claim: Claim, reading: PublishedReading) -> float:
    """Return a claim in bytes; as GB it is the printed number times 10^9."""
    found = re.match(r"[~\s]*([0-9]+(?:\.[0-9]+)?)", claim.printed)
    return float(found[1]) * 1e9 if reading.unit == "GB" and found else claim.value


def _dtype(conditions: Conditions) -> Dtype:
    printed = (conditions.precision or "").lower()
    known = (("bfloat16", Dtype.BF16), ("bf16", Dtype.BF16), ("float16", Dtype.FP16), ("fp16", Dtype.FP16), ("32", Dtype.FP32))
    return next((dtype for word, dtype in known if word in printed), Dtype.BF16)


def _targets(conditions: Conditions) -> tuple[str, ...]:
    """Return the names of the adapted layers; documents shorten q_proj to q."""
    printed = conditions.settings.get("lora_targets")
    if not isinstance(printed, str):
        return ALL_LINEAR
    return tuple(name if "_" in name or "." in name else f"{name}_proj" for name in printed.replace(" ", "").split(","))


def _number(conditions: Conditions, name: str) -> float:
    value = conditions.settings.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _whole(conditions: Conditions, name: str, default: int) -> int:
    value = conditions.settings.get(name)
    return value if isinstance(value, int) else default


# MOVE: was tunemark.collector.predict.predicted_vs_measured: The error of the memory model on each published peak, as rows.


def memory_error_rows(facts: FactBase, results: Iterable[PublishedResult | ConvertedResult]) -> list[Row]:
    """Return rows of the documents whose figures of memory have a reading; without one it is not known what is compared."""
    read = {one.source: " ".join(one.because) for one in facts.known.memory_readings}
    found = memory_errors(tuple(one for one in results if isinstance(one, PublishedResult) and one.source in read), facts)
    return [
        {
            "result_id": one.id,
            "model": one.model,
            "method": one.method.value,
            "accelerator": one.accelerator,
            "accelerator_count": one.devices,
            "published_bytes": one.published,
            "predicted_bytes": one.predicted,
            "formula_004_bytes": one.formula_004,
            "accelerate_bytes": one.accelerate,
            "error": one.error,
            "reading": read[one.id.split("-")[0]],
        }
        for one in found
    ]
