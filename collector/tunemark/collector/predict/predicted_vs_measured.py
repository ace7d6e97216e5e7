"""Predicted memory: of each model and method, and compared with measured memory, line by line, and with published memory, row by row."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from statistics import median_low

from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.store.database import Row
from tunemark.schema.facts.cards import APPLE, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import MemoryConvention
from tunemark.schema.formats import GIB
from tunemark.schema.option_rates import TRAINED
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.memory import MemoryLedger, divided, estimate_memory
from tunemark.schema.physics.stacks import USUAL_STACK, on_stack
from tunemark.schema.physics.training_shape import shape_of_plan, shape_problem
from tunemark.schema.plan_search import step_on
from tunemark.schema.records.published import Claim, PublishedResult
from tunemark.schema.records.submission import Submission
from tunemark.schema.throughput import ISSUING
from tunemark.schema.vocabulary import FITS, Checkpointing, Method, PublishedStatus


def memory_needs(facts: FactBase) -> Iterator[Row]:
    """Yield the rows of `memory_needs`: a step of one row of the usual length on one device, for each model, method and stack that people use on one."""
    # Of cards with one size in their names, drivers and error correction leave some less than others: half of them have this much.
    known = [each for each in facts.accelerators.values() if each.vendor in ISSUING and each.vendor != APPLE and each.devices_per_unit == 1]
    sizes = sorted({int(each.memory_gib or 0) for each in known})
    rooms = {size: median_low(each.usable_bytes for each in known if int(each.memory_gib or 0) == size) for size in sizes}
    for model, method, stack in product(facts.models.values() if known else (), TRAINED, (USUAL_STACK["plain"], "unsloth")):
        step = step_on(max(known, key=lambda each: each.usable_bytes), model, method, model.usual_length, 1)
        kept, least = (
            estimate_memory(on_stack(replace(step, checkpointing=each), stack)) for each in (Checkpointing.NONE, Checkpointing.FULL)
        )
        device = next((size for size, room in rooms.items() if least.fit_on(room) in FITS), None)
        needs = {"least_bytes": least.needed, "kept_bytes": kept.needed, "device_gib": device}
        yield {"model": model.key, "method": method.value, "stack": stack, "sequence_length": model.usual_length} | needs


# Measured memory -----------------------------------------------------------------------------------

WEIGHED = {
    "base weights": ("parameter_bytes", "weights", "4-bit weights", "4-bit scales"),
    "adapters": ("adapter_bytes", "adapters"),
    "gradients": ("gradient_bytes", "gradients"),
    "optimizer states": ("optimizer_state_bytes", "optimizer states", "fp32 master weights"),
}
"""State that the harness measures -> its field, and the lines of the estimate that it consists of."""
MOMENTS = {
    "loss": "the loss is computed",
    "backward begins": "the backward pass begins",
    "backward ends": "the backward pass ends",
    "optimizer": "weights are updated",
}


def compare_memory(submission: Submission, card: ModelCard | None) -> tuple[list[Row], str | None]:
    """Return the rows of `memory_lines` without the result, and the reason why there is no prediction, or None.

    The kind of a line is `state` for measured tensors, `peak` for a peak of the allocator, and `part` for what is only predicted.
    """
    device = submission.plan.device
    if card is None:
        return [], f"there is no card for the model {submission.plan.model.key}"
    if device.pipeline_parallel > 1:
        return [], "the memory model does not cover pipeline stages"
    problem = shape_problem(submission.plan, card)
    if problem is not None:
        return [], problem
    ledger = estimate_memory(shape_of_plan(submission.plan, card))
    # The other lines of the estimate are not measured one by one.
    weighed = {name for _, *names in WEIGHED.values() for name in names}
    parts = [_line(line.key, "part", line.bytes, None, line.formula) for line in ledger.lines if line.key not in weighed]
    return [*_states(ledger, submission), *_peaks(ledger, submission), *parts], None


def _line(line: str, kind: str, predicted: int, measured: int | None, *note: str | None) -> Row:
    row = {"line": line, "kind": kind, "predicted_bytes": predicted, "measured_bytes": measured}
    return row | {"note": "; ".join(filter(None, note))}


def _states(ledger: MemoryLedger, submission: Submission) -> Iterator[Row]:
    """Yield the tensors of one process; for sharded tensors, only its own shard."""
    model, unknown = submission.model, "the run ended before the model memory was measured"
    for key, (field, *names) in WEIGHED.items():
        lines, measured = [line for line in ledger.lines if line.key in names], getattr(model, field, None)
        if model is not None and field == "parameter_bytes":
            measured = sum(model.parameter_bytes.values()) - model.adapter_bytes
        if lines or measured:
            reason = getattr(model, f"{field}_reason", None) if model else unknown
            yield _line(key, "state", sum(line.bytes for line in lines), measured, *(line.formula for line in lines), reason)


def _peaks(ledger: MemoryLedger, submission: Submission) -> Iterator[Row]:
    memory, formula = submission.memory, f"all live tensors when {MOMENTS[ledger.peak_moment]}"
    for kind, predicted, words, reading in (
        ("allocated", ledger.peak_allocated, formula, memory.device_allocated),
        ("reserved", ledger.peak_reserved, "the same, plus the allocator's cache", memory.device_reserved),
    ):
        yield _line(f"peak {kind}", "peak", predicted, reading.peak_bytes, words, reading.method, reading.reason)


# Published memory ----------------------------------------------------------------------------------

PEAK, IN_USE = "peak_memory_bytes", "device_memory_bytes"
"""Quantities: the peak of the document's reading, and the memory in use on the device as nvidia-smi shows it."""


