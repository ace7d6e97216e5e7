"""Rates of options: how fast, and whether it fits, for each model, method, row length, accelerator, device count and software.

`tunemark recommend` and the home page select from these rows and multiply by the size of the data and by a price. Every rate is the
prediction of the throughput model for the plan that is shown. Results of the same step are among those that the model is fitted to; they
never replace its rate, since they were measured with plans of their own. With whole sources left out, rates of other sources' results of
the same step are 24% off in the median of 27 results, and predictions for them 15% (`benchmarks/recommend_errors.py`).

The evidence of a row says how near the results are that it rests on: `direct` is this model, method, row length, accelerator and device
count; `near` is another length or count; `predicted` is neither. With `none` there is a reason instead of a rate. Intervals are 90%
intervals of the throughput model, for any software of the level.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product

from tunemark.collector.audit.rule import Finding
from tunemark.collector.predict.estimate import interval_of, unmeasured
from tunemark.collector.predict.fit import Combination, Fit, Missing, Observed, architecture_of, generation_of
from tunemark.collector.store.database import Row
from tunemark.schema.facts.cards import AcceleratorCard, ModelCard, PriceRow, current_prices
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB, gib
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.memory_states import MemoryVerdict
from tunemark.schema.physics.training_shape import Sharding, TrainingShape
from tunemark.schema.recommendation import NODES
from tunemark.schema.vocabulary import AuditVerdict, Checkpointing, Dtype, Method, SoftwareLevel

LENGTHS = (512, 2048, 4096, 8192, 16384, 32768)
"""Row lengths of decoders, in tokens. A question about another length uses the next longer one."""
ENCODER_LENGTHS = (128, 512)
METHODS = (Method.FULL, Method.LORA, Method.QLORA)
LEVELS: tuple[SoftwareLevel, ...] = ("plain", "tuned", "vendor")
SAME_LENGTH = 1.1
"""Results with rows that are longer or shorter by at most this factor count as direct evidence."""
MOST_SLOTS = 4096
"""Tokens of a micro-batch above which more rows hardly change the rate of tokens."""
RANK = 16
"""Rank of adapters, on all linear layers."""
OWN_COUNTS = (1, 2, 4)
"""Devices of machines that readers own."""
APPLE = "Apple"
SINGLE = frozenset({APPLE})
"""Vendors of which only one device trains."""
RATES = frozenset({"tokens_per_s", "samples_per_s", "step_time_s", "train_time_s", "tokens", "epochs"})
"""Figures from which a rate is computed."""
MOST_DISPUTED = 3
SHOWN = 6
"""Most result ids of a row."""

Place = tuple[str, int]
"""Accelerator and device count."""
Group = tuple[object, ...]


# Configurations ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Configuration:
    """A step with the memory that it needs."""

    shape: TrainingShape
    needed_bytes: int
    fit_limits: Mapping[MemoryVerdict, int]
    """Least device memory for each verdict."""


@dataclass(frozen=True, slots=True)
class Step:
    """A training step, before its configuration is chosen."""

    model: ModelCard
    method: Method
    length: int
    devices: int
    tuned: bool
    """With fused kernels."""
    bf16: bool = True
    """The device multiplies bf16."""


@cache
def configuration(step: Step, rows: int, checkpointing: Checkpointing, sharding: Sharding) -> Configuration:
    """Return a configuration of a step with micro-batches of this many rows."""
    model = step.model
    # Devices without bf16, such as V100 and T4, compute in fp16. Updates of fp16 weights underflow, so trained weights are in fp32.
    mixed = not step.bf16 and step.method is Method.FULL
    stored = Dtype.BF16 if step.bf16 else Dtype.FP32 if mixed else Dtype.FP16
    shape = TrainingShape(
        model,
        step.method,
        step.length,
        rows,
        lora_rank=RANK,
        checkpointing=checkpointing,
        sharding=sharding,
        world_size=step.devices,
        loss="fused" if step.tuned else "upcast",
        attention="eager" if model.family == "gemma2" else "sdpa",
        parameters=stored,
        activations=stored,
        autocast=Dtype.FP16 if mixed else None,
    )
    ledger = estimate_memory(shape)
    return Configuration(shape, ledger.needed, ledger.fit_limits)


@cache
def best_on(step: Step, memory_bytes: int) -> tuple[Configuration, MemoryVerdict]:
    """Return the fastest configuration that fits or probably fits devices of this memory, else one that is tight, else the smallest.

    Fastest first: without sharding before sharded, without recomputation before with it, then larger micro-batches.
    """
    shardings: tuple[Sharding, ...] = ("single",)
    if step.devices > 1:
        shardings = ("fsdp2",) if step.method is Method.FULL else ("ddp", "fsdp2")
    sizes = dict.fromkeys((max(1, MOST_SLOTS // step.length), 1))
    tried: list[tuple[Configuration, MemoryVerdict]] = []
    for sharding, checkpointing, rows in product(shardings, (Checkpointing.NONE, Checkpointing.FULL), sizes):
        candidate = configuration(step, rows, checkpointing, sharding)
        verdict: MemoryVerdict = next((word for word, least in candidate.fit_limits.items() if memory_bytes >= least), "no")
        if verdict in {"fits", "probably"}:
            return candidate, verdict
        tried.append((candidate, verdict))
    return min(tried, key=lambda pair: (pair[1] != "tight", pair[0].needed_bytes))


# Evidence ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RateEvidence:
    """The fitted model, and its results grouped by the properties that direct and near evidence share."""

    fitted: Fit
    groups: Mapping[Group, Sequence[Observed]]
    """Model, method, accelerator and software level -> rows."""
    disputed: Mapping[Group, Sequence[Observed]]
    """The same of results whose rate the audit calls suspicious."""
    levels: frozenset[tuple[str, SoftwareLevel]]
    """Vendors with the software levels of their results."""
    longest: Mapping[str, int]
    """Architecture of a model -> tokens of the longest rows."""
    reasons: dict[Group, Missing | None] = field(default_factory=dict)
    """Reasons of `missing`, by the properties that they depend on."""

    @classmethod
    def of(cls, fitted: Fit, suspicious: Collection[str] = ()) -> "RateEvidence":
        """Group the rows of a fit; suspicious results are evidence of nothing."""
        groups: dict[Group, list[Observed]] = defaultdict(list)
        disputed: dict[Group, list[Observed]] = defaultdict(list)
        longest: dict[str, int] = {}
        for row in fitted.rows:
            (disputed if row.id in suspicious else groups)[group_of(row.config)].append(row)
            longest[row.config.architecture] = max(row.config.shape.sequence_length, longest.get(row.config.architecture, 0))
        levels = frozenset((row.config.accelerator.vendor, row.config.level) for row in fitted.rows)
        return cls(fitted, groups, disputed, levels, longest)

    def missing(self, step: "Step", level: SoftwareLevel, card: AcceleratorCard, slots: int) -> Missing | None:
        """Return the reason why nothing similar was measured, or None; `slots` is the tokens of a micro-batch.

        Software of one level does not exist on every vendor's devices, so there must be a result of the level on one of them.
        """
        model, method, length = step.model, step.method, step.length
        if (card.vendor, level) not in self.levels:
            return Missing(f"no accepted result with {level} software on {card.vendor} devices")
        key = (method, FAMILIES[model.family].encoder, generation_of(card), length, slots)
        if key not in self.reasons:
            self.reasons[key] = unmeasured(self.fitted.rows, model, method, card, length=length, slots=slots)
        return self.reasons[key]


def group_of(config: Combination) -> Group:
    """Return the properties that direct and near evidence share."""
    return config.architecture, config.shape.method, config.accelerator.key, config.level


def is_direct(row: Observed, devices: int, length: int) -> bool:
    """Return True if a row has this device count and nearly this row length, with everything in the memory of the devices, as options have."""
    ratio, offloaded = row.config.shape.sequence_length / length, row.config.shape.offload
    return row.config.devices == devices and 1 / SAME_LENGTH <= ratio <= SAME_LENGTH and not offloaded


# Rows ----------------------------------------------------------------------------------------------


def places(facts: FactBase) -> list[Place]:
    """Return accelerator and device count of each offer, of several instances where a fabric joins them, and of machines that readers own."""
    found: set[Place] = set()
    for key, card in facts.accelerators.items():
        if card.unit != "cpu" and card.memory_gib is not None:
            several = card.unit == "device" and card.vendor not in SINGLE
            found.update((key, count) for count in (OWN_COUNTS if several else OWN_COUNTS[:1]))
    for price in current_prices(facts.prices):
        card = facts.accelerators[price.accelerator]
        if card.unit != "cpu" and card.memory_gib is not None and price.accelerator_count == int(price.accelerator_count):
            found.update((price.accelerator, int(price.accelerator_count) * nodes) for nodes in nodes_of(facts, price))
    return sorted(found)


def has_bf16(card: AcceleratorCard) -> bool:
    """Return True unless the card has a peak in fp16 and none in bf16. The GPUs of Apple compute in bf16 at the peak of fp16."""
    return card.vendor == APPLE or Dtype.FP16 not in card.peak_tflops or Dtype.BF16 in card.peak_tflops


def nodes_of(facts: FactBase, price: PriceRow) -> tuple[int, ...]:
    """Return the numbers of instances that can be rented together for one training."""
    return NODES if facts.price_basis.fabric_of(price.provider, price.instance) else NODES[:1]


def models_asked(facts: FactBase) -> list[ModelCard]:
    """Return the models that are on a model hub, so that a reader can fine-tune them."""
    return [card for card in facts.models.values() if card.hub_id is not None]


def lengths_of(model: ModelCard, evidence: RateEvidence) -> tuple[int, ...]:
    """Return the row lengths of a model's rows: none is longer than its context, unless there are results of such rows."""
    family = FAMILIES[model.family]
    lengths = ENCODER_LENGTHS if family.encoder else LENGTHS
    if family.learned_positions:
        return (*(length for length in lengths if length < model.context_length), model.context_length)
    longest = max(evidence.longest.get(architecture_of(model), 0), model.context_length)
    return tuple(length for length in lengths if length <= longest)


