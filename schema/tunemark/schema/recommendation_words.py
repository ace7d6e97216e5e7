"""A recommendation in words: the answer, the reasons, and what is not known.

The script of the home page writes the same sentences, since it is translated from this module.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from tunemark.schema import recommendation
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.formats import HOUR_S, TIMES, counted, estimated_duration, estimated_usd, gib, plain, significant, usd
from tunemark.schema.vocabulary import FITS, METHODS, PURE_BF16, VENDORS_STACK

WORDS = recommendation.TABLE
EVIDENCE, KINDS_OF_EVIDENCE, SHARDINGS = (WORDS[name] for name in ("evidence", "kinds_of_evidence", "shardings"))
AS_LOADED, LIMITS, PICKS, RANKS, TERMS, ORDER, LATER, NOT_INCLUDED, DIVIDED = (
    WORDS[name] for name in ("as_loaded", "limits", "picks", "ranks", "terms", "order", "later", "not_included", "divided")
)
LISTED = "on_demand"
"""Kind of price that is not named."""
LONG_ROWS = 32_768
"""Tokens of rows that people divide among devices."""
SHOWN = 6
"""Accelerators named in a list."""
STACKS_SHOWN = 3
RatesWith = Callable[[str, recommendation.Question], Sequence[recommendation.Rate]]
FEW_STEPS = 100
"""Optimizer steps below which a job is mostly warm-up: LIMA, a thousand examples, takes about 240 (Zhou et al. 2023)."""
REASONS = 6
"""Reasons for missing data that are given."""


def asked_in_words(model: ModelCard, method: str, tokens: float | None, length: int) -> str:
    """Return a question in words: `Llama 3.1 8B, LoRA, 10M tokens, sequence length 2,048`."""
    size = f"{tokens_in_words(tokens)}, " if tokens else ""
    return f"{model.name}, {METHODS.get(method, 'any method')}, {size}sequence length {length:,}"


def hardware(option: recommendation.Option) -> str:
    """Return the accelerators of an option: `H100 80GB SXM x 8`, with the multiplication sign."""
    return f"{option.offer.name} {TIMES} {option.devices}"


def place(option: recommendation.Option) -> str:
    """Return the instances of an option and their provider."""
    if option.offer.provider == recommendation.OWN:
        return recommendation.OWN
    count = f"{option.instances} {TIMES} " if option.instances > 1 else ""
    kind = "" if option.offer.kind == LISTED else f", {option.offer.kind.replace('_', ' ')}"
    return f"{count}{option.offer.instance} at {option.offer.provider_name}{kind}"


UNDATED = "undated catalogue"
"""Mark of such a price beside the day on which it was read."""


def hourly(option: recommendation.Option) -> str:
    """Return the price of all instances for an hour, with its day if it is old."""
    if not option.offer.usd_per_hour:
        return "free"
    day = option.offer.effective_on or ""
    return f"{usd(option.offer.usd_per_hour * option.instances)}/h{f' on {day}' if ' old' in day else ''}"


def time_and_cost(option: recommendation.Option) -> str:
    """Return time and cost with their intervals."""
    whole = " for whole days" if option.offer.kind == "reserved" else ""
    cost = f"about {estimated_usd(option.usd)}{whole} ({costs(option)})" if option.usd else "at no cost"
    return f"about {estimated_duration(option.seconds)} ({times(option)}), {cost}"


def times(option: recommendation.Option) -> str:
    """Return the interval of the time."""
    return f"{estimated_duration(option.seconds_low)} to {estimated_duration(option.seconds_high)}"


def costs(option: recommendation.Option) -> str:
    """Return the interval of the cost; empty for what costs nothing."""
    ends = dict.fromkeys((estimated_usd(option.usd_low), estimated_usd(option.usd_high)))
    return " to ".join(ends) if option.usd else ""


def evidence(option: recommendation.Option) -> str:
    """Return the evidence for the rate of an option in a sentence."""
    rate = option.rate
    same = f" {METHODS[rate.merged]} is predicted to be no faster here, though it was in most pairs of results." if rate.merged else ""
    if rate.evidence not in EVIDENCE:
        what = "this model and method has" if rate.seen else "no such model has"
        return f"Predicted: {what} {'no' if rate.seen else 'an'} accepted result on this accelerator with such software.{same}"
    measured = f": {measured_rates(rate)} tokens/s with plans and software of their own" if rate.measured_low else ""
    have = "result has" if rate.results == 1 else "results have"
    return f"Predicted for this plan. {rate.results:,} {have} {EVIDENCE[rate.evidence]}{measured}.{same}"


def measured_rates(rate: recommendation.Rate) -> str:
    """Return the tokens/s of the direct results of a rate: `318 to 420`."""
    return " to ".join(dict.fromkeys(significant(each) for each in (rate.measured_low or 0.0, rate.measured_high or 0.0)))


def speed(option: recommendation.Option) -> str:
    """Return the rate of tokens, and what a million of them cost, in a sentence; start-up has no part in either."""
    rate = option.rate.tokens_per_s or 0.0
    by_results = f"{measured_rates(option.rate)} tokens/s in its results, and by prediction " if _ran_otherwise(option.rate) else ""
    cost = usd(option.offer.usd_per_hour * option.instances / HOUR_S / rate * 1e6) if option.offer.usd_per_hour else ""
    of_each = f"{' with' if by_results else ','} {cost} per 1M tokens" if cost else ""
    return f"Speed: {by_results}{significant(rate)} tokens/s{of_each}, without start-up."


def rank(option: recommendation.Option) -> str:
    """Return the places that the interval of an option allows; empty if it is not ranked."""
    return " to ".join(dict.fromkeys((f"{option.rank_low}", f"{option.rank_high}"))) if option.rank_low else ""


def states(rate: recommendation.Rate) -> str:
    """Return the number formats of the weights and of what is trained."""
    stored = rate.weight_format or "bf16"
    if rate.method == "qlora":
        experts = f", but all experts in {stored}, which only other software quantises" if rate.whole_experts else ""
        return f"frozen weights in 4 bits{experts}{', products in fp16, since the device has no bf16' if stored == 'fp16' else ''}"
    if rate.method == "lora":
        return f"frozen weights in {stored}"
    if rate.master_weights:
        return f"weights and gradients in {stored}, AdamW states and a copy of the weights in fp32"
    if "8bit" in rate.optimizer:
        return f"weights and gradients in {stored}, AdamW states in 8 bits"
    return f"weights, gradients and AdamW states in {stored}{', matrix products in 16 bits' if stored == 'fp32' else ''}"


def configuration(option: recommendation.Option) -> str:
    """Return the configuration that the memory verdict is about."""
    rate = option.rate
    parts = [
        METHODS.get(rate.method, rate.method),
        states(rate),
        f"micro-batch of {rate.micro_batch} {TIMES} {rate.sequence_length:,} tokens",
        f"{'no' if rate.checkpointing == 'none' else rate.checkpointing} gradient checkpointing",
    ]
    return ", ".join([*parts, *([SHARDINGS.get(rate.sharding, rate.sharding)] if rate.sharding and rate.sharding != "single" else [])])


def amounts(rate: recommendation.Rate) -> str:
    """Return the memory that a plan needs beside that of the device; empty if it is not known."""
    known = rate.needed_bytes is not None and rate.memory_bytes is not None
    return f"{gib(rate.needed_bytes or 0)} of {gib(rate.memory_bytes or 0)}" if known else ""


def energy(option: recommendation.Option) -> str:
    """Return the energy that the accelerators use at their power limit in a sentence."""
    if option.energy_kwh is None:
        return f"Energy: the power limit of {option.offer.name} is not known."
    watts = f"{plain(option.offer.watts or 0)} W"
    power = f"{option.devices} accelerators of {watts} each" if option.devices > 1 else watts
    most = significant(option.energy_kwh * option.seconds_high / option.seconds)
    each = significant((option.offer.watts or 0) * option.devices / (option.rate.tokens_per_s or 1.0) / HOUR_S * 1000)
    limit = f"at the power limit of {power}; host and cooling not included"
    at = f"at {power}, as you state" if option.offer.watts_stated else limit
    return f"Energy: {significant(option.energy_kwh)} kWh in all, at most {most} kWh, and {each} kWh for 1M tokens of training, {at}."


def grounds(option: recommendation.Option) -> list[str]:
    """Return the speed of an option, its evidence, its memory and its energy, a sentence each."""
    return [line for line in (speed(option), evidence(option), *needs(option), undated(option)) if line]


def undated(option: recommendation.Option) -> str:
    """Return a caution about a price whose own day is not known; empty for others."""
    day = option.offer.effective_on or ""
    read_on = f"read on {day[:10]}, and may be older: check it before you rent"
    return f"The price of {option.offer.instance} is that of a catalogue without dates, {read_on}." if UNDATED in day else ""


def needs(option: recommendation.Option) -> list[str]:
    """Return the memory and the energy that an option needs, and what it needs besides, a sentence each."""
    fitting = f" {methods_fit(option.fitting)}." if option.fitting else ""
    memory_line = f"Memory {'probably fits' if option.rate.memory == 'probably' else option.rate.memory}: {amounts(option.rate)} (the fastest plan: {configuration(option)}).{with_stacks(option.rate.other_stacks)}{fitting}"
    return [line for line in (memory_line, energy(option), option.offer.caution) if line]


def with_stacks(stacks: Sequence[str]) -> str:
    """Return the software with which a plan fits where it does not fit with the usual one, in a sentence; empty without any."""
    as_loaded = f"{AS_LOADED}; " if stacks and stacks[0] == PURE_BF16 else ""
    chosen = f"{as_loaded}`tunemark recommend --stack {stacks[0]}` counts its memory" if stacks else ""
    return f" With another software stack it fits: {_listed(list(stacks), STACKS_SHOWN)} ({chosen})." if stacks else ""


def with_stack(
    question: recommendation.Question,
    answer: recommendation.Answer,
    offers: Iterable[recommendation.Offer],
    rates_with: RatesWith,
) -> str:
    """Return the answer with the software stack with which training fits where it does not with the usual one, if that changes the answer; else empty.

    It does if nothing fits with the usual one, or not on the reader's own machine, or if hardware that is no option with the usual one is better by the
    objective. `rates_with` returns the rates with the memory and the speed of a stack that answer a question.
    """
    fewest_first = sorted(answer.too_large, key=lambda each: each.devices)
    stacks = [name for each in fewest_first for name in each.stacks] + [
        name for each in answer.may_exceed for name in each.rate.other_stacks
    ]
    # Few people run the vendor's own software.
    stack = next((name for name in stacks if name != VENDORS_STACK), stacks[0] if stacks else "")
    best, offered_all = answer.best, list(offers)
    if not stack:
        room = "" if best is not None or answer.may_exceed else with_room(question, answer, offered_all)
        return f"It fits on {room}, and its speed is not known." if room else ""
    machines = {(offer.accelerator, offer.devices): offer for offer in question.own}
    own = own_without_room(question, answer)
    stack = own[0].stacks[0] if own else stack
    rates = rates_with(stack, question)
    answered = recommendation.recommend(replace(question, software=rates[0].software), rates, offered_all)
    options = [*answered.unpriced, *answered.ranked, *answered.may_exceed, *answered.exceeding]
    small = [machines[each.accelerator, each.devices] for each in own]
    mine = [each for each in options if each.offer in small]
    lossy = stack == PURE_BF16 and any(not each.rate.master_weights for each in mine or options)
    name = f"{stack} ({AS_LOADED if lossy else f'{rates[0].software} software that needs less memory'})"
    if any(each.offer.accelerator == own[0].accelerator for each in mine):
        needed = [
            f"{'your ' if each.offer.kind == 'owned' else ''}{hardware(each)}{with_method(question, each.rate.method)} needs about {estimated_duration(each.seconds)} ({times(each)}){f' and {estimated_usd(each.usd)}' if each.usd else ''}, with {states(each.rate)}"
            for each in mine
        ]
        return f"With {name} {'; '.join(needed)}."
    known = [(each.rate.method, each.offer.accelerator, each.devices) for each in answer.ranked]
    quick = [each for each in answered.ranked if best is None or each.seconds <= max(best.seconds, recommendation.LONG_S)]
    others = [each for each in quick if best is None or (each.rate.method, each.offer.accelerator, each.devices) not in known]
    if others:
        compared = recommendation.measure([*answer.ranked, *others], question.objective)
        # Fewer of the same devices, and those that are asked for, need not be cheaper by more than the error of a tie.
        least, asked_for = (compared(best), [best.offer.accelerator, *question.accelerators]) if best else (math.inf, [])
        better = [
            each for each in others if compared(each) * (1.0 if each.offer.accelerator in asked_for else recommendation.ALIKE) < least
        ]
        if better:
            proven = "Surely cheaper" if better[0].rate.evidence in recommendation.PROVEN else "Cheaper by prediction"
            surely = f"{proven}: with" if best and better[0].rate.seen and better[0].usd_high < best.usd_low else "With"
            caution = f" {better[0].offer.caution}" if better[0].offer.caution else ""
            return f"{surely} {name}: {offered(question, better[0])}, {time_and_cost(better[0])}, with {states(better[0].rate)}.{caution}"
    room = "" if best else with_room(question, answered, offered_all)
    return f"With {name} it fits on {room}, and its speed is not known." if room else ""


def own_without_room(question: recommendation.Question, answer: recommendation.Answer) -> list[recommendation.Without]:
    """Return the reader's own machines on which training fits with another stack alone, which is then named first: those of the fewest devices first."""
    machines, small = [(offer.accelerator, offer.devices) for offer in question.own], [each for each in answer.too_large if each.stacks]
    return sorted((each for each in small if (each.accelerator, each.devices) in machines), key=lambda each: each.devices)


