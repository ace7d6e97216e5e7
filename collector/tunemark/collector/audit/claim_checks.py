"""What a claim in words contradicts by itself: relations of its figures with each other, and with facts of the models and devices that it names.

A relation is a row of `relations` in claims.toml: a figure, and the product of figures and facts that it must be. What a text leaves open is read in
every way that its words allow, and only what fails in all of them is a finding.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, product
from typing import Any

from tunemark.collector.audit.bounds import SIXTEEN_BIT, adam_bytes, flop_conventions
from tunemark.collector.audit.claim_text import CLAIM, CLAIMS, PAIR, SENTENCE, ClaimText, Stated, Way, amounts, pattern_of, words
from tunemark.collector.audit.claim_ways import subject_of
from tunemark.collector.audit.evidence import label
from tunemark.collector.audit.interval import GB_OR_GIB, Interval, products_of
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, WORST_FIRST, Finding
from tunemark.collector.audit.rules.catalogue import IDLE, WHOLE_MACHINE
from tunemark.collector.audit.rules.identities import Equation, number
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import APPLE, AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GB, GIB, SIZES, counted, usd
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


def findings_of_text(facts: FactBase, claim: ClaimText) -> tuple[list[Finding], str]:
    """Return the contradictions of a text, worst first, and the first calculation that it keeps, or ""."""
    claim = _with_peaks(claim)
    known = [*relations(facts, claim), *((dict[str, Any](), each) for each in changes(claim))]
    # A figure that one calculation gives is of that; others have factors of something else.
    explained = {
        each.printed
        for row, each in known
        if each.verdict is INCONSISTENT and not row.get("confirms") and each.holds() and claim.text.count(each.printed) == 1
    }
    broken = [(row, each) for row, each in known if not each.holds() and not row.get("confirms")]
    found = [
        _finding(each.verdict, each.printed, _calculation(each, f", not {each.printed}") or each.finding().calculation, *each.quantities)
        for row, each in broken
        if each.verdict is not INCONSISTENT or not (each.printed in explained or ("every" not in row and _holds_with_unread(claim, each)))
    ]
    found += [*formats(claim), *below_zero(claim), *orders(claim)]
    # What a catalogue says of a device says nothing about the training of a model on it.
    alone = not claim.models or {each.kind for each in claim.figures} <= set(CLAIMS["kinds"]["of_models"])
    kept = (
        _calculation(each, f", which agrees with {each.printed}")
        or f"{way[0]} = {each.show(way[1].value)}, which agrees with {each.printed}"
        for row, each in known
        for way in each.left
        if (alone or not row.get("catalogue"))
        and (each.holds() if row.get("confirms") else _off(way, each.right) < (GB_OR_GIB if row.get("catalogue") else SLACK))
    )
    share = (f"{printed} is {ratio.value / limit:.0%} of linear scaling" for printed, ratio, limit in scaled(claim) if limit > 1)
    return sorted(found, key=lambda each: WORST_FIRST[each.verdict]), next(chain(kept, share), "")


def _calculation(equation: Equation, ending: str) -> str:
    """Return the sentence on an equation with a fact alone; "" for one with a calculation."""
    [(words, _)] = equation.left
    return "" if re.search(r" [x/-] ", words) or not re.search("[a-z]", words) else f"{equation.meaning}: {words}{ending}"


def _holds_with_unread(claim: ClaimText, equation: Equation) -> bool:
    """Return True if an equation holds with a number of the text that was not understood, in place of one of its figures: `one gives 700 tok/s, both 1,330`."""
    numbers = [re.match(r"\$?(\d[\d,]*(?:\.\d+)?)(?![\d,.]) ?([kMBGT]?)(?! ?(?:x|%|percent|times))", each) for each in claim.left]
    unread = [float(each[1].replace(",", "")) * SIZES[each[2].lower()] for each in numbers if each and (each[2] or len(each[1]) > PAIR)]
    stated = [each.value.widened(SLACK) for each in claim.figures]
    figures = [each.value.value for each in claim.figures if each.kind.removesuffix("_each") in equation.quantities]
    [(_, way)] = equation.left
    off = abs(math.log(way.value / equation.right.value)) if way.value > 0 and equation.right.value else math.inf
    return any(
        abs(abs(math.log(number / each)) - off) < SLACK
        for number, each in product(unread, figures)
        if number and each and not any(known.low <= number <= known.high for known in stated)
    )


def _finding(verdict: AuditVerdict, claim: str, words: str, *quantities: str) -> Finding:
    """Return a finding on a claim, with the calculation in words."""
    return Finding(verdict, (CLAIM,), claim, words, quantities, rule="claim")


# Relations -----------------------------------------------------------------------------------------


def relations(facts: FactBase, claim: ClaimText) -> Iterator[tuple[dict[str, Any], Equation]]:
    """Yield the relations that the figures of a text must keep, with their rows."""
    known = _of_devices(facts, claim) | _of_models(claim) | _prices(facts, claim)

    def ways(kind: str) -> list[Way]:
        return (
            known[kind]
            if kind in known
            else [(f"{each.value:,.0f} tokens" if kind == "tokens" else "", each) for _, each in amounts(claim, kind)]
        )

    for row in CLAIMS["relations"]:
        expected = known.get(row["of"]) or _printed(claim.stated(row["of"]))
        if not expected or any(_is_so(claim, each) for each in row.get("without", "").split()):
            continue
        side = next((side for name, side in row.get("sides", ()) if _is_so(claim, name)), row.get("side", ""))
        low, high = CLAIMS["loose"].get(side, (1.0, 1.0))
        bound = f"at {row['side']} " if "verdict" in row and "side" in row else ""
        left = [
            (f"{bound}{words}", Interval(value.value, value.low * low, value.high * high))
            for words, value in products_of(row["is"].split(), ways)
        ]
        factors = (each.strip("/?").removesuffix("_each") for each in row["is"].split() if not re.match(r"/?\d", each))
        names = (row["of"], *(() if "every" in row else factors))
        meaning, slack = CLAIMS["labels"].get(row["of"]) or label(row["of"]).replace("_", " "), row.get("slack", SLACK)
        # A text may give several figures of a kind, and any of them may be the product; facts are those of each.
        for stated in [[each] for each in expected] if "every" in row else [expected]:
            show, first = _shown(row["of"], stated[0][0]), "usual_first" in row
            for equation in _equations(left, stated, meaning, *names, slack=slack, show=show, usual_first=first):
                yield row, replace(equation, verdict=AuditVerdict(row.get("verdict", "inconsistent")))


def _is_so(claim: ClaimText, name: str) -> bool:
    """Return True if a text has words of a kind, is so, or states a figure; after `!` if not."""
    bare = name.removeprefix("!")
    known = claim.says(bare) if bare in CLAIMS["words"] else getattr(claim, bare, None) or claim.stated(bare)
    return bool(known) is (bare == name)


def _equations(
    ways: Iterable[Way],
    stated: Iterable[Way],
    meaning: str,
    *names: str,
    slack: float = SLACK,
    show: Callable[[float], str] = number,
    usual_first: bool = False,
) -> Iterator[Equation]:
    """Yield the calculation and the stated figure that agree best, without factors of one; with `usual_first`, if none agree, the first of each."""

    def misses(pair: tuple[Way, Way]) -> tuple[bool, float, bool]:
        off = not pair[0][1].widened(slack).overlaps(pair[1][1])
        return off, 0.0 if off and usual_first else _off(pair[0], pair[1][1]), bool(re.search("[x/] 1(?: |$)", pair[0][0]))

    for way, (printed, right) in sorted(product(ways, stated), key=misses)[:1]:
        yield Equation((CLAIM,), names, printed, (way,), right, meaning, slack, show=show)


def _off(way: Way, right: Interval) -> float:
    """Return the distance of a calculation from what is stated, as a logarithm."""
    return abs(math.log(way[1].value / right.value)) if way[1].value > 0 and right.value > 0 else math.inf


def _printed(figures: Iterable[Stated]) -> list[Way]:
    """Return figures as they are printed with their values."""
    return [(each.printed, each.value) for each in figures]


def _shown(kind: str, printed: str) -> Callable[[float], str]:
    """Return a way to show amounts of a kind, in the currency of a printed one."""
    show, coin = QUANTITIES[kind].show if kind in QUANTITIES and kind != "peak_memory_bytes" else number, re.match(r"€|£", printed)
    size, unit = (1e12, "TFLOP/s") if "flop" in kind else (GB, CLAIMS["in_gb"].get(kind, ""))
    if unit:
        return lambda value: f"{number(value / size)} {unit}"
    return (lambda value: show(value).replace("$", coin[0])) if coin else show


# Facts ---------------------------------------------------------------------------------------------


def _peaks(claim: ClaimText, *others: Dtype) -> dict[float, str]:
    """Return the dense peaks of the named devices in words: in the formats that are stated, else in 16 bits and others.

    GeForce cards are sold with the peak of 16-bit sums, which is that of their fp8.
    """
    peaks = dict[float, str]()
    for card in claim.cards:
        named = [Dtype(name) for name in claim.formats if Dtype(name) in card.peak_tflops and name != "fp32"]
        formats = [*(named or (*SIXTEEN_BIT, *others)), *([Dtype.FP8] if "GeForce" in card.name or "RTX" in card.name else [])]
        for dtype in formats:
            if dtype in card.peak_tflops:
                peaks.setdefault(card.peak_tflops[dtype] * 1e12, f"{card.peak_tflops[dtype]:g} TFLOP/s in {dtype.value} of {card.name}")
    return peaks


def _with_peaks(claim: ClaimText) -> ClaimText:
    """Return a claim whose FLOP/s that are the peak of a card, dense or sparse, of one device or of all, and not called achieved, are of that kind."""
    share, known, formats = 0.0 if claim.models else SLACK / 5, _peaks(claim, Dtype.FP8), _peaks(claim)
    # What a model reaches is none of sparse weights.
    times = (1, 2) if claim.says("sparse") or not claim.models else (1,)
    figures = list[Stated]()
    for each in claim.figures:
        numbers = claim.numbers if each.kind == "flop_per_s" else [1]
        near = [
            (peak, by)
            for peak, by, n in product(known, times, numbers)
            if each.value.widened(share).overlaps(Interval.exact(peak * by * n))
        ]
        achieved = words("achieved").search(claim.text[: each.place]) and "dense" not in each.printed
        if achieved or not near or not each.kind.startswith("flop_per_s"):
            figures.append(each)
        elif any(peak in formats and (by == 1 or claim.formats) for peak, by in near):
            figures.append(replace(each, kind="peak_flop_per_s"))
    return replace(claim, figures=tuple(figures))


def _of_devices(facts: FactBase, claim: ClaimText) -> dict[str, list[Way]]:
    """Return facts of the devices of a text by name, each in words; nothing of what it is not about, or leaves open."""
    usual, every, says = _peaks(claim), _peaks(claim, Dtype.FP8), claim.says
    best = max(max(card.peak_tflops.values(), default=0.0) for card in facts.accelerators.values())
    every_peak = [(name, peak * (2 if says("sparse") else 1)) for peak, name in sorted(every.items())]
    numbered = claim.counts or claim.other_counts or not says("many", "machine")
    of_chips = [each for kind in ("bandwidth", "device_memory") for each in claim.stated(kind)]
    both = len(claim.devices) == PAIR and any(words("of_both").search(claim.text[: each.place]) for each in of_chips)
    alone = len(claim.devices) == 1 and not claim.models
    one = of_chips and not says("comparison")
    chips = claim.devices[0] if both or (one and alone) else (one and subject_of(claim, of_chips[0])) or ()
    boards = len(claim.stated("bandwidth")) == len(claim.devices) == len(claim.stated("power_w")) == 1
    largest = max((card.memory_gib or math.inf for card in claim.cards), default=math.inf)

    def listed(cards: Iterable[AcceleratorCard], kind: str, unit: str, by: float = 1.0) -> list[tuple[str, float]]:
        return [(f"{amount:,g} {unit} of {card.name}", amount * by) for card in cards if (amount := getattr(card, kind))]

    known = {
        "peak": [(name, peak) for peak, name in usual.items()],
        "peak_of_catalogue": [(name, peak) for peak, name in usual.items() if not says("machine") or len(claim.numbers) > 1],
        "wide_peak": [(name, peak) for name, peak in every_peak if peak in usual][-1:],
        "highest_peak": every_peak[-1:],
        "fastest_peak": every_peak[-1:] or [(f"{best:g} TFLOP/s of the fastest device", best * 1e12)],
        "devices_at_most": [(counted(max(claim.numbers), "device"), float(max(claim.numbers)))] if numbered else [],
        "bandwidth_of_device": listed(chips, "memory_bandwidth_gb_s", "GB/s", GB),
        "memory_of_device": listed(chips, "memory_gib", "GB", GB),
        "power_of_board": listed(claim.cards, "tdp_w", "W") if boards else [],
        "nameless_memory": [(f"{claim.memory_gib:g} GiB", claim.memory_gib * GIB)] if claim.memory_gib and len(claim.models) < PAIR else [],
        "all": [("100% of the peak", 1.0)],
        "attainable": [(f"{ATTAINABLE:.0%} of the peak, as large matrix products alone", ATTAINABLE)],
    }
    ways = {name: [(words, Interval.exact(value)) for words, value in found] for name, found in known.items()}
    power = listed(claim.cards[:1] if len(claim.devices) == 1 else (), "tdp_w", "W")
    ways["power_of_device"] = [(words, Interval(watts, IDLE * watts, WHOLE_MACHINE * watts)) for words, watts in power]
    ways["memory_held"] = _printed(claim.stated("peak_memory_bytes")) or (
        [(f"{largest:g} GiB", Interval.exact(largest * GIB))] if largest < math.inf else []
    )
    # Without a scope, FLOP/s may be of one device or of all.
    parts = product(claim.stated("flop_per_s"), {1, *claim.counts})
    of_all = [(f"{each.printed}{f' / {count}' if count > 1 else ''}", each.value / count) for each, count in parts]
    ways["flop_of_each"] = [*_printed(claim.stated("flop_per_s_each")), *of_all]
    rates = [rate / count for rate, count in product(claim.values("tokens_per_s"), claim.counts or (1,))]
    ways["rate_of_each"] = [(f"{each.value:,.6g} tokens/s", each) for each in claim.values("tokens_per_s_each") or rates]
    return ways


def _of_models(claim: ClaimText) -> dict[str, list[Way]]:
    """Return facts of the models of a text by name, each in words; nothing of what it is not about, or leaves open."""
    ways: dict[str, list[Way]] = {"flop_of_token": list(_flop_of_token(claim))}
    if len(claim.models) != 1:
        return ways
    [model], count, full = claim.models, count_parameters(claim.models[0]), claim.possible_methods[0] is Method.FULL
    total = Interval.exact(claim.sized or count.total).widened(ROUNDED / 2 if claim.sized else 0.0)
    ways["parameters_of_model"] = [(f"{total.value:,.0f} parameters", total)]
    if not claim.sized:
        named = [float(size) * 1e9 for size in re.findall(r"(\d+(?:\.\d+)?)b\b", f"{model.key} {model.name}".lower())]
        whole = (count.total, count.total - count.embedding, count.total - count.embedding - count.head, *named)
        # A small part of the model is of something else, such as the adapters.
        small = Interval(0.0, 0.0, SMALL_PART * count.total)
        ways["counts_of_model"] = [*((f"{each:,.0f} parameters of {model.name}", Interval.exact(each)) for each in whole), ("", small)]
        ways["vocabulary_of_model"] = [(f"{model.vocabulary:,} tokens of {model.name}", Interval.exact(model.vocabulary))]
        ways["adapter_weights"] = _adapter_weights(claim, model)
    if not claim.says("many") or len(claim.numbers) > 1:
        weights = [row["bytes"] for row in CLAIMS["weights"] if pattern_of(row["words"]).search(claim.text)]
        states = [each for each in CLAIMS["states"] if each[0] >= (WIDE_STATES if claim.says("wide_states") else 0)]
        known = {
            "bytes_of_weights": weights or [row["bytes"] for row in CLAIMS["weights"]],
            "bytes_of_states": states if full else [],
            "bytes_of_checkpoint": CLAIMS["checkpoint"] if full else [],
        }
        ways |= {name: [(f"{low:g} bytes", Interval(low, low, high)) for low, high in found] for name, found in known.items()}
    optimizers = claim.said("optimizer") or (["any optimizer"] if claim.says("states") else [])
    if optimizers and claim.methods == (Method.FULL,) and len(claim.devices) < PAIR:
        wide = adam_bytes(mixed=claim.says("mixed"), wide_states=claim.says("wide_states"))
        sizes = {"paged": 2, "8": 4, "adam": wide, "": 4 if claim.says("states") else 2}
        least, optimizer = min((next(size for word, size in sizes.items() if word in one), one) for one in optimizers)
        ways["bytes_of_training"] = [(f"{least} bytes of weights and states of {optimizer}", Interval.exact(float(least)))]
    return ways


def _flop_of_token(claim: ClaimText) -> Iterator[Way]:
    """Yield the FLOPs of a token in each convention, from the fewest to the most with recomputed blocks."""
    lengths = [int(value.value) for value in claim.values("sequence_length")]
    for model, method in product(claim.models, claim.possible_methods):
        most = max(flop_conventions(model, method, min(length, model.context_length))[1] for length in lengths or LENGTHS)
        fewest, _ = flop_conventions(model, method, 1)
        count = count_parameters(model)
        # Some leave out the embedding, and some the head too.
        fewest *= 1 - (count.head + count.embedding) / count.total if model.experts is None else 1.0
        usual, whole = flop_conventions(model, method, min(lengths or [model.usual_length]))
        ends = f"{fewest / 1e9:.4g} to {most * RECOMPUTED / 1e9:.4g}, by what is counted"
        for flop in (usual, whole, fewest, most * RECOMPUTED):
            how = "recomputation included, which MFU leaves out; " if flop > most else ""
            amount = Interval(flop, fewest, most * RECOMPUTED)
            amount = amount.widened(ROUNDED / 2) * (claim.sized / count.total) if claim.sized else amount
            yield f"{flop / 1e9:.2f} GFLOP ({how}{ends})", amount


def _adapter_weights(claim: ClaimText, model: ModelCard) -> list[Way]:
    """Return rank x (inputs + outputs) of each adapted matrix (Hu et al. 2021, section 4)."""
    ranks = [int(value.value) for value in claim.values("lora_r")]
    if len(ranks) != 1 or claim.says("more_trained") or Method.FULL in claim.methods:
        return []
    named = tuple(each if "_" in each else f"{each}_proj" for each in (claim.targets or "").split(","))
    targets = [ALL_LINEAR] if claim.targets == "all-linear" else [named] if claim.targets else [("k_proj",), ALL_LINEAR]
    with suppress(TunemarkError):
        shapes = [TrainingShape(model, Method.LORA, 1, 1, lora_rank=ranks[0], lora_targets=names) for names in targets]
        sizes = [float(shape.adapter_weights) for shape in shapes]
        words = f"weights of adapters of rank {ranks[0]} on {claim.targets or 'all matrices, at the most'}"
        return [(f"{sizes[-1]:,.0f} {words}", Interval(sizes[-1], min(sizes), max(sizes)))]
    return []


def _prices(facts: FactBase, claim: ClaimText) -> dict[str, list[Way]]:
    """Return the price of an hour of the named devices: half of the lowest known one to twice the highest."""
    keys = {card.key for card in claim.cards}
    rows = [row for row in facts.prices if row.accelerator in keys]
    named = [row for row in rows if "." in row.instance and row.instance.lower() in claim.text.lower()]
    every, known = (sorted((row.usd_per_hour / row.accelerator_count, row.provider) for row in each) for each in (rows, named or rows))
    if not known:
        return {}
    enough = (named and not claim.says("spot")) or len({provider for _, provider in known}) >= PROVIDERS
    least, middle, most = known[0][0], known[len(known) // 2][0], known[-1][0]
    words = f"{middle:.4g} USD an hour of {claim.cards[0].name} (the middle of {len(known)} known prices from {usd(least)} to {usd(most)})"
    wide = Interval(middle, (CHEAP if enough else VERY_CHEAP) * least, DEAR * most)
    # Of an instance with several devices, some state the price of one.
    of_instance = [(f"{words} x {row.accelerator_count:g}", wide * row.accelerator_count) for row in named[:1]]
    of_instance += [(f"{price:.4g} USD for one device", Interval.exact(price)) for price, _ in known if named]
    prices = {"price_of_device": [(words, wide)], "price_of_instance": of_instance} if len(claim.devices) == 1 else {}
    ends = f"{every[0][0]:.4g} to {every[-1][0]:.4g} USD an hour of {claim.cards[0].name}"
    return prices | {"known_price": [(ends, Interval(middle, every[0][0], every[-1][0]))]}


# Changes -------------------------------------------------------------------------------------------


def changes(claim: ClaimText) -> Iterator[Equation]:
    """Yield speed-ups, reductions and scaling efficiencies against the figures before and after."""
    # Figures of two models differ for other reasons.
    kinds = CLAIMS["kinds"]["paired"] if len(claim.models) < PAIR else ()
    pairs = [(kind, values) for kind in kinds if len(values := claim.stated(kind)) == PAIR]
    counts = claim.counts if len(claim.counts) == PAIR else ()
    long_first = sorted((*claim.stated("tokens_per_s"), *claim.stated("tokens_per_s_each")), key=lambda each: not LONG.search(each.printed))
    if len(long_first) == PAIR and [bool(LONG.search(each.printed)) for each in long_first] == [True, False]:
        ways = [(f"{long_first[1].printed}{f' x {n}' if n > 1 else ''}", long_first[1].value * float(n)) for n in claim.numbers]
        yield from _equations(ways, _printed(long_first[:1]), "the rate in tokens/s", "tokens_per_s")
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
            left = [way for _, (first, second) in chosen for way in _ratios(kind, stated.printed.lower(), first, second)]
            changed = (kind for kind, _ in chosen[:1])
            yield from _equations(left, [(stated.printed, right)], "the change", *changed, usual_first=True)
    for stated in claim.stated("scaling_efficiency"):
        ratio = counts[1] / counts[0] if counts else float(claim.counts[0]) if claim.counts else 0.0
        rates = [(first, second) for kind, (first, second) in pairs if kind in {"tokens_per_s", "samples_per_s"}] if counts else []
        left = [(f"{b.printed} / {a.printed} / {ratio:g}", b.value / a.value / ratio) for a, b in rates]
        yield from _equations(left, _printed([stated]), "the efficiency", "scaling_efficiency")


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


def scaled(claim: ClaimText) -> Iterator[tuple[str, Interval, float]]:
    """Yield what a text says of more devices: how it is printed, the factor between the rates, and the most that it can be."""
    if numbers := claim.growing:
        times = numbers[-1] / numbers[0]
        # The rate of each device does not grow with their number.
        most = {
            f"{kind}{each}": 1.0 if each else times for kind in ("tokens_per_s", "samples_per_s", "steps_per_s") for each in ("", "_each")
        }
        series = [(claim.stated(kind), most[kind]) for kind in most if len(claim.stated(kind)) == len(numbers)]
        yield from ((f"{b.printed} / {a.printed}", b.value / a.value, most) for (a, *_, b), most in series)
        yield from ((each.printed, each.value, times) for each in claim.stated("speedup"))


def orders(claim: ClaimText) -> Iterator[Finding]:
    """Yield more than n times the rate on n times the devices."""
    for printed, ratio, limit in scaled(claim):
        if ratio.low > limit * SUPERLINEAR:
            n = claim.growing[-1] / claim.growing[0]
            why = f"{printed} = {ratio.low:.3g} times the rate with {n:g} times the devices: n devices do at most n times the work of one"
            yield replace(_finding(SUSPICIOUS, printed, why, "tokens_per_s"), rule="scaling")


# What needs no calculation ---------------------------------------------------------------------------


def formats(claim: ClaimText) -> Iterator[Finding]:
    """Yield formats that the devices do not have."""
    for name in claim.formats:
        # Apple's GPUs have no matrix units: any format is computed by the same ones.
        if claim.cards and all(card.vendor != APPLE and card.peak_tflops and Dtype(name) not in card.peak_tflops for card in claim.cards):
            verdict, ending = (IMPOSSIBLE, "") if claim.says("native") else (SUSPICIOUS, ": another format was used, or it was emulated")
            known = ", ".join(dtype.value for dtype in claim.cards[0].peak_tflops)
            words = f"the matrix units of {claim.cards[0].name} have {known}, but not {name}{ending}"
            yield _finding(verdict, f"{name} on {claim.cards[0].name}", words)


def below_zero(claim: ClaimText) -> Iterator[Finding]:
    """Yield figures below zero, and savings of all or more."""
    for negative in claim.said("negative"):
        yield _finding(IMPOSSIBLE, negative, f"{negative} is below zero, as no rate, time or memory is")
    for stated in claim.stated("saved"):
        if stated.value.value >= 1 and "slow" not in stated.printed.lower():
            yield _finding(IMPOSSIBLE, stated.printed, f"{stated.printed}: no more than all can be saved")
