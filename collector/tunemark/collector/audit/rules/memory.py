"""Memory: never more than the device has, never less than what must be in memory at the same time."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tunemark.collector.audit.bounds import weight_bytes
from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.printed_figures import precision_class
from tunemark.collector.audit.published_shape import levers_of, published_shape
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, about_figures, rule
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.physics.architecture import block_linears, count_parameters
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.records.claims import Metric
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

MODEL_MEMORY_TOLERANCE = 0.1
"""Share for buffers, rounding of the allocator, and adapters counted with the model."""
PEAK = "peak_memory_bytes"
USED, USED_QUANTITY = "used of the device", "device_memory_bytes"
"""A peak that is memory used of the device, by the driver, contains its context and communication."""
OFFLOADS = {"activation_offload", "unsloth"}
"""Settings and frameworks with which the inputs of checkpointed blocks may wait in host memory."""
HOST_MEMORY = ("host_memory_peak_share", "host_memory_total_bytes")
MEMORY_SETTINGS = frozenset(
    {"gradient_checkpointing", "fsdp_cpu_offload", "quantisation", "lora_r", "variant", "framework_config", "strategy"}
)
"""Settings that change the memory of a micro-step."""


@rule(id="memory-capacity", family="memory", verdicts=(IMPOSSIBLE, INCONSISTENT))
def above_capacity(evidence: Evidence) -> Iterator[Finding]:
    """More memory than the device has.

    A peak cannot exceed the memory of the device, or the part of it that the driver leaves for a process.
    """
    usable = evidence.facts.known.practice("usable-memory")
    for result in evidence.results:
        capacity = result.accelerator.memory_gib if result.accelerator else None
        # A total over several devices does not describe one device.
        readings = [(meaning, peak) for meaning, peak in result.readings(PEAK) if "together" not in meaning]
        if not capacity or not readings:
            continue
        limit = capacity * GIB * usable
        over = [(meaning, peak) for meaning, peak in readings if (peak.value if len(readings) > 1 else peak.low) > limit]
        if not over:
            continue
        fits = [meaning for meaning, peak in readings if (meaning, peak) not in over]
        ending = f"; it fits when read as {fits[0]}, so the printed unit is wrong" if fits else ""
        words = (
            f"{over[0][1].value / GIB:.1f} GiB > {limit / GIB:.1f} GiB, the {usable:.1%} of {capacity:g} GiB that a process can get{ending}"
        )
        numbers = {"claimed_bytes": over[0][1].value, "usable_bytes": limit}
        yield about_figures(INCONSISTENT if fits else IMPOSSIBLE, result, (PEAK,), words, numbers)


@rule(id="memory-floor", family="memory", verdicts=(IMPOSSIBLE,))
def below_floor(evidence: Evidence) -> Iterator[Finding]:
    """Less memory than the weights need.

    Weights, the gradient of one matrix and the inputs of all blocks are in memory together, whatever the optimizer and however the rest
    is recomputed (Chen et al. 2016). Gradients that are accumulated are all in memory (Rajbhandari et al. 2020, section 3). Inputs
    that may be offloaded to the host are left out.
    """
    for result, model, claimed, high in _on_one_device(evidence):
        floor, words = _floor(result, model)
        if high < floor:
            words = f"{words} = {floor / 1e9:.1f} GB, more than {high / 1e9:.1f} GB even at the upper end of the last digit"
            yield about_figures(IMPOSSIBLE, result, (PEAK,), words, {"claimed_bytes": claimed, "floor_bytes": floor})


@rule(id="memory-usual", family="memory", verdicts=(SUSPICIOUS,))
def below_usual_needs(evidence: Evidence) -> Iterator[Finding]:
    """Less memory than the stated conditions need by the memory model.

    What is not stated takes its cheapest usual value: every block is checkpointed, logits stay in 16 bits, adapters too, and AdamW keeps
    two moments in 16 bits, or 16 bytes per parameter in mixed precision (Rajbhandari et al. 2020, section 3.1). The prediction is lowered by
    its error (definitions#memory).
    """
    for result, model, claimed, high in _on_one_device(evidence):
        shape = _usual_shape(result, evidence.facts)
        if shape is None:
            continue
        ledger = estimate_memory(shape)
        needed = ledger.peak_allocated * ledger.error[0]
        if _floor(result, model)[0] <= high < needed:
            largest = sorted((line for line in ledger.lines if ledger.peak_moment in line.moments), key=lambda line: -line.bytes)[:4]
            parts = ", ".join(f"{line.key} {line.bytes / 1e9:.1f} GB" for line in largest)
            words = (
                f"the stated conditions need {ledger.peak_allocated / 1e9:.1f} GB by the memory model ({parts}), at the least {needed / 1e9:.1f} GB > "
                f"{high / 1e9:.1f} GB. This requires another optimizer, loss or precision than the document states"
            )
            yield about_figures(SUSPICIOUS, result, (PEAK,), words, {"claimed_bytes": claimed, "needed_bytes": needed})


def _usual_shape(result: AuditedResult, facts: FactBase) -> TrainingShape | None:
    """Return the stated shape of a step, with the cheapest usual value of all that is not stated; None if it cannot be stated at all."""
    convention = facts.known.memory_reading(result.source)
    stated = result.conditions
    conditions = stated.model_copy(update={"sequence_length": stated.sequence_length or 1, "micro_batch": stated.micro_batch or 1})
    shape = published_shape(conditions, facts, convention)
    if shape is None or shape.model.family == "bert":
        return None
    fixed = {name for lever in levers_of(conditions, convention) for name in lever.shape}
    usual: dict[str, Any] = {"loss": "plain", "adapters": Dtype.BF16, "attention": "flash"}
    if "gradient_checkpointing" not in conditions.settings:
        usual["checkpointing"] = Checkpointing.FULL
    if "loss" in conditions.settings:
        del usual["loss"]
    if shape.optimizer == "adamw":
        usual["optimizer"] = "adamw-fused"
    if "mixed" in (conditions.precision or "").lower():
        usual |= {"master_weights": True, "parameters": Dtype.BF16, "activations": Dtype.BF16}
    return replace(shape, **{name: value for name, value in usual.items() if name not in fixed})


def _on_one_device(evidence: Evidence) -> Iterator[tuple[AuditedResult, ModelCard, float, float]]:
    """Yield results of documents with a known model that is not sharded, their claimed peak, and the highest possible one."""
    for result in evidence.results:
        readings = result.readings(PEAK)
        if result.model is not None and result.devices == 1 and not result.offloads_to_host and readings and not result.measured:
            yield result, result.model, readings[0][1].value, max(peak.high for _, peak in readings)


def _floor(result: AuditedResult, model: ModelCard) -> tuple[float, str]:
    """Return the minimum bytes of weights, gradients and block inputs, with the calculation."""
    size, words = weight_bytes(model, result.conditions.method, result.conditions.precision)
    parts = [f"weights {size / 1e9:.2f} GB ({words})"]
    if result.conditions.method is Method.FULL:
        accumulated = (result.conditions.gradient_accumulation or 1) > 1
        gradients = 2.0 * (count_parameters(model).total if accumulated else max(linear.weights for linear in block_linears(model)))
        size += gradients
        parts.append(f"{'gradients' if accumulated else 'the gradient of one matrix'} {gradients / 1e9:.2f} GB")
    length, rows = result.conditions.sequence_length, result.conditions.micro_batch or 1
    if length is not None and not OFFLOADS & {*result.conditions.settings, *result.conditions.framework}:
        inputs = 2.0 * model.layers * model.hidden_size * rows * length
        size += inputs
        parts.append(f"inputs of {model.layers} blocks {inputs / 1e9:.2f} GB ({rows} x {length:,} tokens)")
    return size, " + ".join(parts)


@rule(id="communication-memory", family="memory", verdicts=(SUSPICIOUS,))
def room_for_communication(evidence: Evidence) -> Iterator[Finding]:
    """Tensors of several devices that leave no room for communication.

    Beside the tensors of the allocator, a device holds the context of its driver and the buffers through which devices exchange
    gradients and weights. Memory that the driver reports as used contains both.
    """
    usable, needed = evidence.facts.known.practice("usable-memory"), evidence.facts.known.practice("communication-memory")
    used = {record for _, metric in evidence.assertions(Metric) if metric.counts == USED for record in metric.records}
    for result in evidence.published:
        capacity, peak = result.accelerator.memory_gib if result.accelerator else None, result.interval(PEAK)
        if capacity is None or peak is None or result.devices == 1:
            continue
        driver = result.interval(USED_QUANTITY)
        if result.id in used or (driver and driver.value == peak.value):
            continue
        limit = (capacity * usable - needed) * GIB
        if limit < peak.low <= capacity * usable * GIB:
            left = capacity * usable - peak.value / GIB
            words = (
                f"{peak.value / GIB:.2f} GiB of tensors leave {left:.2f} of {capacity * usable:.1f} GiB on each of {result.devices} devices; the "
                f"driver's context and communication need at least {needed:g} GiB"
            )
            yield about_figures(SUSPICIOUS, result, (PEAK,), words, {"claimed_bytes": peak.value, "usable_bytes": limit})


@rule(id="memory-failure", family="memory", verdicts=(INCONSISTENT,))
def out_of_memory(evidence: Evidence) -> Iterator[Finding]:
    """Out of memory although the same work fits elsewhere.

    The same micro-step needs about the same memory on any device.
    """
    usable = evidence.facts.known.practice("usable-memory")
    measured = grouped((result for result in evidence.published if PEAK in result.claims), _micro_step)
    for result in evidence.results:
        if not result.out_of_memory or result.accelerator is None or result.accelerator.memory_gib is None or result.model is None:
            continue
        limit = result.accelerator.memory_gib * GIB * usable
        for other in measured.get(_micro_step(result), []):
            readings = other.readings(PEAK)
            if readings and max(peak.high for _, peak in readings) < limit:
                needed, claim = readings[0][1].value, f"out of memory, and {other.printed(PEAK)} elsewhere"
                words = f"{needed / GIB:.1f} GiB of the same work fit into {limit / GIB:.1f} GiB"
                numbers = {"needed_bytes": needed, "usable_bytes": limit}
                yield Finding(INCONSISTENT, (result.id, other.id), claim, words, numbers, quantities=(PEAK,))


def _micro_step(result: AuditedResult) -> tuple[object, ...]:
    """Return the source of a result and the conditions that change the memory of a micro-step."""
    conditions = result.conditions
    shape = (conditions.model, conditions.method, conditions.micro_batch, conditions.sequence_length, conditions.accelerator_count)
    settings = (conditions.settings.get(name) for name in MEMORY_SETTINGS)
    return (result.source, *shape, precision_class(conditions.precision), *settings)


@rule(id="model-memory", family="memory", verdicts=(INCONSISTENT,))
def model_memory(evidence: Evidence) -> Iterator[Finding]:
    """Model memory that disagrees with the parameters.

    Model memory is parameters x bytes of their format. 4-bit weights have one scale per 64 weights (Dettmers et al. 2023).
    """
    for result in evidence.results:
        readings = result.readings("model_memory_bytes")
        if result.model is None or not readings:
            continue
        count = count_parameters(result.model)
        expected = {"16 bits": 2.0 * count.total, "32 bits": 4.0 * count.total}
        if "fp8" in (precision_class(result.conditions.precision) or ""):
            expected["fp8, the rest in 16 bits"], _ = weight_bytes(result.model, result.conditions.method, result.conditions.precision)
        if result.conditions.method is Method.QLORA:
            low, _ = weight_bytes(result.model, Method.QLORA)
            not_quantised = count.total - count.attention - count.feed_forward
            expected = {
                "4 bits, the rest in 16": low,
                "4 bits, the rest in 32": low + 2.0 * not_quantised,
                "4 bits throughout": 0.5 * count.total,
            }
        claimed_sizes = [size.widened(MODEL_MEMORY_TOLERANCE) for _, size in readings]
        if any(size.overlaps(Interval.exact(amount)) for size in claimed_sizes for amount in expected.values()):
            continue
        formats = " or ".join(f"{size / 1e9:.1f} GB ({name})" for name, size in expected.items())
        claimed = readings[0][1].value
        words = f"the parameters take {formats}; {claimed / 1e9:.1f} GB is not within {MODEL_MEMORY_TOLERANCE:.0%} of either"
        numbers = {"claimed_bytes": claimed, **{f"bytes, {name}": size for name, size in expected.items()}}
        yield about_figures(INCONSISTENT, result, ("model_memory_bytes",), words, numbers)


@rule(id="host-memory-floor", family="memory", verdicts=(SUSPICIOUS,))
def host_below_weights(evidence: Evidence) -> Iterator[Finding]:
    """Less host memory than the weights that are loaded through it.

    Weights pass through host memory on the way to the device.
    """
    for result in evidence.results:
        peak = host_bytes(result)
        if peak is None or result.model is None or not result.model.parameters:
            continue
        weights = 2.0 * result.model.parameters
        if peak.high < weights / 2:
            words = (
                f"peak {peak.value / 1e9:.2f} GB, but the 16-bit weights of {result.model.name} are {weights / 1e9:.1f} GB. A peak that "
                "includes loading cannot be this low, unless files are mapped piece by piece"
            )
            yield about_figures(SUSPICIOUS, result, HOST_MEMORY, words, {"host_bytes": peak.value, "weight_bytes": weights})


def host_bytes(result: AuditedResult) -> Interval | None:
    """Return the peak of host memory from its share and total, or None."""
    share, total = (result.interval(quantity) for quantity in HOST_MEMORY)
    return share * total if share and total else None
