"""Statements: settings stated in two places, advice, conclusions and their support, effects, and broken links."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import product
from operator import attrgetter
from typing import NamedTuple

from tunemark.collector.audit.bounds import utilisation
from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped, label, quoted, source_of
from tunemark.collector.audit.interval import ROUGHLY, Interval
from tunemark.collector.audit.printed_figures import WORDS
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Finding, rule
from tunemark.collector.audit.token_rates import token_rates
from tunemark.schema.formats import GIB
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.records.published import Advice, Conclusion, Driver, Effect, Link, Stated, Statement
from tunemark.schema.vocabulary import Method

BILLION = 1e9
PEAK = "peak_memory_bytes"
LINES_SHOWN = 5
SPARE_MEMORY = 1.1
"""Factor by which the memory of a device should exceed the need."""
SIZE_TOLERANCE = 1.02
"""Factor by which a model may exceed the largest advised size: names round the number of parameters."""
EFFECT_TOLERANCE = 0.05
"""Tolerance in points, since printed effects are round numbers."""
POWER = {"linear": 1.0, "quadratic": 2.0}


class _Place(NamedTuple):
    """A value of a setting and the record that states it."""

    record: str
    words: str
    value: object
    at_most: bool = False

    def contradicts(self, other: "_Place") -> bool:
        """Return True if both values cannot be right."""
        limit, place = (self, other) if self.at_most else (other, self)
        if limit.at_most and isinstance(limit.value, int | float) and isinstance(place.value, int | float):
            return place.value > limit.value
        return self.value != other.value


@rule(id="stated-twice", family="statements", verdicts=(INCONSISTENT,))
def stated_twice(evidence: Evidence) -> Iterator[Finding]:
    """Different values of a setting in two places, or a link that leads nowhere.

    A run has one value of each setting. A heading, a footnote, a comment and a configuration that differ cannot all be right. A reader must
    be able to open what a document refers to.
    """
    stated: dict[tuple[str, str], list[_Place]] = defaultdict(list)
    for statement, assertion in evidence.assertions(Stated):
        place = _Place(statement.id, f"{assertion.value!r} in {assertion.place}", assertion.value, assertion.at_most)
        for record in assertion.records:
            stated[record, assertion.setting].append(place)
    differing: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    for (record, setting), places in stated.items():
        own = evidence.by_id[record].conditions.stated(setting) if record in evidence.by_id else None
        if own is not None:
            places.append(_Place(record, f"{own!r} in the conditions of {record}", own))
        wrong = [place for place in places if any(place.contradicts(other) for other in places)]
        if wrong:
            elsewhere = [place for place in wrong if place.record != record]
            first = [f"{setting} is {place.words}" for place in elsewhere]
            lines, records = differing.setdefault((setting, *(place.record for place in elsewhere)), (first, []))
            records.append(record)
            lines.extend(place.words for place in wrong if place.record == record)
    for (setting, *statements), (lines, records) in differing.items():
        shown = lines if len(lines) <= LINES_SHOWN else [*lines[:LINES_SHOWN], f"and {len(lines) - LINES_SHOWN} more like these"]
        yield Finding(INCONSISTENT, (*statements, *records), f"{setting}, stated in two places", "; ".join(shown), conditions=(setting,))
    for statement, link in evidence.assertions(Link):
        if not link.exists:
            words = f"not found in {link.checked_in}"
            yield Finding(INCONSISTENT, (statement.id,), f"link to {link.target}", words, conditions=("link",))


@rule(id="unsupported", family="statements", verdicts=(SUSPICIOUS,))
def unsupported(evidence: Evidence) -> Iterator[Finding]:
    """Conclusion that no row supports.

    A conclusion needs figures on its subject: held-out figures for quality, FLOPs for the use of a device, and two values for a threshold.
    """
    for statement, conclusion in evidence.assertions(Conclusion):
        reason = _lack_of_support(evidence, conclusion)
        if reason:
            records, claim = (statement.id, *conclusion.records), f"a conclusion about {conclusion.about}{quoted(statement)}"
            quantities = conclusion.basis or tuple(WORDS["about"][conclusion.about])
            conditions = (conclusion.over,) if conclusion.over else ()
            yield Finding(SUSPICIOUS, records, claim, reason, quantities, conditions)


def _lack_of_support(evidence: Evidence, conclusion: Conclusion) -> str:
    """Return the reason why a conclusion is not supported; empty if it is."""
    results = evidence.with_ids(conclusion.records)
    shown = {quantity for record in conclusion.records for quantity in evidence.claims_of(record)} & set(conclusion.basis)
    if conclusion.over is not None:
        values = sorted({str(result.conditions.stated(conclusion.over)) for result in results})
        if len(values) < 2:  # noqa: PLR2004 - a trend needs two
            held = f"all {len(results)} results have {conclusion.over} = {', '.join(values) or 'unknown'}"
            return f"it claims a threshold over {conclusion.over}, but {held}: nothing was varied"
    if conclusion.about == "quality" and shown.isdisjoint(WORDS["quantities"]["held_out"]):
        basis = ", ".join(label(name) for name in sorted(shown)) or "no figure"
        return f"it rests on {basis}. A loss on training rows cannot distinguish learning from memorising, and there is no held-out figure"
    if conclusion.about == "utilisation" and shown and shown <= set(WORDS["quantities"]["busy"]):
        basis = ", ".join(f"{result.printed(*sorted(shown))} ({result.id})" for result in results)
        shares = {result.id: utilisation(result, rates[0]) for result in results if (rates := token_rates(result))}
        parts = [f"{record} attains {share[0].value:.0%} of the dense peak" for record, share in shares.items() if share]
        attained = "; ".join(parts) or "the attained FLOP/s are unknown"
        return f"it rests on {basis}, the share of time in which something ran, which does not measure work: {attained}"
    return "" if shown else f"no figure for {conclusion.about} supports it"


@rule(id="advice", family="statements", verdicts=(INCONSISTENT,))
def advice(evidence: Evidence) -> Iterator[Finding]:
    """Advice that other advice, or the memory tables of its document, contradict.

    One document cannot call the same thing possible and not recommended. The memory that its tables require must fit on an advised device,
    and the smallest sufficient device is the smallest one with enough memory.
    """
    given = list(evidence.assertions(Advice))
    for (statement, yes), (other, no) in product(given, given):
        if yes.says == "possible" and yes.devices == 1 and no.says != "possible" and source_of(statement.id) == source_of(other.id):
            devices = ", ".join(sorted(set(yes.accelerators) & set(no.accelerators)))
            methods = not yes.methods or not no.methods or set(yes.methods) & set(no.methods)
            if devices and methods and _sizes_overlap(yes, no):
                claim = f"{_size(yes)} on {devices}: possible in one place, '{no.says}' in another"
                words = f"{_words(statement)} contradicts {_words(other)}: {_size(yes)} lies in {_size(no)}"
                yield Finding(INCONSISTENT, (statement.id, other.id), claim, words, conditions=("accelerator", "model"))
    for statement, advised in given:
        yield from _against_tables(evidence, statement, advised)


def _against_tables(evidence: Evidence, statement: Statement, advised: Advice) -> Iterator[Finding]:
    """Yield findings that a need of the document's tables exceeds the advised device, or fits a smaller one than the smallest."""
    cards = [evidence.facts.accelerators[key] for key in advised.accelerators if key in evidence.facts.accelerators]
    sizes, source = [card.memory_gib or 0 for card in cards], source_of(statement.id)
    if not any(sizes) or advised.devices > 1:
        return
    smallest, largest = advised.parameters_from_b or 0, (advised.parameters_to_b or math.inf) * SIZE_TOLERANCE
    needs = [
        # A table of requirements names no device.
        result
        for result in evidence.results
        if result.source == source and result.model is not None and result.accelerator is None and result.interval(PEAK)
        if result.conditions.method in advised.methods and smallest <= (result.parameters or 0) / BILLION <= largest
    ]
    against: list[tuple[AuditedResult, str, str]] = []
    for result in needs if advised.says == "possible" else ():
        if Interval.of(result.claims[PEAK]).low > max(sizes) * GIB:
            required = f"{result.id} requires {result.claims[PEAK].printed}, {max(sizes) * GIB / BILLION:.0f} GB are there"
            against.append((result, f"{_size(advised)} on {max(sizes):g} GB", f"{_words(statement)}: {required}"))
    needs = [need for need in needs if not advised.models or need.conditions.model in advised.models]
    if advised.least and needs and min(sizes):
        most = max(needs, key=_peak)
        known = [card for card in evidence.accelerators_of(source) if card.memory_gib]
        enough = [card for card in known if _peak(most) * SPARE_MEMORY <= (card.memory_gib or 0) * GIB < min(sizes) * GIB]
        if enough:
            smaller = min(enough, key=lambda card: (card.memory_gib or 0, card.key))
            words = f"{most.id} requires {most.claims[PEAK].printed}. With a tenth more it fits the {smaller.name}, which the document names too"
            against.append((most, f"smallest device: {_words(statement)}", words))
    for result, claim, words in against:
        yield Finding(INCONSISTENT, (statement.id, result.id), claim, words, quantities=(PEAK,), conditions=("accelerator",))