def with_room(question: recommendation.Question, answer: recommendation.Answer, offers: Sequence[recommendation.Offer]) -> str:
    """Return the cheapest offers with enough memory whose speed is not known, each with its price by the hour; empty without any."""
    rooms = {(each.accelerator, each.devices): each for each in answer.no_data if each.room}
    several = [(each, nodes) for each in offers if each.kind == LISTED for nodes in (recommendation.NODES if each.fabric else (1,))]
    fitting = [(each.usd_per_hour * nodes, nodes, each) for each, nodes in several if (each.accelerator, each.devices * nodes) in rooms]
    named: dict[str, str] = {}
    for price, nodes, offer in sorted(fitting, key=lambda each: each[0]):
        known, count = rooms[offer.accelerator, offer.devices * nodes], f"{nodes} {TIMES} " if nodes > 1 else ""
        name = f"{offer.name} {TIMES} {known.devices}{with_method(question, known.method)}"
        named.setdefault(offer.name, f"{name} ({known.room}; {count}{offer.instance} at {offer.provider_name}, {usd(price)}/h)")
    return ", ".join(list(named.values())[:STACKS_SHOWN])


def headline(question: recommendation.Question, answer: recommendation.Answer) -> str:
    """Return the answer in one or two sentences."""
    best = answer.best
    if best is None:
        return _nothing(question, answer)
    verb = "Use" if best.offer.provider == recommendation.OWN else "Rent"
    unsure = f" It is {within_error(best)}." if best.rank_high > best.rank_low else ""
    unlike = f" Its rate is that of {best.rate.usual_software} software." if best.rate.usual_software else ""
    started = " Most of this is the assumed start-up, which decides in practice." if 2 * question.startup_s > best.seconds else ""
    slow = best.seconds > recommendation.LONG_S and question.deadline_s is None and question.objective == "cheapest"
    long = " It takes more than three days: set a deadline, or ask for the best value." if slow else ""
    return f"{verb} {offered(question, best)}: {_as_measured(question, best)}{time_and_cost(best)}.{started}{long}{_few_steps(question, best.rate)}{unlike}{unsure}"


