"""A claim that one accelerator trains N times as fast as another, or for less, against rates predicted and published for the same step on both."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tunemark.collector.audit.claim_text import PAIR, ClaimText
from tunemark.collector.audit.interval import Interval
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, current_prices
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import significant, usd
from tunemark.schema.option_rates import Evidence, Plans, option_rates
from tunemark.schema.plan_search import NODE, Asked, best_of, combination_on
from tunemark.schema.recommendation import LEVELS
from tunemark.schema.throughput import QUANTILE, ROW_VARIANCE, Range, architecture_of, spread_of_ratio
from tunemark.schema.vocabulary import METHODS

USUAL_MODEL = "llama-3.1-8b"
"""Model of a comparison that names none: the one with the most results."""
OPEN = 1e3
"""Times that `faster` without a number may mean."""
EQUAL = 0.1
"""Share by which devices may differ that are `as fast as` another."""
WIDER = 2.576 / 1.645
"""Width in log space of a 99% interval in those of a 90% interval."""
BY_RESULTS = "by accepted results"
BASE_FIRST = re.compile(r"^\W*(?:compared|relative|against|unlike|versus|vs)\b", re.IGNORECASE)
AGAINST = re.compile(
    r"\b(?:than|vs|versus|over|against|as|of|compared|relative|beats?|outperforms?|outpaces?|ahead|matches|equals|to)\b|->", re.IGNORECASE
)
"""What stands between the names of two accelerators that are compared."""
FROM_TO = re.compile(r"^\W*(?:to\b|->)", re.IGNORECASE)
OF_SPEED = re.compile(r"\b(?:fast\w*|beats?|outperform\w*|slow\w*|speed\w*|quick\w*|throughput|tokens?/s\w*|performance)\b", re.IGNORECASE)
OF_COST = re.compile(r"\b(?:cost\w*|cheap\w*|prices?|dollars?)\b|\$", re.IGNORECASE)
OF_OTHERS = re.compile(r"\b(?:memory|vram|watts?|energy|efficien\w*|inference|serving)\b", re.IGNORECASE)


def is_comparison(claim: ClaimText) -> bool:
    """Return True if a text compares the speed or the cost of two accelerators without a rate of each."""
    rates = any(claim.stated(f"{kind}{each}") for kind in ("tokens_per_s", "samples_per_s") for each in ("", "_each"))
    joined = AGAINST.search(claim.between) or BASE_FIRST.search(claim.text) or claim.says("equal_speed")
    return len(claim.devices) == PAIR and len(claim.methods) < PAIR and bool(joined) and not rates and bool(_times(claim))


def _times(claim: ClaimText) -> list[Interval]:
    """Return the ratio of the first to the other that a text states: `2x`, `50% faster`, `33% cheaper`, `2x slower`, `as fast as`, `beats`."""
    one = Interval.exact(1.0)
    saved = [one / Interval(1 - each.value, 1 - each.high, 1 - each.low) for each in claim.values("saved") if each.high < 1]
    times = [one / each.value if "slow" in each.printed.lower() else each.value for each in claim.stated("speedup")]
    found = [*times, *(one + each for each in claim.values("gained")), *saved]
    in_words = (("equal_speed", one.widened(EQUAL)), ("slower", Interval(1.0, 1 / OPEN, 1.0)), ("faster_device", Interval(1.0, 1.0, OPEN)))
    return found or [ratio for kind, ratio in in_words if claim.says(kind)][:1]


def compared(facts: FactBase, claim: ClaimText, fitted: Evidence) -> tuple[str, str, str]:
    """Return the reading of a comparison, how the two compare by the model, and where the claim lies.

    That is `within` the 90% interval of one level of software, `near` within that of 99%, or `outside`; `disputed` if accepted results of the
    step on both say otherwise; "" if nothing is predicted.
    """
    backwards = BASE_FIRST.search(claim.text) or FROM_TO.search(claim.between)
    first, second = (variants[0] for variants in claim.devices[:: -1 if backwards else 1])
    counts = claim.counts[:: -1 if backwards else 1]
    model = claim.models[0] if claim.models else facts.models[USUAL_MODEL]
    length = next((int(each.value) for each in claim.values("sequence_length")), model.usual_length)
    stated, of_cost = _times(claim)[0], bool(OF_COST.search(claim.text))
    read = (
        f"{first.name} against {second.name}, {model.name}{'' if claim.models else ', since no model is named'}, sequence length {length:,}"
    )
    if OF_OTHERS.search(claim.text) or not (of_cost or OF_SPEED.search(claim.text)):
        return read, "it compares something else than the speed or the cost of training", ""
    lengths = [length] if claim.values("sequence_length") else [length, *_lengths(model, (first, second), fitted)]
    ratios = [
        ratio for each in dict.fromkeys(lengths) for ratio in _ratios(replace(claim, counts=counts), model, each, (first, second), fitted)
    ]
    low, high = 1.0, 1.0
    of_prices = ""
    if of_cost and ratios:
        prices, others = (usd_per_hour(facts, card) for card in (first, second))
        if not prices or not others or len(claim.counts) > 1:
            return read, "the price book has no price of one of them" if not prices or not others else "their numbers differ", ""
        ratios = [(words, each.times(others[0] / prices[0])) for words, each in ratios]
        # Others may pay any of the known prices.
        low, high = prices[0] / prices[-1], others[-1] / others[0]
        of_prices = f", at the lowest list prices on demand, {usd(prices[0])} and {usd(others[0])} an hour"
    if not ratios:
        return read, "the model predicts no rate of the same step on both", ""
    words, likely = min(ratios, key=lambda ratio: _distance(stated, ratio[1]))
    what = f"trains {significant(likely.value)} times as much for a dollar" if of_cost else f"is {significant(likely.value)} times as fast"
    reason = f"{first.name} {what} as {second.name}, {significant(likely.low)} to {significant(likely.high)}, {words}{of_prices}"
    results = [(why, ratio) for why, ratio in ratios if why.startswith(BY_RESULTS) and not of_cost]
    # The noise of two further results, at 90%.
    noise = math.exp(QUANTILE * math.sqrt(2 * ROW_VARIANCE)) - 1
    about = stated if 1.0 in {stated.low, stated.high} else stated.widened(noise)
    if results and not any(_overlap(about, ratio) for _, ratio in results):
        words, ratio = results[0]
        found = " to ".join(dict.fromkeys((significant(ratio.low), significant(ratio.high))))
        disputed = f"{first.name} has {found} times the rate of {second.name} {words}; by prediction, {reason}"
        return read, disputed, "disputed" if _overlap(stated, likely) else "outside"
    if _overlap(stated, likely):
        return read, reason, "within"
    if likely.low * low <= stated.high and stated.low <= likely.high * high:
        return read, f"{reason}; other prices in the price book allow the claim", "within"
    least, most = ((end / likely.value) ** WIDER * likely.value for end in (likely.low, likely.high))
    return read, reason, "near" if least * low <= stated.high and stated.low <= most * high else "outside"


def _overlap(stated: Interval, ratio: Range) -> bool:
    return ratio.low <= stated.high and stated.low <= ratio.high


def _distance(stated: Interval, ratio: Range) -> float:
    """Return the logarithm of the factor between a ratio and the nearest that is stated."""
    return max(math.log(stated.low / ratio.value), math.log(ratio.value / stated.high), 0.0)


def usd_per_hour(facts: FactBase, card: AcceleratorCard) -> list[float]:
    """Return today's prices of one device on demand, the lowest first."""
    rows = (row for row in current_prices(facts.prices) if row.accelerator == card.key and row.kind == "on_demand")
    return sorted(row.usd_per_hour / row.accelerator_count for row in rows)


