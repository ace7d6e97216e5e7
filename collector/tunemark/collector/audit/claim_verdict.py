"""The verdict on a claim in words: by its own figures, by the rules about one result, and by the rates and memory that the models predict.

Of all readings that the words allow, the one that holds up best counts.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from tunemark.collector.audit.bounds import dense_peak, flop_conventions, least_flop_per_token, weight_bytes
from tunemark.collector.audit.claim_checks import CHEAP, DEAR, SLACK, changes, findings_of_text
from tunemark.collector.audit.claim_comparison import USUAL_DEVICES, against_entries, against_model, compared, usd_per_hour
from tunemark.collector.audit.claim_records import meanings, readings
from tunemark.collector.audit.claim_text import CLAIMS, PAIR, ClaimText, pattern_of, words
from tunemark.collector.audit.claim_ways import changes_of, methods_of, of_subject, ratios, sides_of
from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.load import audited_record, load_evidence
from tunemark.collector.audit.printed_figures import WORDS, narrow_format
from tunemark.collector.audit.rule import AMBIGUOUS, IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, WORST_FIRST, Finding, all_rules, audit
from tunemark.collector.audit.token_rates import plain_rate
from tunemark.collector.predict.estimate import range_of, read_evidence
from tunemark.schema.facts.cards import APPLE, AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.formats import GIB, HOUR_S, gib, significant, usd
from tunemark.schema.option_rates import Evidence as KnownRates
from tunemark.schema.option_rates import is_same_step, option_rates
from tunemark.schema.physics.memory import MemoryVerdict
from tunemark.schema.physics.stacks import STACKS
from tunemark.schema.plan_search import NODE, Asked, Candidate, best_plan, step_on
from tunemark.schema.recommendation import LEVELS, Rate
from tunemark.schema.recommendation_words import asked_in_words, states, tokens_in_words
from tunemark.schema.records.published import Claim, Conditions, PublishedResult
from tunemark.schema.throughput import Range, architecture_of
from tunemark.schema.vocabulary import FITS, AuditVerdict, Checkpointing, Dtype, Method, SoftwareLevel

NOT_JUDGED, PLAUSIBLE = "not judged", "plausible"
DIVIDED = ("tokens_per_s", "tokens_per_s_each")
"""Kinds of figures of which a text states one for each of several devices, methods or models."""
SLOW = 5
"""Factor below the interval predicted under which no padding, slow link or other work explains a rate."""
MUCH_LESS = 4
"""A step that is said to need a device at least, and fits into this part of its memory, does not need it. By a third, the usual advice of 24 GB for QLoRA
of 7B would be doubted, which needs 6.1 GiB at a sequence length of 512."""
MISFIT = "a step of usual settings, without offload to the host, does not fit: "
OUTSIDE = {"below": "padding, a slow link or other work in the same time", "above": "software that is faster than what results are of"}
"""What leaves a rate possible that is beside the interval predicted, but not beyond what the audit accepts."""
BY_SHAPE = ("utilisation-and-memory", "memory-needs")
"""Rules that need the length of the rows, the second one on a single device."""
BY_PHYSICS = ("utilisation", "attainable", "memory-needs", "scaling")
"""Rules that compare figures with what devices can do at most, or a step needs at least."""
RUN = frozenset({"models", "methods", "devices"})
"""What a text names of a run, beside its figures."""


@dataclass(frozen=True)
class Judged:
    """The verdict on a claim, or on one reading of it."""

    reason: str
    verdict: str = NOT_JUDGED
    read: str = ""
    """Model, method and devices as they were read."""
    findings: tuple[Finding, ...] = ()
    compared: bool = False
    """True if the reason is a comparison with what the models predict."""
    left: tuple[str, ...] = ()
    """Figures that were read and are not judged."""
    side: str = ""
    """Where the claimed rate lies: `within` the interval predicted, `below` or `above` it."""


def worst_of(facts: FactBase, claims: Sequence[ClaimText], say: Callable[[str], None]) -> tuple[ClaimText, Judged]:
    """Return the claim, of a text alone or of each of its rows, with the worst verdict, and that; plausible before not judged.

    The best meaning of a claim counts: with rates of all devices or of each, and each variant of a device.
    """
    # Read once, and only if there is a rate or a memory to predict.
    known = cache(lambda: read_evidence(project_root(), facts, say))
    every = [(each, _best(_verdict(facts, one, known) for one in meanings(each))) for each in claims]
    return min(every, key=lambda one: (_place(one[1].verdict), one[1].verdict == NOT_JUDGED))


def _best(verdicts: Iterable[Judged]) -> Judged:
    """Return the first of the best verdicts; behind a plausible one with no rate outside the interval none is computed."""
    tried = list[Judged]()
    for each in verdicts:
        tried.append(each)
        if each.verdict == PLAUSIBLE and each.side not in OUTSIDE:
            break
    return max(tried, key=lambda each: (_place(each.verdict), each.verdict == PLAUSIBLE, each.side not in OUTSIDE))


def _verdict(facts: FactBase, claim: ClaimText, known: Callable[[], KnownRates]) -> Judged:
    """Return the verdict on a claim with one variant of its devices, with all findings on it and on its best reading."""
    own, kept = findings_of_text(facts, claim)
    own = [_of_one_run(claim, each) for each in own]
    if other := claim.other_work:
        names = [*(each.name for each in claim.models), *(each[0].name for each in claim.devices)]
        best, kept = Judged(f"this is a claim about {other}, and only supervised training is judged", read=", ".join(names)), ""
    elif entries := against_entries(claim):
        best = _comparison(*entries)
    elif sides := sides_of(claim):
        best = _comparison(*compared(facts, claim, sides, known()))
        if list(ratios(claim, sides)) == ["memory"] and (claim.memory_gib or claim.devices):
            # It also says that the step fits there.
            fit = _best_reading(facts, of_subject(claim), known)
            best = best if fit.verdict == NOT_JUDGED or _place(best.verdict) < _place(fit.verdict) else fit
    else:
        best = min((_best_reading(facts, each, known) for each in _of_each(claim)), key=lambda each: _place(each.verdict))
        judged = claim.text if list(changes(claim)) else " ".join((kept, *(each.claim for each in own)))
        best = replace(best, left=tuple(each.printed for each in changes_of(claim) if each.printed not in judged))
    worst_first = sorted((*own, *best.findings), key=lambda each: WORST_FIRST[each.verdict])
    # Of each figure, the worst.
    of_claim = {each.claim: each for each in reversed(worst_first)}
    findings = tuple(replace(each, records=()) for each in worst_first if each is of_claim[each.claim])
    verdict: str = min((*(each.verdict.value for each in own), best.verdict), key=_place)
    # Figures that agree with each other say nothing about the rate of a model.
    if verdict == NOT_JUDGED and kept and not _states_rate(claim):
        verdict = PLAUSIBLE
    worst = [each.calculation for each in findings[:1] if each.verdict in {verdict, INCONSISTENT}]
    told = best.reason if best.compared or not (worst or kept) or verdict == NOT_JUDGED else ""
    return replace(best, verdict=verdict, reason="; ".join(filter(None, (*worst, told, "" if worst else kept))), findings=findings)


def _of_one_run(claim: ClaimText, finding: Finding) -> Finding:
    """Return a finding as ambiguous if it rests on one of several figures, models, methods or devices, which may be of several runs.

    What physics excludes is so in each of them, and what compares all figures of a kind needs no choice.
    """
    printed, figures = f"{finding.claim} {finding.calculation}", dict[str, list[bool]]()
    for each in claim.figures:
        figures.setdefault(each.kind.removesuffix("_each"), []).append(each.printed in printed)
    kinds = {*finding.quantities, *(kind for kind, used in figures.items() if any(used))}
    kinds -= {kind for kind, used in figures.items() if all(used)}
    if finding.rule in BY_PHYSICS or not kinds & claim.several:
        return finding
    return replace(finding, verdict=AMBIGUOUS, calculation=f"{finding.calculation}, if these figures are of one run")


def _best_reading(facts: FactBase, claim: ClaimText, known: Callable[[], KnownRates]) -> Judged:
    """Return the verdict on the reading of a claim that holds up best."""
    judged = ((record.conditions.method, _judged(facts, claim, record, known)) for record in readings(claim))
    best = _best(each for method, each in judged if method in claim.methods or not claim.methods or each.verdict != NOT_JUDGED)
    if claim.sized:
        model = claim.models[0]
        best = replace(best, read=best.read.replace(facts.models[model.key].name, model.name, 1))
    return best


def _comparison(read: str, reason: str, place: str) -> Judged:
    """Return the verdict on how two sides compare, or a time with those of others."""
    verdict = {"within": PLAUSIBLE, "near": AMBIGUOUS, "disputed": AMBIGUOUS, "outside": SUSPICIOUS}.get(place, NOT_JUDGED)
    return Judged(reason, verdict, read, compared=bool(place))


def _states_rate(claim: ClaimText) -> bool:
    """Return True for a claim about the tokens per second of a model."""
    return bool(claim.models and (claim.stated("tokens_per_s") or claim.stated("tokens_per_s_each")))


def _of_each(claim: ClaimText) -> list[ClaimText]:
    """Return a claim about several devices, methods or models, with a rate each, as one claim for each, in the order of the text."""
    several: dict[str, list[dict[str, Any]]] = {
        "devices": [{"devices": (each,)} for each in claim.devices],
        "methods": [{"methods": (way.method,)} for *_, way in methods_of(claim)],
        "models": [{"models": (each,), "sizes": claim.sizes[place : place + 1]} for place, each in enumerate(claim.models)],
        "numbers": [{"counts": (each,), "other_counts": ()} for each in claim.growing if claim.other_counts],
    }
    pairs = [each for each in several.values() if len(each) >= PAIR]
    count = len(pairs[0]) if len(pairs) == 1 and len(claim.counts) < PAIR else 0
    # Each has one figure of every kind that has as many; a memory may be of any.
    of_each = {kind for kind in (*DIVIDED, "step_time_s", "train_time_s", "cost_usd") if len(claim.stated(kind)) == count}
    if not count or of_each.isdisjoint(DIVIDED):
        return [of_subject(claim)]
    shared = tuple(each for each in claim.figures if each.kind not in {*of_each, "peak_memory_bytes"})
    return [
        replace(claim, **one, figures=(*shared, *(claim.stated(kind)[place] for kind in of_each))) for place, one in enumerate(pairs[0])
    ]


def _place(verdict: str) -> int:
    """Return the place of a verdict: the worst is 0; those that the audit does not have are behind the mildest."""
    return WORST_FIRST[AuditVerdict(verdict)] if verdict in set(AuditVerdict) else len(AuditVerdict)


def _judged(facts: FactBase, claim: ClaimText, record: PublishedResult, known: Callable[[], KnownRates]) -> Judged:
    """Return the verdict on one reading."""
    run = audited_record(record, facts)
    model, card, name = run.model, run.accelerator, run.device_name
    if not claim.devices and not run.claims and claim.memory_gib:
        card = next((each for each in facts.accelerators.values() if each.memory_gib == claim.memory_gib and each.vendor == "NVIDIA"), None)
        name = f"device with {claim.memory_gib:g} GB"
    devices = f"{run.devices} x {name}" if name else ""
    predicted, read = Judged("no figure of it can be compared with other results"), [model.name if model else "", devices]
    if model and (claim.methods or card):
        read = [asked_in_words(model, run.conditions.method, None, run.conditions.sequence_length or model.usual_length), devices]
    if claim.methods and run.conditions.method not in claim.methods:
        read[0] = read[0].replace("QLoRA", "LoRA on experts in 4 bits")
    if model and card and card.memory_gib:
        predicted = _predicted(claim, run, model, card, known())
    elif model and not claim.devices and "peak_memory_bytes" in run.claims and run.devices in claim.numbers:
        predicted = Judged(*against_model(claim, run, model, facts.accelerators[USUAL_DEVICES[0]]))
    if model and predicted.verdict == NOT_JUDGED and not _states_rate(claim):
        predicted = _priced(facts, claim, run, model, [card] if card else [], known) or predicted
    findings = _findings(facts, claim, record, run)
    if predicted.verdict == SUSPICIOUS and claim.several & {*RUN, *DIVIDED, "peak_memory_bytes", "batch", "sequence_length"}:
        predicted = replace(predicted, verdict=AMBIGUOUS.value)
    memory = run.claims.get("peak_memory_bytes")
    # Of several devices, it is the weights alone that are doubted.
    by_shape = BY_SHAPE if run.devices == 1 else BY_SHAPE[:1]
    doubts = {each for each in findings if each.rule in by_shape and each.verdict is AuditVerdict.SUSPICIOUS}
    # What an accepted result needs no more than is enough.
    if model and memory and doubts and _held(claim, run, model, memory.value, known()):
        findings = tuple(each for each in findings if each not in doubts)
    verdict: str = min((*(each.verdict.value for each in findings), predicted.verdict), key=_place)
    reason = predicted.reason
    if verdict == PLAUSIBLE and predicted.side in OUTSIDE:
        reason += f", which {'offload to the host' if run.offloads_to_host else OUTSIDE[predicted.side]} can explain"
    read_as, compares = ", ".join(filter(None, read)), predicted.verdict != NOT_JUDGED
    return replace(predicted, verdict=verdict, reason=reason, findings=findings, read=read_as, compared=compares)


def _findings(facts: FactBase, claim: ClaimText, record: PublishedResult, run: AuditedResult) -> tuple[Finding, ...]:
    """Return the findings on a reading. Those on memory hold for rows of one token too, if no length is stated."""
    stated = Evidence((run,), (), facts, (record,))
    if claim.values("sequence_length"):
        found = audit(stated)
    else:
        least = replace(run, conditions=run.conditions.model_copy(update={"sequence_length": 1}))
        by_shape, others = ([each for each in all_rules() if (each.id in BY_SHAPE) is needed] for needed in (True, False))
        found = (*audit(stated, others), *audit(replace(stated, results=(least,)), by_shape))
    return tuple(_of_one_run(claim, each) for each in found)


def _asked(claim: ClaimText, stated: Conditions) -> Asked:
    """Return the fields of a step that a text states: its rows, its optimizer, how it is sharded, and weights without copies in fp32."""
    optimizer, shared = str(stated.settings.get("optimizer")), claim.said("sharding") if (stated.accelerator_count or 1) > 1 else []
    given = {
        "micro_batch": stated.micro_batch,
        "optimizer": next((kind for word, kind in WORDS["shape"]["optimizers"].items() if re.search(word, optimizer)), None),
        # `ZeRO stage 3` is zero3, and FSDP without a number is the first.
        "sharding": next((f"{each[:4]}{each[-1] if each[-1].isdigit() else 1}" for each in shared), None),
    }
    return Asked(
        {name: value for name, value in given.items() if value}, "hf-pure-bf16" if claim.says("pure_bf16") else None, any_software=True
    )


def _predicted(claim: ClaimText, run: AuditedResult, model: ModelCard, card: AcceleratorCard, fitted: KnownRates) -> Judged:
    """Compare the rate and the memory of a reading with those of a step of usual settings; without them, say whether such a step fits."""
    rate, memory, stated = run.claims.get("tokens_per_s"), run.claims.get("peak_memory_bytes"), run.conditions
    derived = plain_rate(run) if rate is None else None
    if derived is not None:
        rate = Claim(value=derived.tokens_per_s.value, printed=f"{significant(derived.tokens_per_s.value)} tokens/s")
    length, settings, asked = stated.sequence_length or model.usual_length, stated.settings, _asked(claim, stated)
    # A step whose peak is stated has that memory, of which no driver and no checks keep a part.
    whole, card = card, card.with_usable(min(max(GIB, memory.value), card.usable_bytes)) if memory else card
    method = Method.LORA if stated.method is Method.PEFT else stated.method
    plan, fit = best_plan(fitted.effects, card, step_on(card, model, method, length, run.devices, asked), "plain", asked)
    rates, known = _speeds(claim, run, model, card, fitted, asked)
    if memory and rate and not known:
        # The memory may be less than usual settings need.
        rates, known = _speeds(claim, run, model, whole, fitted, asked)
    share = _of_peak(run, model, card, rate) if rate and not claim.stated("mfu") else ""
    rate = rate or _rate_of_mfu(claim, run, model, card, list(known.values()))
    if rate and known:
        # The software is not stated: it is taken to be of the level with the nearest rate.
        software = min(known, key=lambda level: abs(math.log(known[level].value / rate.value)))
        likely = known[software]
        low, middle, high = map(significant, (likely.low, likely.value, likely.high))
        within = likely.low <= rate.value <= likely.high or significant(rate.value) in {low, high}
        side = "within" if within else "below" if rate.value < likely.low else "above"
        stored = [f", with {states(each)}" for each in rates if each.software == software and each.narrow_weights]
        of_stack = f" such as {software}" if software in STACKS else ""
        predicted = f"the 90% interval predicted for {STACKS[software].level if of_stack else software} software{of_stack}{', the nearest one' if len(known) > 1 else ''}{''.join(stored)}{share}"
        each_second = f" ({significant(rate.value)} tokens/s)" if words("per_longer").search(rate.printed) else ""
        reason = f"{rate.printed}{each_second} is {side} {low} to {high} around {middle}, {predicted}"
        if side != "within" and (ran := _ran(rates, rate.value)):
            return Judged(f"{reason}, but {ran}", PLAUSIBLE)
        if derived is not None and derived.quantity != "tokens" and side != "within":
            return Judged(reason)  # rows may be shorter
        # Other software may be faster, and a narrower format by as much as its peak is higher; a whole time may hold twice that of training, or be `under 3 hours`.
        narrow = card.peak_tflops.get(narrow_format(stated.precision) or Dtype.BF16, 0.0)
        times = max(1.0, narrow / card.peak_tflops.get(Dtype.BF16, math.inf)) if side == "above" else 1.0
        # Nothing is known about tuned software, where results are of plain software alone, nor about experts that are divided among machines.
        plain = (software == "plain" and ("software" in settings or len(known) == 1)) or (model.experts and run.devices > NODE)
        faster = side == "above" and (plain or rate.value <= times * likely.high)
        more = any(each.value.high == math.inf for each in (*claim.stated("tokens_per_s"), *claim.stated("tokens_per_s_each")))
        more = more or not all(each.low for each in claim.values("train_time_s"))
        longer = side == "below" and (more or rate.value > likely.low / SLOW)
        # Padding is work too, and states that move through the host take time.
        waits = side == "below" and (stated.padding or run.offloads_to_host)
        return Judged(reason, PLAUSIBLE if within or faster or longer or waits else SUSPICIOUS, side=side)
    # The memory model knows plain software, whole rows, NVIDIA's 4-bit weights, and adapters of all experts.
    unlike = {"software", "sequence_parallel", "quantisation"} & settings.keys() or card.vendor not in {"NVIDIA", "AMD"} or model.experts
    modelled = not (known or unlike or run.offloads_to_host or method is not stated.method or claim.says("few_states"))
    misfit = run.claims and modelled and fit == "no" and not plan.other_stacks(card)
    ran = _ran(rates, rate.value) if rate else _held(claim, run, model, memory.value, fitted) if misfit and memory else ""
    if ran:
        return Judged(ran, PLAUSIBLE)
    if misfit:
        lacking, alone = gib(plan.needed_bytes - card.usable_bytes), run.devices == 1 or method is Method.FULL or memory is not None
        ending = f"it needs {gib(plan.needed_bytes)}, not {memory.printed}," if memory else f"each device lacks {lacking}"
        # Shards of frozen weights may wait in host memory, which is usual; states that are updated there are slow.
        return Judged(f"{MISFIT}{ending} by the memory model", SUSPICIOUS if alone else AMBIGUOUS)
    if not rate:
        fitting = _fitting(claim, run, model, card, plan, fit)
        settings_alone = (
            {each.kind for each in claim.figures} <= {*CLAIMS["kinds"]["settings"]}
            and not claim.says("comparison")
            and len(claim.devices) < PAIR
            and not words("ratio").search(" ".join(claim.left))
            and not words("unread_rate").search(claim.text)
        )
        if fitting and (memory or settings_alone or fitting.verdict in {IMPOSSIBLE, SUSPICIOUS}):
            return fitting
    unstated = (
        "the tokens of a sample are not stated" if claim.stated("samples") and claim.stated("train_time_s") else "it states no tokens/s"
    )
    host = "it offloads to the host" if run.offloads_to_host else f"the memory of {card.vendor} devices is not predicted"
    why = next((each.reason for each in rates if rate and each.reason), host if memory else unstated)
    return Judged(f"it is not compared with other results: {why}")


def _speeds(
    claim: ClaimText, run: AuditedResult, model: ModelCard, card: AcceleratorCard, fitted: KnownRates, asked: Asked
) -> tuple[list[Rate], dict[str, Range]]:
    """Return the rates of a reading, and their intervals by level of software, and by stack: instead of the vendor's that which a text names, else all with results, none of which are of experts."""

    def of(levels: Sequence[SoftwareLevel], asked: Asked) -> list[Rate]:
        length = run.conditions.sequence_length or model.usual_length
        every = option_rates(model, length, [(card, run.devices)], fitted, levels, asked)
        return [each for each in every if each.method == run.conditions.method]

    named = {row["stack"] for row in CLAIMS["ways"] if row["kind"] == "software" and pattern_of(row["words"]).search(claim.text)}
    unnamed = () if named or asked.stack or model.experts else STACKS
    stacks = [name for name in (named if len(named) == 1 else unnamed) if STACKS[name].loop]
    own = {name: of((STACKS[name].level,), replace(asked, stack=name)) for name in stacks}
    rates = of(LEVELS[:2] if named and own else LEVELS, asked)
    known = {name: speed for name, found in own.items() for each in found if (speed := range_of(each))}
    return rates, known | {each.software: speed for each in rates if (speed := range_of(each))}