def memory_errors(facts: FactBase, results: Iterable[object]) -> Iterator[Row]:
    """Yield the rows of `memory_errors`, in the given order.

    A row is a memory figure of a published result, with a known reading of its document and enough conditions to predict it.
    """
    readings = {reading.source: reading for reading in facts.known.memory_readings}
    for result in results:
        if not isinstance(result, PublishedResult) or result.source not in readings:
            continue
        reading = readings[result.source]
        # The memory model does not know experts on different devices.
        compared = result.id not in reading.left_out and result.conditions.settings.get("expert_parallel", 1) == 1
        shape = published_shape(result.conditions, facts, reading) if compared else None
        if shape is None:
            continue
        ledger, device = estimate_memory(shape), facts.accelerators.get(result.conditions.accelerator or "")
        memory = int(device.memory_gib * GIB) if device and device.memory_gib else None
        for name, quantity in ((PEAK, reading.quantity), (IN_USE, "in use")):
            claim = result.claims.get(name)
            if claim is None or result.status is not PublishedStatus.OK:
                continue
            published, (predicted, low, high) = _claimed_bytes(claim, reading), predicted_bytes(ledger, quantity, memory)
            total = count_parameters(shape.model).total
            yield {
                "result_id": result.id,
                "quantity": quantity,
                "model": shape.model.key,
                "method": shape.method.value,
                "accelerator": result.conditions.accelerator,
                "accelerator_count": result.conditions.accelerator_count or 1,
                "published_bytes": published,
                "predicted_bytes": predicted,
                "predicted_low": low,
                "predicted_high": high,
                "error": predicted / published - 1,
                "covered": low <= published <= high,
                "reading": " ".join(reading.because),
                "parameters": total,
                "trained_parameters": total if shape.method is Method.FULL else shape.adapter_weights,
                "master_weights": shape.master_weights,
                "shards": divided(shape, "parameters"),
            }


def predicted_bytes(ledger: MemoryLedger, quantity: str, device_bytes: int | None) -> tuple[int, int, int]:
    """Return predicted bytes, `allocated`, `reserved` or `in use`, with the 90% interval; memory outside the allocator is taken as exact."""
    inside, (low, high) = ledger.reserved_on(device_bytes), ledger.reserved_error
    if quantity == "allocated":
        inside, (low, high) = ledger.peak_allocated, ledger.error
    outside = ledger.outside if quantity == "in use" else 0
    return inside + outside, int(inside * low) + outside, int(inside * high) + outside


def _claimed_bytes(claim: Claim, reading: MemoryConvention) -> float:
    """Return the claimed bytes: read as GB, a claim is the printed number times 10^9."""
    number = re.match(r"[~\s]*([0-9]+(?:\.[0-9]+)?)", claim.printed)
    return float(number[1]) * 1e9 if reading.unit == "GB" and number else claim.value