def option_rows(facts: FactBase, fitted: Fit, trust: Mapping[str, str], findings: Iterable[Finding] = ()) -> Iterator[list[Row]]:
    """Yield the rows of the table `option_rates`, those of one model at a time. `trust` is the trust level of each result.

    A result whose rate the audit calls suspicious is neither direct nor near evidence.
    """
    suspicious = frozenset(
        finding.records[0]
        for finding in findings
        if finding.verdict is AuditVerdict.SUSPICIOUS and not RATES.isdisjoint(finding.quantities)
    )
    evidence, offered = RateEvidence.of(fitted, suspicious), [(facts.accelerators[key], devices) for key, devices in places(facts)]
    for model in models_asked(facts):
        yield rows_of_model(model, offered, evidence, trust)


def rows_of_model(
    model: ModelCard, offered: Sequence[tuple[AcceleratorCard, int]], evidence: RateEvidence, trust: Mapping[str, str]
) -> list[Row]:
    """Return the rows of a model on the offered accelerators and device counts."""
    architecture = architecture_of(model)
    rows: list[Row] = []
    pending: list[tuple[Row, Combination]] = []
    for method, level, length, (card, devices) in product(METHODS, LEVELS, lengths_of(model, evidence), offered):
        found = evidence.groups.get((architecture, method, card.key, level), ())
        if level == "vendor" and not found:
            continue
        row = _row(model, method, length, level, card, devices)
        step = Step(model, method, length, devices, level != "plain", has_bf16(card))
        direct = [each for each in found if is_direct(each, devices, length)]
        suspected = evidence.disputed.get((architecture, method, card.key, level), ())
        if suspected:
            row["disputed"] = _disputed([each for each in suspected if each.config.devices == devices], length, direct=bool(direct))
        # Memory takes longest to compute, so the cheaper check comes first.
        missing = None if direct else evidence.missing(step, level, card, MOST_SLOTS)
        if missing is None:
            memory = int((card.memory_gib or 0) * GIB)
            chosen, verdict = best_on(step, memory)
            row |= _memory(chosen, verdict, memory)
            missing = None if direct else evidence.missing(step, level, card, chosen.shape.slots)
            if direct and verdict in {"tight", "no"}:
                # A result has run on this hardware, in some configuration.
                row["memory"] = "ran"
            elif verdict == "no":
                missing = Missing(f"does not fit: each device lacks {gib(chosen.needed_bytes - memory)}")
        if missing is not None:
            rows.append(row | {"reason": missing.reason})
            continue
        row |= {"evidence": "direct" if direct else "near" if found else "predicted"} | (_cited(direct or found, trust) if found else {})
        pending.append((row, Combination(card, devices, chosen.shape, level)))
    return [*rows, *consistent(list(_predicted(evidence.fitted, pending)))]


