"""A claim that one accelerator trains so many times as fast as another, or for so much less, against the rates predicted for the same step on both."""

import math
import re
from collections.abc import Iterator

from tunemark.collector.audit.claim_text import PAIR, ClaimText
from tunemark.collector.audit.interval import Interval
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, current_prices
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import significant, usd
from tunemark.schema.option_rates import Evidence, option_rates
from tunemark.schema.plan_search import NODE, Asked
from tunemark.schema.recommendation import Rate
from tunemark.schema.throughput import Range

USUAL_MODEL = "llama-3.1-8b"
"""Model of a comparison that names none: the one with the most results."""
WIDER = 2.576 / 1.645
"""Width in log space of a 99% interval in those of a 90% interval."""
BASE_FIRST = re.compile(r"^\W*(?:compared|relative|against|unlike|versus|vs)\b", re.IGNORECASE)
OF_SPEED = re.compile(r"\b(?:fast\w*|slow\w*|speed\w*|quick\w*|throughput|tokens?/s\w*|performance)\b", re.IGNORECASE)
OF_COST = re.compile(r"\b(?:cost\w*|cheap\w*|prices?|dollars?)\b|\$", re.IGNORECASE)
OF_OTHERS = re.compile(r"\b(?:memory|vram|watts?|energy|efficien\w*|inference|serving)\b", re.IGNORECASE)


def is_comparison(claim: ClaimText) -> bool:
    """Return True if a text compares the speed or the cost of two accelerators without a rate of each."""
    rates = any(claim.stated(f"{kind}{each}") for kind in ("tokens_per_s", "samples_per_s") for each in ("", "_each"))
    return len(claim.devices) == PAIR and not rates and bool(_times(claim))


def _times(claim: ClaimText) -> list[Interval]:
    """Return the changes that a text states as ratios of the first to the other: `2x`, `50% faster`, `33% cheaper` and `2x slower`."""
    one = Interval.exact(1.0)
    saved = [one / Interval(1 - each.value, 1 - each.high, 1 - each.low) for each in claim.values("saved") if each.high < 1]
    times = [one / each.value if "slow" in each.printed.lower() else each.value for each in claim.stated("speedup")]
    return [*times, *(one + each for each in claim.values("gained")), *saved]


def compared(facts: FactBase, claim: ClaimText, fitted: Evidence) -> tuple[str, str, str]:
    """Return what a comparison is read as, how the two compare by the model, and where the claim lies.

    That is `within` the 90% interval of one level of software or of accepted results, `near` within that of 99%, or `outside`; "" if
    nothing is predicted.
    """
    first, second = (variants[0] for variants in (reversed(claim.devices) if BASE_FIRST.search(claim.text) else claim.devices))
    model = claim.models[0] if claim.models else facts.models[USUAL_MODEL]
    length = next((int(each.value) for each in claim.values("sequence_length")), model.usual_length)
    stated, of_cost = _times(claim)[0], bool(OF_COST.search(claim.text))
    read = (
        f"{first.name} against {second.name}, {model.name}{'' if claim.models else ', since no model is named'}, sequence length {length:,}"
    )
    if OF_OTHERS.search(claim.text) or not (of_cost or OF_SPEED.search(claim.text)):
        return read, "it compares something else than the speed or the cost of training", ""
    ratios = list(_ratios(claim, model, length, (first, second), fitted))
    low, high = 1.0, 1.0
    of_prices = ""
    if of_cost and ratios:
        prices, others = (_usd_per_hour(facts, card) for card in (first, second))
        if not prices or not others or len(claim.counts) > 1:
            return read, "the price book has no price of one of them" if not prices or not others else "their numbers differ", ""
        ratios = [(words, each.times(others[0] / prices[0])) for words, each in ratios]
        # Others may pay any of the known prices.
        low, high = prices[0] / prices[-1], others[-1] / others[0]
        of_prices = f", at the lowest list prices on demand, {usd(prices[0])} and {usd(others[0])} an hour"
    if not ratios:
        return read, "the model predicts no rate of the same step on both", ""
    words, likely = min(ratios, key=lambda ratio: abs(math.log(ratio[1].value / stated.value)))
    what = f"trains {significant(likely.value)} times as much for a dollar" if of_cost else f"is {significant(likely.value)} times as fast"
    reason = f"{first.name} {what} as {second.name}, {significant(likely.low)} to {significant(likely.high)}, {words}{of_prices}"
    if likely.low <= stated.high and stated.low <= likely.high:
        return read, reason, "within"
    if likely.low * low <= stated.high and stated.low <= likely.high * high:
        return read, f"{reason}; other prices in the price book allow the claim", "within"
    least, most = ((end / likely.value) ** WIDER * likely.value for end in (likely.low, likely.high))
    return read, reason, "near" if least * low <= stated.high and stated.low <= most * high else "outside"


def _usd_per_hour(facts: FactBase, card: AcceleratorCard) -> list[float]:
    """Return today's prices of one device on demand, the lowest first."""
    rows = (row for row in current_prices(facts.prices) if row.accelerator == card.key and row.kind == "on_demand")
    return sorted(row.usd_per_hour / row.accelerator_count for row in rows)


def _ratios(
    claim: ClaimText, model: ModelCard, length: int, cards: tuple[AcceleratorCard, AcceleratorCard], fitted: Evidence
) -> Iterator[tuple[str, Range]]:
    """Yield the ratio of rates, with its 90% interval and what it is of: for each method, number of devices and level of software."""
    counts = claim.counts if len(claim.counts) == PAIR else None
    for devices in [counts] if counts else [(count, count) for count in claim.counts[:1] or (1, NODE)]:
        places = [(card, count) for card, count in zip(cards, devices, strict=True)]
        rates = option_rates(model, length, places, fitted, asked=Asked(any_software=True))
        known = {(each.method, each.software, each.accelerator): each for each in rates if each.tokens_per_s}
        for (method, level, accelerator), first in known.items():
            second = known.get((method, level, cards[1].key))
            if accelerator == cards[0].key and second and method in claim.possible_methods:
                on = f"{devices[0]} of each" if devices[0] == devices[1] else f"{devices[0]} and {devices[1]}"
                yield from _of_rates(first, second, f"{level} software on {on}")


def _of_rates(first: Rate, second: Rate, words: str) -> Iterator[tuple[str, Range]]:
    """Yield the ratio of two rates: as predicted, without the errors that both share, and of the results that both have."""
    ratio = (first.tokens_per_s or 0.0) / (second.tokens_per_s or 1.0)
    spread = math.exp(math.hypot(math.log(first.own_spread), math.log(second.own_spread)))
    yield f"the 90% interval predicted for {words}", Range(ratio, ratio / spread, ratio * spread)
    if first.measured_low and first.measured_high and second.measured_low and second.measured_high:
        low, high = first.measured_low / second.measured_high * 0.999, first.measured_high / second.measured_low * 1.001
        yield f"by accepted results with {words}", Range(math.sqrt(low * high), low, high)