def _of_peak(run: AuditedResult, model: ModelCard, card: AcceleratorCard, rate: Claim) -> str:
    """Return the share of the dense peak that a rate reaches without repeated work, in brackets; "" in a narrow format or without a peak."""
    peak, method = dense_peak(card), run.conditions.method
    if peak is None or method is Method.PEFT or narrow_format(run.conditions.precision):
        return ""
    flop = least_flop_per_token(model, method, run.conditions.sequence_length or model.usual_length, attention=True)
    return f" (the claim is {rate.value * flop / (peak * run.devices):.0%} MFU)"


def _rate_of_mfu(claim: ClaimText, run: AuditedResult, model: ModelCard, card: AcceleratorCard, known: Iterable[Range]) -> Claim | None:
    """Return the rate of all devices that an MFU alone means, by the convention of counting FLOPs that agrees best with what is predicted."""
    peak = dense_peak(card) or 0.0
    reached = [(each, each.value.value * peak * run.devices) for each in claim.stated("mfu")]
    reached += [(each, each.value.value * run.devices) for each in claim.stated("flop_per_s_each")]
    if not reached or not peak or not known or claim.says("recomputed"):
        return None
    [(stated, achieved), *_], fastest = reached, max(each.value for each in known)
    conventions = flop_conventions(model, run.conditions.method, run.conditions.sequence_length or model.usual_length)
    counted = min(conventions, key=lambda each: abs(math.log(achieved / each / fastest)))
    value = achieved / counted
    return Claim(value=value, printed=f"{stated.printed}, {significant(value)} tokens/s at {counted / 1e9:.4g} GFLOP each,")