def _few_steps(question: recommendation.Question, rate: recommendation.Rate) -> str:
    """Return the number of optimizer steps of a plan in a sentence if they are few; else empty."""
    sharing = int((rate.sharding or "")[2:]) if (rate.sharding or "").startswith("tp") else 1
    each = rate.devices / sharing * (rate.micro_batch or 1) * rate.sequence_length
    steps = math.ceil(question.tokens / each)
    more = ": fewer devices or smaller batches make more" if each > rate.sequence_length else ""
    return f" That makes only {counted(steps, 'optimizer step')} of {significant(each)} tokens{more}." if steps < FEW_STEPS else ""


def offered(question: recommendation.Question, option: recommendation.Option) -> str:
    """Return an option with its offer and price, and its method if every method was asked for."""
    return f"{hardware(option)} ({place(option)}, {hourly(option)}){with_method(question, option.rate.method)}"


def within_error(option: recommendation.Option) -> str:
    """Return the number of options that the evidence does not distinguish from this one."""
    return f"within error of {counted(option.rank_high - option.rank_low, 'other')}"


def badge(option: recommendation.Option) -> tuple[str, str]:
    """Return the kind of evidence and its words: the number of results of the same step, or the half width of the speed's 90% interval as a factor."""
    rate, software = option.rate, f", {option.rate.usual_software} software" if option.rate.usual_software else ""
    if rate.evidence in EVIDENCE and rate.trust:
        kind = "measured" if rate.trust in {"measured", "reproduced"} else rate.trust
        what = f"{'' if rate.evidence == 'direct' else 'similar '}{kind} result"
        return kind, counted(rate.results, what) + (f": {measured_rates(rate)} tokens/s" if rate.measured_low else "") + software
    speed = rate.tokens_per_s or 1.0
    factor = max(speed / (rate.tokens_per_s_low or speed), (rate.tokens_per_s_high or speed) / speed)
    return "predicted", f"predicted, within a factor of {factor:.1f}{software}"


