"""What a claim in words contradicts by itself: products of its figures, and facts of the models and devices that it names.

Each check yields findings. What a text leaves open is read in every way that its words allow, and only what fails in all of them is a finding.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

from tunemark.collector.audit.bounds import SIXTEEN_BIT, adam_bytes, flop_conventions
from tunemark.collector.audit.claim_text import (
    CLAIM,
    CLAIMS,
    FEWEST,
    PAIR,
    SENTENCE,
    ClaimText,
    Stated,
    Variants,
    amounts,
    pattern_of,
    words,
)
from tunemark.collector.audit.evidence import label
from tunemark.collector.audit.interval import GB_OR_GIB, Interval
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, WORST_FIRST, Finding
from tunemark.collector.audit.rules.catalogue import IDLE, WHOLE_MACHINE
from tunemark.collector.audit.rules.identities import Equation, number, products_of
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import APPLE
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GB, GIB, HOUR_S, SIZES, percent, usd
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.training_shape import ALL_LINEAR, TrainingShape
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.throughput import ATTAINABLE
from tunemark.schema.vocabulary import AuditVerdict, Dtype, Method

SLACK = 0.05
"""Share by which rounded figures of a text may differ from their product."""
RECOMPUTED = 4 / 3
"""Work of a step with every block computed twice, as a multiple of that without."""
LENGTHS = (1, 8_192)
"""Rows of an unstated length, for conventions of counting attention."""
NAMED_SHARE = 0.06
"""Share by which a count of parameters or of a vocabulary may differ from the model's: names are rounded, and embeddings may be left out."""
SMALL_PART = 0.2
"""Share of the parameters of a model below which a count is not of the whole model."""
SUPERLINEAR = 1.05
"""Factor above linear scaling that is doubted."""
WIDE_STATES = 8
"""Bytes of two moments of Adam in 32 bits."""
CHEAP, VERY_CHEAP = 0.5, 0.1
"""Shares of the lowest known price of a device, spot included, below which a price is doubted: where several providers have it, and else."""
DEAR = 2
"""Times the highest known price of a device above which a price is doubted: people rent whole machines, of which others stand idle."""
LONG = re.compile(r"(?:hour|day|week|month)s?$", re.IGNORECASE)
"""Ends of rates over a long time."""
PROVIDERS = 3
"""Providers whose prices tell what a device costs at least."""
ROUNDED = 0.15
"""Share by which a change in one digit may be rounded, and a bandwidth or memory of a catalogue."""


def findings_of_text(facts: FactBase, claim: ClaimText, one: ClaimText) -> tuple[list[Finding], str]:
    """Return the contradictions of a text, worst first, and the first calculation that it keeps, or "". `one` is the claim on one variant."""
    equations = (*products(claim), *(() if claim.other_work else utilisations(one)), *changes(claim), *adapters(claim), *parts(claim))
    kept = (
        f"{each.printed} agrees with {each.meaning}"
        if way[0] == each.printed
        else f"{way[0]} = {each.show(way[1].value)}, which agrees with {each.printed}"
        for each in equations
        for way in each.left
        if _off(way, each.right) < SLACK
    )
    # A figure that one calculation gives is of that; others have factors of something else.
    explained = {each.printed for each in equations if each.holds() and claim.text.count(each.printed) == 1}
    broken = [each for each in equations if not each.holds() and each.printed not in explained and not _holds_with_unread(claim, each)]
    found = [replace(each.finding(), rule="claim") for each in broken]
    checks = (device_facts, limits, model_facts, orders, shortest, states, prices)
    found += [finding for check in checks for finding in check(facts, claim)]
    return sorted(found, key=lambda each: WORST_FIRST[each.verdict]), next(kept, "") or next(_facts_kept(facts, one), "")


def _holds_with_unread(claim: ClaimText, equation: Equation) -> bool:
    """Return True if an equation holds with a number of the text that was not understood, in place of one of its figures: `one gives 700 tok/s, both 1,330`."""
    matches = [re.match(r"\$?(\d[\d,]*(?:\.\d+)?)(?![\d,.]) ?([kMBGT]?)(?! ?(?:x|%|percent|times))", each) for each in claim.left]
    stated = [each.value.widened(SLACK) for each in claim.figures]
    unread = [
        float(match[1].replace(",", "")) * SIZES[match[2].lower()] for match in matches if match and (match[2] or len(match[1]) > PAIR)
    ]
    figures = [each.value.value for each in claim.figures if each.kind.removesuffix("_each") in equation.quantities]
    missing = {way.value / equation.right.value for _, way in equation.left if equation.right.value}
    return any(
        abs(abs(math.log(number / each)) - abs(math.log(off))) < SLACK
        for number in unread
        if number and not any(known.low <= number <= known.high for known in stated)
        for each in figures
        for off in missing
        if each and off > 0
    )


