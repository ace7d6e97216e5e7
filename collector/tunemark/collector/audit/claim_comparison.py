"""How two sides compare, against rates predicted and published for the same step on both, and against the memory model in all settings that are open.

Only what holds in none of these settings is doubted.
"""

import math
import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from tunemark.collector.audit.bounds import least_shape
from tunemark.collector.audit.claim_text import PAIR, ClaimText, words
from tunemark.collector.audit.claim_ways import OPEN, Side, Sides, of_pace, ratios
from tunemark.collector.audit.evidence import AuditedResult
from tunemark.collector.audit.interval import GB_OR_GIB, ROUGHLY, Interval
from tunemark.collector.gate.read import CONVERTED, read_or_none, records_in
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, current_prices
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.formats import gib, significant, usd
from tunemark.schema.option_rates import Evidence, Plans, option_rates
from tunemark.schema.physics.memory import MemoryLedger, estimate_memory
from tunemark.schema.physics.stacks import STACKS, USUAL_STACK, on_stack
from tunemark.schema.plan_search import NODE, Asked, best_of, combination_on, step_on
from tunemark.schema.recommendation import LEVELS, Rate
from tunemark.schema.records.converted import ConvertedResult
from tunemark.schema.throughput import ISSUING, NOISE, QUANTILE, ROW_VARIANCE, Combination, architecture_of, spread_of_ratio
from tunemark.schema.vocabulary import METHODS, Checkpointing, Method, SoftwareLevel