def _nothing(question: recommendation.Question, answer: recommendation.Answer) -> str:
    """Return the reason for an empty answer, with the closest option."""
    closest = min(answer.may_exceed, key=lambda option: len(option.limits), default=None)
    closest = closest or min(answer.exceeding, key=lambda option: excess(question, option), default=None)
    if closest is not None:
        what = "surely fits in memory" if closest.limits == ("memory",) else "meets all limits"
        stacks, how = with_stacks(closest.rate.other_stacks), exceeded(question, closest)
        return f"No option {what}. The closest, {hardware(closest)} ({place(closest)}), {how}: {time_and_cost(closest)}.{stacks}"
    if answer.unpriced:
        return "No offer to rent can be recommended; times on the hardware that you named are known."
    if not answer.offers:
        return "No offer matches these providers, accelerators and numbers of devices. Hardware without a price has a time as your own."
    usual = " with the usual software" if any(each.stacks for each in answer.too_large) else ""
    if answer.too_large and not answer.no_data:
        divided = f" {DIVIDED}" if question.sequence_length >= LONG_ROWS else ""
        return f"Training{usual} does not fit in the memory of any accelerator that the question allows.{divided} {_what_fits(answer)}"
    trusted = "" if question.trust == "predicted" else " at this level of trust; allow predictions to see more"
    small = f"training{usual} does not fit on smaller hardware, and no similar result says how fast larger is" if answer.too_large else ""
    return f"No answer: {small or 'there is no similar result for any accelerator that the question allows'}{trusted}.{_instead(answer)}"