def _facts_kept(facts: FactBase, claim: ClaimText) -> Iterator[str]:
    """Yield the peaks, bandwidths, memories and prices that a text states as the cards and the price book have them; without a model, FLOP/s are those of a peak."""
    for model, stated in product(claim.models, claim.stated("parameters")):
        total = count_parameters(model).total
        if _near(stated, SLACK, total) and {each.kind for each in claim.figures} <= set(CLAIMS["kinds"]["of_models"]):
            yield f"{model.name} has {total:,} parameters"
    for kind in ("peak_flop_per_s", "flop_per_s", "bandwidth", "device_memory") if not claim.models else ():
        for stated, (has, amount) in product(claim.stated(kind), _of_catalogue(claim.devices, _peaks(claim), kind)):
            share = SLACK / 5 if "flop" in kind else GB_OR_GIB
            yield from (f"{has}{f', x {n}' if n > 1 else ''}" for n in claim.numbers if _near(stated, share, n * amount))
    count = max((*claim.counts, 1))
    spans = claim.values("train_time_s") or [Interval.exact(each.value / count) for each in claim.values("device_hours")]
    for stated, time, card in product(claim.stated("energy_j"), spans, claim.devices[0][:1] if len(claim.devices) == 1 else ()):
        power = stated.value.value / time.value / count
        if card.tdp_w and IDLE * card.tdp_w < power <= WHOLE_MACHINE * card.tdp_w:
            yield f"{stated.printed} is a mean of {power:,.0f} W for each device, whose limit is {card.tdp_w:,g} W"
    for stated in () if claim.models else (*claim.stated("price_usd_per_hour_each"), *claim.stated("price_usd_per_hour")):
        keys, number = {card.key for cards in claim.devices for card in cards}, 1 if stated.kind.endswith("each") else count
        known = [number * row.usd_per_hour / row.accelerator_count for row in facts.prices if row.accelerator in keys]
        if known and min(known) <= stated.value.value <= max(known):
            yield f"{stated.printed} is within {usd(min(known))} to {usd(max(known))} of the price book"


def _of_catalogue(devices: Iterable[Variants], peaks: list[tuple[str, float]], kind: str) -> list[tuple[str, float]]:
    """Return the amounts of a kind that the cards of devices have, with words."""
    if "flop" in kind:
        return [(f"the dense peak in {dtype} is {peak / 1e12:g} TFLOP/s", peak) for dtype, peak in peaks]
    cards, unit = [card for variants in devices for card in variants], "GB/s" if kind == "bandwidth" else "GB"
    known = [(card.name, (card.memory_bandwidth_gb_s if kind == "bandwidth" else card.memory_gib) or 0) for card in cards]
    return [(f"the memory of {name} has {amount:,g} {unit}", amount * GB) for name, amount in known if amount]


def _owners(claim: ClaimText, place: int) -> list[Variants]:
    """Return the devices that a statement is about: both that `both` stands for, or the one that is the subject of its clause; none if that is open."""
    if len(claim.devices) == PAIR and words("of_both").search(claim.text[:place]):
        return list(claim.devices)
    if len(claim.devices) == 1 and not claim.models and not claim.says("comparison"):
        return list(claim.devices)
    subjects = [each for each in claim.places if words("subject").search(claim.text[: each[0]])]
    return [cards for _, end, cards in subjects if end <= place and words("its_own").fullmatch(claim.text[end:place])]


def _finding(verdict: AuditVerdict, claim: str, words: str, *quantities: str) -> Finding:
    """Return a finding on a claim, with the calculation in words."""
    return Finding(verdict, (CLAIM,), claim, words, quantities, rule="claim")


# Products ------------------------------------------------------------------------------------------


def products(claim: ClaimText) -> Iterator[Equation]:
    """Yield the products that the figures of a text must keep."""
    for row in CLAIMS["products"]:
        expected = [each for each in claim.stated(row["of"]) if "flop" not in each.kind or not _is_peak(claim, each, SLACK / 5)]
        alternatives = list(products_of(row["is"].split(), lambda kind: [("", value) for value in amounts(claim, kind)]))
        if not expected or not alternatives or (row.get("without") and claim.says(row["without"])):
            continue
        # Each prompt has several answers.
        if "samples" in row["is"] and claim.other_work:
            continue
        side = row.get("side", "")
        # Packed rows are full, and fewer than the samples.
        if (claim.says("packed_rows") and re.match("samples.* seq", row["is"])) or (claim.says("packed") and row["of"] == "batch_tokens"):
            side = "rows"
        elif claim.says("packed") and side == "rows":
            side = "most"
        elif row["is"].startswith("samples sequence_length") and claim.says("mean_length"):
            side = "mean"
        elif side == "filled" and claim.says("full_rows") and not claim.says("longest"):
            side = "time"
        low, high = CLAIMS["loose"].get(side, (1.0, 1.0))
        if row["of"] == "global_batch" and not claim.values("gradient_accumulation"):
            high = math.inf  # rows that are accumulated make the rest of it
        left = tuple((words, Interval(value.value, value.low * low, value.high * high)) for words, value in alternatives)
        names = (row["of"], *(each.strip("/?").removesuffix("_each") for each in row["is"].split() if not re.match(r"/?\d", each)))
        # A text may give several figures of a kind, and any of them may be the product.
        way, each = min(product(left, expected), key=lambda pair: _misses(pair[0], pair[1].value))
        show = _in_coin(each.printed, QUANTITIES[row["of"]].show if row["of"] in QUANTITIES else number)
        yield Equation((CLAIM,), names, each.printed, (way,), each.value, label(row["of"]).replace("_", " "), SLACK, show=show)


