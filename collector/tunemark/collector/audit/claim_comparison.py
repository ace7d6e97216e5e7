"""A claim that one accelerator trains N times as fast as another, or for less, against rates predicted and published for the same step on both."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from tunemark.collector.audit.claim_text import CHANGES, PAIR, ClaimText, Stated
from tunemark.collector.audit.interval import Interval
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, current_prices
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import significant, usd
from tunemark.schema.option_rates import Evidence, Plans, option_rates
from tunemark.schema.plan_search import NODE, Asked, best_of, combination_on
from tunemark.schema.recommendation import LEVELS, Rate
from tunemark.schema.throughput import QUANTILE, ROW_VARIANCE, Combination, Range, architecture_of, spread_of_ratio
from tunemark.schema.vocabulary import METHODS, Method, SoftwareLevel

USUAL_MODEL = "llama-3.1-8b"
"""Model of a comparison that names none: the one with the most results."""
OPEN = 1e3
"""Times that `faster` without a number may mean."""
EQUAL = 0.1
"""Share by which devices may differ that are `as fast as` another."""
NOISE_OF_RATIO = math.exp(QUANTILE * math.sqrt(2 * ROW_VARIANCE))
"""Factor from the ratio of two results to an end of the 90% interval of that of two further ones."""
WIDER = 2.576 / 1.645
"""Width in log space of a 99% interval in those of a 90% interval."""
BASE_FIRST = re.compile(r"^\W*(?:compared|relative|against|unlike|versus|vs)\b", re.IGNORECASE)
AGAINST = re.compile(
    r"\b(?:than|vs|versus|over|against|as|of|compared|relative|beats?|outperforms?|outpaces?|ahead|matches|equals|to)\b|->", re.IGNORECASE
)
"""What stands between the names of two accelerators that are compared."""
FROM_TO = re.compile(r"^\W*(?:to\b|->)", re.IGNORECASE)
NEGATED = re.compile(r"\b(?:not|never|no)\b|n['\u2019]t\b", re.IGNORECASE)
OF_SPEED = re.compile(r"\b(?:fast\w*|beats?|outperform\w*|slow\w*|speed\w*|quick\w*|throughput|tokens?/s\w*|performance)\b", re.IGNORECASE)
OF_COST = re.compile(r"\b(?:cost\w*|cheap\w*|prices?|dollars?)\b|\$", re.IGNORECASE)
OF_OTHERS = re.compile(r"\b(?:memory|vram|watts?|energy|efficien\w*|inference|serving)\b", re.IGNORECASE)


def is_comparison(claim: ClaimText) -> bool:
    """Return True if a text compares the speed or the cost of two accelerators without a rate of each."""
    joined = AGAINST.search(claim.between) or BASE_FIRST.search(claim.text) or claim.says("equal_speed")
    return len(claim.devices) == PAIR and len(claim.methods) < PAIR and bool(joined) and not states_rates(claim) and bool(_times(claim))


def states_rates(claim: ClaimText) -> bool:
    """Return True if a text states rates, which are judged instead of how they compare."""
    return any(claim.stated(f"{kind}{each}") for kind in ("tokens_per_s", "samples_per_s") for each in ("", "_each"))


def _times(claim: ClaimText) -> list[Interval]:
    """Return the ratio of the first to the other that a text states: `2x`, `50% faster`, `33% cheaper`, `2x slower`, `as fast as`, `beats`."""
    return [ratio for each in changes_of(claim) if (ratio := ratio_of(each))] if changes_of(claim) else in_words(claim)


def changes_of(claim: ClaimText) -> list[Stated]:
    """Return the figures that compare one thing with another."""
    return [each for kind in CHANGES for each in claim.stated(kind)]


def ratio_of(change: Stated) -> Interval | None:
    """Return the number of times that a change makes a step as fast, or as cheap; None for a saving of all. `50% slower` is half the rate, or half more time."""
    one, slower = Interval.exact(1.0), "slow" in change.printed.lower()
    if change.kind == "gained":
        return one + change.value
    if change.kind == "speedup":
        return one / change.value if slower else change.value
    if change.value.high >= 1:
        return one / (one + change.value) if slower else None
    left = Interval(1 - change.value.value, 1 - change.value.high, 1 - change.value.low)
    return Interval(left.value, left.low, 1 / (1 + change.value.low)) if slower else one / left


def in_words(claim: ClaimText) -> list[Interval]:
    """Return the ratio of speeds that words without a number state: `as fast as`, `slower`, `beats`."""
    one = Interval.exact(1.0)
    ratios = (("equal_speed", one.widened(EQUAL)), ("slower", Interval(1.0, 1 / OPEN, 1.0)), ("faster_device", Interval(1.0, 1.0, OPEN)))
    return [] if NEGATED.search(claim.text) else [ratio for kind, ratio in ratios if claim.says(kind)][:1]


def compared(facts: FactBase, claim: ClaimText, fitted: Evidence) -> tuple[str, str, str]:
    """Return the reading of a comparison, how the two compare by results or by the model, and where the claim lies (see `placed`).

    Accepted results of the step on both come before predictions; a claim that only a prediction agrees with is `disputed`.
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
    if OF_OTHERS.search(claim.text) or not (of_cost or OF_SPEED.search(claim.text) or claim.stated("speedup") or claim.says("equal_speed")):
        return read, "it compares something else than the speed or the cost of training", ""
    lengths = [length] if claim.values("sequence_length") else [length, *_lengths(model, (first, second), fitted)]
    ratios = [
        ratio for each in dict.fromkeys(lengths) for ratio in _ratios(replace(claim, counts=counts), model, each, (first, second), fitted)
    ]
    low, high = 1.0, 1.0
    of_prices = ""
    if of_cost and ratios:
        prices, others = (usd_per_hour(facts, card) for card in (first, second))
        stated_prices = (claim.values("price_usd_per_hour_each") or claim.values("price_usd_per_hour"))[:: -1 if backwards else 1]
        if len(stated_prices) == PAIR:
            prices, others = ([each.value] for each in stated_prices)
        if not prices or not others or len(claim.counts) > 1:
            without = " or ".join(card.name for card, known in ((first, prices), (second, others)) if not known)
            return read, f"the price book has no price on demand of {without}" if without else "their numbers differ", ""
        ratios = [replace(each, range=each.range.times(others[0] / prices[0])) for each in ratios]
        # Others may pay any of the known prices.
        low, high = prices[0] / prices[-1], others[-1] / others[0]
        of_prices = f", at {'the stated' if len(stated_prices) == PAIR else 'the lowest list'} prices on demand, {usd(prices[0])} and {usd(others[0])} an hour"
    if not ratios:
        return read, "the model predicts no rate of the same step on both", ""
    nearest = {
        known: min(alike, key=lambda each: distance(stated, each.range))
        for known in (True, False)
        if (alike := [each for each in ratios if each.by_results is known])
    }
    best, what = nearest.get(not of_cost, nearest[False]), "trains {} times as much for a dollar" if of_cost else "is {} times as fast"
    ends = " to ".join(dict.fromkeys(map(significant, (best.range.low, best.range.high))))
    reason = f"{first.name} {what.format(significant(best.range.value))} as {second.name}, {ends}, {best.basis} {best.words}{of_prices}"
    levels = {each.level: each for each in sorted(ratios, key=lambda each: -distance(stated, each.range)) if not each.by_results}
    others_known = [
        f"{significant(levels[level].range.value)} with {level} software" for level in LEVELS if levels.get(level, best) is not best
    ]
    reason += f"; by prediction {', '.join(others_known)}" if others_known and not of_cost else ""
    place = placed(stated, best.range, (low, high))
    return read, reason, "disputed" if best.by_results and place == "outside" and overlap(stated, nearest[False].range) else place