def _what_fits(answer: recommendation.Answer) -> str:
    """Return the methods and the software with which some hardware is large enough, and what else needs less memory."""
    methods = list(dict.fromkeys(name for each in answer.too_large for name in each.fitting))
    stacks = list(dict.fromkeys(name for each in answer.too_large for name in each.stacks))
    less = "" if stacks else "Offload to the host, 8-bit optimizers and shorter sequences need less memory: see `tunemark estimate`."
    parts = [with_stacks(stacks).strip(), f"{methods_fit(methods)} on some of it." if methods else "", less]
    return " ".join(part for part in parts if part)


def _instead(answer: recommendation.Answer) -> str:
    """Return the questions nearby that have an answer; empty without any."""
    parts = [
        ("for {}", sorted({METHODS[method] for each in answer.no_data for method in each.methods})),
        ("with {} software (`--software`)", sorted({level for each in answer.no_data for level in each.software})),
    ]
    known = ", or ".join(words.format(" or ".join(names)) for words, names in parts if names)
    return f" There are predictions {known}." if known else ""


def excess(question: recommendation.Question, option: recommendation.Option) -> float:
    """Return the factor by which an option exceeds a limit, the larger of both."""
    limits = ((option.seconds, question.deadline_s), (option.usd, question.budget_usd))
    return max(value / limit for value, limit in limits if limit is not None)


def exceeded(question: recommendation.Question, option: recommendation.Option, kinds: Collection[str] = LIMITS) -> str:
    """Return those of these limits that an option exceeds with its whole interval, by its middle, or at the upper end: `may exceed the deadline`."""
    least = {
        "deadline": option.seconds_low / (question.deadline_s or math.inf),
        "budget": option.usd_low / (question.budget_usd or math.inf),
    }
    limits: dict[str, list[str]] = {}
    for name in [each for each in dict.fromkeys((*option.exceeds, *option.limits)) if each in kinds]:
        verb = "exceeds" if least.get(name, 0.0) > 1 else "probably exceeds" if name in option.exceeds else "may exceed"
        limits.setdefault(verb, []).append(LIMITS[name])
    return " and ".join(f"{verb} {' and '.join(names)}" for verb, names in limits.items())


def with_method(question: recommendation.Question, method: str) -> str:
    """Return a method in words, if the question leaves it open: ` with LoRA`."""
    return f" with {METHODS.get(method, method)}" if question.method == recommendation.ANY else ""


