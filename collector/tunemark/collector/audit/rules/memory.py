"""Memory: never more than the device has, never less than what must be in memory at the same time."""

from collections.abc import Iterator

from tunemark.collector.audit.bounds import activations_kept, weight_bytes
from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.printed_figures import precision_class
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, about_figures, rule
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.formats import GIB
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.memory import CONTEXT
from tunemark.schema.vocabulary import Method

MODEL_MEMORY_TOLERANCE = 0.1
"""Share for buffers, rounding of the allocator, and adapters counted with the model."""
PEAK = "peak_memory_bytes"
HOST_MEMORY = ("host_memory_peak_share", "host_memory_total_bytes")
MEMORY_SETTINGS = frozenset({"gradient_checkpointing", "fsdp_cpu_offload", "quantisation", "lora_r", "variant"})
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

    Weights, their gradients under full fine-tuning, and the inputs of all blocks are in memory together, whatever the optimizer
    (Rajbhandari et al. 2020, section 3; Chen et al. 2016).
    """
    for result, model, claimed, high in _on_one_device(evidence):
        floor, words = _floor(result, model)
        if high < floor:
            words = f"{words} = {floor / 1e9:.1f} GB, more than {high / 1e9:.1f} GB even at the upper end of the last digit"
            yield about_figures(IMPOSSIBLE, result, (PEAK,), words, {"claimed_bytes": claimed, "floor_bytes": floor})


@rule(id="memory-states", family="memory", verdicts=(SUSPICIOUS,))
def below_usual_states(evidence: Evidence) -> Iterator[Finding]:
    """Less memory than the usual optimizer states need.

    AdamW keeps 16 bytes per parameter in mixed precision and 8 in pure 16 bits (Rajbhandari et al. 2020, section 3.1). Logits and the
    inputs of blocks are added.
    """
    for result, model, claimed, high in _on_one_device(evidence):
        if result.conditions.method is not Method.FULL:
            continue
        mixed = "mixed" in (result.conditions.precision or "").lower()
        each, names = (
            (16, "fp32 weights, gradients and both moments of Adam, as in mixed precision")
            if mixed
            else (8, "16-bit weights, gradients and both moments of Adam")
        )
        total = count_parameters(model).total
        length, rows = result.conditions.sequence_length, result.conditions.micro_batch
        states, logits = each * total, _logits_bytes(model, length, rows)
        kept = activations_kept(result, model, length, rows, recompute=True)[0] if length and rows else 0.0
        needed = states + logits + kept
        if high < needed:
            words = (
                f"{total:,} parameters x {each} bytes ({names}) = {states / 1e9:.1f} GB, logits {logits / 1e9:.1f} GB, inputs of blocks "
                f"{kept / 1e9:.1f} GB: {needed / 1e9:.1f} GB > {high / 1e9:.1f} GB. This requires another optimizer or precision than "
                "the document states"
            )
            yield about_figures(SUSPICIOUS, result, (PEAK,), words, {"claimed_bytes": claimed, "needed_bytes": needed})


@rule(id="memory-usual", family="memory", verdicts=(SUSPICIOUS,))
def below_usual_needs(evidence: Evidence) -> Iterator[Finding]:
    """Adapter training in less memory than logits and the driver need.

    Besides weights and the inputs of blocks, memory holds the logits of a plain loss and half a GiB for the driver.
    """
    for result, model, claimed, high in _on_one_device(evidence):
        length, rows = result.conditions.sequence_length, result.conditions.micro_batch or 1
        if length is None or result.conditions.method is Method.FULL:
            continue
        floor, words = _floor(result, model)
        logits = _logits_bytes(model, length, rows)
        needed = floor + logits + CONTEXT
        if floor <= high < needed:
            words = (
                f"{words}, logits of {rows} x {length:,} tokens {logits / 1e9:.2f} GB, driver {CONTEXT / 1e9:.2f} GB = {needed / 1e9:.1f} GB > "
                f"{high / 1e9:.1f} GB. Only a fused loss with a tool that ignores the driver can give less"
            )
            yield about_figures(SUSPICIOUS, result, (PEAK,), words, {"claimed_bytes": claimed, "needed_bytes": needed})


def _on_one_device(evidence: Evidence) -> Iterator[tuple[AuditedResult, ModelCard, float, float]]:
    """Yield results of documents with a known model that is not sharded, their claimed peak, and the highest possible one."""
    for result in evidence.results:
        readings = result.readings(PEAK)
        if result.model is not None and result.devices == 1 and not result.offloads_to_host and readings and not result.measured:
            yield result, result.model, readings[0][1].value, max(peak.high for _, peak in readings)


def _floor(result: AuditedResult, model: ModelCard) -> tuple[float, str]:
    """Return the minimum bytes of weights, gradients and block inputs, with the calculation."""
    size, words = weight_bytes(model, result.conditions.method)
    parts = [f"weights {size / 1e9:.2f} GB ({words})"]
    if result.conditions.method is Method.FULL:
        gradients = 2.0 * count_parameters(model).total
        size, parts = size + gradients, [*parts, f"gradients {gradients / 1e9:.2f} GB"]
    length = result.conditions.sequence_length
    if length is not None:
        kept, words = activations_kept(result, model, length, result.conditions.micro_batch or 1, recompute=True)
        size, parts = size + kept, [*parts, f"inputs of blocks {kept / 1e9:.2f} GB ({words})"]
    return size, " + ".join(parts)


def _logits_bytes(model: ModelCard, length: int | None, rows: int | None) -> float:
    return 0.0 if length is None or rows is None or model.family == "bert" else 2.0 * rows * length * model.vocabulary


@rule(id="memory-failure", family="memory", verdicts=(INCONSISTENT,))
def out_of_memory(evidence: Evidence) -> Iterator[Finding]:
    """Out of memory although the same work fits elsewhere.

    The same micro-step needs about the same memory on any device.
    """
    usable = evidence.facts.known.practice("usable-memory")
    for result in evidence.results:
        if not result.out_of_memory or result.accelerator is None or result.accelerator.memory_gib is None or result.model is None:
            continue
        limit, work = result.accelerator.memory_gib * GIB * usable, _micro_step(result)
        for other in evidence.published:
            readings = other.readings(PEAK)
            if readings and max(peak.high for _, peak in readings) < limit and _micro_step(other) == work:
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
        if result.conditions.method is Method.QLORA:
            low, _ = weight_bytes(result.model, Method.QLORA)
            not_quantised = count.total - count.attention - count.feed_forward
            expected = {"4 bits, the rest in 16": low, "4 bits, the rest in 32": low + 2.0 * not_quantised}
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