def placed(stated: Interval, likely: Range, prices: tuple[float, float] = (1.0, 1.0)) -> str:
    """Return the place of a stated ratio: `within` the 90% interval, `near` it, that is within that of 99%, or `outside`.

    The ratio of results may differ by the noise of two further ones. Words without a number, such as `faster`, are `near` if the middle of the
    interval says the opposite. `prices` are the factors by which other prices change it, the least and the most.
    """
    in_words = OPEN in {stated.high, 1 / stated.low}
    if overlap(stated, likely):
        return "near" if in_words and not stated.low < round(likely.value, 2) < stated.high else "within"
    if likely.low * prices[0] <= stated.high and stated.low <= likely.high * prices[1]:
        return "within"
    wide = wider(likely)
    return "near" if wide.low * prices[0] <= stated.high and stated.low <= wide.high * prices[1] else "outside"


def wider(likely: Range) -> Range:
    """Return the 99% interval of a ratio with a 90% interval; two further results have at least their noise."""
    noise = NOISE_OF_RATIO**WIDER
    low, high = ((end / likely.value) ** WIDER for end in (likely.low, likely.high))
    return Range(likely.value, likely.value * min(low, 1 / noise), likely.value * max(high, noise))


def overlap(stated: Interval, ratio: Range) -> bool:
    """Return True if a stated ratio can be a predicted one."""
    return ratio.low <= stated.high and stated.low <= ratio.high