def own_hardware(question: recommendation.Question, answer: recommendation.Answer) -> list[str]:
    """Return one line for each of the reader's own machines, except the best option: its place, or the reason why it has none."""
    lines = []
    for number, offer in enumerate(question.own):
        again = any(each.accelerator == offer.accelerator for each in question.own[:number])
        caution = f" {offer.caution}" if offer.caution and not again else ""
        name = f"{'Your ' if offer.kind == 'owned' else ''}{offer.name} {TIMES} {offer.devices}"
        own = [(place, option) for place, option in enumerate(answer.ranked, start=1) if option.offer == offer]
        others = [option for option in (*answer.may_exceed, *answer.exceeding) if option.offer == offer]
        place = (offer.accelerator, offer.devices)
        missing = [each for each in (*answer.too_large, *answer.no_data) if (each.accelerator, each.devices) == place]
        unpriced = [option for option in answer.unpriced if option.offer == offer]
        if unpriced:
            late = exceeded(question, unpriced[0], ("deadline",))
            in_time = f", which {late}" if late else ", within the deadline" if question.deadline_s is not None else ""
            time = f"about {estimated_duration(unpriced[0].seconds)} ({times(unpriced[0])}){in_time}"
            memory_line = f"{needs(unpriced[0])[0]}{caution}"
            said = f"{speed(unpriced[0])} {evidence(unpriced[0])}"
            # What may not fit is said before how long it would take.
            said = f"{memory_line} If it runs: {time}. {said}" if "memory" in unpriced[0].limits else f"{time}. {said} {memory_line}"
            costs = f" It is ranked if you give its cost per hour or the price of electricity{'' if offer.watts else ', with its power'}."
            lines.append(f"{name}{with_method(question, unpriced[0].rate.method)}: {said}{costs if offer.kind == 'owned' else ''}")
        elif own:
            ranked, option = own[0]
            if ranked > 1:
                place_of = f"place {ranked} of {len(answer.ranked)}{with_method(question, option.rate.method)}"
                lines.append(f"{name}: {place_of}, {time_and_cost(option)}. {needs(option)[0]}")
        elif others:
            memory_line = f" {needs(others[0])[0]}" if "memory" in others[0].limits else ""
            lines.append(f"{name}: {exceeded(question, others[0])}, {time_and_cost(others[0])}.{memory_line}")
        else:
            most, why = question.most_devices, f"there is no result with {question.software} software on it"
            if missing:
                least = max(missing, key=_leanest)
                room = f"it fits ({least.room}), and its speed is not known: " if least.room else ""
                name, why = f"{name}{with_method(question, least.method)}", f"{room}{_reason(least)}{_fitting(least)}"
            elif most is not None and offer.devices > most:
                why = f"the question allows at most {most} devices"
            lines.append(f"{name}: {why}.{caution}")
    return lines


def _leanest(missing: recommendation.Without) -> tuple[int, int]:
    """Return the most devices, and of these the method that needs the least memory, in order."""
    return missing.devices, list(METHODS).index(missing.method)


def _reason(missing: recommendation.Without) -> str:
    """Return the reason for missing data, with the software levels that have rates."""
    return f"{missing.reason}; there are rates with {' or '.join(missing.software)} software" if missing.software else missing.reason


def _fitting(missing: recommendation.Without) -> str:
    """Return the methods, or else the software, that fit where another does not, as the end of a sentence; empty if there are none."""
    stacks = f"; with another software stack it fits: {_listed(list(missing.stacks), STACKS_SHOWN)}" if missing.stacks else ""
    return f"; {methods_fit(missing.fitting)}{stacks}" if missing.fitting else stacks


def methods_fit(methods: Sequence[str]) -> str:
    """Return the methods that fit: `LoRA and QLoRA fit`."""
    return f"{' and '.join(METHODS.get(method, method) for method in methods)} {'fits' if len(methods) == 1 else 'fit'}"


def alternatives(question: recommendation.Question, answer: recommendation.Answer) -> list[str]:
    """Return the best options by the other objectives."""
    lines = []
    for number in dict.fromkeys(answer.picks.values()):
        option = answer.ranked[number]
        if number:
            picks = ", ".join(PICKS[pick] for pick, place in answer.picks.items() if place == number)
            why = why_later(option, answer.ranked[0]) if number == answer.picks[question.objective] else ""
            needed = f" {option.offer.caution}" if option.offer.caution else ""
            lines.append(
                f"{picks[0]}{picks[1:].lower()}: {offered(question, option)}, {time_and_cost(option)}{f'; {why}' if why else ''}.{needed}"
            )
    return lines


