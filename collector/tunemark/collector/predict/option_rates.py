"""Rates of options: how fast, and whether it fits, for each model, method, row length, accelerator, device count and software.

`tunemark recommend` and the home page select from these rows and multiply by the size of the data and by a price. The evidence of a row
is the best available, in this order:

- `direct`: results of this model, method, row length, accelerator and device count. The rate is their geometric mean.
- `near`: results of this model, method and accelerator with another length or count. The rate is the prediction, corrected by half
  of its mean error for these results: the other half belongs to their software (`benchmarks/recommend_errors.py`).
- `predicted`: the prediction of the throughput model alone.
- `none`: nothing similar was measured, or the step does not fit; there is a reason instead of a rate.

Intervals are 90% intervals. The interval of a direct rate is for one more result of another document: the 90% quantile of the errors
when each stored result is computed from those of other documents in the same way. Other rates have the interval of the throughput model,
for any software of the level.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from statistics import fmean

import numpy as np

from tunemark.collector.audit.rule import Finding
from tunemark.collector.predict.estimate import QUANTILE, unmeasured
from tunemark.collector.predict.fit import ROW_VARIANCE, Combination, Fit, LogPrediction, Missing, Observed, architecture_of, generation_of
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
FEW = 3
"""Groups of results from which an error is estimated; with fewer it is the noise of the model."""
OWN_COUNTS = (1, 2, 4)
"""Devices of machines that readers own."""
APPLE = "Apple"
SINGLE = frozenset({APPLE})
"""Vendors of which only one device trains."""
RATES = frozenset({"tokens_per_s", "samples_per_s", "step_time_s", "train_time_s", "tokens", "epochs"})
"""Figures from which a rate is computed."""
NEAR_SHARE = 0.5
"""Share of the error at near results by which a prediction is corrected."""
COVERED = 0.90
MOST_DISPUTED = 3
SHOWN = 6
"""Most result ids of a row."""
PARALLEL_ABOVE = 4
"""With more models than this, several processes compute the rows."""

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
    """Calibration rows grouped by shared properties, and the errors of rates computed from them."""

    fitted: Fit
    residuals: Mapping[str, float]
    """Result id -> logarithm of its time / the predicted time for its software level."""
    groups: Mapping[Group, tuple[Observed, ...]]
    """Model, method, accelerator and software level -> rows."""
    disputed: Mapping[Group, tuple[Observed, ...]]
    """The same of results whose rate the audit calls suspicious."""
    direct_error: float
    """Error of a direct rate in log space for another document, not exceeded by 90% of the results."""
    levels: frozenset[tuple[str, SoftwareLevel]]
    """Vendors with the software levels of their results."""
    longest: Mapping[str, int]
    """Architecture of a model -> tokens of the longest rows."""
    reasons: dict[Group, Missing | None] = field(default_factory=dict)
    """Reasons of `missing`, by the properties that they depend on."""

    @classmethod
    def of(cls, fitted: Fit, suspicious: Collection[str] = ()) -> "RateEvidence":
        """Group the rows of a fit, except suspicious results, and compute the errors of direct rates by leaving out one document at a time."""
        predicted = fitted.predict_all([replace(row.config, stack="", release="") for row in fitted.rows])
        residuals = {
            row.id: row.log_seconds - estimate.log_seconds
            for row, estimate in zip(fitted.rows, predicted, strict=True)
            if isinstance(estimate, LogPrediction)
        }
        grouped: dict[Group, list[Observed]] = defaultdict(list)
        disputed: dict[Group, list[Observed]] = defaultdict(list)
        for row in fitted.rows:
            if row.id in residuals:
                (disputed if row.id in suspicious else grouped)[group_of(row.config)].append(row)
        errors: list[float] = []
        elsewhere: list[float] = []
        for row in (row for rows in grouped.values() for row in rows):
            length = row.config.shape.sequence_length
            same = [each for each in grouped[group_of(row.config)] if each is not row and is_direct(each, row.config.devices, length)]
            of_others = [each for each in same if each.config.source != row.config.source]
            for found, kept in ((same, errors), (of_others, elsewhere)):
                if found:
                    kept.append(row.log_seconds - fmean(each.log_seconds for each in found))
        longest: dict[str, int] = {}
        for row in fitted.rows:
            longest[row.config.architecture] = max(row.config.shape.sequence_length, longest.get(row.config.architecture, 0))
        levels = frozenset((row.config.accelerator.vendor, row.config.level) for row in fitted.rows)
        groups = {key: tuple(rows) for key, rows in grouped.items()}
        not_used = {key: tuple(rows) for key, rows in disputed.items()}
        return cls(fitted, residuals, groups, not_used, quantile_of(elsewhere if len(elsewhere) >= FEW else errors), levels, longest)

    def correction(self, near: Sequence[Observed]) -> float:
        """Return the correction of the logarithm of a predicted time for results near it."""
        return NEAR_SHARE * fmean(self.residuals[row.id] for row in near)

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


def quantile_of(errors: Sequence[float]) -> float:
    """Return the size that 90% of the errors do not exceed; the noise of the model with fewer than three errors."""
    return QUANTILE * math.sqrt(ROW_VARIANCE) if len(errors) < FEW else float(np.quantile(np.abs(errors), COVERED))


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
    pending: list[tuple[Row, Combination, Sequence[Observed]]] = []
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
        # Memory takes longest to compute, so the cheaper checks come first.
        missing = None if direct else evidence.missing(step, level, card, MOST_SLOTS)
        if missing is not None:
            rows.append(row | {"reason": missing.reason})
            continue
        memory = int((card.memory_gib or 0) * GIB)
        chosen, verdict = best_on(step, memory)
        row |= _memory(chosen, verdict, memory)
        missing = evidence.missing(step, level, card, chosen.shape.slots)
        if direct:
            # A result has run on this hardware, in some configuration.
            ran: Row = {"memory": "ran"} if verdict in {"tight", "no"} else {}
            rows.append(row | ran | _direct(evidence, devices, direct) | _cited(direct, trust))
        elif verdict == "no":
            rows.append(row | {"reason": f"does not fit: each device lacks {gib(chosen.needed_bytes - memory)}"})
        elif missing is not None:
            rows.append(row | {"reason": missing.reason})
        else:
            pending.append((row, Combination(card, devices, chosen.shape, level), found))
    return [*rows, *consistent(list(_predicted(evidence, pending, trust)))]


def consistent(rows: Sequence[Row]) -> list[Row]:
    """Return rows whose prediction for LoRA is at least that for full fine-tuning, and for QLoRA where no weights are gathered.

    Both do more work per token than LoRA: full fine-tuning computes gradients of all weights, and QLoRA expands the frozen ones. If both
    rates are predictions for the same recomputation and LoRA's is lower, the evidence does not separate the methods: both get the
    geometric mean, with an interval that holds both intervals. Sharded QLoRA gathers a quarter of LoRA's bytes and may be faster.
    """
    keys = ("sequence_length", "software", "accelerator", "devices", "checkpointing")
    changed = {(row["method"], *(row[key] for key in keys)): row for row in rows if row["evidence"] == "predicted"}
    for slower in (Method.FULL, Method.QLORA):
        for method, *same in [key for key in changed if key[0] == slower.value]:
            other, lora = changed[method, *same], changed.get((Method.LORA.value, *same))
            gathers = slower is Method.QLORA and lora is not None and lora["sharding"] not in {"single", "ddp"}
            if lora is None or gathers or lora["tokens_per_s"] >= other["tokens_per_s"]:
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
    return [changed.get((row["method"], *(row[key] for key in keys)), row) if row["evidence"] == "predicted" else row for row in rows]


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


def _direct(evidence: RateEvidence, devices: int, rows: Sequence[Observed]) -> Row:
    """Return the geometric mean of the rates of some results. One further result deviates from the mean of n by sqrt(1 + 1/n)."""
    width = evidence.direct_error * math.sqrt((1 + 1 / len(rows)) / 2)
    return _rate("direct", math.log(devices) - fmean(row.log_seconds for row in rows), width)


def _predicted(
    evidence: RateEvidence, pending: Sequence[tuple[Row, Combination, Sequence[Observed]]], trust: Mapping[str, str]
) -> Iterator[Row]:
    """Yield rows with their predictions, corrected by the results near them."""
    estimates = evidence.fitted.predict_all([config for _, config, _ in pending]) if pending else []
    for (row, config, near), estimate in zip(pending, estimates, strict=True):
        if isinstance(estimate, Missing):
            yield row | {"reason": estimate.reason}
            continue
        log_rate, width = math.log(config.devices) - estimate.log_seconds, QUANTILE * estimate.sd
        if near:
            yield row | _rate("near", log_rate - evidence.correction(near), width) | _cited(near, trust)
        else:
            yield row | _rate("predicted", log_rate, width)


def _rate(kind: str, log_rate: float, width: float) -> Row:
    low, middle, high = (math.exp(log_rate + shift) for shift in (-width, 0.0, width))
    # Six digits, so that the page and the command line compute with the same numbers.
    low, middle, high = (float(f"{rate:.6g}") for rate in (low, middle, high))
    return {"evidence": kind, "tokens_per_s": middle, "tokens_per_s_low": low, "tokens_per_s_high": high}


def _cited(rows: Sequence[Observed], trust: Mapping[str, str]) -> Row:
    """Return the results that a rate is based on, and the best of their trust levels."""
    levels = [trust.get(row.id, "published") for row in rows]
    best = next(level for level in ("reproduced", "measured", "converted", "published", levels[0]) if level in levels)
    return {"result_ids": [row.id for row in rows][:SHOWN], "results": len(rows), "trust": best}