def _in_coin(printed: str, show: Callable[[float], str]) -> Callable[[float], str]:
    """Return a way to show amounts in the currency of a printed one."""
    coin = re.match(r"(?:€|£|EUR|GBP) ?", printed, re.IGNORECASE)
    return (lambda value: show(value).replace("$", coin[0])) if coin else show


def _off(way: tuple[str, Interval], right: Interval) -> float:
    """Return the distance of a calculation from what is stated, as a logarithm."""
    return abs(math.log(way[1].value / right.value)) if way[1].value > 0 and right.value > 0 else math.inf


def _misses(way: tuple[str, Interval], right: Interval, *, usual_first: bool = False) -> tuple[bool, float]:
    """Return True if a calculation disagrees with the stated figure, and its distance: the first in order is the best reading.

    With `usual_first`, those that disagree stay in their order.
    """
    misses = not way[1].widened(SLACK).overlaps(right)
    return misses, 0.0 if misses and usual_first else _off(way, right)


# Utilisation ---------------------------------------------------------------------------------------


def utilisations(claim: ClaimText) -> Iterator[Equation]:
    """Yield MFU against FLOP/s over the peak, and both against tokens per second x FLOPs of a token, in every convention of counting them."""
    flops = [(each.printed, each.value) for each in claim.stated("flop_per_s_each") if not _is_peak(claim, each, 0.0)]
    # Without a scope it may be of one device or of all.
    parts = product((each for each in claim.stated("flop_per_s") if not _is_peak(claim, each, 0.0)), {1, *claim.counts})
    flops += [(f"{each.printed}{f' / {count}' if count > 1 else ''}", each.value / count) for each, count in parts]
    worked, mfu, peaks = list(_by_tokens(claim)), claim.stated("mfu"), _peaks(claim)
    for achieved in (flops, worked):
        if achieved and mfu and peaks:
            ways = [
                (f"{words} / {peak / 1e12:g} TFLOP/s in {dtype}", value / peak)
                for (words, value), (dtype, peak) in product(achieved, peaks)
            ]
            way, each = min(product(ways, mfu), key=lambda pair: _misses(pair[0], pair[1].value, usual_first=True))
            yield Equation((CLAIM,), ("mfu",), each.printed, (way,), each.value, "the MFU", SLACK, show=percent)
    if flops and worked:
        way, right = min(product(worked, flops), key=lambda pair: _misses(pair[0], pair[1][1], usual_first=True))
        yield Equation((CLAIM,), ("tokens_per_s",), right[0], (way,), right[1], "FLOP/s of a device", SLACK)


def _by_tokens(claim: ClaimText) -> Iterator[tuple[str, Interval]]:
    """Yield the FLOP/s of one device by its tokens per second, from the fewest FLOPs of a token to the most with recomputed blocks."""
    lengths = [int(value.value) for value in claim.values("sequence_length")]
    for model, stated, method in product(claim.models, _rates_of_each(claim), claim.possible_methods):
        most = max(flop_conventions(model, method, min(length, model.context_length))[1] for length in lengths or LENGTHS)
        fewest, _ = flop_conventions(model, method, 1)
        count = count_parameters(model)
        # Some leave out the embedding, and some the head too.
        fewest *= 1 - (count.head + count.embedding) / count.total if model.experts is None else 1.0
        usual, whole = flop_conventions(model, method, min(lengths or [model.usual_length]))
        counted = f"{fewest / 1e9:.4g} to {most * RECOMPUTED / 1e9:.4g}, by what is counted"
        rate = stated.widened(ROUNDED / 2) * (claim.sized / count.total) if claim.sized else stated
        for flop in (usual, whole, fewest, most * RECOMPUTED):
            how = "recomputation included, which MFU leaves out; " if flop > most else ""
            yield (
                f"{rate.value:,.6g} tokens/s x {flop / 1e9:.2f} GFLOP ({how}{counted})",
                replace(rate * flop, low=rate.low * fewest, high=rate.high * most * RECOMPUTED),
            )


