"""The verdict on a claim in words: by its own figures, by the rules about one result, and by the rates and memory that the models predict.

Of all readings that the words allow, the one that holds up best counts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from tunemark.collector.audit.bounds import utilisation, weight_bytes
from tunemark.collector.audit.claim_checks import LOOSE, findings_of_text
from tunemark.collector.audit.claim_records import readings
from tunemark.collector.audit.claim_text import PAIR, ClaimText
from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.collector.audit.load import audited_record
from tunemark.collector.audit.rule import WORST_FIRST, Finding, audit
from tunemark.collector.audit.token_rates import plain_rate, token_rates
from tunemark.collector.predict.estimate import range_of, read_evidence
from tunemark.schema.facts.cards import APPLE, AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.formats import GIB, gib, significant
from tunemark.schema.option_rates import Evidence as KnownRates
from tunemark.schema.option_rates import option_rates
from tunemark.schema.physics.stacks import STACKS
from tunemark.schema.plan_search import Asked, best_plan, step_on
from tunemark.schema.recommendation_words import asked_in_words
from tunemark.schema.records.published import Claim, PublishedResult
from tunemark.schema.throughput import Range
from tunemark.schema.vocabulary import FITS, AuditVerdict, Method

SETTINGS = {"sequence_length", "micro_batch", "batch", "gradient_accumulation", "lora_r", "parameters", "peak_memory_bytes"}
"""Figures beside which a text may say that training fits."""
NOTHING = len(AuditVerdict)
"""Place of a verdict that the audit does not have: behind the mildest."""
BY_PHYSICS = ("utilisation", "attainable")
"""Rules that compare a rate with the peak of its devices."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The verdict on a claim, or on one reading of it."""

    verdict: str
    reason: str
    findings: tuple[Finding, ...]
    read: str
    """Model, method and devices as they were read."""
    compared: bool = False
    """True if the reason is a comparison with what the models predict."""


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What the models of rates and memory say about one reading."""

    reason: str
    expected: tuple[float, Range] | None = None
    """Tokens/s as claimed and as predicted."""
    doubted: bool = False
    compared: bool = False
    agrees: bool = False
    """True if the claimed rate is within the interval predicted."""


def verdict_on(facts: FactBase, claim: ClaimText, say: Callable[[str], None]) -> Judged:
    """Return the verdict on a claim, with all findings on it and on its best reading."""
    own, kept = findings_of_text(facts, claim)
    # Read once, and only if there is a rate or a memory to predict.
    known = cache(lambda: read_evidence(project_root(), facts, say))
    best = min((_best_reading(facts, each, known) for each in _of_each_device(claim)), key=lambda each: _place(each.verdict))
    worst_first = sorted((*own, *best.findings), key=lambda each: WORST_FIRST[each.verdict])
    findings = tuple(replace(each, records=()) for each in worst_first)
    verdict: str = min((*(each.verdict.value for each in own), best.verdict), key=_place)
    if verdict == "not judged" and kept:
        verdict = "plausible"
    # The finding on the predicted rate says the same as the reason.
    worst = [each.calculation for each in findings[:1] if each.rule != "predicted-rate"]
    told = best.reason if best.compared or not (worst or kept) else ""
    return replace(best, verdict=verdict, reason="; ".join(filter(None, (*worst, told, "" if worst else kept))), findings=findings)


def _best_reading(facts: FactBase, claim: ClaimText, known: Callable[[], KnownRates]) -> Judged:
    """Return the verdict on the reading of a claim that holds up best."""
    tried = list[Judged]()
    for record in readings(claim):
        tried.append(_judged(facts, record, known))
        if _place(tried[-1].verdict) == NOTHING:
            break
    best = max(tried, key=lambda each: _place(each.verdict))
    if claim.sized:
        named = claim.models[0]
        best = replace(best, read=best.read.replace(facts.models[named.key].name, named.name, 1))
    if claim.models and best.verdict == "not judged" and {each.kind for each in claim.figures} <= SETTINGS:
        best = _fitting(facts, claim, known()) or best
    return best


def _of_each_device(claim: ClaimText) -> list[ClaimText]:
    """Return a claim about two devices with a rate each as two claims, in the order of the text."""
    for kind in ("tokens_per_s", "tokens_per_s_each"):
        rates = claim.stated(kind)
        if len(rates) == len(claim.devices) == PAIR and max(len(claim.models), len(claim.methods), len(claim.counts)) < PAIR:
            others = tuple(each for each in claim.figures if each.kind != kind)
            return [replace(claim, devices=(each,), figures=(*others, rate)) for each, rate in zip(claim.devices, rates, strict=True)]
    return [claim]


def _fitting(facts: FactBase, claim: ClaimText, fitted: KnownRates) -> Judged | None:
    """Return the verdict of the memory model on a training that is named on devices, by the reading that needs the least of them."""
    # The software of Macs is not among the stacks.
    cards = [card for variants in claim.devices for card in variants if card.vendor != APPLE and card.memory_gib]
    if not claim.devices:
        cards = [card for card in facts.accelerators.values() if card.memory_gib == claim.memory_gib and card.vendor == "NVIDIA"][:1]
    if not cards or claim.offloads or claim.says("tuned"):
        return None
    choices = product(claim.models, claim.possible_methods, cards, claim.counts or (1,))
    # Of equal ones the usual device comes first.
    return max((_fit(claim, fitted, *choice) for choice in choices), key=lambda each: each[0])[1]


def _fit(
    claim: ClaimText, fitted: KnownRates, model: ModelCard, method: Method, card: AcceleratorCard, devices: int
) -> tuple[tuple[int, bool], Judged]:
    """Return the verdict on one reading, with what readings are compared by: the verdict, and whether the usual stack fits."""
    lengths, batches = claim.values("sequence_length"), claim.values("micro_batch")
    length, method = int(lengths[0].value) if lengths else model.usual_length, Method.LORA if method is Method.PEFT else method
    asked = Asked({"micro_batch": int(batches[0].value)} if batches else {})
    plan, fit = best_plan(fitted.effects, card, step_on(card, model, method, length, devices, asked), "plain", asked)
    others, room = plan.other_stacks(card), card.usable_bytes - plan.needed_bytes
    weights = weight_bytes(model, method, "fp8" if claim.says("eight_bits") else None)[0] / devices
    reason = f"a step of usual settings needs {gib(plan.needed_bytes)} of {gib(card.usable_bytes)} by the memory model"
    if fit == "no" and not others:
        reason = f"a step of usual settings, without offload to the host, does not fit: each device lacks {gib(-room)} by the memory model"
    elif fit not in FITS:
        reason += f"; with {others[0]} it fits" if others else ", and may not fit"
    if claim.says("not_fitting"):
        verdict = "ambiguous" if fit in FITS else "plausible"
    elif fit != "no" or others:
        verdict = "plausible"
    elif weights > card.usable_bytes:
        verdict, reason = "impossible", f"weights alone take {gib(weights)} of the {gib(card.usable_bytes)} of each device"
    else:
        # Shards of several devices may wait in host memory, which is slow but usual.
        verdict = "suspicious" if devices == 1 else "ambiguous"
    name = card.name if claim.devices else f"device with {claim.memory_gib:g} GB"
    read = f"{asked_in_words(model, method, None, length)}, {devices} x {name}"
    judged = Judged(verdict=verdict, reason=reason, findings=(), read=read, compared=True)
    return (_place(verdict), fit in FITS), judged


def _place(verdict: str) -> int:
    """Return the place of a verdict: the worst is 0."""
    return WORST_FIRST[AuditVerdict(verdict)] if verdict in set(AuditVerdict) else NOTHING


def _judged(facts: FactBase, record: PublishedResult, known: Callable[[], KnownRates]) -> Judged:
    """Return the verdict on one reading."""
    run = audited_record(record, facts)
    model, card, devices = run.model, run.accelerator, f"{run.devices} x {run.device_name}" if run.device_name else ""
    predicted, read = Predicted(reason="no figure of it can be compared with other results"), [model.name if model else "", devices]
    if model and card and card.memory_gib:
        predicted = _predicted(run, model, card, known())
        length = run.conditions.sequence_length or model.usual_length
        read = [asked_in_words(model, run.conditions.method, None, length), devices]
    expected = {run.id: predicted.expected} if predicted.expected else {}
    findings = audit(Evidence((run,), (), facts, (record,), expected))
    verdicts = [*(each.verdict for each in findings), *([AuditVerdict.SUSPICIOUS] if predicted.doubted else [])]
    verdict = min(verdicts, key=WORST_FIRST.__getitem__).value if verdicts else "plausible" if predicted.compared else "not judged"
    compared = predicted.compared or predicted.doubted
    # What physics excludes or questions needs no comparison that does not.
    excluded = any(each.rule in BY_PHYSICS for each in findings) and predicted.agrees
    reason = "" if excluded else predicted.reason
    return Judged(verdict=verdict, reason=reason, findings=findings, read=", ".join(filter(None, read)), compared=compared)


def _predicted(run: AuditedResult, model: ModelCard, card: AcceleratorCard, fitted: KnownRates) -> Predicted:
    """Compare the rate and the memory of a reading with those of a step of usual settings."""
    claim, memory, stated = run.claims.get("tokens_per_s"), run.claims.get("peak_memory_bytes"), run.conditions
    derived = plain_rate(run) if claim is None else None
    if derived is not None:
        claim = Claim(value=derived.tokens_per_s.value, printed=f"{significant(derived.tokens_per_s.value)} tokens/s")
    length, settings = stated.sequence_length or model.usual_length, stated.settings
    asked = Asked({"micro_batch": stated.micro_batch} if stated.micro_batch else {})
    if memory:
        # A step whose peak is stated has that memory, of which no driver and no checks keep a part.
        card = card.with_usable(max(GIB, memory.value)) if memory.value < card.usable_bytes else card
    method = Method.LORA if stated.method is Method.PEFT else stated.method
    step = step_on(card, model, method, length, run.devices, asked)
    plan, fit = best_plan(fitted.effects, card, step, "plain", asked)
    rates = [each for each in option_rates(model, length, [(card, run.devices)], fitted, asked=asked) if each.method == stated.method]
    known = {rate.software: speed for rate in rates if (speed := range_of(rate))}
    # The memory model knows plain software, whole rows, NVIDIA's 4-bit weights, and adapters of all experts.
    unlike = {"software", "sequence_parallel", "quantisation"} & settings.keys() or card.vendor == APPLE or model.experts
    misfit = (
        bool(run.claims)
        and not (known or unlike or run.offloads_to_host or method is not stated.method)
        and fit == "no"
        and not plan.other_stacks(card)
    )
    above = "" if misfit else _above_bf16(run)
    if claim and known:
        # The software is not stated: it is taken to be of the level with the nearest rate.
        software = min(known, key=lambda level: abs(math.log(known[level].value / claim.value)))
        likely = known[software]
        side = "within" if likely.low <= claim.value <= likely.high else "below" if claim.value < likely.low else "above"
        ends = f"{significant(likely.low)} to {significant(likely.high)}, the 90% interval"
        nearest = ", the nearest level" if len(known) > 1 else ""
        reason = "; ".join(filter(None, (above, f"{claim.printed} is {side} {ends} predicted for {software} software{nearest}")))
        if derived is not None and derived.quantity != "tokens" and side != "within":
            return Predicted(reason=reason, doubted=bool(above))  # rows may be shorter
        # Other software than the model knows may be faster, and a whole time may hold twice that of training.
        faster = side == "above" and software == "plain" and "software" in settings
        longer = side == "below" and derived is not None and claim.value > likely.low / LOOSE["time"][1]
        reason += ", and a whole time holds more than training" if longer else ""
        expected = None if faster or longer else (claim.value, likely)
        return Predicted(reason=reason, expected=expected, doubted=bool(above), compared=True, agrees=side == "within")
    if misfit:
        lacking = gib(plan.needed_bytes - card.usable_bytes)
        reason = f"a step of usual settings, without offload to the host, does not fit: each device lacks {lacking} by the memory model"
        return Predicted(reason=reason, doubted=True)
    if memory and not claim:
        stacks = [replace(plan, stack=name) for name, stack in STACKS.items() if stack.runs(plan.shape, card.vendor)]
        leanest = min(stacks, key=lambda each: each.needed_bytes, default=plan)
        also = f", and {gib(leanest.needed_bytes)} with {leanest.stack}" if leanest.needed_bytes < plan.needed_bytes else ""
        return Predicted(reason=f"by the memory model, a step of usual settings needs {gib(plan.needed_bytes)}{also}", compared=True)
    why = next((rate.reason for rate in rates if claim and rate.reason), "it states no tokens/s")
    reason = "; ".join(filter(None, (above, f"it is not compared with other results: {why}")))
    return Predicted(reason=reason, doubted=bool(above))


def _above_bf16(run: AuditedResult) -> str:
    """Return the shares of the peaks that a rate in no stated format needs, if it is possible in fp8 alone; "" otherwise."""
    if run.conditions.precision:
        return ""
    bf16_run, fp8_run = (replace(run, conditions=run.conditions.model_copy(update={"precision": each})) for each in ("bf16", "fp8"))
    for rate in token_rates(run):
        if (bf16 := utilisation(bf16_run, rate)) and (fp8 := utilisation(fp8_run, rate)) and bf16[0].low > 1 >= fp8[0].low:
            return f"{bf16[0].low:.0%} of the bf16 peak: impossible unless it ran in fp8 ({fp8[0].low:.0%})"
    return ""