def consistent(rows: Sequence[Row]) -> list[Row]:
    """Return rows whose rate of LoRA is at least that of full fine-tuning, and of QLoRA where no weights are gathered.

    Both do more work per token than LoRA: full fine-tuning computes gradients of all weights, and QLoRA expands the frozen ones. If LoRA's
    rate is lower, the evidence does not separate the methods: both get the geometric mean, with an interval that holds both intervals.
    Sharded QLoRA gathers a quarter of LoRA's bytes, and QLoRA may fit without recomputation where LoRA does not: then it may be faster.
    """
    keys = ("sequence_length", "software", "accelerator", "devices")
    changed = {(row["method"], *(row[key] for key in keys)): row for row in rows if row["tokens_per_s"] is not None}
    for slower in (Method.FULL, Method.QLORA):
        for method, *same in [key for key in changed if key[0] == slower.value]:
            other, lora = changed[method, *same], changed.get((Method.LORA.value, *same))
            if lora is None or lora["tokens_per_s"] >= other["tokens_per_s"]:
                continue
            gathers = slower is Method.QLORA and lora["sharding"] not in {"single", "ddp"}
            if gathers or (slower is Method.QLORA and lora["checkpointing"] != other["checkpointing"]):
                continue
            shared = {
                "tokens_per_s": float(f"{math.sqrt(lora['tokens_per_s'] * other['tokens_per_s']):.6g}"),
                "tokens_per_s_low": min(lora["tokens_per_s_low"], other["tokens_per_s_low"]),
                "tokens_per_s_high": max(lora["tokens_per_s_high"], other["tokens_per_s_high"]),
            }
            pair = (lora, other)
            changed |= {
                (row["method"], *same): row | shared | {"merged": beside["method"]}
                for row, beside in zip(pair, reversed(pair), strict=True)
            }
    return [changed.get((row["method"], *(row[key] for key in keys)), row) for row in rows]


