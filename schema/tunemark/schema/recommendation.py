"""The recommendation: options for a fine-tuning job, ranked by cost, time or value, from rates and offers that are already computed.

`tunemark recommend` and the home page use this module, whose script is translated from it. All arithmetic here is selection, multiplication
and comparison. See definitions#recommendation.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.formats import HOUR_S, gib
from tunemark.schema.vocabulary import FITS, METHODS, VENDORS_STACK, SoftwareLevel

Objective = Literal["cheapest", "fastest", "value"]
Trust = Literal["measured", "published", "predicted"]
OBJECTIVES: tuple[Objective, ...] = ("cheapest", "fastest", "value")
TRUSTS: tuple[Trust, ...] = ("measured", "published", "predicted")
LEVELS: tuple[SoftwareLevel, ...] = ("plain", "tuned", "vendor")
ANY = "any"
"""Every method."""
NODES = (1, 2, 4, 8)
"""Numbers of instances that are considered where a training fabric joins them."""
FIRST, SAME = 5, 2
"""Of the first five options, at most two have the same accelerator."""
CENT = 0.01
"""The least cost in a comparison by value: own hardware may cost nothing."""
WORTH_SEVERAL_S = 300.0
"""Several instances are considered only if training takes longer than this on every single one."""
MEASURED = {"measured", "reproduced"}
ALL_METHODS = ("full", "lora", "qlora")
STARTUP_S = 300.0
"""Start-up time that is assumed at least: machine, data, weights, compiling."""
DAY_S = 24 * HOUR_S
"""Reservations are sold by whole days (Capacity Blocks in docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-purchase), used or not."""
LONG_S = 3 * DAY_S
"""Days of a job, after which people take what is faster at about its cost."""
ALIKE = 1.1
"""Rates that differ by less than this factor are shown as one, and so are costs: about the noise between two results of one step."""
PROVEN = {"direct", "near"}
"""Kinds of evidence with results of this model, method and accelerator."""
TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("recommendation.toml").read_text(encoding="utf-8"))
COMPANIES: dict[str, str] = TABLE["companies"]
"""Names of companies by which people call a provider, besides its name."""
NO_ROOM = "does not fit: "
"""Start of the reason of hardware that is too small."""
OWN = "own hardware"
"""Provider of the reader's own machine."""


# Inputs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a step runs on some devices, see `tunemark.schema.option_rates`."""

    method: str
    sequence_length: int
    software: SoftwareLevel
    accelerator: str
    devices: int
    evidence: str
    """How near the results are that it rests on: direct | near | predicted | none"""
    tokens_per_s: float | None = None
    """Of all devices; None without evidence."""
    tokens_per_s_low: float | None = None
    tokens_per_s_high: float | None = None
    own_spread: float = 1.0
    """Factor from the middle to an end of the interval without what all rates of the same software share: options are compared by it."""
    memory: str | None = None
    """fits | probably | unsure | no; None without any similar result."""
    other_stacks: tuple[str, ...] = ()
    """Software stacks whose memory the plan fits in, where it does not fit with the usual one."""
    needed_bytes: int | None = None
    memory_bytes: int | None = None
    micro_batch: int | None = None
    checkpointing: str | None = None
    sharding: str | None = None
    trust: str | None = None
    """Best trust level of these results."""
    result_ids: tuple[str, ...] = ()
    results: int = 0
    measured_low: float | None = None
    """Least and most tokens/s of those of them with this device count: each ran with a plan of its own."""
    measured_high: float | None = None
    usual: tuple[float, float, float] | None = None
    """The least, the median and the most of these, else of models with another vocabulary, of eight or more without an eighth at each end."""
    seen: bool = True
    """False if no result of such models and software is of this accelerator."""
    reason: str | None = None
    """Why there is no rate."""
    merged: str | None = None
    """Another method from which the evidence does not separate this one, and whose predicted rate it has."""
    weight_format: str | None = None
    """Stored format of the weights that are not in 4 bits: bf16 | fp16 | fp32."""
    master_weights: bool = False
    """True if the software keeps a copy of trained weights in fp32."""
    optimizer: str = ""
    """The optimizer of full fine-tuning."""
    whole_experts: bool = False
    """True if the software stores the experts of QLoRA in that format, too."""
    usual_software: SoftwareLevel | Literal[""] = ""
    """The level of software that it is of, where that takes the place of plain software."""
    loop: str = ""
    """The training loop whose results say how fast it is; empty for that of any software of its level."""

    @property
    def narrow_weights(self) -> str:
        """The format of LoRA's frozen weights if it is not one of 16 bits, as in vendors' software; else empty."""
        return self.weight_format or "" if self.method == "lora" and "16" not in (self.weight_format or "16") else ""