def _rates_of_each(claim: ClaimText) -> list[Interval]:
    """Return the tokens per second of one device."""
    of_all = product(claim.values("tokens_per_s"), claim.counts or (1,))
    return claim.values("tokens_per_s_each") or [rate / count for rate, count in of_all]


def _peaks(claim: ClaimText, *others: Dtype) -> list[tuple[str, float]]:
    """Return the dense peaks of the named devices with their formats: those that are stated, else of 16 bits and others.

    GeForce cards are sold with the peak of 16-bit sums, which is that of their fp8.
    """
    peaks = dict[float, str]()
    for cards in claim.devices:
        for card in cards:
            named = [Dtype(name) for name in claim.formats if Dtype(name) in card.peak_tflops and name != "fp32"]
            formats = [*(named or (*SIXTEEN_BIT, *others)), *([Dtype.FP8] if "GeForce" in card.name or "RTX" in card.name else [])]
            for dtype in formats:
                if dtype in card.peak_tflops:
                    peaks.setdefault(card.peak_tflops[dtype] * 1e12, f"{dtype.value} of {card.name}")
    return [(dtype, peak) for peak, dtype in peaks.items()]


# Changes -------------------------------------------------------------------------------------------


def changes(claim: ClaimText) -> Iterator[Equation]:
    """Yield speed-ups, reductions and scaling efficiencies against the figures before and after."""
    # Figures of two models differ for other reasons.
    kinds = CLAIMS["kinds"]["paired"] if len(claim.models) < PAIR else ()
    every = [(kind, [each for each in claim.stated(kind) if "flop" not in kind or not _is_peak(claim, each, SLACK / 5)]) for kind in kinds]
    pairs = [(kind, values) for kind, values in every if len(values) == PAIR]
    counts = claim.counts if len(claim.counts) == PAIR else ()
    long_first = sorted((*claim.stated("tokens_per_s"), *claim.stated("tokens_per_s_each")), key=lambda each: not LONG.search(each.printed))
    if len(long_first) == PAIR and [bool(LONG.search(each.printed)) for each in long_first] == [True, False]:
        ways = tuple((f"{long_first[1].printed}{f' x {n}' if n > 1 else ''}", long_first[1].value * float(n)) for n in claim.numbers)
        way = min(ways, key=lambda each: _misses(each, long_first[0].value))
        yield Equation((CLAIM,), ("tokens_per_s",), long_first[0].printed, (way,), long_first[0].value, "the rate in tokens/s", SLACK)
    for kind in ("speedup", "gained", "saved"):
        for stated in claim.stated(kind):
            value = stated.value.value
            # `2x` for 2.5 is rounded too far.
            right = Interval(value, max(stated.value.low, value * (1 - ROUNDED)), min(stated.value.high, value * (1 + ROUNDED)))
            about = words("about").search(claim.text[stated.place + len(stated.printed) :])
            what = stated.printed + (about[0] if about else "")
            named = [(re.search(row["words"], what, re.IGNORECASE), row["kinds"]) for row in CLAIMS["about"]]
            kinds = min(((found.start(), kinds) for found, kinds in named if found), default=(0, None))[1]
            # Without a word about what changed, it may be any pair.
            chosen = [pair for pair in pairs if kinds is None or pair[0] in kinds]
            # It comes after the figures that it compares, or in one sentence with them.
            chosen = [
                pair
                for pair in chosen
                if stated.place > pair[1][1].place or not SENTENCE.search(claim.text[stated.place : pair[1][1].place])
            ]
            left = tuple(way for _, (first, second) in chosen for way in _ratios(kind, stated.printed.lower(), first, second))
            if left:
                way = next((way for way in left if not _misses(way, right)[0]), left[0])
                yield Equation((CLAIM,), (chosen[0][0],), stated.printed, (way,), right, "the change", SLACK)
    for stated in claim.stated("scaling_efficiency"):
        ratio = counts[1] / counts[0] if counts else float(claim.counts[0]) if claim.counts else 0.0
        rates = [(first, second) for kind, (first, second) in pairs if kind in {"tokens_per_s", "samples_per_s"}] if counts else []
        left = tuple((f"{b.printed} / {a.printed} / {ratio:g}", b.value / a.value / ratio) for a, b in rates)
        if left:
            yield Equation((CLAIM,), ("scaling_efficiency",), stated.printed, left, stated.value, "the efficiency", SLACK)