def _sizes_overlap(yes: Advice, no: Advice) -> bool:
    low, high = yes.parameters_from_b or 0.0, yes.parameters_to_b or math.inf
    other_low, other_high = no.parameters_from_b or 0.0, no.parameters_to_b or math.inf
    # A single size on the edge is inside; two ranges that only touch do not overlap.
    return other_low <= low <= other_high if low == high else max(low, other_low) < min(high, other_high)


def _size(stated: Advice) -> str:
    low, high = stated.parameters_from_b or 0, stated.parameters_to_b
    return f"{low:g}B and more" if high is None else f"{low:g}B" if low == high else f"{low:g}B to {high:g}B"


def _words(statement: Statement) -> str:
    return f"{statement.id} ({', '.join(statement.labels.values())})"


def _peak(result: AuditedResult) -> float:
    return result.claims[PEAK].value


@rule(id="memory-tables", family="statements", verdicts=(INCONSISTENT,))
def memory_tables(evidence: Evidence) -> Iterator[Finding]:
    """Tables with different memory for the same model and method.

    A model and a method need a fixed amount of memory. The batch changes activations, but not the states that a table lists.
    """
    sized = [result for result in evidence.results if result.model is not None and result.interval(PEAK) and not result.measured]
    sized = [result for result in sized if result.devices == 1 and "variant" not in result.conditions.settings]
    for results in grouped(sized, attrgetter("source", "conditions.model", "conditions.method")).values():
        tables = [result for result in results if result.accelerator is None]
        if not tables:
            continue
        least, most = min(tables, key=_peak), max(tables, key=_peak)
        lowest, highest = Interval.of(least.claims[PEAK]), Interval.of(most.claims[PEAK])
        below = [result for result in results if result.accelerator and Interval.of(result.claims[PEAK]).high < lowest.low]
        apart = highest.low > lowest.high * ROUGHLY
        if not apart and not below:
            continue
        named = sorted({result.id: result for result in (*below, *tables)}.values(), key=_peak)
        required = f"{_peak(least) / BILLION:g} to {_peak(most) / BILLION:g} GB" if apart else f"{_peak(least) / BILLION:g} GB"
        ran = f"; {', '.join(result.id for result in below)} ran in less" if below else ""
        claim = "; ".join(f"{result.claims[PEAK].printed} ({result.id}, {result.section})" for result in named)
        words = f"the document requires {required} for {least.model.name if least.model else ''} {least.method_name}{ran}"
        yield Finding(INCONSISTENT, tuple(result.id for result in named), claim, words, quantities=(PEAK,))