@dataclass(frozen=True, slots=True)
class Offer:
    """Hardware at a price."""

    accelerator: str
    name: str
    """Name of the accelerator for readers."""
    devices: int
    """Accelerators of one instance."""
    provider: str
    instance: str
    kind: str
    """on_demand | spot | reserved | marketplace | owned"""
    usd_per_hour: float
    """Price of one whole instance."""
    region: str | None = None
    effective_on: str | None = None
    """Day of the price, with its age if it is old."""
    fabric: bool = False
    """True if a training fabric joins several instances."""
    provider_name: str = ""
    watts: float | None = None
    """Power limit of one accelerator, or the power of the reader's own one."""
    caution: str | None = None
    """What training on it needs that other accelerators do not."""
    priced: bool = True
    """False for a machine of the reader's own whose cost is not given; one may also cost nothing."""
    watts_stated: bool = False
    """True if the reader stated the watts, for the whole machine."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the reader wants to train, and the limits. `tokens` counts every epoch."""

    method: str
    tokens: float
    sequence_length: int
    software: SoftwareLevel = "plain"
    objective: Objective = "cheapest"
    deadline_s: float | None = None
    budget_usd: float | None = None
    providers: tuple[str, ...] = ()
    """Providers to choose from; empty for all."""
    kinds: tuple[str, ...] = ("on_demand",)
    accelerators: tuple[str, ...] = ()
    """Keys of accelerators to choose from; empty for all."""
    most_devices: int | None = None
    trust: Trust = "predicted"
    """`measured`: only rates from measured results; `published`: from any result; `predicted`: predictions too."""
    startup_s: float = STARTUP_S
    """Assumed time before training starts, billed."""
    own: tuple[Offer, ...] = ()
    """The reader's own machines, with the cost of an hour of use."""
    given: dict[str, Any] = field(default_factory=dict)
    """Fields of the step that keep their value, such as the rank of adapters."""

    def __post_init__(self) -> None:
        """Refuse sizes and limits that are not above zero."""
        for name in ("tokens", "sequence_length", "deadline_s", "budget_usd", "most_devices"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise TunemarkError(name, value, "must be above 0, and not infinite")
        if not 0 <= self.startup_s < math.inf:
            raise TunemarkError("startup_s", self.startup_s, "must be 0 or more")
        for name, known in (("objective", OBJECTIVES), ("trust", TRUSTS), ("software", LEVELS)):
            if getattr(self, name) not in known:
                raise TunemarkError(name, getattr(self, name), did_you_mean(getattr(self, name), known))


# Answers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """An offer with the time and cost of the job, start-up included. Low and high are the ends of the 90% interval of the rate."""

    rate: Rate
    offer: Offer
    instances: int
    seconds: float
    seconds_low: float
    seconds_high: float
    usd: float
    usd_low: float
    usd_high: float
    limits: tuple[str, ...] = ()
    """What the option may exceed: `deadline`, `budget` or `memory`; empty for one that can be recommended."""
    exceeds: tuple[str, ...] = ()
    """What it exceeds even at the middle of its interval."""
    rank_low: int = 0
    """First and last place that the intervals allow; 0 for an option that is not ranked."""
    rank_high: int = 0
    fitting: tuple[str, ...] = ()
    """Other methods that fit on these devices, if the memory is unsure."""

    @property
    def devices(self) -> int:
        """Accelerators of all instances."""
        return self.offer.devices * self.instances

    @property
    def energy_kwh(self) -> float | None:
        """Energy of the accelerators at their power limit; None if the limit is not known."""
        return None if self.offer.watts is None else self.offer.watts * self.devices * self.seconds / HOUR_S / 1000


@dataclass(frozen=True, slots=True)
class Without:
    """Hardware that was offered and has no option."""

    accelerator: str
    name: str
    method: str
    devices: int
    reason: str
    fitting: tuple[str, ...] = ()
    """Other methods that fit on these devices with rows of this length, if this one does not."""
    software: tuple[str, ...] = ()
    """Other software levels with which these devices have a rate, if they have none with the level asked for."""
    methods: tuple[str, ...] = ()
    """Methods that were not asked for and have a rate on them."""
    too_large: bool = False
    """True if the step does not fit in their memory."""
    stacks: tuple[str, ...] = ()
    """Software stacks with which it does."""
    room: str = ""
    """What it needs of their memory, if it fits and its speed is not known."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The options for a question."""

    ranked: tuple[Option, ...] = ()
    """Options that meet all limits at the pessimistic end of their interval, best first."""
    may_exceed: tuple[Option, ...] = ()
    """Options that meet the limits only at the middle of their interval, or with unsure memory."""
    exceeding: tuple[Option, ...] = ()
    """Options over a limit."""
    too_large: tuple[Without, ...] = ()
    """Hardware that the step does not fit on."""
    unpriced: tuple[Option, ...] = ()
    """Options of the reader's own machines whose cost is not given: they have a time, and no place."""
    no_data: tuple[Without, ...] = ()
    """Hardware without any similar result, or without one of the trust wanted."""
    offers: int = 0
    """Number of offers that the question allows."""
    picks: dict[str, int] = field(default_factory=dict)
    """Objective, `fastest` only if time counts -> place in `ranked` of its best option; `proven`: of the first one with results of this model, method and accelerator."""

    @property
    def best(self) -> Option | None:
        """The first option."""
        return self.ranked[0] if self.ranked else None


def provider_name(key: str) -> str:
    """Return the name of a provider for readers: `oci` -> `Oracle Cloud`."""
    return str(TABLE["providers"].get(key, key.capitalize()))


def offers_of(prices: Iterable[Mapping[str, object]], cards: Mapping[str, AcceleratorCard]) -> list[Offer]:
    """Return the offers of rows of the view `current_prices`: of each instance and kind the cheapest region.

    `cards` are accelerators by key; CPUs are not offered. Providers outside the price basis are kept for the kinds that have no list price.
    """
    cheapest: dict[tuple[str, str, str], Offer] = {}
    for row in prices:
        card, count, usd = cards.get(str(row["accelerator"])), float(str(row["accelerator_count"])), float(str(row["usd_per_hour"]))
        listed = row["provider_rank"] is not None or row["kind"] != "on_demand"
        if card is None or card.unit == "cpu" or not count.is_integer() or not listed:
            continue
        key = (str(row["provider"]), str(row["instance"]), str(row["kind"]))
        region = str(row["region"]) if row["region"] else None
        dated = (usd, region, str(row["dated"]))
        shown = (provider_name(key[0]), card.tdp_w, card.remarks)
        offer = Offer(card.key, card.name, int(count), *key, *dated, row["fabric"] is not None, *shown)
        known = cheapest.get(key)
        if known is None or (usd, offer.region or "") < (known.usd_per_hour, known.region or ""):
            cheapest[key] = offer
    return [cheapest[key] for key in sorted(cheapest)]


# The choice ----------------------------------------------------------------------------------------


def places_of(question: Question, offers: Iterable[Offer]) -> list[tuple[str, int]]:
    """Return the accelerators and device counts of the offers that a question allows, for which it needs rates."""
    chosen = _offers(question, offers)
    found = [(offer.accelerator, offer.devices * nodes) for offer in chosen for nodes in (NODES if offer.fabric else NODES[:1])]
    return sorted({(accelerator, devices) for accelerator, devices in found if devices <= (question.most_devices or math.inf)})


def recommend(question: Question, rates: Iterable[Rate], offers: Iterable[Offer]) -> Answer:
    """Return the options for a question from the rates of its model and row length, and the offers.

    Every offer is combined with one instance, or with several that a fabric joins. Recommended options meet the limits at the pessimistic end of the
    90% interval; the order follows the middle. Of options within the error of comparing them, the one that is `preferred` comes first.
    """
    rates = list(rates)
    methods = sorted({rate.method for rate in rates}) if question.method == ANY else [question.method]
    chosen = _offers(question, offers)
    found = list(_found(question, rates, chosen, methods))
    options = [each for each in found if isinstance(each, Option)]
    if any(each.offer.kind in question.kinds for each in options):
        # Prices of another kind, such as spot ones, are not ranked beside those that were asked for.
        options = [
            each if each.offer.kind in question.kinds or each.offer.provider == OWN else replace(each, limits=(*each.limits, "price"))
            for each in options
        ]
    without = list(dict.fromkeys(each for each in found if isinstance(each, Without)))
    too_large, no_data = ([each for each in without if each.too_large is large] for large in (True, False))
    priced = [option for option in options if option.offer.priced]
    unpriced = [option for option in options if not option.offer.priced]
    recommended = [option for option in priced if not option.limits]
    first_ones = _valued(recommended) if question.objective == "value" else recommended
    apart = len(first_ones) < len(recommended)
    ranked = with_ranks(in_order(first_ones, question.objective), question)
    if ranked:
        compared, value = measure(ranked, question.objective), measure(ranked, "value")
        # Without a result on an accelerator its rate is a prediction alone: the first that has one comes before it, unless the reader names or owns it,
        # or it is surely better and better value.
        start = next((option for option in ranked if option.rate.seen or option.offer in question.own or question.accelerators), ranked[0])
        if start.rank_low > ranked[0].rank_high and value(ranked[0]) < value(start):
            start = ranked[0]
        bound = compared(start) * _spread(start, question.startup_s)
        near = [option for option in ranked if compared(option) <= bound and option.rank_low <= start.rank_low]
        # Results of the step are no reason to take what costs more and takes longer.
        near = [option for option in _first_methods(near) if not any(_beats(other, option) for other in near)]
        best = max(near, key=preferred)
        most = ALIKE * compared(best) * longer(best.rate)
        equal = [option for option in near if preferred(option) == preferred(best) and compared(option) * longer(option.rate) <= most]
        # What costs about the same takes less time, and what takes about the same costs less.
        first = in_order(equal, "value")[0]
        ranked = [first, *(option for option in ranked if option is not first)]
        ranked = ranked if question.accelerators else diverse(ranked)
    ranked += [option for option in in_order(recommended, question.objective) if apart and option.instances > 1]
    proven = next((number for number, option in enumerate(ranked) if option.rate.evidence in PROVEN), None)
    # The fastest option of all costs many times the best one: it is named if time counts.
    named = [each for each in OBJECTIVES if each in {question.objective, "cheapest", "value"} or question.deadline_s is not None]
    pools = {objective: _valued(ranked) if objective == "value" else ranked for objective in named}
    picks: dict[str, int] = {objective: ranked.index(in_order(pool, objective)[0]) for objective, pool in pools.items() if pool}
    others = methods if question.method == ANY else ()
    firsts = [(name, next((number for number, option in enumerate(ranked) if option.rate.method == name), None)) for name in others]
    return Answer(
        tuple(ranked),
        tuple(in_order([option for option in priced if option.limits and not option.exceeds], question.objective)),
        tuple(in_order([option for option in priced if option.exceeds], question.objective)),
        tuple(too_large),
        tuple(in_order(unpriced, "fastest")),
        tuple(no_data),
        offers=len(chosen),
        picks=picks | {name: number for name, number in (("proven", proven), *firsts) if number is not None},
    )


def _found(question: Question, rates: Sequence[Rate], offers: Sequence[Offer], methods: Sequence[str]) -> Iterator[Option | Without]:
    """Yield an option, or the reason why there is none, for each offer, method and number of instances that has a row in the rates."""
    table = {(rate.method, rate.accelerator, rate.devices): rate for rate in rates if rate.software == question.software}
    elsewhere: dict[tuple[str, int], set[tuple[str, str]]] = {}
    for rate in rates:
        if _why_missing(rate, question.trust) is None:
            elsewhere.setdefault((rate.accelerator, rate.devices), set()).add((rate.method, rate.software))
    alone = [table.get((method, offer.accelerator, offer.devices)) for offer in offers for method in methods]
    quick = any(rate and rate.tokens_per_s and question.tokens / rate.tokens_per_s < WORTH_SEVERAL_S for rate in alone)
    for offer, method in product(offers, methods):
        for instances in NODES if offer.fabric and not quick else NODES[:1]:
            place = (method, offer.accelerator, offer.devices * instances)
            known = table.get(place)
            if known is None or known.devices > (question.most_devices or math.inf):
                continue
            missing = _why_missing(known, question.trust)
            if missing is None:
                fitting = fitting_methods(table, known) if known.memory == "unsure" else ()
                yield _option(question, known, offer, instances, fitting)
                continue
            large, needed, memory = known.memory == "no", known.needed_bytes, known.memory_bytes
            fitting, stacks = (fitting_methods(table, known), known.other_stacks) if large else ((), ())
            others = [] if large else sorted(elsewhere.get((known.accelerator, known.devices), ()))
            software = tuple(level for name, level in others if name == method)
            apart = tuple(name for name, level in others if level == question.software and name not in methods)
            kept = f" with frozen weights in {known.narrow_weights}" if known.narrow_weights else ""
            room = f"{gib(needed)} of {gib(memory)}{kept}" if known.memory in FITS and needed and memory else ""
            yield Without(offer.accelerator, offer.name, method, known.devices, missing, fitting, software, apart, large, stacks, room)


def _offers(question: Question, offers: Iterable[Offer]) -> list[Offer]:
    """Return the offers that a question allows. Where none, or none of an accelerator that it names, has the kinds of price asked for, those of others."""
    providers, named = question.providers, question.accelerators
    chosen = [each for each in offers if (not providers or each.provider in providers) and (not named or each.accelerator in named)]
    chosen = [each for each in chosen if each.devices <= (question.most_devices or math.inf)]
    known = {each.accelerator for each in chosen if each.kind in question.kinds}
    missing = [each for each in chosen if each.accelerator not in known and (named or not known)]
    return [*question.own, *(each for each in chosen if each.kind in question.kinds), *missing]


def _why_missing(rate: Rate, trust: Trust) -> str | None:
    """Return the reason why a rate is not used, or None."""
    if rate.tokens_per_s is None:
        return rate.reason or "no data"
    if trust != "predicted" and rate.evidence != "direct":
        return "no result of this model, method, sequence length and device count"
    if trust == "measured" and rate.trust not in MEASURED:
        return f"only {rate.trust} results"
    return None


def fitting_methods(table: Mapping[tuple[str, str, int], Rate], asked: Rate) -> tuple[str, ...]:
    """Return the methods that fit on the devices of a rate; if none does, the leaner ones with a stack with which they do: `QLoRA with unsloth`."""
    found = {method: table.get((method, asked.accelerator, asked.devices)) for method in ALL_METHODS}
    fits = tuple(method for method, rate in found.items() if rate is not None and rate.memory in FITS)
    # Few people run the vendor's own software.
    others = [stack for stack in asked.other_stacks if stack != VENDORS_STACK]
    leaner = ALL_METHODS[ALL_METHODS.index(asked.method) + 1 :] if not others else ()
    stacked = [rate for method, rate in found.items() if rate is not None and method in leaner and rate.other_stacks]
    return fits or tuple(f"{METHODS[rate.method]} with {rate.other_stacks[0]}" for rate in stacked)


def _option(question: Question, rate: Rate, offer: Offer, instances: int, fitting: tuple[str, ...]) -> Option:
    if rate.tokens_per_s is None or rate.tokens_per_s_low is None or rate.tokens_per_s_high is None:
        raise ValueError(f"{rate.accelerator} x {rate.devices} has no rate")
    speeds = (rate.tokens_per_s, rate.tokens_per_s_high, rate.tokens_per_s_low)
    middle, low, high = (question.startup_s + question.tokens / speed for speed in speeds)
    usd_per_s = offer.usd_per_hour * instances / HOUR_S
    paid = (math.ceil(each / DAY_S) * DAY_S if offer.kind == "reserved" else each for each in (middle, low, high))
    usd, usd_low, usd_high = (each * usd_per_s for each in paid)
    limited = (("deadline", question.deadline_s, middle, high), ("budget", question.budget_usd, usd, usd_high))
    limits = [name for name, limit, _, pessimistic in limited if limit is not None and pessimistic > limit]
    exceeds = [name for name, limit, likely, _ in limited if limit is not None and likely > limit]
    if rate.memory == "unsure":
        limits.append("memory")
    return Option(rate, offer, instances, middle, low, high, usd, usd_low, usd_high, tuple(limits), tuple(exceeds), fitting=fitting)


def in_order(options: Sequence[Option], objective: Objective) -> list[Option]:
    """Return options by cost, by time, or by value: the distance in log space from the point of the lowest cost and the shortest time."""
    compared = measure(options, objective)

    def key(option: Option) -> tuple[float, float, int, str, str, str]:
        second, offer, rate = option.usd if objective == "fastest" else option.seconds, option.offer, option.rate
        return compared(option), second, rate.needed_bytes or 0, offer.provider, offer.instance, rate.method

    return sorted(options, key=key)


def _valued(options: Sequence[Option]) -> list[Option]:
    """Return the options of which one is the best value: those of one instance, unless several cost less and take less time than the best of these.

    Several instances that save minutes are no better value than one.
    """
    single = in_order([option for option in options if option.instances == 1], "value")
    beaten = any(_better(option, single[0]) for option in options if single)
    return single if single and not beaten else list(options)


def measure(options: Sequence[Option], objective: Objective) -> Callable[[Option], float]:
    """Return the amount that options are ranked by: time, cost, or the factor of their distance from the shortest time and the lowest cost of all."""
    fastest = min((option.seconds for option in options), default=0.0)
    cheapest = max(CENT, min((option.usd for option in options), default=CENT))

    def compared(option: Option) -> float:
        if objective == "value":
            return math.exp(math.hypot(math.log(option.seconds / fastest), math.log(max(CENT, option.usd) / cheapest)))
        return option.seconds if objective == "fastest" else option.usd

    return compared


def _better(option: Option, other: Option) -> bool:
    """Return True if an option costs less than another and takes less time, by more than a tie."""
    return option.usd * ALIKE < other.usd and option.seconds * ALIKE < other.seconds


def _beats(option: Option, other: Option) -> bool:
    """Return True if an option is better than another, and surely so in one of both, or with what is `preferred` but for results of the step."""
    surely = option.usd_high < other.usd_low or option.seconds_high < other.seconds_low
    return _better(option, other) and (
        surely or all(own >= theirs for own, theirs in zip(preferred(option)[:4], preferred(other)[:4], strict=True))
    )


def _first_methods(options: Sequence[Option]) -> list[Option]:
    """Return options without further methods on the same hardware: results are a reason to take other hardware, not another method."""
    return [
        option
        for number, option in enumerate(options)
        if not any(other.offer is option.offer and other.instances == option.instances for other in options[:number])
    ]


def diverse(options: Sequence[Option]) -> list[Option]:
    """Return options in their order, but with at most two of one accelerator among the first five."""
    first: list[Option] = []
    for option in options:
        if len(first) < FIRST and sum(other.offer.accelerator == option.offer.accelerator for other in first) < SAME:
            first.append(option)
    return first + [option for option in options if all(option is not other for other in first)]


def with_ranks(options: Sequence[Option], question: Question) -> list[Option]:
    """Return options with the places that their intervals allow, without what all of them share: those that overlap share a range of places.

    Offers of one plan share its error too, so that a dearer one comes after a cheaper one for certain.
    """
    compared = measure(options, question.objective)
    middles = [(compared(option), _spread(option, question.startup_s), option.rate) for option in options]

    def before(one: tuple[float, float, Rate], other: tuple[float, float, Rate]) -> bool:
        return one[0] * one[1] < other[0] / other[1] or (one[2] is other[2] and one[0] < other[0])

    ranked = []
    for option, own in zip(options, middles, strict=True):
        better, worse = sum(before(other, own) for other in middles), sum(before(own, other) for other in middles)
        ranked.append(replace(option, rank_low=1 + better, rank_high=len(options) - worse))
    return ranked


def _spread(option: Option, startup_s: float) -> float:
    """Return the factor of error beside what all options share: that of the rate, for the part of the time that is training."""
    return 1 + (option.rate.own_spread - 1) * (1 - startup_s / option.seconds)


def preferred(option: Option) -> tuple[bool, int, bool, bool, bool]:
    """Return the properties that put one of several options within error first: days, few instances, sure memory, an accelerator with results, results of the step."""
    own, rate = option.offer.kind == "owned", option.rate
    proven = own or (rate.evidence in PROVEN and longer(rate) == 1)
    return option.seconds <= LONG_S, -option.instances, rate.memory == "fits", rate.seen or own, proven


def longer(rate: Rate) -> float:
    """Return the factor by which a step takes longer by its own results, if all are slower than predicted by more than a tie; else 1."""
    speed, known = rate.tokens_per_s or 0.0, rate.measured_high or math.inf
    return speed / known if known * ALIKE < speed else 1.0