def _priced(
    facts: FactBase, claim: ClaimText, run: AuditedResult, model: ModelCard, cards: list[AcceleratorCard], known: Callable[[], KnownRates]
) -> Judged | None:
    """Compare a cost per token, or of tokens, with list prices and the rates predicted: of the named device, else of any; None if one is not known."""
    costs = [(each, 1e6) for each in claim.stated("cost_per_1m_tokens_usd")]
    costs = costs or [(each, size.value) for size, each in product(claim.values("tokens")[:1], claim.stated("cost_usd"))]
    length = run.conditions.sequence_length or model.usual_length
    priced = {card.key: prices for card in cards or facts.accelerators.values() if (prices := usd_per_hour(facts, card))}
    # A stated price without a scope is of one device or of all, whichever is nearer to the lowest known one.
    of_any = [each / by for each in claim.values("price_usd_per_hour")[:1] for by in (1, run.devices) if priced]
    of_each = claim.values("price_usd_per_hour_each") or of_any
    for card in cards if of_each else ():
        least = priced.get(card.key, [1.0])[0]
        priced[card.key] = [min((each.value for each in of_each), key=lambda price: abs(math.log(price / least)))]
    if not costs or not priced:
        return None
    places = [(facts.accelerators[key], count) for key in priced for count in ([run.devices] if cards else (1, NODE))]
    rates = option_rates(model, length, places, known(), asked=Asked(any_software=True))
    methods = claim.possible_methods if not cards else (run.conditions.method,)
    speeds = [(priced[each.accelerator], each.devices, speed) for each in rates if each.method in methods and (speed := range_of(each))]
    if not speeds:
        return None
    stated, size = costs[0]
    low = min(prices[0] * devices / HOUR_S / speed.high * size for prices, devices, speed in speeds)
    high = max(prices[-1] * devices / HOUR_S / speed.low * size for prices, devices, speed in speeds)
    value = stated.value
    if cards and (than := words("cheaper_than").search(claim.text)):
        # The device costs at least what claims to be cheaper, and at most what claims to be dearer.
        value = Interval(value.value, *((0.0, value.value) if than["dearer"] else (value.value, math.inf)))
    side = "below" if value.high < low else "above" if value.low > high else "within"
    side = side if side != "within" or low <= stated.value.value <= high or value is not stated.value else "rounded, within"
    by = "the stated price" if cards and of_each else "list prices on demand"
    reason = f"{stated.printed} is {side} {usd(low)} to {usd(high)} for {tokens_in_words(size)}, by {by} and the rates predicted"
    far = value.high < CHEAP * low or value.low > DEAR * high
    return Judged(reason, SUSPICIOUS if far else PLAUSIBLE if side.endswith("within") else AMBIGUOUS)