USUAL_MODEL = "llama-3.1-8b"
"""Model of a comparison that names none: the one with the most results."""
USUAL_DEVICES = ("nvidia-h100-80gb-sxm", "nvidia-a100-80gb-sxm", "nvidia-rtx-4090", "nvidia-t4")
"""Devices of a comparison that names none."""
LENGTHS = (512, 2048, 8192)
"""Tokens of rows whose length is not stated."""
ROWS, MOST_ROWS = (1, 2), (1, 8)
"""Rows of a micro-batch that is not stated, of a comparison and of a memory that a step takes at most."""
NEAR = 40
"""Letters before a figure, and half as many from its beginning, in which a text says that it is needed."""
FAR = 1.5
"""Factor between a change of memory and the nearest predicted one from which a claim is suspicious: settings may be unusual."""
NOISE_OF_RATIO = math.exp(QUANTILE * math.sqrt(2 * ROW_VARIANCE))
"""Factor from the ratio of two results to an end of the 90% interval of that of two further ones."""
NOISE_OF_PAIR = math.exp(QUANTILE * math.sqrt(2) * NOISE)
"""The same for the ratio of two runs of one loop on one machine."""
WIDER = 2.576 / 1.645
"""Width in log space of a 99% interval in those of a 90% interval."""
TASK = "llama-2-70b"
"""Model that MLPerf fine-tunes."""
MLPERF = re.compile(r"\bml[ -]?perf\b", re.IGNORECASE)
ROUND = re.compile(r"(?:\bv|perf (?:training )?|round )(\d\.\d)\b", re.IGNORECASE)
"""The benchmark, and the name of a round."""
SMALL_RANK = 8
"""Rank of small adapters: that of peft's default configuration."""
ROUNDING, LOOSE_TIME = 0.01, 0.1
"""Shares by which a time of three digits may differ, and by which that of another entry on the same devices may: 15 of 151 of v4.0 to v5.1 differ by more."""
SLOW_ENTRY = 1.25
"""Times the median time from which an entry is of other settings: 1 of 169 entries of one round and number of devices is slower."""
READ_AS = {"speed": "as fast", "cost": "as much for a dollar", "memory": "less memory"}
"""Quantity -> what a number of times is of, in words."""
PLACES = ("within", "near", "disputed", "outside")


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times the rate of another step one has."""

    range: Interval
    words: str
    """Method, devices and software."""
    level: SoftwareLevel | None
    """Level of the software of both, or of the first of two stacks."""
    fits: bool
    """True if both have room for the step."""
    by_results: bool = False
    """True if it is the ratio of accepted results of both, from the least to the most."""


def compared(facts: FactBase, claim: ClaimText, sides: Sides, fitted: Evidence) -> tuple[str, str, str]:
    """Return the reading of a comparison, how the two compare, and where the claim lies (see `placed`); "" for what cannot be compared."""
    model = claim.models[0] if claim.models else facts.models[TASK if MLPERF.search(claim.text) else USUAL_MODEL]
    cards = [claim.devices[0][0]] if claim.devices else [facts.accelerators[key] for key in USUAL_DEVICES]
    read = f"{sides[0].name} against {sides[1].name}, {model.name}{'' if claim.models else ', since no model is named'}"
    of_task = model.key == TASK and (MLPERF.search(claim.text) or Method.LORA in claim.possible_methods)
    by_times = _by_times(claim, sides) if of_task else None
    if by_times:
        read += f", MLPerf {by_times[1]}"
    elif sides[0].card:
        read += f", sequence length {next((int(each.value) for each in claim.values('sequence_length')), model.usual_length):,}"
    stated = ratios(claim, sides)
    found = []
    for kind, ratio in stated.items():
        read += "" if OPEN in {ratio.high, 1 / ratio.low} else f", {_ends(ratio)} times {READ_AS[kind]}"
        if kind == "memory":
            found.append(_by_memory(claim, sides, model, cards[0], ratio))
        elif by_times and kind == "speed":
            what = f"{sides[0].name} is {significant(by_times[0].value)} times as fast as {sides[1].name}; {_ends(by_times[0])}"
            # A round that is named has no further entries that might say otherwise.
            decided = _rounds(claim) and not ratio.overlaps(by_times[0])
            place = "outside" if decided else placed(ratio, by_times[0])
            found.append((f"{what}, by the times of the entries of MLPerf {by_times[1]}{_stays_open(place, ratio, by_times[0])}", place))
        else:
            found.append(_by_rates(facts, claim, sides, model, cards, ratio, fitted=fitted))
    if not found:
        return read, "it compares something else than the speed or the cost of training", ""
    # What cannot be compared leaves the rest.
    return read, "; ".join(reason for reason, _ in found), max((place for _, place in found if place), key=PLACES.index, default="")


def _by_times(claim: ClaimText, sides: Sides) -> tuple[Interval, str] | None:
    """Return the ratio of the times of entries of MLPerf on both, and the rounds: those that are named, else the newest with both, else all; None without entries."""
    counts = (side.devices or (*claim.counts, NODE)[0] for side in sides)
    entries = [list(_entries({side.card.key}, count)) for side, count in zip(sides, counts, strict=True) if side.card]
    if len(entries) < PAIR or not all(entries):
        return None
    rounds = _rounds(claim) or sorted(set.intersection(*({name for name, _ in own} for own in entries)))[-1:]
    first, second = ([minutes for name, minutes in own if name in rounds] or [minutes for _, minutes in own] for own in entries)
    first, second = ([each for each in own if each < SLOW_ENTRY * statistics.median(own)] for own in (first, second))
    ratio = Interval(statistics.median(second) / statistics.median(first), min(second) / max(first), max(second) / min(first))
    return ratio, " and ".join(dict.fromkeys(rounds)) or "of several rounds"


def _rounds(claim: ClaimText) -> list[str]:
    """Return the rounds of MLPerf that a text names, such as `v5.1`."""
    return [f"v{name}" for name in ROUND.findall(claim.text)]


def _by_rates(
    facts: FactBase, claim: ClaimText, sides: Sides, model: ModelCard, cards: list[AcceleratorCard], stated: Interval, *, fitted: Evidence
) -> tuple[str, str]:
    """Return the ratio of the rates of two sides, or of what a dollar trains, in words, and the place of the stated one.

    Accepted results of the step on both come before predictions; a claim that only a prediction agrees with is `disputed`.
    """
    lengths = [int(each.value) for each in claim.values("sequence_length")][:1]
    lengths = lengths or [model.usual_length, *_lengths(model, sides, claim, fitted)]
    of_counts = dict[int, list[Ratio]]()
    for count in claim.counts[:1] or ((1, NODE) if sides[0].card else (1,)):
        steps = list(_steps(claim, sides, cards, count))
        of_counts[count] = [ratio for length in dict.fromkeys(lengths) for ratio in ratios_of(model, length, steps, fitted)]
    # The fewest devices with room are those of a claim without their number; its results may be of more.
    predicting = {count: own for count, found in of_counts.items() if (own := [each for each in found if not each.by_results])}
    count = next((count for count, own in predicting.items() if any(each.fits for each in own)), next(iter(predicting), 1))
    every = [*predicting.get(count, []), *(each for found in of_counts.values() for each in found if each.by_results)]
    if not every:
        return "no rate of the same step is predicted on both: on one it does not fit, or nothing similar was measured", ""
    low, high, what, of_prices = 1.0, 1.0, "is {} times as fast", ""
    first, second = (side.card for side in sides)
    if first and second and claim.says("of_cost") and not of_pace(claim):
        stated_prices = _stated_prices(claim)[:: -1 if claim.devices[0][0] != first else 1]
        prices, others = stated_prices or [usd_per_hour(facts, card, count) for card in (first, second)]
        if not prices or not others or len(claim.counts) > 1:
            without = " or ".join(card.name for card, known in ((first, prices), (second, others)) if not known)
            return f"the price book has no price on demand of {without}" if without else "their numbers differ", ""
        every = [replace(each, range=each.range * (others[0] / prices[0]), by_results=False) for each in every if not each.by_results]
        # Others may pay any of the known prices.
        low, high = prices[0] / prices[-1], others[-1] / others[0]
        what = "trains {} times as much for a dollar"
        of_prices = f", at {'the stated prices' if stated_prices else 'the lowest list prices on demand'}, {usd(prices[0])} and {usd(others[0])} an hour each"
    by_results, predicted = ([each for each in every if each.by_results is known] for known in (True, False))
    best, likely = (min(known, key=lambda each: distance(stated, each.range)) for known in (by_results or predicted, predicted))
    basis = "by accepted results of" if best.by_results else "the 90% interval predicted for"
    settings = [each.range.value for each in by_results or predicted]
    times, other = " to ".join(dict.fromkeys(map(significant, (min(settings), max(settings))))), sides[1].name
    reason = f"{sides[0].name} {what.format(times)} as {other}{', by setting' if ' to ' in times else ''}; {_ends(best.range)}, {basis} {best.words}{of_prices}"
    others_known = dict[SoftwareLevel | None, list[float]]()
    for each in predicted if not of_prices and not sides[0].stack else ():
        if best.by_results or each.level != best.level:
            others_known.setdefault(each.level, []).append(each.range.value)
    if others_known:
        known = (f"{_ends(Interval(ends[0], min(ends), max(ends)))} with {level} software" for level, ends in others_known.items())
        reason += f"; by prediction {', '.join(known)}"
    place = placed(stated, best.range, (low, high))
    if place == "near" and not stated.overlaps(wider(best.range)):
        return f"{reason}; other list prices, up to {usd(prices[-1])} and {usd(others[-1])}, may make it true", "disputed"
    reason += _stays_open(place, stated, best.range)
    return reason, "disputed" if place == "outside" and stated.overlaps(likely.range) else place


def _stays_open(place: str, stated: Interval, likely: Interval) -> str:
    """Return the reason why a ratio that is `near` a predicted one stays open; empty for others."""
    why = "its middle is on the other side of 1" if stated.overlaps(likely) else f"{_ends(wider(likely))} is its 99% interval"
    return f"; {why}, so the claim stays open" if place == "near" else ""


def _stated_prices(claim: ClaimText) -> list[list[float]]:
    """Return the prices of two devices in dollars an hour, in the order of the text; empty unless it states both, of which one may be without `per hour`."""
    hourly = claim.stated("price_usd_per_hour_each") or claim.stated("price_usd_per_hour")
    known = sorted([*hourly, *(claim.stated("cost_usd") if len(hourly) == 1 else [])], key=lambda each: each.place)
    return [[each.value.value] for each in known] if len(known) == PAIR else []


def _ends(likely: Interval) -> str:
    return " to ".join(dict.fromkeys(map(significant, (likely.low, likely.high))))


def _lengths(model: ModelCard, sides: Sides, claim: ClaimText, fitted: Evidence) -> list[int]:
    """Return the sequence lengths of the accepted results of a model on both accelerators, or with two number formats on that of the text."""
    rows = [row for row in fitted.results if row.architecture == architecture_of(model) and not row.suspicious]
    of_text = claim.devices[0] if claim.devices and any("block_format" in side.given for side in sides) else ()
    cards = [[side.card] if side.card else of_text for side in sides]
    first, second = ({row.sequence_length for row in rows if row.accelerator in {card.key for card in named}} for named in cards)
    return sorted(first & second)


def placed(stated: Interval, likely: Interval, prices: tuple[float, float] = (1.0, 1.0)) -> str:
    """Return the place of a stated ratio: `within` the 90% interval, `near` it, that is within that of 99%, or `outside`.

    A claim is `near`, too, if the middle of the interval says the opposite. `prices` are the least and the most that other prices change it by.
    """
    in_words, middle = OPEN in {stated.high, 1 / stated.low}, round(likely.value, 2)
    opposed = not stated.low < middle < stated.high if in_words else stated.low > 1 > middle or stated.high < 1 < middle
    if stated.overlaps(likely):
        return "near" if opposed else "within"
    (low, high), wide = prices, wider(likely)
    return "near" if stated.overlaps(Interval(wide.value, wide.low * low, wide.high * high)) else "outside"


def wider(likely: Interval) -> Interval:
    """Return the 99% interval of a ratio with a 90% interval; two further results have at least their noise."""
    noise = NOISE_OF_RATIO**WIDER
    low, high = ((end / likely.value) ** WIDER for end in (likely.low, likely.high))
    return Interval(likely.value, likely.value * min(low, 1 / noise), likely.value * max(high, noise))


def distance(stated: Interval, ratio: Interval) -> float:
    """Return the logarithm of the factor between a ratio and the nearest that is stated."""
    return max(math.log(stated.low / ratio.value), math.log(ratio.value / stated.high), 0.0)


def usd_per_hour(facts: FactBase, card: AcceleratorCard, devices: int = 1) -> list[float]:
    """Return today's prices of one device on demand, the lowest first, of instances with at least these devices or a machine's; of all if there are none."""
    rows = [row for row in current_prices(facts.prices) if row.accelerator == card.key and row.kind == "on_demand"]
    large = [row for row in rows if row.accelerator_count >= min(devices, NODE)]
    return sorted(row.usd_per_hour / row.accelerator_count for row in large or rows)


def _steps(claim: ClaimText, sides: Sides, cards: list[AcceleratorCard], count: int) -> Iterator[Sides]:
    """Yield both sides on a number of devices in each setting that the text leaves open: device, method, and level of software."""
    of_devices, levels = sides[0].card is not None, list(product(LEVELS, LEVELS))
    pairs = levels if of_devices else [(one, other) for one, other in levels if one == other != "vendor"]
    for card, method, chosen in product(cards[:1] if of_devices else cards, claim.possible_methods, pairs):
        first, second = (
            replace(side, devices=side.devices or count, card=side.card or card, method=side.method or method, level=side.level or level)
            for side, level in zip(sides, chosen, strict=True)
        )
        yield first, second


@dataclass(frozen=True, slots=True)
class _Rates:
    """The rates of a model with rows of this length, and what is predicted; each is computed once."""

    model: ModelCard
    length: int
    fitted: Evidence
    known: dict[tuple[object, ...], dict[str, tuple[Rate, Combination]]] = field(default_factory=dict)

    def of(self, side: Side, asked: Asked) -> tuple[Rate, Combination] | None:
        """Return the rate of a step with what is predicted, if it is known."""
        if side.card is None or side.devices is None or side.method is None or side.level is None:
            return None
        key = (side.card.key, side.devices, side.level, asked.loop, asked.any_software, *side.given.items())
        if key not in self.known:
            plans, found = Plans(self.model, self.length, self.fitted.effects, asked), dict[str, tuple[Rate, Combination]]()
            for rate in option_rates(self.model, self.length, [(side.card, side.devices)], self.fitted, (side.level,), asked):
                if rate.tokens_per_s:
                    made, _ = plans.on(side.card, side.devices, Method(rate.method), side.level)
                    found[rate.method] = rate, combination_on(side.card, best_of(side.card, made)[0].shape, side.level, asked)
            self.known[key] = found
        return self.known[key].get(side.method.value)

    def levels(self, side: Side) -> list[SoftwareLevel]:
        """Return the levels of software with which the rate of a step is known."""
        return [level for level in LEVELS if self.of(replace(side, level=level), Asked(dict(side.given)))]


def ratios_of(model: ModelCard, length: int, pairs: Iterable[Sides], fitted: Evidence) -> Iterator[Ratio]:
    """Yield the ratio of the rates of each pair of steps, as predicted, and by accepted results if both have any."""
    rates = _Rates(model, length, fitted)
    for pair in pairs:
        first, second = pair
        found = list[tuple[Rate, Combination]]()
        for side in pair if _level(first) == _level(second) or first.card == second.card else ():
            # Loops of one level that no result is of differ as any do.
            loop = side.stack and (STACKS[side.stack].loop_for(model, side.devices or 1) or side.stack)
            asked = Asked(dict(side.given), loop=loop if first.level == second.level else "", any_software=not rates.levels(side))
            if known := rates.of(side, asked):
                found.append(known)
        if len(found) == PAIR:
            (one, other), steps = zip(*found, strict=True)
            spread, ratio = spread_of_ratio(fitted.effects, *steps), (one.tokens_per_s or 0.0) / (other.tokens_per_s or 1.0)
            predicted = Interval(ratio, ratio / spread, ratio * spread)
            alike = [(step.accelerator, step.devices, step.level, step.shape.checkpointing, step.shape.sharding) for step in steps]
            if alike[0] == alike[1] and first.method is not second.method:
                # Full fine-tuning and QLoRA do all the work of LoRA, and more: nothing but noise makes them faster.
                most = max(1.0, ratio) * NOISE_OF_PAIR if second.method is Method.LORA else math.inf
                least = min(1.0, ratio) / NOISE_OF_PAIR if first.method is Method.LORA else 0.0
                predicted = Interval(ratio, max(predicted.low, least), min(predicted.high, most))
            words, level, fits = _setting(*pair), _level(first), "no" not in {one.memory, other.memory}
            yield Ratio(predicted, words, level, fits)
            # Results ran with plans of their own.
            own = any({*side.given} - {"block_format"} for side in pair) or (first.stack and first.level == second.level)
            if not own and one.usual and other.usual:
                (least, middle, most), (other_least, other_middle, other_most) = one.usual, other.usual
                # Several results show how they differ; of a single one, that is the noise.
                by = NOISE_OF_RATIO if least == most or other_least == other_most else 1.001
                likely = Interval(middle / other_middle, least / other_most / by, most / other_least * by)
                yield Ratio(likely, words, level, fits, by_results=True)


def _level(side: Side) -> SoftwareLevel | None:
    """Return the level of software of a step: what is usual on devices that compile whole graphs is as tuned as tuned software on others."""
    compiled = side.card is not None and side.card.vendor not in ISSUING
    return "tuned" if compiled and side.level == "plain" else side.level


def _setting(first: Side, second: Side) -> str:
    """Return method, software and devices of two steps in words."""
    each = f"{first.devices} of each" if first.devices == second.devices else f"{first.devices} and {second.devices}"
    on = f"{first.devices} x {first.card.name}" if first.card and first.card == second.card else each
    return f"{METHODS[str(first.method)]} {'' if first.stack else f'with {_level(first)} software '}on {on}"


def _ledgers(
    claim: ClaimText, side: Side, model: ModelCard, lengths: Iterable[int], rows: Iterable[int], *, whole: bool = False
) -> dict[tuple[object, ...], MemoryLedger]:
    """Return the memory of a step in each setting that is open: length, rows, stack, recomputation, and, for `whole`, the model on each device."""
    kept = [Checkpointing.FULL] if claim.says("checkpointing") else [Checkpointing.NONE, Checkpointing.FULL]
    layouts: list[dict[str, Any]] = [{}, {"sharding": "ddp"}] if whole else [{}]
    found = dict[tuple[object, ...], MemoryLedger]()
    for length, batch, stack, recomputed, layout in product(lengths, rows, [side.stack] if side.stack else STACKS, kept, layouts):
        given = {"micro_batch": batch, "checkpointing": recomputed} | layout | dict(side.given)
        if side.card and side.method:
            shape = step_on(side.card, model, side.method, length, side.devices or 1, Asked(given))
            if STACKS[stack].runs(shape, side.card.vendor):
                ledger = estimate_memory(on_stack(shape, stack, tuple(side.given)))
                found[length, batch, stack, recomputed, *layout.values()] = ledger
    return found


def _by_memory(claim: ClaimText, sides: Sides, model: ModelCard, card: AcceleratorCard, stated: Interval) -> tuple[str, str]:
    """Return the times that the other side needs the memory of the first, in words, in the settings that the text leaves open, and the place of the stated ratio."""
    lengths = [int(each.value) for each in claim.values("sequence_length")][:1] or LENGTHS
    rows = [int(each.value) for kind in ("micro_batch", "batch") for each in claim.values(kind)][:1] or ROWS
    found = list[float]()
    for method in claim.possible_methods:
        steps = (replace(side, card=card, devices=(*claim.counts, 1)[0], method=side.method or method) for side in sides)
        one, other = (_ledgers(claim, step, model, lengths, rows) for step in steps)
        # Software has its own habits: with another stack, others recompute or not.
        same = 2 if sides[0].stack else None
        found += [b.needed / a.needed for (key, a), (other_key, b) in product(one.items(), other.items()) if key[:same] == other_key[:same]]
    if not found:
        return "no memory of the same step is predicted for both ways", ""
    likely = Interval(statistics.median(found), min(found) * (1 - GB_OR_GIB), max(found) * (1 + GB_OR_GIB))
    in_rows = " to ".join(dict.fromkeys(f"{each:,}" for each in (lengths[0], lengths[-1])))
    times = f"{significant(likely.value)} times the memory of {sides[0].name}, {_ends(likely)} by the memory model"
    reason = f"{sides[1].name} usually needs {times}, with {in_rows} tokens in a row"
    if stated.overlaps(likely):
        place = placed(stated, likely)
        return f"{reason}{_stays_open(place, stated, likely)}", place
    near = stated.overlaps(Interval(likely.value, likely.low / FAR, likely.high * FAR))
    return (f"{reason}; with unusual settings the claim stays open", "near") if near else (reason, "outside")


def against_model(claim: ClaimText, run: AuditedResult, model: ModelCard, card: AcceleratorCard) -> tuple[str, str]:
    """Return a comparison of a stated memory of each device with that of the memory model, and its verdict.

    `card` is a usual device. What somebody needs is compared with the leanest settings, and what a run takes with all of them.
    """
    stated, method = run.claims["peak_memory_bytes"], Method.LORA if run.conditions.method is Method.PEFT else run.conditions.method
    lengths = [run.conditions.sequence_length or model.usual_length] if claim.values("sequence_length") else LENGTHS
    rows = [run.conditions.micro_batch] if run.conditions.micro_batch else MOST_ROWS
    whole = run.devices > 1 and not claim.says("sharding")
    side = Side("", card, run.devices, method)
    found = _ledgers(claim, side, model, lengths, rows, whole=whole)
    least, open_adapters = found, method is not Method.FULL and not (claim.targets or claim.stated("lora_r"))
    if open_adapters and stated.value < min(each.needed_low for each in found.values()):
        # Adapters that are not stated may be few.
        few = {"lora_rank": SMALL_RANK, "lora_targets": least_shape(model, method, 1, 1).lora_targets}
        least = _ledgers(claim, replace(side, given=few), model, lengths, rows, whole=whole)
    (length, batch, stack, recomputed, *_), leanest = min(least.items(), key=lambda each: each[1].needed_low)
    how = f"{', gradient checkpointing' if recomputed is Checkpointing.FULL else ''}{'' if least is found else ', few adapters'}"
    usual = [(ledger.sharded, ledger.fit_limits["fits"]) for key, ledger in found.items() if key[2] == USUAL_STACK["plain"]]
    # Of several devices, each may have the whole model.
    least_usual = max(min(bytes_ for known, bytes_ in usual if known is sharded) for sharded in {known for known, _ in usual})
    high = max(ledger.reserved_interval[1] + ledger.outside for ledger in found.values())
    low = leanest.needed_low
    reason = f"by the memory model, a step needs {gib(low)} ({stack}, {batch} x {length:,} tokens{how}) at least, and {gib(least_usual)} with usual software"
    if claim.offloads or claim.says("few_states"):
        less = f"{reason}; less is possible where states wait in host memory or are never whole"
        return less, "not judged" if stated.value < low else "plausible"
    if stated.value < low:
        return reason, "suspicious"
    [place, *_] = (each.place for each in claim.stated("peak_memory_bytes"))
    if words("needs").search(claim.text[max(0, place - NEAR) : place + NEAR // 2]) and stated.value > ROUGHLY * least_usual:
        return f"{reason}: less than {stated.printed} is enough", "ambiguous" if stated.value <= 2 * least_usual else "suspicious"
    return reason, "plausible" if stated.value <= high else "ambiguous"


def against_entries(claim: ClaimText) -> tuple[str, str, str] | None:
    """Return the reading of a time of an entry of MLPerf, the times of those with its devices, and if it is `within`, `near` or `outside` of them.

    Without an entry the last is "". None for another claim, or without a known number of known devices.
    """
    of_task = MLPERF.search(claim.text) and (not claim.models or claim.models[0].key == TASK) and (project_root() / CONVERTED).is_dir()
    if not (of_task and claim.values("train_time_s") and len(claim.devices) == len(claim.counts) == 1):
        return None
    [devices], [count], [stated, *_], rounds = claim.devices, claim.counts, claim.values("train_time_s"), _rounds(claim)
    every = list(_entries({card.key for card in devices}, count))
    entries = [each for each in every if each[0] in rounds] or every
    read = f"{count} x {devices[0].name}{''.join(f', round {each}' for each in rounds)}"
    if not entries:
        return read, "no entry of the imported rounds of MLPerf (v4.0 to v5.1) has these devices", ""
    least, most = (end(minutes for _, minutes in entries) for end in (min, max))
    span = " to ".join(dict.fromkeys(end(name for name, _ in entries) for end in (min, max)))
    within, near = ((stated * (1 / 60)).overlaps(Interval(1.0, least * (1 - each), most * (1 + each))) for each in (ROUNDING, LOOSE_TIME))
    several = "the entry" if len(entries) == 1 else f"{len(entries)} entries"
    other = "" if within else ", and that of none is stated"
    reason = f"the score of {several} of MLPerf {span} on these devices is {_ends(Interval(1.0, least, most))} min{other}"
    return read, reason, "within" if within else "near" if near else "outside"


def _entries(keys: set[str], count: int) -> Iterator[tuple[str, float]]:
    """Yield round and official score in minutes of the entries."""
    for path in records_in(project_root() / CONVERTED).files:
        record = read_or_none(path)
        if not isinstance(record, ConvertedResult) or record.score_s is None:
            continue
        if record.conditions.accelerator in keys and record.conditions.accelerator_count == count:
            yield record.round, record.score_s / 60