def _ratios(kind: str, change: str, first: Stated, second: Stated) -> Iterator[tuple[str, Interval]]:
    """Yield what a change may mean: `2x faster` twice as fast or as much again, `50% faster` by rate or by time."""
    small, large = sorted((first, second), key=lambda each: each.value.value)
    ratio, one = large.value / small.value, Interval.exact(1.0)
    words = f"{large.printed} / {small.printed}"
    more = (f"{words} - 1", Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1))
    share = one / ratio
    less = (f"1 - {small.printed} / {large.printed}", Interval(1 - share.value, 1 - share.high, 1 - share.low))
    # What is saved is a share of the larger one, but a slowdown may be one of the time.
    of_time = (more,) if "slow" in change else ()
    yield from ((words, ratio), more) if kind == "speedup" else (more, less) if kind == "gained" else (less, *of_time)


def orders(_: FactBase, claim: ClaimText) -> Iterator[Finding]:
    """Yield more than n times the rate on n times the devices."""
    speedups = [(each.printed, each.value) for each in claim.stated("speedup")]
    if numbers := claim.growing:
        times, rates = numbers[-1] / numbers[0], ("tokens_per_s", "samples_per_s", "steps_per_s")
        # The rate of each device does not grow with their number.
        kinds = [
            (each, 1.0 if each.endswith("each") else times) for kind in rates for each in (kind, f"{kind}_each")[: 1 if speedups else 2]
        ]
        series = [(values, most) for kind, most in kinds if len(values := claim.stated(kind)) == len(numbers)]
        ratios = [(f"{b.printed} / {a.printed}", b.value / a.value, most) for (a, *_, b), most in series]
        for printed, ratio, most in (*ratios, *((printed, ratio, times) for printed, ratio in speedups)):
            if ratio.low > most * SUPERLINEAR:
                why = f"{printed} = {ratio.low:.3g} times the rate with {times:g} times the devices: n devices do at most n times the work of one"
                yield replace(_finding(SUSPICIOUS, printed, why, "tokens_per_s"), rule="scaling")


# Facts ---------------------------------------------------------------------------------------------


def device_facts(_: FactBase, claim: ClaimText) -> Iterator[Finding]:
    """Yield formats and peaks that the devices do not have, and formats that they have although a text denies it."""
    cards, known = [card for variants in claim.devices for card in variants], _peaks(claim)
    for name in claim.formats:
        # Apple's GPUs have no matrix units: any format is computed by the same ones.
        if cards and all(card.vendor != APPLE and card.peak_tflops and Dtype(name) not in card.peak_tflops for card in cards):
            verdict, ending = (IMPOSSIBLE, "") if claim.says("native") else (SUSPICIOUS, ": another format was used, or it was emulated")
            formats = ", ".join(dtype.value for dtype in cards[0].peak_tflops)
            words = f"the matrix units of {cards[0].name} have {formats}, but not {name}{ending}"
            yield _finding(verdict, f"{name} on {cards[0].name}", words)
    several = [n * peak * times for n, (_, peak), times in product(claim.numbers, known, (1, 2) if claim.says("sparse") else (1,))]
    unknown = not known or claim.says("comparison") or (claim.says("machine") and len(claim.numbers) == 1)
    # FLOP/s in a format that are twice its peak, and of no training, are the peak of sparse weights.
    sparse_peaks = [2 * peak for _, peak in known] if claim.formats and not claim.models else []
    twice = [each for each in claim.stated("flop_per_s") if _near(each, SLACK / 5, *sparse_peaks)]
    for stated in () if unknown else (*claim.stated("peak_flop_per_s"), *twice):
        if not _near(stated, SLACK, *several):
            peaks = ", ".join(f"{peak / 1e12:g} TFLOP/s in {dtype}" for dtype, peak in known)
            sparse = "; twice that is for weights of which half are zero" if _near(stated, SLACK, *(2 * peak for _, peak in known)) else ""
            yield _finding(INCONSISTENT, stated.printed, f"the dense peak is {peaks}{sparse}")
    for stated in (*claim.stated("bandwidth"), *claim.stated("device_memory")) if claim.says("of_chips") and not claim.says("link") else ():
        for variants in _owners(claim, stated.place) if len(claim.stated(stated.kind)) == 1 or len(claim.devices) > 1 else ():
            others = _of_catalogue((variants,), [], stated.kind)
            if others and not _near(stated, ROUNDED, *(n * amount for n, (_, amount) in product(claim.numbers, others))):
                yield _finding(INCONSISTENT, stated.printed, f"{', '.join(has for has, _ in others)}, not {stated.printed}")
    # Beside figures of a catalogue, power is that of the board.
    powers = claim.stated("power_w") if len(claim.stated("bandwidth")) == len(claim.devices) == 1 and not claim.models else ()
    for stated in powers if len(powers) == 1 and not claim.says("held_power") else ():
        limits, more = [card.tdp_w for card in cards if card.tdp_w], claim.says("machine") and stated.value.low > (cards[0].tdp_w or 0)
        if limits and not more and not _near(stated, ROUNDED, *(n * limit for n, limit in product(claim.numbers, limits))):
            board = " or ".join(f"{limit:,.0f} W" for limit in dict.fromkeys(limits))
            yield _finding(INCONSISTENT, stated.printed, f"the board power of {cards[0].name} is {board}, not {stated.printed}")


