"""Physics: no device exceeds its dense peak, and few runs come near it; none has more memory than it has, or needs less than must be in it together."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from tunemark.collector.audit.bounds import (
    FIRST_LORA_TARGETS,
    activations_kept,
    adam_bytes,
    flop_conventions,
    flop_per_token,
    peak_flop_per_s,
    rates_below_peak,
    usual_limit,
    utilisation,
    weight_bytes,
)
from tunemark.collector.audit.claim_text import CLAIM
from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.printed_figures import WORDS, precision_class
from tunemark.collector.audit.published_shape import levers_of, published_shape
from tunemark.collector.audit.rule import AMBIGUOUS, IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, about_figures, rule
from tunemark.collector.audit.token_rates import TokenRate, settled_reading, token_rates
from tunemark.schema.facts.cards import APPLE, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.physics.architecture import block_linears, count_parameters
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.throughput import QUANTILE
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method, Padding

PROFILE_TO_RUN = 1.5
"""Factor by which a profiled step may be faster than the whole run: the waiting that a profile excludes is below a third of the time."""

OTHER_PEAK = 1.25
"""Factor by which the peak of a claimed utilisation may be higher: boost clocks, and variants of one device."""
MODEL_FLOPS = ("mfu", "model_flop_per_s")
HARDWARE_FLOPS = ("hfu", "attained_flop_per_s")


@rule(id="utilisation", family="utilisation", verdicts=(IMPOSSIBLE, AMBIGUOUS))
def above_peak(evidence: Evidence) -> Iterator[Finding]:
    """More FLOPs per second than the devices can execute.

    The FLOPs of a token follow from the model (6 N for full fine-tuning, 4 N for adapters, plus attention: Kaplan et al. 2020, Hu et al.
    2021). Multiplied by tokens per second, they cannot exceed the dense peak. Impossible readings of an ambiguous figure are excluded.
    """
    for result in evidence.results:
        for name, claimed, words in _claimed_shares(result, *MODEL_FLOPS, *HARDWARE_FLOPS):
            # Twice the attention may be counted.
            if claimed.low > (_conventions(result)[1] if name.endswith("flop_per_s") else 1):
                yield about_figures(IMPOSSIBLE, result, (name,), f"{words} > 100%")
        for quantity, rates in grouped(token_rates(result), lambda rate: rate.quantity).items():
            shares = [(rate, utilised) for rate in rates if (utilised := utilisation(result, rate))]
            if len(shares) > 1 and settled_reading(result, quantity) is None:
                yield _ambiguous_rate(result, quantity, shares)
            if len(shares) != 1:
                continue
            share, words = shares[0][1]
            if share.low > 1:
                yield about_figures(IMPOSSIBLE, result, (quantity,), words)


@rule(id="attainable", family="utilisation", verdicts=(SUSPICIOUS,))
def above_attainable(evidence: Evidence) -> Iterator[Finding]:
    """Faster than matrix products run on this device.

    A training step does more than large matrix products, and these alone hardly come closer to the dense peak than the bound. Such a rate
    is no evidence. If its device is assumed, it was probably another one, and no rate of the document on that device is evidence.
    """
    bound = evidence.facts.known.practice("attainable-utilisation")
    single = [(result, rates[0]) for result in evidence.results if len(rates := rates_below_peak(result)) == 1]
    shares = [
        (result, rate, utilisation(result, rate, recompute=result.conditions.settings.get("gradient_checkpointing") in {True, "full"}))
        for result, rate in single
    ]
    known = [(result, rate, share) for result, rate, share in shares if share is not None]
    for group in grouped(known, lambda item: (item[0].source, item[0].conditions.accelerator)).values():
        above = [(result, share) for result, _, share in group if share[0].low > bound]
        assumed = bool(above) and "accelerator" in above[0][0].conditions.assumed
        for result, rate, share in group:
            first, (_, words) = (result, share) if share[0].low > bound else above[0] if assumed else (None, ("", ""))
            if first is not None:
                also = "" if first is result else f"the device is assumed, and {first.id} needs "
                calculation = f"{also}{words}, above the {bound:.0%} that matrix products reach"
                yield about_figures(SUSPICIOUS, result, (rate.quantity,), calculation)


def _ambiguous_rate(result: AuditedResult, quantity: str, shares: list[tuple[TokenRate, tuple[Interval, str]]]) -> Finding:
    """Return the finding about a figure with several readings, each with its share of the dense peak and the calculation."""
    possible = [rate for rate, (share, _) in shares if share.low <= 1]
    excluded = [rate for rate, (share, _) in shares if share.low > 1]
    lines = [f"{'impossible' if rate in excluded else 'possible'} if read as '{rate.meaning}': {words}" for rate, (_, words) in shares]
    ending = f"; only '{possible[0].meaning}' remains" if len(possible) == 1 and excluded else ""
    return Finding(
        AMBIGUOUS if possible else IMPOSSIBLE,
        (result.id,),
        result.printed(quantity),
        "; ".join(lines) + ending,
        quantities=(quantity,),
        excluded=tuple(rate.meaning_words for rate in excluded),
    )


@rule(id="utilisation-and-memory", family="utilisation", verdicts=(IMPOSSIBLE, SUSPICIOUS))
def with_recompute(evidence: Evidence) -> Iterator[Finding]:
    """Too fast for the printed memory.

    The results of matrix products are kept for the backward pass or recomputed (Chen et al. 2016). If they do not fit into
    the printed memory, they were recomputed, and the FLOPs including that work must stay below the peak.
    """
    for result in evidence.results:
        model, memory, conditions = result.model, result.readings("peak_memory_bytes"), result.conditions
        if not memory or model is None or not conditions.sequence_length or not conditions.micro_batch or result.devices > 1:
            continue
        weights, weight_words = weight_bytes(model, conditions.method, conditions.precision)
        activations, words = activations_kept(result, model, conditions.sequence_length, conditions.micro_batch)
        if weights + activations <= max(peak.high for _, peak in memory):
            continue
        for rate in token_rates(result):
            plain, twice = utilisation(result, rate), utilisation(result, rate, recompute=True)
            limit, practice = usual_limit(result, evidence.facts)
            if rate.meaning or plain is None or twice is None or plain[0].low > 1 or twice[0].low <= limit:
                continue
            verdict = IMPOSSIBLE if twice[0].low > 1 else SUSPICIOUS
            ending = "" if verdict is IMPOSSIBLE else f"; {practice}"
            calculation = (
                f"weights {weights / 1e9:.1f} GB ({weight_words}) and activations without recompute {activations / 1e9:.1f} GB ({words}) do not "
                f"fit into {result.claims['peak_memory_bytes'].printed}. So blocks are computed twice: {twice[1]}{ending}"
            )
            yield about_figures(verdict, result, (rate.quantity, "peak_memory_bytes"), calculation)


@rule(id="mfu-and-rate", family="utilisation", verdicts=(SUSPICIOUS,))
def claimed_against_rate(evidence: Evidence) -> Iterator[Finding]:
    """Claimed utilisation that the result's own rate contradicts.

    MFU is model FLOPs over time x peak, and the rate of the same result gives both (definitions#mfu), and so the model FLOP/s. Conventions
    of counting attention and frozen weights are allowed for.
    """
    for result in evidence.results:
        rates = [rate for rate in token_rates(result) if rate.quantity in {"tokens_per_s", "samples_per_s"}]
        settled = settled_reading(result, "samples_per_s")
        rate = next((rate for rate in rates if settled and rate.meaning == settled[0]), rates[0] if len(rates) == 1 else None)
        utilised = utilisation(result, rate) if rate is not None and not result.measured else None
        if utilised is None:
            continue
        (share, words), (fewest, most) = utilised, _conventions(result)
        profiled = ", which describes a profiled graph, not the run" if "profile_step_time_s" in result.claims else ""
        for name, mfu, claimed in _claimed_shares(result, *MODEL_FLOPS):
            if mfu.low > share.high * most * PROFILE_TO_RUN:
                ending = f"{mfu.value / share.value:.1f} times less than the claimed {claimed}{profiled}"
            elif mfu.high < share.low * fewest / OTHER_PEAK:
                ending = f"{share.value / mfu.value:.1f} times more than the claimed {claimed}, whose peak is higher or whose rate is lower"
            else:
                continue
            claim = result.printed(name, "samples_per_s", "profile_step_time_s")
            yield Finding(SUSPICIOUS, (result.id,), claim, f"{words}: {ending}", quantities=(name,))


def _claimed_shares(result: AuditedResult, *names: str) -> Iterator[tuple[str, Interval, str]]:
    """Yield claimed utilisations, and claimed FLOP/s as shares of the dense peak, with their words."""
    peak = peak_flop_per_s(result)
    for name in names:
        figure = result.interval(name)
        if figure and not name.endswith("flop_per_s"):
            yield name, figure, f"{figure.value:.2%}"
        elif figure and peak:
            share, whole = figure / peak, f"{result.devices} x {peak / result.devices / 1e12:g} TFLOP/s dense"
            yield name, share, f"{figure.value / 1e12:,.1f} TFLOP/s, {share.value:.2%} of {whole}"


def _conventions(result: AuditedResult) -> tuple[float, float]:
    """Return the fewest and the most FLOPs of a token by the conventions of documents, over those that the audit counts."""
    model, length = result.model, result.conditions.sequence_length
    if model is None or length is None:
        return 1.0, 1.0
    own = flop_per_token(result, model, length)
    fewest, most = flop_conventions(model, result.conditions.method, length)
    return fewest / own, most / own


FAST, SLOW = 1.645, -2.576
"""Standard deviations beyond which a rate is doubted: 95% of rates are expected below the first, 99.5% above the second. Nothing runs much
faster than its peak allows, but much makes a run slow: of 690 rates of credible sources 9 lie above the first (1.3%), 3 below the second."""


@rule(id="predicted-rate", family="utilisation", verdicts=(SUSPICIOUS,))
def unlike_other_sources(evidence: Evidence) -> Iterator[Finding]:
    """Rate outside what other sources lead to expect.

    The throughput model, fitted without the document itself, predicts the rate for the stated conditions and the level of the software, with
    an interval that allows for an unknown training loop. A rate outside it needs an explanation: another unit, length or device.
    """
    for result in evidence.results:
        expected, rates = evidence.expected.get(result.id), rates_below_peak(result)
        if expected is None or not rates:
            continue
        measured, predicted = expected
        ratio = measured / predicted.value
        # Padding is work too, and states that move through the host take time.
        waits = result.conditions.padding in {Padding.STATIC, Padding.DYNAMIC} or result.offloads_to_host
        # Each end has its own distance: what the devices attain ends the upper one.
        end = predicted.high if ratio > 1 else predicted.low
        if (waits and ratio < 1) or SLOW <= QUANTILE * math.log(ratio) / abs(math.log(end / predicted.value)) <= FAST:
            continue
        words = (
            f"{measured:,.0f} tokens/s, {f'{ratio:.1f} times more' if ratio > 1 else f'{1 / ratio:.1f} times less'} than other "
            f"sources lead to expect: {predicted.value:,.0f}, 9 of 10 between {predicted.low:,.0f} and {predicted.high:,.0f}"
        )
        yield about_figures(SUSPICIOUS, result, (rates[0].quantity,), words)


# Memory -------------------------------------------------------------------------------------------


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
        words = f"{over[0][1].value / GIB:.1f} GiB > {limit / GIB:.1f} GiB, the {usable:.1%} of {capacity:g} GiB that a process can get"
        yield about_figures(INCONSISTENT if fits else IMPOSSIBLE, result, (PEAK,), words + ending)


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
                words = f"{'' if states else 'weights '}{size / 1e9:.1f} GB ({words}) > {result.devices} x {high / 1e9:.1f} GB"
                words += ": the rest is elsewhere, which is not stated"
                yield about_figures(IMPOSSIBLE if states else SUSPICIOUS, result, (PEAK,), words)
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
    fixed = {name for lever in levers_of(conditions, convention) for name in lever.shape} | {"loss"} & conditions.settings.keys()
    usual: dict[str, Any] = {
        "loss": "fused" if "software" in conditions.settings or result.id == CLAIM else "plain",
        "adapters": Dtype.BF16,
        "attention": "flash",
    }
    if "gradient_checkpointing" not in conditions.settings:
        usual["checkpointing"] = Checkpointing.FULL
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
    if result.conditions.method is Method.QLORA and result.accelerator and result.accelerator.vendor == APPLE:
        # MLX quantises embedding and head too (mlx/nn/layers/quantized.py).
        size, words = 0.5 * count_parameters(model).total, f"{count_parameters(model).total:,} parameters x 0.5 bytes"
    parts = [f"weights {size / 1e9:.2f} GB ({words})"]
    if result.conditions.method is Method.FULL:
        accumulated = (result.conditions.gradient_accumulation or 1) > 1
        gradients = 2.0 * (count_parameters(model).total if accumulated else max(linear.weights for linear in block_linears(model)))
        size += gradients
        parts.append(f"{'gradients' if accumulated else 'the gradient of one matrix'} {gradients / 1e9:.2f} GB")
    length, rows = result.conditions.sequence_length, result.conditions.micro_batch or 1
    if length and length > 1 and not OFFLOADS & {*result.conditions.settings, *result.conditions.framework}:
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
        wide, amounts = [memory.widened(MODEL_MEMORY_TOLERANCE) for _, memory in readings], map(Interval.exact, expected.values())
        if not any(memory.overlaps(amount) for memory, amount in product(wide, amounts)):
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
        return {"4 bits, the rest in 16": low, "4 bits, the rest in 32": low + 2.0 * not_quantised, "4 bits throughout": 0.5 * count.total}
    expected = {"16 bits": 2.0 * count.total, "32 bits": 4.0 * count.total}
    if "fp8" in (precision_class(precision) or ""):
        expected["fp8, the rest in 16 bits"], _ = weight_bytes(model, method, precision)
    return expected