@rule(id="effect", family="statements", verdicts=(INCONSISTENT, SUSPICIOUS))
def effects(evidence: Evidence) -> Iterator[Finding]:
    """Effect, growth or decisive property that the rows do not show.

    The effect of a measure is the difference between rows with and without it. Without stored scores, all activations are per token and grow
    linearly with the length (Dao et al. 2022, FlashAttention). More of a decisive property gives more of the quantity for equal work.
    """
    for statement, effect in evidence.assertions(Effect):
        claim, quantities = f"{effect.measure}: {effect.printed}", (effect.quantity,)
        if effect.grows is not None and effect.over == "sequence_length" and effect.quantity == PEAK:
            yield from _growth(evidence, statement, effect, POWER[effect.grows])
        if effect.low is None and effect.high is None:
            continue
        results = evidence.with_ids(effect.records)
        low, high = effect.low if effect.low is not None else -math.inf, effect.high if effect.high is not None else math.inf
        for treated, untreated in zip(results[::2], results[1::2], strict=False):
            after, before = treated.claims.get(effect.quantity), untreated.claims.get(effect.quantity)
            if after is None or before is None or not before.value:
                continue
            reduction = 1 - after.value / before.value
            if not low - EFFECT_TOLERANCE <= reduction <= high + EFFECT_TOLERANCE:
                words = f"1 - {after.printed} / {before.printed} = {reduction:.1%}, but the claim is {low:.0%} to {high:.0%}"
                records = (statement.id, treated.id, untreated.id)
                yield Finding(INCONSISTENT, records, claim, words, quantities=quantities)
    for statement, driver in evidence.assertions(Driver):
        yield from _not_decisive(evidence, statement, driver)


