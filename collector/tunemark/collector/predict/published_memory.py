"""What other calculators say, to stand beside the estimate: their published rules, applied to a model card."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import MemoryConvention
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.training_shape import ALL_LINEAR, TrainingShape
from tunemark.schema.records.published import Claim, Conditions, PublishedResult
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

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


# MOVE: was tunemark.collector.predict.published_memory: Predicted against published memory: how each document's figures were read, and the error of every row.


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


def _bytes(claim: Claim, reading: MemoryConvention) -> float:
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