def limits(_: FactBase, claim: ClaimText) -> Iterator[Finding]:
    """Yield figures below zero, and shares, FLOP/s and memory above all that there is."""
    known = _peaks(claim, Dtype.FP8)
    for negative in claim.said("negative"):
        yield _finding(IMPOSSIBLE, negative, f"{negative} is below zero, as no rate, time or memory is")
    for stated in claim.stated("saved"):
        if stated.value.value >= 1 and "slow" not in stated.printed.lower():
            yield _finding(IMPOSSIBLE, stated.printed, f"{stated.printed}: no more than all can be saved")
    peak = max((peak for _, peak in known), default=math.inf) * (2 if claim.says("sparse") else 1)
    count = max((*claim.counts, *claim.other_counts), default=math.inf if claim.says("many", "machine") else 1)
    nameless = not (claim.devices or claim.misfits) and len(claim.models) < PAIR
    memory = claim.memory_gib * GIB if claim.memory_gib and nameless else math.inf
    most = {"mfu": 1.0, "flop_per_s_each": peak, "flop_per_s": peak * count, "peak_memory_bytes": memory}
    for kind, limit in most.items():
        for stated in claim.stated(kind):
            share = stated.value / limit
            needed = kind == "peak_memory_bytes" and words("needs").search(claim.text[max(0, stated.place - 40) : stated.place])
            if needed or ("flop" in kind and _is_peak(claim, stated, 0.0 if claim.models else SLACK / 5)):
                continue
            wide = max((each for _, each in _peaks(claim)), default=peak)
            narrow = share * (peak / wide) if "flop" in kind and not claim.formats else share
            if narrow.low > 1 >= share.low:
                why = f"{stated.printed} is {narrow.value:.2f} times the dense peak in 16 bits: impossible unless it ran in fp8"
                yield _finding(SUSPICIOUS, stated.printed, why, kind)
            elif share.low > 1:
                of = f"the {limit / 1e12:,g} TFLOP/s" if "flop" in kind else "all"
                yield _finding(IMPOSSIBLE, stated.printed, f"{stated.printed} is {share.value:.2f} times {of} that there is", kind)
            elif kind != "peak_memory_bytes" and share.low > ATTAINABLE:
                yield _finding(SUSPICIOUS, stated.printed, f"large matrix products alone reach at most {ATTAINABLE:.0%} of the peak", kind)


def shortest(facts: FactBase, claim: ClaimText) -> Iterator[Finding]:
    """Yield a time in which the tokens of a text, or samples of the fewest, cannot be trained at the attainable share of the peak.

    Devices that are counted, but not named, are the fastest that are known.
    """
    counted = claim.devices or claim.counts or claim.other_counts
    count = max(claim.numbers) if counted and not claim.says("many", "machine") else math.inf
    tokens = [(f"{rows.value:,.0f} samples of {FEWEST} tokens", FEWEST * rows.low) for rows in claim.values("samples")[:1]]
    # A rate of more than a number is no limit of the time, and nothing else compares one on unnamed devices.
    more = not claim.devices or any(rate.high == math.inf for rate in claim.values("tokens_per_s"))
    tokens += [(each.printed, each.value.low) for each in claim.stated("tokens")] if more and len(claim.values("tokens")) == 1 else []
    flops = [flop_conventions(model, method, 1)[0] for model, method in product(claim.models, claim.possible_methods)]
    named = [peak for _, peak in _peaks(claim, Dtype.FP8)]
    peaks = named or [max(card.peak_tflops.values(), default=0.0) * 1e12 for card in facts.accelerators.values()]
    for (amount, fewest), stated in product(tokens, claim.stated("train_time_s")[:1]):
        least = fewest * min(flops, default=0.0) / (max(peaks) * ATTAINABLE * count)
        if least > stated.value.high:
            why = f"{amount} take {least:,.0f} s at {ATTAINABLE:.0%} of the peak, not {stated.printed}"
            yield _finding(IMPOSSIBLE, stated.printed, why, "train_time_s")


def _is_peak(claim: ClaimText, stated: Stated, share: float) -> bool:
    """Return True if FLOP/s are, but for a share, the peak of a card, dense or sparse, of one device or of all, which no text calls achieved."""
    numbers = claim.numbers if stated.kind == "flop_per_s" else [1]
    # What a model reaches is none of sparse weights.
    times = (1, 2) if claim.says("sparse") or not claim.models else (1,)
    peaks = (each * peak * n for (_, peak), each, n in product(_peaks(claim, Dtype.FP8), times, numbers))
    return _near(stated, share, *peaks) and not words("achieved").search(claim.text[: stated.place])