def _held(claim: ClaimText, run: AuditedResult, model: ModelCard, memory: float, fitted: KnownRates) -> str:
    """Return the accepted result of the same step on any accelerator, with as many rows, that needs as little memory; "" without one."""
    step, stated = (architecture_of(model), run.conditions.method), run.conditions
    length = stated.sequence_length if claim.values("sequence_length") else None
    alike = [row for row in fitted.results if (row.architecture, row.method) == step and not row.suspicious and not row.offload]
    accepted = [row.result_id for row in alike if is_same_step(row, run.devices, length or row.sequence_length)]
    for result in load_evidence(project_root(), measured=()).with_ids(accepted) if accepted else ():
        peak = result.claims.get("peak_memory_bytes")
        if peak and peak.value <= memory * (1 + SLACK) and (stated.micro_batch or 1) <= (result.conditions.micro_batch or 1):
            return f"the accepted result {result.id} of this step needs {peak.printed}"
    return ""


def _ran(rates: Iterable[Rate], rate: float) -> str:
    """Return the accepted results of the same step, if they are as fast and as slow; "" without any."""
    ends = [end for each in rates for end in (each.measured_low, each.measured_high) if end]
    if not ends or not min(ends) <= rate * (1 + SLACK) or rate > max(ends) * (1 + SLACK):
        return ""
    return f"accepted results of this step have {' to '.join(dict.fromkeys(map(significant, (min(ends), max(ends)))))} tokens/s"