def _growth(evidence: Evidence, statement: Statement, effect: Effect, power: float) -> Iterator[Finding]:
    """Yield a finding if activations of the document's most frequent decoder grow with another power of the length."""
    models = [result.model for result in evidence.published if result.source == source_of(statement.id) and result.model]
    decoders = Counter(model.key for model in models if not FAMILIES[model.family].encoder)
    if not decoders:
        return
    model = evidence.facts.models[max(sorted(decoders), key=lambda key: decoders[key])]
    lengths = (model.context_length // 2, model.context_length)

    def activations(length: int, kernel: str) -> int:
        ledger = estimate_memory(TrainingShape(model, Method.LORA, length, attention=kernel))  # type: ignore[arg-type]
        return sum(line.bytes for line in ledger.lines if line.group == "activations")

    flash, eager = (math.log2(activations(lengths[1], kernel) / activations(lengths[0], kernel)) for kernel in ("flash", "eager"))
    if abs(flash - power) > 0.5:  # noqa: PLR2004 - nearest whole power
        claim = f"{effect.measure}: {effect.printed}"
        words = (
            f"activations of {model.name} from {lengths[0]:,} to {lengths[1]:,} tokens grow with the power {flash:.2f} of the length under a kernel "
            f"that stores no scores, and {eager:.2f} with stored scores. {str(effect.grows).capitalize()} growth would have the power {power:g}"
        )
        yield Finding(SUSPICIOUS, (statement.id,), claim, words, quantities=(PEAK,), conditions=("sequence_length",))


def _not_decisive(evidence: Evidence, statement: Statement, driver: Driver) -> Iterator[Finding]:
    amounts = [
        (result, float(amount))
        for result in evidence.with_ids(driver.records)
        if result.accelerator and result.interval(driver.quantity) and (amount := getattr(result.accelerator, driver.property))
    ]
    against = [
        (less, more)
        for (less, small), (more, large) in product(amounts, amounts)
        if less.conditions.micro_batch == more.conditions.micro_batch
        and small < large
        and less.claims[driver.quantity].value > more.claims[driver.quantity].value
    ]
    if against:
        records = (statement.id, *(result.id for pair in against for result in pair))
        shown = {each.id: f"{each.device_name} with {amount:g} and {each.claims[driver.quantity].printed}" for each, amount in amounts}
        words = "; ".join(f"{shown[less.id]} beats {shown[more.id]}" for less, more in against)
        claim = f"{driver.property} decides {label(driver.quantity)}"
        yield Finding(SUSPICIOUS, records, claim, words, quantities=(driver.quantity,), conditions=("accelerator",))
