"""Predicted memory compared with measured memory, line by line, and with published memory, row by row."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tunemark.collector.store.rows import Row
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import MemoryConvention
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.memory_states import MemoryLedger
from tunemark.schema.physics.training_shape import ALL_LINEAR, TrainingShape, shape_of_plan, shape_problem
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.published import Claim, Conditions, PublishedResult
from tunemark.schema.records.submission import MemoryReading, ModelFacts, Submission
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

# Measured memory -----------------------------------------------------------------------------------

WEIGHED = {
    "base weights": ("weights", "4-bit weights", "4-bit scales"),
    "adapters": ("adapters",),
    "gradients": ("gradients",),
    "optimizer states": ("optimizer states", "fp32 master weights"),
}
"""State that the harness measures -> the lines of the estimate that it consists of."""
MOMENTS = {
    "loss": "the loss is computed",
    "backward begins": "the backward pass begins",
    "backward ends": "the backward pass ends",
    "optimizer": "weights are updated",
}


@dataclass(frozen=True, slots=True)
class MemoryComparison:
    """Predicted and measured bytes of one kind."""

    key: str
    """Name of the line."""
    group: str
    """`state`: measured tensors. `peak`: peak of the allocator. `part`: predicted only."""
    predicted_bytes: int | None
    measured_bytes: int | None
    note: str
    """The formula, and anything that prevents comparing the two."""

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1."""
        return self.predicted_bytes / self.measured_bytes - 1 if self.predicted_bytes is not None and self.measured_bytes else None


def compare_memory(submission: Submission, card: ModelCard | None) -> tuple[tuple[MemoryComparison, ...], str | None]:
    """Return the lines, and the reason why there is no prediction, or None."""
    reason = _no_prediction(submission.plan, card)
    if reason is not None or card is None:
        return (), reason
    ledger = estimate_memory(shape_of_plan(submission.plan, card))
    return (*_states(ledger, submission), *_peaks(ledger, submission), *_parts(ledger)), None


def _no_prediction(plan: Plan, card: ModelCard | None) -> str | None:
    if card is None:
        return f"there is no card for the model {plan.model.key}"
    if plan.device.offload == "optimizer":
        return "the memory model does not cover optimizer states in host memory with parameters on the device"
    if plan.device.pipeline_parallel > 1:
        return "the memory model does not cover pipeline stages"
    return shape_problem(plan, card)


def _states(ledger: MemoryLedger, submission: Submission) -> Iterator[MemoryComparison]:
    """Yield the tensors of one process; for sharded tensors, only its own shard."""
    model = submission.model
    reasons = {
        "gradients": model.gradient_bytes_reason if model else None,
        "optimizer states": model.optimizer_state_bytes_reason if model else None,
    }
    for key, names in WEIGHED.items():
        parts = [line for line in ledger.lines if line.key in names]
        weighed = None if model is None else _weighed(model, submission)[key]
        if parts or weighed:
            missing = "the run ended before the model memory was measured" if model is None else reasons.get(key) or ""
            note = _sentence("; ".join(line.formula for line in parts), missing)
            yield MemoryComparison(key, "state", sum(line.bytes for line in parts), weighed, note)


def _weighed(model: ModelFacts, submission: Submission) -> dict[str, int | None]:
    # Plain SGD keeps no state between steps.
    stateless = submission.plan.optimizer.name == "sgd" and len(submission.trace) > 0
    return {
        "base weights": sum(model.parameter_bytes.values()) - model.adapter_bytes,
        "adapters": model.adapter_bytes,
        # Training always has gradients. In older records 0 means that they were not measured.
        "gradients": model.gradient_bytes or None,
        # In older records 0 also means that the run ended before the states existed.
        "optimizer states": model.optimizer_state_bytes if stateless else model.optimizer_state_bytes or None,
    }


def _peaks(ledger: MemoryLedger, submission: Submission) -> Iterator[MemoryComparison]:
    def peak(key: str, predicted: int, reading: MemoryReading, formula: str) -> MemoryComparison:
        note = _sentence(formula, reading.method or "", reading.reason or "")
        return MemoryComparison(key, "peak", predicted, reading.peak_bytes, note)

    memory, moment = submission.memory, MOMENTS[ledger.peak_moment]
    yield peak("peak allocated", ledger.peak_allocated, memory.device_allocated, f"all live tensors when {moment}")
    yield peak("peak reserved", ledger.peak_reserved, memory.device_reserved, "the same, plus the allocator's cache")


def _parts(ledger: MemoryLedger) -> Iterator[MemoryComparison]:
    """Yield the lines of the estimate that are not measured one by one."""
    weighed = {name for names in WEIGHED.values() for name in names}
    for line in ledger.lines:
        if line.key not in weighed:
            yield MemoryComparison(line.key, "part", line.bytes, None, line.formula)


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