def prices(facts: FactBase, claim: ClaimText) -> Iterator[Finding]:
    """Yield a price of an instance or a device far from all known ones, as stated, or as cost and time, or cost per token and rate, lead to."""
    if len(claim.devices) != 1 or claim.says("owned"):
        return
    keys = {card.key for card in claim.devices[0]}
    rows = [row for row in facts.prices if row.accelerator in keys]
    named = [row for row in rows if "." in row.instance and row.instance.lower() in claim.text.lower()]
    known = [(row.usd_per_hour / row.accelerator_count, row.provider) for row in named or rows]
    enough = (not claim.says("spot") and bool(named)) or len({provider for _, provider in known}) >= PROVIDERS
    whole = [each for each in claim.stated("price_usd_per_hour") if named and not _near(each, SLACK, *(price for price, _ in known))]
    times = (count * time * (1 / HOUR_S) for count, time in product(amounts(claim, "devices"), claim.values("train_time_s")))
    hours, least, most = [*claim.values("device_hours"), *times], min(known, default=(0.0, ""))[0], max(known, default=(math.inf, ""))[0]
    # Beside energy or power, a cost is that of electricity.
    rents = () if claim.stated("energy_j") or claim.stated("power_w") else claim.stated("cost_usd")
    by_cost = [(each, each.value / hour) for each, hour in product(rents, hours)]
    # Of several costs, one may be that of the devices.
    usual = any(CHEAP * least < price.value < DEAR * most for _, price in by_cost)
    for stated, price in [
        *(
            (each, each.value * rate * (HOUR_S / 1e6))
            for each, rate in product(claim.stated("cost_per_1m_tokens_usd"), _rates_of_each(claim))
        ),
        *((each, each.value) for each in claim.stated("price_usd_per_hour_each")),
        *((each, each.value / max((*claim.counts, 1))) for each in whole),
        *([] if usual else by_cost),
    ]:
        cheap, dear = price.high < (CHEAP if enough else VERY_CHEAP) * least, price.low > DEAR * most
        if cheap or dear:
            end = f"{'lowest' if cheap else 'highest'} of {len(known)} known prices is {usd(least if cheap else most)}"
            words = f"{usd(price.value)} for an hour of {claim.devices[0][0].name}, whose {end}"
            yield _finding(SUSPICIOUS, stated.printed, words, stated.kind)
            return


def _near(stated: Stated, share: float, *known: float) -> bool:
    """Return True if a figure is one of some amounts but for a share."""
    return any(stated.value.widened(share).overlaps(Interval.exact(amount)) for amount in known)


def model_facts(_: FactBase, claim: ClaimText) -> Iterator[Finding]:
    """Yield parameters and vocabularies that the model does not have."""
    for model in claim.models if len(claim.models) == 1 and not claim.sized else ():
        count = count_parameters(model)
        named = [float(size) * 1e9 for size in re.findall(r"(\d+(?:\.\d+)?)b\b", f"{model.key} {model.name}".lower())]
        whole = (count.total, count.total - count.embedding, count.total - count.embedding - count.head, *named)
        for stated in claim.stated("parameters"):
            # A small part of the model is of something else, such as the adapters.
            if stated.value.value > SMALL_PART * count.total and not _near(stated, NAMED_SHARE, *whole):
                yield _finding(INCONSISTENT, stated.printed, f"{model.name} has {count.total:,} parameters")
        for stated in claim.stated("vocabulary"):
            if not _near(stated, NAMED_SHARE, model.vocabulary):
                yield _finding(INCONSISTENT, stated.printed, f"{model.name} has a vocabulary of {model.vocabulary:,} tokens")