def _lengths(model: ModelCard, cards: tuple[AcceleratorCard, AcceleratorCard], fitted: Evidence) -> list[int]:
    """Return the sequence lengths of the accepted results of a model on both accelerators."""
    rows = [row for row in fitted.results if row.architecture == architecture_of(model) and not row.suspicious]
    first, second = ({row.sequence_length for row in rows if row.accelerator == card.key} for card in cards)
    return sorted(first & second)


def _ratios(
    claim: ClaimText, model: ModelCard, length: int, cards: tuple[AcceleratorCard, AcceleratorCard], fitted: Evidence
) -> Iterator[tuple[str, Range]]:
    """Yield the ratio of rates, with its interval and its basis: for each method, number of devices and level of software."""
    asked = Asked(any_software=True)
    plans, counts = Plans(model, length, fitted.effects, asked), claim.counts if len(claim.counts) == PAIR else None
    for devices in [counts] if counts else [(count, count) for count in claim.counts[:1] or (1, NODE)]:
        places = [(card, count) for card, count in zip(cards, devices, strict=True)]
        rates = option_rates(model, length, places, fitted, asked=asked)
        known = {(each.method, each.software, each.accelerator): each for each in rates if each.tokens_per_s}
        for method, level in product(claim.possible_methods, LEVELS):
            first, second = (known.get((method.value, level, card.key)) for card in cards)
            if first and second:
                on = f"{devices[0]} of each" if devices[0] == devices[1] else f"{devices[0]} and {devices[1]}"
                words = f"{METHODS[method.value]} with {level} software on {on}"
                steps = [best_of(card, plans.on(card, count, method, level)[0])[0].shape for card, count in places]
                spread = spread_of_ratio(
                    fitted.effects, *(combination_on(card, step, level, asked) for card, step in zip(cards, steps, strict=True))
                )
                ratio = (first.tokens_per_s or 0.0) / (second.tokens_per_s or 1.0)
                yield f"the 90% interval predicted for {words}", Range(ratio, ratio / spread, ratio * spread)
                if first.measured_low and first.measured_high and second.measured_low and second.measured_high:
                    low, high = first.measured_low / second.measured_high * 0.999, first.measured_high / second.measured_low * 1.001
                    yield f"{BY_RESULTS} of {words}", Range(math.sqrt(low * high), low, high)