def why_later(option: recommendation.Option, best: recommendation.Option) -> str:
    """Return the reason why the best option by the objective comes behind another."""
    alike = "the first one takes less time at about this cost" if option.usd < best.usd else "the first one costs less in about this time"
    pairs = zip(recommendation.preferred(option), recommendation.preferred(best), LATER, strict=True)
    first = next((why for own, other, why in pairs if other > own), alike)
    why = first.format("only results slower than predicted" if option.rate.evidence in EVIDENCE else "no result")
    # A machine of the reader's own comes first without results, too.
    why = "the first one is your own" if first in LATER[3:] and best.offer.kind == "owned" else why
    return f"it comes later because {why}"


def with_software(
    question: recommendation.Question,
    answer: recommendation.Answer,
    rates: Sequence[recommendation.Rate],
    offers: Sequence[recommendation.Offer],
    stacks: Iterable[str],
    rates_with: RatesWith,
) -> list[str]:
    """Return two options with software of each other level, unless the best one is cheaper and faster, and that one with named software.

    They are the first of: that of its offer, the best, the best with results. Before them stand the reader's own machines and those without a price.
    Only plain software has other levels. `rates` are of all levels.
    """
    best, lines = answer.best, []
    for level in recommendation.LEVELS[1:] if question.software == "plain" else ():
        other = recommendation.recommend(replace(question, software=level), rates, offers)
        same = [number for number, option in enumerate(other.ranked) if best is not None and option.offer is best.offer][:1]
        first = [other.ranked[number] for number in list(dict.fromkeys([*same, 0, other.picks.get("proven", 0)]))[:2] if other.ranked]
        first = first or [option for option in other.may_exceed[:1] if best is None]
        parts = [
            f"{offered(question, option)}, {_as_measured(question, option)}{time_and_cost(option)}{f', with {states(option.rate)}' if level == 'vendor' else ''}{f', and it {exceeded(question, option)}' if option.limits else ''}"
            for option in first
            if best is None or option.usd < best.usd or option.seconds < best.seconds
        ]
        parts = [_alone(question, option) for option in _own_options(question, other) if all(option is not each for each in first)] + parts
        whose = "the vendor's own software, such as NeMo or MaxText" if level == "vendor" else f"{level} software"
        lines += [f"With {whose}: {'; '.join(parts)}."] if parts else []
    mine = [option for option in _own_options(question, answer) if option is not best]
    told = [*mine, *([best] if best is not None else [])] if question.software == "plain" else []
    return [*lines, *(line for option in told for line in _by_stack(question, option, stacks, rates_with))]


def _own_options(question: recommendation.Question, answer: recommendation.Answer) -> list[recommendation.Option]:
    """Return the first option on each machine of the reader's own, or without a price."""
    every = [*answer.unpriced, *answer.ranked, *answer.may_exceed, *answer.exceeding]
    found = [next((option for option in every if option.offer == offer), None) for offer in question.own]
    return [option for option in found if option is not None]


def _alone(question: recommendation.Question, option: recommendation.Option) -> str:
    """Return time and cost of an option on a machine of the reader's own, or without a price."""
    whose, cost = "your " if option.offer.kind == "owned" else "", f" and {estimated_usd(option.usd)}" if option.usd else ""
    return f"{whose}{hardware(option)}{with_method(question, option.rate.method)}, about {estimated_duration(option.seconds)} ({times(option)}){cost}"


def _by_stack(question: recommendation.Question, best: recommendation.Option, stacks: Iterable[str], rates_with: RatesWith) -> list[str]:
    """Return the time and the cost of the best option with each of some software stacks whose results say how fast it is, in a sentence; none where it does not fit."""
    parts = []
    for stack in stacks:
        for rate in rates_with(stack, replace(question, accelerators=(best.offer.accelerator,))):
            same = (rate.method, rate.accelerator, rate.devices) == (best.rate.method, best.offer.accelerator, best.devices)
            if same and rate.loop and rate.tokens_per_s and rate.memory in FITS:
                seconds = question.startup_s + question.tokens / rate.tokens_per_s
                cost = f" and {estimated_usd(best.usd * seconds / best.seconds)}" if best.usd else ""
                parts.append(f"{stack} {significant(rate.tokens_per_s)} tokens/s, about {estimated_duration(seconds)}{cost}")
    told = f"By software (`tunemark recommend --stack`), predicted from its results on any device, on {hardware(best)}"
    return [f"{told}: {'; '.join(parts)}."] if parts else []