def adapters(claim: ClaimText) -> Iterator[Equation]:
    """Yield trained parameters, and megabytes of their file, against rank x (inputs + outputs) of each adapted matrix (Hu et al. 2021, section 4)."""
    ranks, one = [int(value.value) for value in claim.values("lora_r")], claim.models if len(claim.models) == 1 and not claim.sized else ()
    total, trained = count_parameters(one[0]).total if one else 0, claim.stated("trainable_parameters")
    for stated, share in product(trained, claim.stated("trainable_share")) if one else ():
        # Quantised weights are counted two to a byte by some.
        ways = [(f"{stated.printed} / {total:,}{words}", stated.value / total * by) for words, by in (("", 1.0), (" x 2", 2.0))]
        way = min(ways, key=lambda each: _misses(each, share.value))
        yield Equation((CLAIM,), ("trainable_parameters",), share.printed, (way,), share.value, "the share", 3 * SLACK)
    if len(ranks) != 1 or not one or claim.says("more_trained") or Method.FULL in claim.methods:
        return
    named = tuple(each if "_" in each else f"{each}_proj" for each in (claim.targets or "").split(","))
    targets = [ALL_LINEAR] if claim.targets == "all-linear" else [named] if claim.targets else [("k_proj",), ALL_LINEAR]
    with suppress(TunemarkError):
        shapes = [TrainingShape(one[0], Method.LORA, 1, 1, lora_rank=ranks[0], lora_targets=names) for names in targets]
        sizes = [float(shape.adapter_weights) for shape in shapes]
        words = f"of adapters of rank {ranks[0]} on {claim.targets or 'all matrices, at the most,'}"
        weights = Interval(sizes[-1], min(sizes), max(sizes))
        for stated in trained:
            yield Equation(
                (CLAIM,), ("trainable_parameters",), stated.printed, ((stated.printed, stated.value),), weights, f"weights {words}", SLACK
            )
        # A file has them in 16 or 32 bits.
        files = [(f"{sizes[-1]:,.0f} weights x {each} bytes", weights * (each * 1e-6)) for each in (2, 4)]
        for stated in claim.stated("adapter_bytes"):
            way, right = min(files, key=lambda each: _misses(each, stated.value * 1e-6)), stated.value * 1e-6
            yield Equation((CLAIM,), ("trainable_parameters",), stated.printed, (way,), right, f"MB {words}", SLACK)


def parts(claim: ClaimText) -> Iterator[Equation]:
    """Yield the bytes of weights and of optimizer states against those of all parameters, also of experts that are not active, on all devices or on each."""
    if len(claim.models) != 1 or claim.says("mixed", "few_states") or (claim.says("many") and len(claim.numbers) == 1):
        return
    named = [row["bytes"] for row in CLAIMS["weights"] if pattern_of(row["words"]).search(claim.text)]
    least = WIDE_STATES if claim.says("wide_states") else 0
    known = {
        "weights": named or [row["bytes"] for row in CLAIMS["weights"]],
        "states": [each for each in CLAIMS["states"] if each[0] >= least],
        "checkpoint": CLAIMS["checkpoint"],
    }
    if claim.possible_methods[0] is not Method.FULL:
        del known["states"], known["checkpoint"]
    total = Interval.exact((claim.sized or count_parameters(claim.models[0]).total) / GB).widened(ROUNDED / 2 if claim.sized else 0.0)
    for part, stated in ((kind, each) for kind in known for each in claim.stated(f"{kind}_bytes")):
        sizes = [(n, each, total * Interval(each, each, most) * (1 / n)) for n, (each, most) in product(claim.numbers, known[part])]
        ways = [(f"{total.value:,.4g}B parameters x {each:g} bytes{f' / {n}' if n > 1 else ''}", size) for n, each, size in sizes]
        way, right = min(ways, key=lambda each: _misses(each, stated.value * (1 / GB))), stated.value * (1 / GB)
        yield Equation((CLAIM,), (), stated.printed, (way,), right, f"the {part} in GB", GB_OR_GIB)


def states(_: FactBase, claim: ClaimText) -> Iterator[Finding]:
    """Yield less memory, as stated or of the devices, than their parts of weights, gradients and states (Rajbhandari et al. 2020, section 3)."""
    optimizers = claim.said("optimizer") or (["any optimizer"] if claim.says("states") else [])
    one_training = claim.methods == (Method.FULL,) and len(claim.models) == 1 and len(claim.devices) < PAIR
    if not (one_training and optimizers) or claim.offloads or claim.says("few_states") or claim.misfits:
        return
    wide = adam_bytes(mixed=claim.says("mixed"), wide_states=claim.says("wide_states"))
    # Of several, it is the one with the smallest states.
    each, optimizer = min((4 if "adam" not in one or "paged" in one else 6 if "8" in one else wide, one) for one in optimizers)
    total, devices = int(claim.sized) or count_parameters(claim.models[0]).total, max(claim.counts, default=0 if claim.says("many") else 1)
    largest = sorted((card for variants in claim.devices for card in variants), key=lambda card: card.memory_gib or math.inf)[-1:]
    held = [(stated.printed, stated.value.high * GIB / GB) for stated in claim.stated("peak_memory_bytes")]
    for printed, memory in held or [(f"{card.memory_gib} GiB", (card.memory_gib or math.inf) * GIB) for card in largest]:
        needed = each * total / max(devices, 1)
        if devices and memory < needed:
            shared = f" / {devices} devices" if devices > 1 else ""
            why = f"{total:,} parameters x {each} bytes of weights, gradients and states of {optimizer}{shared} = {needed / GB:.1f} GB > {printed}"
            yield _finding(IMPOSSIBLE, printed, why, "peak_memory_bytes")