# Published memory ----------------------------------------------------------------------------------

SOURCE_004: dict[Method, tuple[float, float]] = {Method.FULL: (2, 20), Method.LORA: (2, 4), Method.QLORA: (0.5, 2)}
"""Method -> (bytes of precision, factor) of source 004: Memory (GB) = parameters x precision bytes x factor / 1e9."""


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A published peak of memory and its predictions, in bytes."""

    id: str
    """The published result."""
    model: str
    """The model card."""
    method: Method
    """full, lora or qlora."""
    accelerator: str | None
    """The accelerator card."""
    devices: int
    """Number of devices."""
    published: float
    """The figure, read as data/known/memory_readings.toml defines."""
    predicted: int
    """The same quantity, from `estimate_memory`."""
    formula_004: float
    """The formula of source 004."""
    accelerate: float | None
    """`accelerate estimate-memory`, if it gives a figure."""

    @property
    def error(self) -> float:
        """Predicted / published - 1."""
        return self.predicted / self.published - 1


def memory_error_rows(facts: FactBase, results: Iterable[object]) -> list[Row]:
    """Return the rows of `memory_errors`: results of documents with a known reading of their memory figures."""
    reasons = {reading.source: " ".join(reading.because) for reading in facts.known.memory_readings}
    compared = [result for result in results if isinstance(result, PublishedResult) and result.source in reasons]
    return [
        {
            "result_id": row.id,
            "model": row.model,
            "method": row.method.value,
            "accelerator": row.accelerator,
            "accelerator_count": row.devices,
            "published_bytes": row.published,
            "predicted_bytes": row.predicted,
            "formula_004_bytes": row.formula_004,
            "accelerate_bytes": row.accelerate,
            "error": row.error,
            "reading": reasons[row.id.split("-")[0]],
        }
        for row in memory_errors(compared, facts)
    ]


def memory_errors(results: Iterable[PublishedResult], facts: FactBase) -> tuple[MemoryRow, ...]:
    """Return a row for each result with a peak memory and enough conditions to predict it, in the given order."""
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


def source_004_bytes(model: ModelCard, method: Method) -> float:
    """Return the memory by the formula of source 004, which ignores batch and length."""
    size, factor = SOURCE_004[method]
    return count_parameters(model).total * size * factor


def accelerate_bytes(shape: TrainingShape) -> float | None:
    """Return the memory that `accelerate estimate-memory` (1.15) prints under "Training using Adam" for bf16: 2 x the fp32 model.

    The command needs a repository on the hub; this applies its rule (`estimate_training_usage`) to the card. It covers
    full fine-tuning only, ignores batch and length, and gives no training figure for 4-bit weights.
    """
    return None if shape.method is Method.QLORA else 2.0 * 4 * count_parameters(shape.model).total


def published_shape(result: PublishedResult, facts: FactBase) -> TrainingShape | None:
    """Return the shape of a published result, or None if model, length or micro-batch is unknown."""
    conditions, reading = result.conditions, facts.known.memory_reading(result.source)
    if conditions.model is None or conditions.sequence_length is None or conditions.micro_batch is None:
        return None
    devices, settings = conditions.accelerator_count or 1, conditions.settings
    rank, dropout = settings.get("lora_r"), settings.get("lora_dropout")
    # peft's recipe for quantised models keeps or converts all other weights to fp32.
    stored = Dtype.FP32 if conditions.method is Method.QLORA else _dtype(conditions)
    return TrainingShape(
        facts.model(conditions.model),
        conditions.method,
        conditions.sequence_length,
        conditions.micro_batch,
        gradient_accumulation=conditions.gradient_accumulation or 1,
        lora_rank=rank if isinstance(rank, int) else 8,
        lora_targets=_targets(conditions),
        lora_dropout=float(dropout) if isinstance(dropout, int | float) else 0.0,
        checkpointing=Checkpointing.FULL if settings.get("gradient_checkpointing") else Checkpointing.NONE,
        reentrant=reading.reentrant,
        loss=reading.loss,
        parameters=stored,
        activations=stored,
        double_quantisation="double" in str(settings.get("quantisation", "double")),
        sharding="fsdp1" if devices > 1 else "single",
        world_size=devices,
        offload=bool(settings.get("fsdp_cpu_offload")),
    )


def _bytes(claim: Claim, reading: MemoryConvention) -> float:
    """Return a claim in bytes; read as GB, it is the printed number times 10^9."""
    number = re.match(r"[~\s]*([0-9]+(?:\.[0-9]+)?)", claim.printed)
    return float(number[1]) * 1e9 if reading.unit == "GB" and number else claim.value


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
