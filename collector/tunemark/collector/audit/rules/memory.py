"""Memory: never more than the device has, never less than what must be in memory at the same time."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tunemark.collector.audit.bounds import FIRST_LORA_TARGETS, adam_bytes, weight_bytes
from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.printed_figures import WORDS, precision_class
from tunemark.collector.audit.published_shape import levers_of, published_shape
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, about_figures, rule
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.physics.architecture import block_linears, count_parameters
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

MODEL_MEMORY_TOLERANCE = 0.1
"""Share for buffers, rounding of the allocator, and adapters counted with the model."""
PEAK = "peak_memory_bytes"
OFFLOADS = {"activation_offload", "unsloth"}
"""Settings and frameworks with which the inputs of checkpointed blocks may wait in host memory."""


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
        yield about_figures(INCONSISTENT if fits else IMPOSSIBLE, result, (PEAK,), words)


@rule(id="memory-needs", family="memory", verdicts=(IMPOSSIBLE, SUSPICIOUS))
def below_needs(evidence: Evidence) -> Iterator[Finding]:
    """Less memory than the work needs.

    Weights, the gradient of one matrix and the inputs of all blocks are in memory together, whatever the optimizer and recomputation (Chen
    et al. 2016). Gradients that are accumulated are all in memory, and so are the states of Adam where it is stated (Rajbhandari et al. 2020,
    section 3). Several devices together hold all weights. Less is impossible, or suspicious for weights on several devices. Less than the
    memory model predicts for the stated conditions is suspicious: what is not stated takes its cheapest usual value, and the prediction is
    lowered by its error (definitions#memory).
    """
    for result in evidence.results:
        model, readings = result.model, result.readings(PEAK)
        if model is None or not readings or result.offloads_to_host or result.measured:
            continue
        high, states = max(peak.high for _, peak in readings), _adam_states(result, model)
        if result.devices > 1:
            size, words = states or weight_bytes(model, result.conditions.method, result.conditions.precision)
            if high * result.devices < size:
                words = (
                    f"{size / 1e9:.1f} GB ({words}) > {result.devices} x {high / 1e9:.1f} GB: the rest is elsewhere, which is not stated"
                )
                yield about_figures(IMPOSSIBLE if states else SUSPICIOUS, result, (PEAK,), words if states else f"weights {words}")
            continue
        (floor, words), shape = max(_floor(result, model), states or (0.0, "")), _usual_shape(result, evidence.facts)
        if high < floor:
            words = f"{words} = {floor / 1e9:.1f} GB, more than {high / 1e9:.1f} GB even at the upper end of the last digit"
            yield about_figures(IMPOSSIBLE, result, (PEAK,), words)
        elif shape is not None and high < (ledger := estimate_memory(shape)).peak_allocated * ledger.error[0]:
            needed = ledger.peak_allocated * ledger.error[0]
            largest = sorted((line for line in ledger.lines if ledger.peak_moment in line.moments), key=lambda line: -line.bytes)[:4]
            parts = ", ".join(f"{line.key} {line.bytes / 1e9:.1f} GB" for line in largest)
            words = (
                f"the stated conditions need {ledger.peak_allocated / 1e9:.1f} GB by the memory model ({parts}), at the least {needed / 1e9:.1f} GB > "
                f"{high / 1e9:.1f} GB. This requires another optimizer, loss or precision than the document states"
            )
            yield about_figures(SUSPICIOUS, result, (PEAK,), words)


def _usual_shape(result: AuditedResult, facts: FactBase) -> TrainingShape | None:
    """Return the stated shape of a step, with the cheapest usual value of all that is not stated; None if it cannot be stated at all."""
    convention = facts.known.memory_reading(result.source)
    stated = result.conditions
    conditions = stated.model_copy(update={"sequence_length": stated.sequence_length or 1, "micro_batch": stated.micro_batch or 1})
    shape, optimizer = published_shape(conditions, facts, convention), str(conditions.settings.get("optimizer") or "adamw").lower()
    if shape is None or FAMILIES[shape.model.family].encoder or not re.fullmatch(WORDS["shape"]["known_optimizers"], optimizer):
        return None
    fixed = {name for lever in levers_of(conditions, convention) for name in lever.shape}
    usual: dict[str, Any] = {
        "loss": "fused" if "software" in conditions.settings else "plain",
        "adapters": Dtype.BF16,
        "attention": "flash",
    }
    if "gradient_checkpointing" not in conditions.settings:
        usual["checkpointing"] = Checkpointing.FULL
    if "loss" in conditions.settings:
        del usual["loss"]
    if shape.model.experts and "lora_targets" not in conditions.settings:
        # Adapters of all experts take as much as the attention of the model.
        usual["lora_targets"] = FIRST_LORA_TARGETS.get(shape.model.family, ("q_proj", "v_proj"))
    if shape.optimizer == "adamw":
        usual["optimizer"] = "adamw-fused"
    if "mixed" in (conditions.precision or "").lower():
        usual |= {"master_weights": True, "parameters": Dtype.BF16, "activations": Dtype.BF16}
    return replace(shape, **{name: value for name, value in usual.items() if name not in fixed})


def _adam_states(result: AuditedResult, model: ModelCard) -> tuple[float, str] | None:
    """Return the minimum bytes of weights, gradients and Adam's states, with the calculation; None unless all are stated to be on the devices."""
    settings = result.conditions.settings
    optimizer, precision = str(settings.get("optimizer")).lower(), (result.conditions.precision or "").lower()
    moved = any(value and "offload" in f"{name} {value}".lower() for name, value in settings.items())
    if moved or result.conditions.method is not Method.FULL or not re.fullmatch(WORDS["shape"]["adam_on_device"], optimizer):
        return None
    each = adam_bytes(mixed="mixed" in precision, wide_states=bool(re.search("fp32|32.?bit", optimizer)))
    total = count_parameters(model).total
    return float(each * total), f"{total:,} parameters x {each} bytes of weights, gradients and Adam's states"


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


@rule(id="model-memory", family="memory", verdicts=(INCONSISTENT,))
def model_memory(evidence: Evidence) -> Iterator[Finding]:
    """Model memory, or its unit, that disagrees with the parameters.

    Model memory is parameters x bytes of their format. 4-bit weights have one scale per 64 weights (Dettmers et al. 2023). GiB is 2^30 bytes
    and GB is 10^9: they are 7% apart, enough for the parameter count to show which one was meant.
    """
    for result in evidence.results:
        readings, quantized = result.readings("model_memory_bytes"), result.conditions.method is Method.QLORA
        if result.model is None or not readings:
            continue
        expected = _model_sizes(result, result.model)
        claimed, size = readings[0][1].value, expected["16 bits"] if not quantized else 0.0
        fitting = [(meaning, memory) for meaning, memory in readings if memory.low <= size <= memory.high]
        if not any(
            memory.widened(MODEL_MEMORY_TOLERANCE).overlaps(Interval.exact(amount))
            for _, memory in readings
            for amount in expected.values()
        ):
            formats = " or ".join(f"{amount / 1e9:.1f} GB ({name})" for name, amount in expected.items())
            words = f"the parameters take {formats}; {claimed / 1e9:.1f} GB is not within {MODEL_MEMORY_TOLERANCE:.0%} of either"
        elif fitting and readings[0] not in fitting and abs(claimed / size - 1) > abs(fitting[0][1].value / size - 1):
            words = (
                f"{size / 2:,.0f} parameters x 2 bytes = {size / 1e9:.2f} GB = {size / GIB:.2f} GiB: the figure is right when read as "
                f"{fitting[0][0]}, and wrong as printed"
            )
        else:
            continue
        yield about_figures(INCONSISTENT, result, ("model_memory_bytes",), words)


def _model_sizes(result: AuditedResult, model: ModelCard) -> dict[str, float]:
    """Return the bytes of the parameters by format."""
    count, method, precision = count_parameters(model), result.conditions.method, result.conditions.precision
    if method is Method.QLORA:
        low, _ = weight_bytes(model, Method.QLORA)
        not_quantised = count.total - count.attention - count.feed_forward
        return {
            "4 bits, the rest in 16": low,
            "4 bits, the rest in 32": low + 2.0 * not_quantised,
            "4 bits throughout": 0.5 * count.total,
        }
    expected = {"16 bits": 2.0 * count.total, "32 bits": 4.0 * count.total}
    if "fp8" in (precision_class(precision) or ""):
        expected["fp8, the rest in 16 bits"], _ = weight_bytes(model, method, precision)
    return expected
