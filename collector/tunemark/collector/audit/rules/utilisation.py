"""Utilisation: no device exceeds its dense peak, and few runs come near it."""

import math
from collections.abc import Iterator

from tunemark.collector.audit.bounds import (
    activations_kept,
    flop_conventions,
    flop_per_token,
    peak_flop_per_s,
    rates_below_peak,
    states_recompute,
    usual_limit,
    utilisation,
    weight_bytes,
)
from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.rule import AMBIGUOUS, IMPOSSIBLE, SUSPICIOUS, Finding, about_figures, rule
from tunemark.collector.audit.token_rates import TokenRate, settled_reading, token_rates
from tunemark.schema.throughput import QUANTILE
from tunemark.schema.vocabulary import Padding

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
    known = [(result, rate, share) for result in evidence.results for rate, share in _executed(result)]
    for group in grouped(known, lambda item: (item[0].source, item[0].conditions.accelerator)).values():
        above = [(result, share) for result, _, share in group if share[0].low > bound]
        assumed = bool(above) and "accelerator" in above[0][0].conditions.assumed
        for result, rate, share in group:
            first, (_, words) = (result, share) if share[0].low > bound else above[0] if assumed else (None, ("", ""))
            if first is not None:
                also = "" if first is result else f"the device is assumed, and {first.id} needs "
                yield about_figures(
                    SUSPICIOUS, result, (rate.quantity,), f"{also}{words}, above the {bound:.0%} that matrix products reach"
                )


def _executed(result: AuditedResult) -> Iterator[tuple[TokenRate, tuple[Interval, str]]]:
    """Yield the rate of a result, if only one is possible, with the share of the dense peak that it needs, stated recomputation included."""
    rates = rates_below_peak(result)
    share = utilisation(result, rates[0], recompute=states_recompute(result)) if len(rates) == 1 else None
    if share is not None:
        yield rates[0], share


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
            share = figure / peak
            yield (
                name,
                share,
                f"{figure.value / 1e12:,.1f} TFLOP/s, {share.value:.2%} of {result.devices} x {peak / result.devices / 1e12:g} TFLOP/s dense",
            )


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