def _as_measured(question: recommendation.Question, option: recommendation.Option) -> str:
    """Return time and cost at the rates of an option's direct results, before those predicted for any such software; empty without any, or if these are as fast."""
    rate = option.rate
    if not _ran_otherwise(rate):
        return ""
    seconds = [question.startup_s + question.tokens / (each or 1.0) for each in (rate.measured_high, rate.measured_low)]
    times, costs = (
        " to ".join(dict.fromkeys(words))
        for words in (map(estimated_duration, seconds), [estimated_usd(option.usd * each / option.seconds) for each in seconds])
    )
    return f"{times} and {costs} at the rates of its results ({measured_rates(rate)} tokens/s), by prediction "


def _ran_otherwise(rate: recommendation.Rate) -> bool:
    """Return True if the direct results of a rate are all slower, or all faster, than predicted."""
    return recommendation.longer(rate) > 1 or (rate.measured_low or 0.0) > recommendation.ALIKE * (rate.tokens_per_s or math.inf)


def unknown(answer: recommendation.Answer, counted: Collection[str] = ()) -> str:
    """Return the accelerators without a rate by reason. The first six reasons and all others name at most six each.

    Of those in `counted` some numbers were asked for: each without a rate is named, if others have one, too.
    """
    reasons: dict[str, list[str]] = {}
    # Of several numbers of devices, the reason is that of the smallest.
    options = (*answer.ranked, *answer.may_exceed, *answer.exceeding, *answer.unpriced)
    answered = {option.offer.accelerator for option in options if option.offer.accelerator not in counted}
    methods, fewest_last = {option.rate.method for option in options}, sorted(answer.no_data, key=lambda each: -each.devices)
    named = {each.name: _reason(each) for each in fewest_last if each.accelerator not in answered}
    whole = {METHODS[each.method]: _reason(each) for each in fewest_last if each.accelerator in answered and each.method not in methods}
    for name, reason in {**named, **whole}.items():
        reasons.setdefault(reason, []).append(name)
    parts = [f"{_listed(names)} ({reason})" for reason, names in list(reasons.items())[:REASONS]]
    others = [name for names in list(reasons.values())[REASONS:] for name in names]
    more = f"; {_listed(others)} (for other reasons: name one to see its own)" if others else ""
    return f"No answer for {'; '.join(parts)}{more}." if parts else ""


def not_fitting(question: recommendation.Question, answer: recommendation.Answer) -> str:
    """Return the hardware that the step does not fit on, with what is missing: the largest number of each accelerator, first where other software fits."""
    answered = {(option.offer.accelerator, option.rate.devices, option.rate.method) for option in (*answer.ranked, *answer.may_exceed)}
    largest_last = sorted(answer.too_large, key=_leanest)
    most = {each.name: each for each in largest_last if (each.accelerator, each.devices, each.method) not in answered}
    names = [
        f"{each.name} {TIMES} {each.devices}{with_method(question, each.method)} ({each.reason.removeprefix(recommendation.NO_ROOM)}{f'; fits with {each.stacks[0]}' if each.stacks else ''})"
        for each in sorted(most.values(), key=lambda each: not each.stacks)
    ]
    return f"Does not fit: {_listed(names)}." if names else ""


def _listed(names: list[str], most: int = SHOWN) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def startup(question: recommendation.Question, answer: recommendation.Answer) -> str:
    """Return the time that is assumed until training runs, and the terms of the kinds of price in an answer."""
    kinds = {option.offer.kind for option in answer.ranked if option.offer.provider != recommendation.OWN}
    unlike = any(kind not in question.kinds for kind in kinds)
    terms = " Where the price book has no such kind of price, another one is shown." if unlike else ""
    terms += "".join(f" {words}" for kind, words in TERMS.items() if kind in kinds)
    assumed = f"Includes an assumed {estimated_duration(question.startup_s)} of start-up."
    return f"{assumed if question.startup_s else 'Start-up is not included.'}{terms}"


def tokens_in_words(tokens: float) -> str:
    """Return a number of tokens: `10M tokens`."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:,.4g}{letter} tokens"
    return f"{tokens:,.0f} tokens"
