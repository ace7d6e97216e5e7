"""Ordering: methods on the same device by memory and speed, and the same work on different devices."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from operator import attrgetter

from tunemark.collector.audit.bounds import rates_below_peak
from tunemark.collector.audit.evidence import METHOD_SETTINGS, AuditedResult, Evidence, Pair, grouped, same_software, with_model
from tunemark.collector.audit.interval import MORE_MEMORY, Interval
from tunemark.collector.audit.published_shape import levers_of, published_shape
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Finding, rule
from tunemark.collector.audit.rules.memory import MODEL_MEMORY_TOLERANCE
from tunemark.collector.audit.token_rates import TokenRate, token_rates
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.vocabulary import Dtype, Method

MORE_PARAMETERS = 1.03
"""Factor above which a model counts as larger."""
PEAK, MODEL_MEMORY = "peak_memory_bytes", "model_memory_bytes"
DEVICES = ("conditions.accelerator", "conditions.accelerator_count", "offloads_to_host")
SHAPE = ("conditions.model", "conditions.micro_batch", "conditions.sequence_length")
SAME_STEP = attrgetter("source", "section", *SHAPE, *DEVICES)
"""The same micro-step on the same devices, by any method."""
SAME_WORK = attrgetter("source", *SHAPE, "conditions.method", "conditions.accelerator_count")
"""The same micro-step by one method, on any device."""
SAME_PLACE = attrgetter(
    *("source", "section", "conditions.method", "conditions.accelerator", *SHAPE[1:]),
    *("model.hidden_size", "model.layers", "model.vocabulary"),
)
"""The same place in a table, for any model of the same width, depth and vocabulary."""
SAME_MODEL = attrgetter("source", "conditions.model", "conditions.method", "devices")


def _pairs(evidence: Evidence, first: Method, second: Method) -> Iterator[Pair]:
    """Yield results of two methods with the same model, device and micro-step, from one table."""
    for group in grouped(with_model(evidence.published), SAME_STEP).values():
        for result, other in product(group, group):
            methods = result.conditions.method is first and other.conditions.method is second
            if methods and same_software(result, other, METHOD_SETTINGS | {"framework_config"}):
                yield result, other


@rule(id="qlora-memory", family="ordering", verdicts=(SUSPICIOUS,))
def qlora_memory(evidence: Evidence) -> Iterator[Finding]:
    """QLoRA with more memory than LoRA.

    4-bit weights take a quarter of the memory of 16-bit weights, and everything else is the same (Dettmers et al. 2023), unless the
    code keeps all else in 32 bits: a peak that the memory model then predicts is not reported.
    """
    reason = "its weights take a quarter of the memory and its activations are the same, unless the other parts are kept in 32 bits"
    for finding in _more_memory(evidence, Method.QLORA, Method.LORA, reason):
        result = evidence.by_id[finding.records[0]]
        if result.readings(PEAK)[0][1].low > _most_memory(result, evidence):
            yield finding


def _most_memory(result: AuditedResult, evidence: Evidence) -> float:
    """Return the memory of a step with all that is not quantised in 32 bits, reserved, at the upper end; 0 if it cannot be predicted."""
    shape = published_shape(result.conditions, evidence.facts, evidence.facts.known.memory_reading(result.source))
    if shape is None:
        return 0.0
    ledger = estimate_memory(replace(shape, parameters=Dtype.FP32, activations=Dtype.FP32))
    return ledger.peak_reserved * ledger.error[1]


@rule(id="lora-memory", family="ordering", verdicts=(SUSPICIOUS,))
def lora_memory(evidence: Evidence) -> Iterator[Finding]:
    """LoRA with more memory than full fine-tuning.

    Frozen weights have no gradients and no optimizer states (Hu et al. 2021, section 4.2).
    """
    return _more_memory(evidence, Method.LORA, Method.FULL, "it has no gradients and no optimizer states for the base weights")


def _more_memory(evidence: Evidence, method: Method, reference: Method, reason: str) -> Iterator[Finding]:
    for result, other in _pairs(evidence, method, reference):
        mine, theirs = result.readings(PEAK), other.readings(PEAK)
        offloaded = any(("offload", True) in _levers(each, evidence) for each in (result, other))
        if mine and theirs and not offloaded and mine[0][1].low > theirs[0][1].high * MORE_MEMORY:
            ratio = mine[0][1].value / theirs[0][1].value
            claim = f"{result.method_name}: {result.printed(PEAK)}; {other.method_name}: {other.printed(PEAK)}"
            words = f"{result.method_name} needs {ratio:.2f} times the memory of {other.method_name}; {reason}"
            yield Finding(SUSPICIOUS, (result.id, other.id), claim, words, {"ratio": ratio}, quantities=(PEAK,))


def _levers(result: AuditedResult, evidence: Evidence) -> frozenset[tuple[str, object]]:
    """Return the settings of memory that only the code of a document states."""
    levers = levers_of(result.conditions, evidence.facts.known.memory_reading(result.source))
    return frozenset((name, value if isinstance(value, bool) else str(value)) for lever in levers for name, value in lever.shape.items())


@rule(id="slower-with-less-work", family="ordering", verdicts=(SUSPICIOUS,))
def slower(evidence: Evidence) -> Iterator[Finding]:
    """Slower than a method that does more work.

    Frozen weights need no weight gradients. This saves a third of the work of full fine-tuning, or a quarter with recomputation.
    """
    slower, limit = (evidence.facts.known.practice(key) for key in ("lora-slowdown", "qlora-slowdown"))
    cases = (
        (Method.LORA, Method.FULL, slower, "It executes 6 N FLOPs per token, and full fine-tuning executes 8 N (definitions#hfu)"),
        (Method.QLORA, Method.LORA, limit, f"Its only additional work is unpacking weights, so it is less than {limit:g} times slower"),
    )
    for method, reference, allowed, reason in cases:
        for result, other in _pairs(evidence, method, reference):
            rates = _comparable_rates(result, other)
            if rates is None or (rates[1].tokens_per_s / rates[0].tokens_per_s).low <= allowed:
                continue
            mine, theirs = (rate.tokens_per_s.value for rate in rates)
            claim = f"{result.method_name}: {result.printed(rates[0].quantity)}; {other.method_name}: {other.printed(rates[1].quantity)}"
            words = f"{mine:,.0f} compared with {theirs:,.0f} tokens/s: {result.method_name} is {theirs / mine:.2f} times slower. {reason}"
            yield Finding(SUSPICIOUS, (result.id, other.id), claim, words, {"slowdown": theirs / mine}, quantities=(rates[0].quantity,))


def _comparable_rates(result: AuditedResult, other: AuditedResult) -> tuple[TokenRate, TokenRate] | None:
    """Return the rates of both results, in the same reading if the steps of both are ambiguous in the same way."""
    first, second = rates_below_peak(result), rates_below_peak(other)
    if len(first) == 1 and len(second) == 1:
        return first[0], second[0]
    if result.conditions.gradient_accumulation != other.conditions.gradient_accumulation:
        return None
    first, second = ([rate for rate in token_rates(each) if rate.quantity == "step_time_s" and rate.meaning] for each in (result, other))
    return (first[-1], second[-1]) if first and second else None


@rule(id="memory-across-devices", family="ordering", verdicts=(INCONSISTENT,))
def memory_across_devices(evidence: Evidence) -> Iterator[Finding]:
    """Very different memory for the same work.

    The tensors of a micro-step have the same size on every device.
    """
    limit = evidence.facts.known.practice("same-work-memory")
    known = [result for result in _on_known_device(evidence, PEAK) if result.conditions.micro_batch]
    # Strategies such as FSDP and DDP divide tensors differently.
    groups = grouped(
        known, lambda result: (*SAME_WORK(result), *map(result.conditions.settings.get, ("gradient_checkpointing", "strategy")))
    )
    for results in groups.values():
        by_size = sorted(results, key=lambda result: result.claims[PEAK].value)
        low, high = by_size[0].claims[PEAK], by_size[-1].claims[PEAK]
        ratio = Interval.of(high) / Interval.of(low)
        if len({result.conditions.accelerator for result in results}) > 1 and ratio.low > limit:
            claim = ", ".join(f"{result.claims[PEAK].printed} ({result.device_name})" for result in by_size)
            words = (
                f"the same rows of the same model and method: {high.value / 1e9:.0f} / {low.value / 1e9:.0f} GB = {ratio.value:.2f} times. Tensors do "
                "not change with the device"
            )
            yield Finding(INCONSISTENT, tuple(result.id for result in by_size), claim, words, {"ratio": ratio.value}, quantities=(PEAK,))


def _on_known_device(evidence: Evidence, quantity: str) -> list[AuditedResult]:
    results = evidence.with_figure(quantity)
    return [result for result in results if result.claims[quantity].value > 0 and result.accelerator is not None and not result.measured]


@rule(id="memory-of-larger-model", family="ordering", verdicts=(SUSPICIOUS,))
def memory_across_models(evidence: Evidence) -> Iterator[Finding]:
    """Model with more parameters but less memory.

    With the same width, depth and vocabulary, activations are about the same, and weights, gradients and states grow with the parameters.
    """
    known = [(result, result.model, peak) for result in evidence.published if result.model is not None and (peak := result.interval(PEAK))]
    for rows in grouped(known, lambda row: SAME_PLACE(row[0])).values():
        for (large, large_model, high), (small, small_model, low) in permutations(rows, 2):
            large_size, small_size = count_parameters(large_model).total, count_parameters(small_model).total
            if large_size > small_size * MORE_PARAMETERS and high.high <= low.low:
                claim = f"{large_model.name}: {large.printed(PEAK)}; {small_model.name}: {small.printed(PEAK)}; {large.method_name}"
                words = (
                    f"{large_size:,} parameters in {high.value / 1e9:g} GB, {small_size:,} in {low.value / 1e9:g} GB: the larger model of the same width, "
                    "depth and vocabulary needs more, not less"
                )
                numbers = {"parameters": large_size, "parameters, other": small_size}
                yield Finding(SUSPICIOUS, (large.id, small.id), claim, words, numbers, quantities=(PEAK,))


@rule(id="model-memory-across-devices", family="ordering", verdicts=(SUSPICIOUS, INCONSISTENT))
def model_memory_across_devices(evidence: Evidence) -> Iterator[Finding]:
    """Model memory that differs between devices.

    Parameters and their format depend on the model and the method, not on the device.
    """
    for results in grouped(_on_known_device(evidence, MODEL_MEMORY), SAME_MODEL).values():
        by_size = sorted(results, key=lambda result: result.claims[MODEL_MEMORY].value)
        low, high = (Interval.of(result.claims[MODEL_MEMORY]) for result in (by_size[0], by_size[-1]))
        if not low.overlaps(high):
            ratio = high.value / low.value
            verdict = INCONSISTENT if ratio > 1 + MODEL_MEMORY_TOLERANCE else SUSPICIOUS
            records = tuple(result.id for result in by_size)
            claim = ", ".join(f"{result.claims[MODEL_MEMORY].printed} ({result.device_name})" for result in by_size)
            words = f"{ratio:.2f} times for the same parameters in the same format. Parameters do not change with the device"
            numbers = {"ratio": ratio}
            yield Finding(verdict, records, claim, words, numbers, quantities=(MODEL_MEMORY,))