def distance(stated: Interval, ratio: Range) -> float:
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


@dataclass(frozen=True, slots=True)
class Side:
    """One of two steps whose rates are compared."""

    card: AcceleratorCard
    devices: int
    method: Method
    level: SoftwareLevel
    given: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the step."""
    loop: str = ""
    """A training loop; see `Asked`."""

    @property
    def asked(self) -> Asked:
        """What is asked of its plan."""
        return Asked(dict(self.given), loop=self.loop, any_software=True)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times the rate of another step one has."""

    range: Range
    words: str
    """Method, software and devices."""
    level: SoftwareLevel
    by_results: bool = False
    """True if it is the ratio of accepted results of both, from the least to the most."""

    @property
    def basis(self) -> str:
        """Where it comes from, in words."""
        return "by accepted results of" if self.by_results else "the 90% interval predicted for"


def ratios_of(
    model: ModelCard, length: int, sides: Iterable[tuple[Side, Side]], fitted: Evidence, words: Callable[[Side, Side], str]
) -> Iterator[Ratio]:
    """Yield the ratio of the rates of each pair of steps, as predicted, and by accepted results if both have any."""
    known = dict[tuple[object, ...], dict[str, Rate]]()
    for pair in sides:
        found, steps = list[Rate](), list[Combination]()
        for side in pair:
            key = (side.card.key, side.devices, side.level, side.loop, *side.given.items())
            if key not in known:
                rates = option_rates(model, length, [(side.card, side.devices)], fitted, (side.level,), side.asked)
                known[key] = {each.method: each for each in rates if each.tokens_per_s}
            if rate := known[key].get(side.method.value):
                plans, _ = Plans(model, length, fitted.effects, side.asked).on(side.card, side.devices, side.method, side.level)
                found.append(rate)
                steps.append(combination_on(side.card, best_of(side.card, plans)[0].shape, side.level, side.asked))
        if len(found) == PAIR:
            one, other = found
            spread, ratio = spread_of_ratio(fitted.effects, *steps), (one.tokens_per_s or 0.0) / (other.tokens_per_s or 1.0)
            yield Ratio(Range(ratio, ratio / spread, ratio * spread), words(*pair), pair[0].level)
            # Results ran with plans of their own.
            own = any(side.given or side.loop for side in pair)
            if not own and one.measured_low and one.measured_high and other.measured_low and other.measured_high:
                low, high = one.measured_low / other.measured_high, one.measured_high / other.measured_low
                # Several results show how they differ; of a single one, that is the noise.
                by = NOISE_OF_RATIO if one.measured_low == one.measured_high or other.measured_low == other.measured_high else 1.001
                yield Ratio(Range(math.sqrt(low * high), low / by, high * by), words(*pair), pair[0].level, by_results=True)


def _ratios(
    claim: ClaimText, model: ModelCard, length: int, cards: tuple[AcceleratorCard, AcceleratorCard], fitted: Evidence
) -> Iterator[Ratio]:
    """Yield the ratios of two accelerators: for each number of devices, method and level of software."""
    counts = [claim.counts] if len(claim.counts) == PAIR else [(count, count) for count in claim.counts[:1] or (1, NODE)]
    sides = (
        (Side(cards[0], devices[0], method, level), Side(cards[1], devices[1], method, level))
        for devices, method, level in product(counts, claim.possible_methods, LEVELS)
    )

    def words(first: Side, second: Side) -> str:
        on = f"{first.devices} of each" if first.devices == second.devices else f"{first.devices} and {second.devices}"
        return f"{METHODS[first.method.value]} with {first.level} software on {on}"

    return ratios_of(model, length, sides, fitted, words)