def _fitting(
    claim: ClaimText, run: AuditedResult, model: ModelCard, card: AcceleratorCard, plan: Candidate, fit: MemoryVerdict
) -> Judged | None:
    """Judge whether a training fits that is named on devices, or the memory that it states; None if the memory model cannot know."""
    needed, usable, others = gib(plan.needed_bytes), gib(card.usable_bytes), plan.other_stacks(card)
    reason = f"a step of usual settings needs {needed} of {usable} by the memory model"
    held = weight_bytes(model, plan.shape.method, "fp8" if claim.says("eight_bits") else None)[0] / run.devices
    weights, memory = f"weights alone take {gib(held)} of the {usable} of each device", run.claims.get("peak_memory_bytes")
    if claim.misfits:
        return Judged(reason, AMBIGUOUS if fit in FITS else PLAUSIBLE)
    if card.vendor == APPLE or run.offloads_to_host:
        return None
    if held > card.usable_bytes and not memory:
        return Judged(weights, IMPOSSIBLE)
    if claim.says("few_states"):
        return Judged(f"{weights}; the memory model does not know what its optimizer holds besides", PLAUSIBLE)
    if memory:
        also = f", and with {others[0]} it fits" if others and fit not in FITS else ""
        return Judged(f"by the memory model, a step of usual settings needs {needed}{also}", PLAUSIBLE)
    fewer = max(1, plan.shape.world_size // MUCH_LESS)
    small = replace(plan, shape=replace(plan.shape, micro_batch=1, checkpointing=Checkpointing.FULL, world_size=fewer))
    if claim.says("least_device") and small.fit_on(card.usable_bytes * plan.shape.world_size // MUCH_LESS // fewer) in FITS:
        return Judged(f"a step of usual settings needs {gib(small.needed_bytes)} at least on {fewer} of them; less is enough", SUSPICIOUS)
    if fit == "no" and not others:
        if claim.says("tuned"):
            return None
        lacking = f"each device lacks {gib(plan.needed_bytes - card.usable_bytes)}"
        return Judged(f"{MISFIT}{lacking} by the memory model", SUSPICIOUS if run.devices == 1 else AMBIGUOUS)
    if others and fit not in FITS:
        return Judged(f"with {others[0]} it fits; {reason}", PLAUSIBLE)
    return Judged(f"{reason}{'' if fit in FITS else ', and may not fit'}", PLAUSIBLE)
