"""Rates of options: how fast, and whether it fits, for a model, a row length, and the accelerators and device counts of offers.

Every rate is the prediction of the throughput model for the plan that is shown. Results of the same step are among those that the model is
fitted to; they never replace its rate, since they were measured with plans of their own. With whole sources left out, rates of other
sources' results of the same step were 24% off in the median, and predictions for them 22% (`benchmarks/recommend_errors.py`).

The evidence of a rate says how near the results are that it rests on: `direct` is this model, method, row length, accelerator and device
count; `near` is another length or count; `predicted` is neither. With `none` there is a reason instead of a rate. Intervals are 90%
intervals of the throughput model, for any software of the level.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from tunemark.schema import plan_search
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import APPLE, AcceleratorCard, ModelCard
from tunemark.schema.facts.names import product_of
from tunemark.schema.formats import gib
from tunemark.schema.physics.architecture import count_parameters, special_mixers
from tunemark.schema.physics.families import FAMILIES, Mixer
from tunemark.schema.physics.stacks import STACKS, on_stack
from tunemark.schema.physics.work import Missing
from tunemark.schema.recommendation import LEVELS, NO_ROOM, STARTUP_S, Offer, Question, Rate, places_of
from tunemark.schema.throughput import ISSUING, Effects, LogPrediction, architecture_of, generation_of, interval_of, line_of, predict
from tunemark.schema.vocabulary import FITS, METHODS, Dtype, Method, SoftwareLevel

TRAINED = (Method.FULL, Method.LORA, Method.QLORA)
WITHOUT_4_BITS = ("AWS", "Google")
"""Vendors for whose devices neither bitsandbytes nor another trainer has kernels with weights of 4 bits."""
WITHOUT_TRITON = ("Kepler", "Maxwell", "Pascal", "Volta")
"""Architectures before the oldest one on which training with Triton's kernels is shown: notebooks for a T4 train Granite 4.0 H (document 060) and
Qwen3.5 (unsloth.ai/docs/models/qwen3.5/fine-tune)."""
KERNELS: dict[Mixer, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "delta rule": ("flash-linear-attention", ("NVIDIA", "AMD", "Intel"), ("Gaudi", *WITHOUT_TRITON)),
    "state space": ("mamba-ssm", ("NVIDIA", "AMD"), WITHOUT_TRITON),
    "convolution": ("causal-conv1d", (), ()),
}
"""Kind of block -> the package whose kernels predicted speeds assume, the vendors whose GPUs alone run it since it is in Triton, and which of
their architectures do not."""
SAME_LENGTH = 1.1
"""Results with rows that are longer or shorter by at most this factor count as direct evidence."""
TEXT_PART = ", text part"
"""End of the name of a card that leaves out the part of a model that reads images."""
PRE_TRAINING = 20
"""Tokens for each parameter that train a model from nothing at the least cost (Hoffmann et al. 2022)."""
SMALLEST_PART, LARGEST_TIMES = 0.5, 2
"""Experts may be fewer than any result has, and rows longer and devices more than with any result of a level of software, by these factors."""
EVIDENCE_TABLES = ("known_rates", "throughput_model", "throughput_covariances")
"""Tables of the database that a recommendation needs. A wheel ships them."""
MOST_CITED = 6
"""Most result ids of a rate."""
BEST_FIRST = ("reproduced", "measured", "converted", "published")
"""Trust levels: the evidence behind a result."""

Place = tuple[AcceleratorCard, int]
"""Accelerator and device count."""


# Evidence ------------------------------------------------------------------------------------------


LOOPS = tuple(name for name, stack in STACKS.items() if stack.loop)
"""The software stacks whose results say how fast their training loop is."""


@dataclass(frozen=True, slots=True)
class KnownRate:
    """A result that the throughput model is fitted to."""

    result_id: str
    architecture: str
    """The numbers of the model that determine the time per token."""
    encoder: bool
    method: str
    sequence_length: int
    accelerator: str
    vendor: str
    generation: str
    devices: int
    level: str
    """How far its software is tuned."""
    tokens_per_s: float
    """Of all devices."""
    offload: bool = False
    experts: int = 0
    """Of each block of the model; 0 without a mixture."""
    vocabulary: int = 0
    """Of the model: rates of models with the same blocks and another vocabulary differ."""
    block_format: str = ""
    """Format below 16 bits in which its blocks multiply."""
    trust: str = "published"
    suspicious: bool = False
    """True if the audit calls its rate suspicious: it is evidence of nothing."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The fitted model with its results."""

    effects: Effects
    results: tuple[KnownRate, ...]

    @classmethod
    def of_database(cls, read: Callable[[str], Iterable[Mapping[str, Any]]]) -> "Evidence":
        """Return the evidence in the database; `read` returns the rows of a query."""
        return cls.of_tables({table: read(f"from {table} order by all") for table in EVIDENCE_TABLES})

    @classmethod
    def of_tables(cls, tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> "Evidence":
        """Return the evidence in the sorted rows of its tables."""
        results, parameters, covariances = (tables[name] for name in EVIDENCE_TABLES)
        means = {row["parameter"]: row["mean"] for row in parameters}
        known = {(row["parameter"], row["other"]): row["covariance"] for row in covariances}
        places = {name: place for place, name in enumerate(dict.fromkeys(name for name, _ in known))}
        matrix = tuple(tuple(known.get((min(name, other), max(name, other)), 0.0) for other in places) for name in places)
        effects = Effects(places, tuple(means[name] for name in places), matrix)
        return cls(effects, tuple(KnownRate(**row) for row in results))


def unmeasured(results: Sequence[KnownRate], model: ModelCard, method: Method, card: AcceleratorCard, length: int) -> str | None:
    """Return the reason why nothing similar is known, or None.

    There is no prediction for a method or a vendor without results, for an encoder without results of encoders, for a mixture of far more
    experts than any result has, and for rows far longer than any calibration row of the method. Short ones wait for their host, which is predicted.
    QLoRA needs a QLoRA result on the vendor's devices, because 4-bit kernels are written for each vendor. A generation, and plain
    software on a vendor's devices, need no result of their own: with the results of one left out, 90% of its rates are within their intervals.
    """
    name, encoder = METHODS[method.value], FAMILIES[model.family].encoder
    alike = [row for row in results if row.method == method]
    if not alike:
        return f"no accepted result of {name}"
    if encoder and not any(row.encoder for row in alike):
        return f"this model is an encoder, and no accepted {name} result is for an encoder"
    experts = model.experts or 0
    # LoRA runs the same experts in the same way as full fine-tuning, with adapters on other layers. Four-bit experts have kernels of their own.
    run_alike = [*alike, *(row for row in results if method is Method.LORA and row.method == Method.FULL)]
    if experts and not any(row.experts >= SMALLEST_PART * experts for row in run_alike):
        most = max(row.experts for row in run_alike)
        return f"its blocks have {experts} experts, over twice the {most} of the {name} results that predictions use: beyond that, speed depends on the software"
    if not any(row.vendor == card.vendor for row in results):
        return f"no accepted result on {card.vendor} devices"
    if method is Method.QLORA and not any(row.vendor == card.vendor for row in alike):
        return f"no accepted QLoRA result on {card.vendor} devices; 4-bit kernels differ between vendors"
    longest = max(row.sequence_length for row in alike)
    if length > LARGEST_TIMES * longest:
        return f"sequence length {length:,}; accepted results have at most {longest:,}"
    return None


def _kernels(model: ModelCard) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the package for the blocks of a model that do not attend, the vendors, and the architectures without it; see `KERNELS`."""
    return next((KERNELS[mixer] for mixer, _ in special_mixers(model) if mixer in KERNELS), ("", (), ()))


def unsupported(model: ModelCard, card: AcceleratorCard, method: Method) -> str | None:
    """Return the reason why the blocks of a model do not run on an accelerator, or not as fast as is predicted, or None."""
    if method is Method.QLORA and card.vendor in WITHOUT_4_BITS:
        return f"no training software has weights of 4 bits on devices of {card.vendor}"
    package, vendors, without = _kernels(model)
    if vendors and (card.vendor not in vendors or card.architecture in without):
        return f"speeds of {model.name} assume the kernels of {package}, which are in Triton, and {card.name} runs none"
    if not FAMILIES[model.family].overflows_fp16 or plan_search.has_bf16(card):
        return None
    why = f"activations of {model.name} exceed the range of fp16, and {card.name} has no bf16"
    return f"{why}; Unsloth computes them in fp32 there, and no result says how fast"


# Rates ---------------------------------------------------------------------------------------------


def rates_for(
    question: Question,
    model: ModelCard,
    cards: Mapping[str, AcceleratorCard],
    offers: Iterable[Offer],
    evidence: Evidence,
    stack: str | None = None,
) -> list[Rate]:
    """Return the rates of a model that answer a question, on the hardware of the offers that it allows, with all software; with a stack, only with that asked for.

    `cards` are accelerators by key. Raises TunemarkError for rows that the model cannot read.
    """
    cautions(model, question.sequence_length)
    places = [(cards[key], devices) for key, devices in places_of(question, offers)]
    # Without one, only the usual stack counts: hardware on which another one alone would fit is not an option.
    software = [level for level in LEVELS if stack is None or level == question.software]
    asked = plan_search.Asked(question.given, stack or "", named=(*question.accelerators, *(offer.accelerator for offer in question.own)))
    return option_rates(model, question.sequence_length, places, evidence, software, asked)


def rates_on_stack(
    stack: str, question: Question, model: ModelCard, cards: Mapping[str, AcceleratorCard], offers: Iterable[Offer], evidence: Evidence
) -> list[Rate]:
    """Return the rates with a software stack, as tuned as it is, or as the question says for one that is plain."""
    level = STACKS[stack].level
    return rates_for(replace(question, software=question.software if level == "plain" else level), model, cards, offers, evidence, stack)


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans of a model with rows of this length; accelerators that are alike share them."""

    model: ModelCard
    length: int
    effects: Effects
    asked: plan_search.Asked
    made: dict[tuple[object, ...], tuple[list[plan_search.Candidate], str | None]] = field(default_factory=dict)

    def on(
        self, card: AcceleratorCard, devices: int, method: Method, level: SoftwareLevel
    ) -> tuple[list[plan_search.Candidate], str | None]:
        """Return the plans on an accelerator, or the reason why there are none."""
        alike = (
            method,
            devices,
            card.devices_per_unit,
            level,
            line_of(card),
            plan_search.has_bf16(card),
            plan_search.format_of_vendor(card) if level == "vendor" else None,
            card.vendor,
            card.architecture == plan_search.WITHOUT_FSDP,
        )
        if alike not in self.made:
            step = plan_search.step_on(card, self.model, method, self.length, devices, self.asked)
            step = plan_search.with_software(step, card, level, self.asked)
            config = plan_search.combination_on(card, step, level, self.asked)
            candidates = plan_search.plans_with_work(self.effects, config, self.asked)
            self.made[alike] = candidates, None if candidates else plan_search.without_stack(config, self.asked)
        return self.made[alike]


def option_rates(
    model: ModelCard,
    length: int,
    places: Iterable[Place],
    evidence: Evidence,
    software: Sequence[SoftwareLevel] = LEVELS,
    asked: plan_search.Asked = plan_search.NOTHING,
) -> list[Rate]:
    """Return the rates of a model with rows of this length: each method and level of software on each accelerator and device count.

    This alone decides whether a rate is known; where it is not, there is the reason.
    """
    too_long = _too_long(length, model)
    of_model, levels = _by_step(evidence.results, architecture_of(model)), {(row.vendor, row.level) for row in evidence.results}
    # What vendors' own software does on a device says little about that of others.
    encoder = FAMILIES[model.family].encoder
    seen = {(row.accelerator, row.level == "vendor") for row in evidence.results if row.encoder == encoder and not row.suspicious}
    several = {row.vendor for row in evidence.results if row.level != "vendor" and row.devices > 1}
    most = {level: max([0, *(row.devices for row in evidence.results if row.level == level)]) for level in LEVELS}
    reasons: dict[tuple[Method, str], str | None] = {}
    plans = Plans(model, length, evidence.effects, asked)
    rates: list[Rate] = []

    for (card, devices), method, asked_level in product(places, TRAINED, software):
        level = usual_level(card, evidence.results, encoder=encoder) if asked_level == "plain" and card.key in asked.named else asked_level
        found = [row for row in of_model.get((method.value, product_of(card), level), []) if not row.suspicious]
        direct: list[KnownRate] = []
        rate = Rate(method.value, length, asked_level, card.key, devices, "none", usual_software="" if level == asked_level else level)
        # Memory takes longest to compute, so what prevents any rate comes first.
        known = (card.vendor, level) in levels if level != "plain" else devices == 1 or card.vendor in several or asked.any_software
        if level == "vendor":
            # Its plans for several devices say nothing about one, but a document may be of any.
            known = any(row.devices == 1 or devices > 1 or asked.any_software for row in found)
        unknown = _unknown_software(level, devices, most[level], known=known)
        # The memory of a stack that is asked for is known without its speed.
        missing = no_training(card, devices) or unsupported(model, card, method)
        missing = missing or (plans.on(card, devices, method, level)[1] if asked.stack else unknown) or too_long
        if missing is None:
            candidates, missing = plans.on(card, devices, method, level)
        if missing is None:
            plan, verdict = plan_search.best_of(card, candidates)
            direct = [row for row in found if is_direct(row, devices, length, plan.shape.block_format)]
            rate = _planned(rate, plan, verdict, card.usable_bytes)
            if verdict not in FITS and not asked.stack:
                rate = replace(rate, other_stacks=plan.other_stacks(card))
            if (method, card.vendor) not in reasons:
                reasons[method, card.vendor] = unmeasured(evidence.results, model, method, card, length)
            missing = unknown or (None if direct else reasons[method, card.vendor])
            if verdict == "no" and not (asked.stack is None and rate.other_stacks):
                experts = ", with experts in 16 bits" if rate.whole_experts else ""
                missing = f"{NO_ROOM}each device lacks {gib(plan.needed_bytes - card.usable_bytes)}{experts}{_where_it_ran(of_model, rate)}"
        if missing is None:
            config = plan_search.combination_on(card, plan.shape, level, asked)
            rate = replace(rate, seen=(product_of(card), level == "vendor") in seen, loop=config.stack)
            rate = _with_speed(rate, predict(evidence.effects, config, plan.work), direct, found, model.vocabulary)
        rates.append(rate if missing is None else replace(rate, reason=missing))
    return consistent(rates)


def usual_level(card: AcceleratorCard, results: Sequence[KnownRate], *, encoder: bool) -> SoftwareLevel:
    """Return the level of the usual software on a device: that of its results of such models, if it compiles whole graphs, as TPUs do, and none is of plain software."""
    alike = [row for row in results if row.generation == generation_of(card) and row.encoder == encoder]
    known = set() if card.vendor in ISSUING else {row.level for row in alike}
    return "plain" if not known or "plain" in known else next(each for each in LEVELS if each in known)


def _by_step(results: Iterable[KnownRate], architecture: str) -> dict[tuple[str, str, str], list[KnownRate]]:
    """Return the results of an architecture by method, accelerator and level of software."""
    groups: dict[tuple[str, str, str], list[KnownRate]] = {}
    for row in (each for each in results if each.architecture == architecture):
        groups.setdefault((row.method, row.accelerator, row.level), []).append(row)
    return groups


def _too_long(length: int, model: ModelCard) -> str | None:
    learned = FAMILIES[model.family].learned_positions and length > model.context_length
    return f"{model.name} reads sequences of at most {model.context_length:,} tokens" if learned else None


def usual_startup_s(model: ModelCard) -> float:
    """Return the start-up time that is assumed without another one: five minutes, or that of reading the weights in 16 bits at 1 GB/s."""
    return max(STARTUP_S, 2 * count_parameters(model).total / 1e9)


def cautions(model: ModelCard, length: int, tokens: float = 0.0) -> str:
    """Return sentences about the software that speeds of a model assume, about as many tokens as train it from nothing, and rows longer than its context.

    Rotary positions have no end. Empty if there is nothing to say.

    Raises TunemarkError for rows that the model cannot read.
    """
    too_long = _too_long(length, model)
    if too_long is not None:
        raise TunemarkError("sequence_length", length, too_long)
    package, in_triton, _ = _kernels(model)
    own = "; memory is that of transformers' own code, which needs more" if in_triton else ""
    said = [f"Predicted speeds of {model.name} assume that {package} is installed{own}."] if package else []
    if FAMILIES[model.family].every_expert:
        each_token = f"transformers multiplies each token with all {model.experts} experts of {model.name}"
        said.append(f"{each_token}: software that does not, which counts as tuned, is several times as fast.")
    if TEXT_PART in model.name:
        said.append(f"The text part of {model.name.split(',')[0]} is counted: tokens of images, and the part that reads them, come on top.")
    each = tokens / count_parameters(model).total
    if each >= PRE_TRAINING:
        said.append(f"{each:,.0f} tokens for each parameter are pre-training, not fine-tuning.")
    if length > model.context_length:
        longer = f"{length:,} tokens are more than the context of {model.name}, {model.context_length:,}"
        said.append(f"{longer}: it needs scaled positions for them, such as YaRN.")
    return " ".join(said)


def no_training(card: AcceleratorCard, devices: int) -> str | None:
    """Return the reason why an accelerator is no option, or None."""
    if card.unit == "cpu":
        return "predictions are for accelerators, not for CPUs"
    if card.memory_gib is None:
        return card.why_no_training or "its card has no memory size"
    return card.why_no_training or (f"one {APPLE} device trains alone" if card.vendor == APPLE and devices > 1 else None)


def _unknown_software(level: SoftwareLevel, devices: int, most: int, *, known: bool) -> str | None:
    """Return the reason why nothing is known about software of a level, or None. `most` is the devices of its results.

    Plain software is known where a vendor has results, on several devices if these have; other software is known where results have it.
    """
    if not known and level == "plain":
        return "no accepted result of several devices of this vendor, except with its own software"
    if not known:
        return f"no accepted result with {level} software on these devices{' for this model and method' if level == 'vendor' else ''}"
    far = f"{devices} devices are over twice the {most} that accepted results with {level} software have at most"
    return far if devices > LARGEST_TIMES * most else None


def _where_it_ran(results: Mapping[tuple[str, str, str], Sequence[KnownRate]], rate: Rate) -> str:
    """Return the results of a step that the usual plan has no room for, as the end of a sentence; empty without any."""
    rows = [row for level in LEVELS for row in results.get((rate.method, rate.accelerator, level), []) if not row.suspicious]
    # What has room for longer rows has it for shorter ones, and weights that are in host memory leave room for longer ones.
    longest = rate.sequence_length / LARGEST_TIMES
    rows = [
        row for row in rows if row.devices == rate.devices and row.sequence_length >= (longest if row.offload else rate.sequence_length)
    ]
    parts = [
        (words, [row.result_id for row in rows if row.offload is waits][:MOST_CITED])
        for waits, words in (
            (False, "it ran with plans that need less"),
            (True, "it ran with weights or states in host memory (`tunemark estimate --set offload=true`)"),
        )
    ]
    return "".join(f"; {words}: {', '.join(ids)}" for words, ids in parts if ids)


def is_same_step(row: KnownRate, devices: int, length: int) -> bool:
    """Return True if a result has this device count and nearly this row length."""
    return row.devices == devices and 1 / SAME_LENGTH <= row.sequence_length / length <= SAME_LENGTH


def is_direct(row: KnownRate, devices: int, length: int, block_format: Dtype | None) -> bool:
    """Return True for the same step as a plan has it: in the memory of the devices, and with products in 16 bits or in fewer."""
    return is_same_step(row, devices, length) and not row.offload and (row.block_format == "") == (block_format is None)


def consistent(rates: Sequence[Rate]) -> list[Rate]:
    """Return rates of which LoRA's is at least that of full fine-tuning, and that of tuned software at least that of plain software, which it can run, too.

    Full fine-tuning does more work per token than LoRA: it computes gradients of all weights. If LoRA's rate is lower, the evidence does not
    separate the methods: full fine-tuning is as fast, with an interval that holds both intervals.
    """
    changed = {(rate.method, rate.software, rate.accelerator, rate.devices): rate for rate in rates}
    for key, full in changed.items():
        lora = changed.get((Method.LORA.value, full.software, full.accelerator, full.devices)) if full.method == Method.FULL.value else None
        if lora is not None and 0 < (lora.tokens_per_s or 0.0) < (full.tokens_per_s or 0.0):
            low = min(lora.tokens_per_s_low or 0.0, full.tokens_per_s_low or 0.0)
            high = max(lora.tokens_per_s_high or 0.0, full.tokens_per_s_high or 0.0)
            rate = replace(full, tokens_per_s=lora.tokens_per_s, tokens_per_s_low=low, tokens_per_s_high=high)
            changed[key] = replace(rate, merged=lora.method)
    for key, tuned in changed.items():
        plain = changed.get((tuned.method, "plain", tuned.accelerator, tuned.devices)) if tuned.software == "tuned" else None
        # A plan without room may recompute less.
        if plain is None or (plain.memory == "no" and tuned.memory != "no"):
            continue
        if tuned.tokens_per_s is not None and (plain.tokens_per_s or 0.0) > tuned.tokens_per_s:
            low = max(tuned.tokens_per_s_low or 0.0, plain.tokens_per_s_low or 0.0)
            high = max(tuned.tokens_per_s_high or 0.0, plain.tokens_per_s_high or 0.0)
            changed[key] = replace(tuned, tokens_per_s=plain.tokens_per_s, tokens_per_s_low=low, tokens_per_s_high=high)
    return list(changed.values())


def _planned(rate: Rate, plan: plan_search.Candidate, verdict: str, memory_bytes: int) -> Rate:
    """Return a rate with its plan and memory."""
    shape = plan.shape
    # Frozen weights are in a narrow format or as loaded, trained ones as the stack stores them.
    loaded = shape.packed if shape.method is Method.LORA and shape.packed is not None else shape.parameters
    stacked = shape if shape.method is Method.LORA else on_stack(shape, plan.stack, plan.fixed)
    stored = stacked.parameters if shape.method is Method.FULL else loaded
    return replace(
        rate,
        memory=verdict,
        needed_bytes=plan.needed_bytes,
        memory_bytes=memory_bytes,
        micro_batch=shape.micro_batch,
        weight_format=stored.value,
        master_weights=stacked.master_weights,
        optimizer=stacked.optimizer if shape.method is Method.FULL else "",
        whole_experts=not stacked.packs_experts,
        checkpointing=shape.checkpointing.value,
        sharding=plan_search.division_of(shape),
    )


def _with_speed(
    rate: Rate, estimate: LogPrediction | Missing, direct: Sequence[KnownRate], near: Sequence[KnownRate], vocabulary: int
) -> Rate:
    """Return a rate with its prediction and the results that it rests on, or with the reason for which there is none."""
    if isinstance(estimate, Missing):
        return replace(rate, reason=estimate.reason)
    speed = interval_of(estimate, rate.devices)
    rate = replace(rate, tokens_per_s=speed.value, tokens_per_s_low=speed.low, tokens_per_s_high=speed.high, own_spread=estimate.own_spread)
    # The direct ones if there are any, the most trusted first, and what those of its devices had.
    rows = sorted(direct or near, key=lambda row: BEST_FIRST.index(row.trust))
    if not rows:
        return replace(rate, evidence="predicted")
    ids = tuple(row.result_id for row in rows[:MOST_CITED])
    rate = replace(rate, evidence="direct" if direct else "near", result_ids=ids, results=len(rows), trust=rows[0].trust)
    own = sorted(row.tokens_per_s for row in direct if row.vocabulary == vocabulary)
    # Another vocabulary changes the rates of two accelerators alike.
    alike = own or sorted(row.tokens_per_s for row in direct)
    if not alike:
        return rate
    few, last = len(alike) // 8, len(alike) - 1
    rate = replace(rate, usual=(alike[few], alike[last // 2], alike[last - few]))
    return replace(rate, measured_low=own[0], measured_high=own[-1]) if own else rate