def _row(model: ModelCard, method: Method, length: int, level: SoftwareLevel, card: AcceleratorCard, devices: int) -> Row:
    """Return a row without a rate and without memory."""
    return {
        "model": model.key,
        "method": method.value,
        "sequence_length": length,
        "software": level,
        "accelerator": card.key,
        "devices": devices,
        "evidence": "none",
        **dict.fromkeys(("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "memory", "needed_bytes", "memory_bytes")),
        **dict.fromkeys(("micro_batch", "weight_format", "checkpointing", "sharding", "trust", "reason", "merged")),
        "result_ids": [],
        "disputed": [],
        "results": 0,
    }


def _disputed(rows: Sequence[Observed], length: int, *, direct: bool) -> list[Row]:
    """Return results on the same devices that are not used with their rates, the first by id.

    If an option has no direct result, those of another row length count too, since they would be the nearest.
    """
    alike = [row for row in rows if is_direct(row, row.config.devices, length)]
    first = sorted(alike if direct or alike else rows, key=lambda row: row.id)[:MOST_DISPUTED]
    return [
        {
            "result_id": row.id,
            "tokens_per_s": float(f"{row.config.devices * math.exp(-row.log_seconds):.6g}"),
            "sequence_length": row.config.shape.sequence_length,
        }
        for row in first
    ]


def _memory(chosen: Configuration, verdict: MemoryVerdict, memory_bytes: int) -> Row:
    """Return the configuration and its memory."""
    shape = chosen.shape
    return {
        "memory": verdict,
        "needed_bytes": chosen.needed_bytes,
        "memory_bytes": memory_bytes,
        "micro_batch": shape.micro_batch,
        "weight_format": shape.parameters.value,
        "checkpointing": shape.checkpointing.value,
        "sharding": shape.sharding,
    }


def _predicted(fitted: Fit, pending: Sequence[tuple[Row, Combination]]) -> Iterator[Row]:
    """Yield rows with their rates. Six digits, so that the page and the command line compute with the same numbers."""
    estimates = fitted.predict_all([config for _, config in pending]) if pending else []
    for (row, config), estimate in zip(pending, estimates, strict=True):
        if isinstance(estimate, Missing):
            yield row | {"evidence": "none", "reason": estimate.reason}
            continue
        rate = interval_of(estimate, config.devices)
        names = {"tokens_per_s": rate.value, "tokens_per_s_low": rate.low, "tokens_per_s_high": rate.high}
        yield row | {name: float(f"{value:.6g}") for name, value in names.items()}


def _cited(rows: Sequence[Observed], trust: Mapping[str, str]) -> Row:
    """Return the results that a rate rests on, and the best of their trust levels."""
    levels = [trust.get(row.id, "published") for row in rows]
    best = next(level for level in ("reproduced", "measured", "converted", "published", levels[0]) if level in levels)
    return {"result_ids": [row.id for row in rows][:SHOWN], "results": len(rows), "trust": best}
