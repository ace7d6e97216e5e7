"""Calibration rows: the accepted results with a known rate that the audit does not refute; and the figures that follow from them.

A figure that a document leaves ambiguous is filled in if the audit excludes every other reading, so that the database, the pages and
the predictor agree. Each derived figure carries its calculation as a fact of the topic `derived`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tunemark.collector.audit.bounds import SIXTEEN_BIT, fastest_format, software_of
from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped, source_of
from tunemark.collector.audit.printed_figures import precision_class
from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.audit.rule import Finding, refutation
from tunemark.collector.audit.token_rates import TokenRate, rows_per_step, samples_per_s, token_rates
from tunemark.collector.predict.fit import Observed, observe, without_copies
from tunemark.collector.store.database import Rows, fact
from tunemark.schema.derive import Derived
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.families import FAMILIES
from tunemark.schema.physics.flops import flops_ledger, palm_flops
from tunemark.schema.physics.stacks import STACKS
from tunemark.schema.physics.training_shape import TrainingShape, shape_of_plan, shape_problem
from tunemark.schema.physics.utilisation import part_of_card, work_in
from tunemark.schema.physics.work import Missing
from tunemark.schema.records.submission import Submission
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.throughput import NOISE, Combination
from tunemark.schema.vocabulary import Dtype, Method, SoftwareLevel, Status

FOLLOWS_FROM = {
    "tokens_per_s": {"tokens_per_s"},
    "tokens": {"tokens", "train_time_s", "tokens_per_s"},
    "samples_per_s": {"samples_per_s"},
    "step_time_s": {"step_time_s", "tokens_per_s"},
    "epochs": {"epochs", "train_time_s", "wall_s"},
}
"""Figure that gives tokens per second -> claims that the rate depends on."""
OF_FULL_ROWS = {"samples_per_s", "epochs"}
"""Figures that count rows, which have a known number of slots if all have one length."""
RUN_CONDITIONS = {"precision"}
"""Conditions that every rate depends on, besides those that it follows from."""
ONLY_READING = "the only reading that no audit finding on this document excludes"
MLPERF_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")

Subjects = dict[str, list[Finding]]
"""Result -> findings about it."""
Figure = tuple[float | None, str]
"""A value, or None, with its calculation or the reason why it is unknown."""
CalibrationOutcome = tuple[str, Observed | Missing]
"""A result id, with its calibration row or the reason why it is not used."""


@dataclass(frozen=True)
class Calibration:
    """Results used for calibration, results not used, and the evidence and the audit that they follow from."""

    by_result: dict[str, Observed]
    """Result id -> its row, copies included."""
    refused: dict[str, str]
    """Result id -> reason why its rate is not used."""
    evidence: Evidence
    subjects: Subjects

    @cached_property
    def rows(self) -> tuple[Observed, ...]:
        """Rows without copies."""
        return without_copies(self.by_result.values())

    def unused(self) -> list[dict[str, str]]:
        """Return the results with a rate that predictions do not use, copies included, with the reason."""
        copies = {copy: "repeats another result's rate for the same configuration" for row in self.rows for copy in row.same}
        return [{"result_id": result, "reason": reason} for result, reason in sorted((self.refused | copies).items())]

    def figures(self, result: AuditedResult) -> dict[str, Figure]:
        """Return the derived figures of a published or converted result, each with its calculation or the reason why it is unknown.

        Without a calibration row they follow from rows per second, provided that the token lengths of its dataset are known.
        """
        # Of rows padded to one length, calibration counts the slots.
        if result.id in self.by_result and result.conditions.padding != "static":
            return _figures(self.by_result[result.id], result)
        figures = dict(_of_padded_rows(result, self.evidence.facts, self.subjects))
        if "tokens_per_s" not in figures and result.id in self.refused:
            return {"mfu": (None, self.refused[result.id])}
        return figures


def calibrate(evidence: Evidence, findings: Collection[Finding]) -> Calibration:
    """Return the calibration rows of the evidence."""
    by_subject = grouped(findings, lambda finding: finding.records[0])
    # A term has one meaning throughout a document.
    of_document = grouped(findings, lambda finding: source_of(finding.records[0]))
    excluded = {document: frozenset(reading for each in group for reading in each.excluded) for document, group in of_document.items()}
    documents = (*_published(evidence, by_subject, excluded), *_converted(evidence, by_subject))
    outcomes = (*documents, *(run.calibration for run in evidence.results if run.calibration is not None))
    by_result = {result: row for result, row in outcomes if isinstance(row, Observed)}
    refused = {result: row.reason for result, row in outcomes if isinstance(row, Missing)}
    return Calibration(by_result, refused, evidence, by_subject)


# Published results ---------------------------------------------------------------------------------


def _published(evidence: Evidence, subjects: Subjects, readings: Mapping[str, Collection[str]]) -> Iterator[CalibrationOutcome]:
    facts = evidence.facts
    for run in evidence.published:
        rate = rate_of(run, readings.get(run.source, ()))
        if not isinstance(rate, TokenRate):
            yield from [] if rate is None else [(run.id, rate)]
            continue
        software, about = software_of(run, facts), RUN_CONDITIONS.union(rate.conditions)
        reason = refutation(subjects.get(run.id, ()), FOLLOWS_FROM[rate.quantity], about) or software.left_out
        # The time of a token hardly depends on the number of rows that are computed at once.
        conditions = run.conditions.model_copy(update={"micro_batch": run.conditions.micro_batch or 1})
        shape = published_shape(conditions, facts, facts.known.memory_reading(run.source))
        if reason is not None:
            yield run.id, Missing(reason)
        elif run.accelerator is None or shape is None:
            stated = run.accelerator and conditions.model and conditions.sequence_length
            yield run.id, Missing("adapters or split are not covered" if stated else "accelerator, model or row length is not stated")
        else:
            per_row, stack = max(1.0, run.devices / (run.replicas or run.devices)), software.name or run.source
            # A document's rows of Neuron devices are of other software than those of its GPUs.
            stack += " neuron" if any("neuron" in package for package in run.conditions.framework) else ""
            shape = shape_as_run(shape, run, facts, software.level)
            for each in STACKS.values():
                shape = each.with_adapters(shape) if each.loop == stack else shape
            config = Combination(run.accelerator, run.devices, shape, software.level, stack, "", per_row)
            reading = f"; read as {rate.meaning_words}, {ONLY_READING}" if rate.meaning else ""
            yield run.id, observe(run.id, config, rate.tokens_per_s.value, f"{rate.formula or 'as claimed'}{reading}")


def rate_of(run: AuditedResult, excluded: Collection[str]) -> TokenRate | Missing | None:
    """Return the first rate of tokens with one reading that is not excluded, the reason why there is none, or None without any rate."""
    rates = token_rates(run)
    counted = [
        rate
        for rate in rates
        if rate.quantity in FOLLOWS_FROM and (run.conditions.padding in {"none", "static"} or rate.quantity not in OF_FULL_ROWS)
    ]
    left = [rate for rate in counted if rate.meaning and rate.meaning_words not in excluded]
    usable = [rate for rate in counted if not rate.meaning] or (left if len(left) == 1 else [])
    if usable:
        return usable[0]
    if counted:
        return Missing("its rate has several readings")
    if rates or samples_per_s(run) is not None or "step_time_s" in run.claims:
        return Missing("its rate counts rows, and the tokens in them are not known")
    return None


def shape_as_run(shape: TrainingShape, run: AuditedResult, facts: FactBase, level: SoftwareLevel) -> TrainingShape:
    """Return the shape as the software runs it.

    transformers computes the attention of Gemma 2 and gpt-oss eagerly and all experts of Llama 4, tuned loops have kernels for both. Quantised
    layers multiply in fp32 if that is known, else in 16 bits.
    """
    shape = replace(shape, grouped_experts=level != "plain")
    if FAMILIES[shape.model.family].eager and level == "plain":
        shape = replace(shape, attention="eager")
    if shape.method is Method.QLORA and not facts.known.memory_reading(run.source).because:
        shape = replace(shape, parameters=Dtype.BF16, activations=Dtype.BF16)
    return shape


# Converted results ---------------------------------------------------------------------------------


def _converted(evidence: Evidence, subjects: Subjects) -> Iterator[CalibrationOutcome]:
    for run, (rate,) in ((run, rates) for run, rates in evidence.with_intervals("samples_per_s") if run.converted):
        stated, accelerator, software = run.conditions, run.accelerator, software_of(run, evidence.facts)
        count, batch, length = stated.accelerator_count, stated.global_batch, stated.sequence_length
        reason = refutation(subjects.get(run.id, ()), {"samples_per_s"}, RUN_CONDITIONS)
        if reason is not None or run.model is None or accelerator is None or not count or not batch or not length:
            yield run.id, Missing(reason or "accelerator, devices or batch is not stated")
            continue
        # Loops of this benchmark are fully fused. A packed row is computed by one device, or by a group of them.
        shape = TrainingShape(
            run.model,
            stated.method,
            length,
            lora_rank=run.setting("lora_rank") or 16,
            lora_targets=MLPERF_TARGETS,
            lora_dropout=0.1,
            adapters=Dtype.BF16,
            loss="fused",
            block_format=software.block_format if software.block_format in accelerator.peak_tflops else None,
        )
        harness, _, release = run.source.partition("-")
        config = Combination(accelerator, count, shape, software.level, harness, release, max(1.0, count / batch))
        yield run.id, observe(run.id, config, rate.value * length, f"{rate.value:.4g} packed rows/s x {length:,} tokens")


# Measured results ----------------------------------------------------------------------------------


def calibration_outcome(submission: Submission, result_id: str, facts: FactBase, derived: Derived) -> CalibrationOutcome | None:
    """Return the calibration row of a submission, or the reason why there is none; None for a failed run.

    Used are results on devices with a card whose gates passed and whose rate is known better than the model predicts one: a run that is too
    short to be ranked still says more than none. Slots are counted, because padding is computed too.
    """
    if submission.outcome.status is not Status.OK:
        return None
    plan = submission.plan
    model, accelerator = facts.models.get(plan.model.key), facts.accelerators.get(plan.device.accelerator or "")
    if model is None or accelerator is None:
        return result_id, Missing("a device or model without a card")
    rate, window = derived.tokens_per_s, derived.window
    if rate is None or window is None or not derived.usable or rate.relative_half_width > NOISE:
        return result_id, Missing(f"a gate failed, or fewer than {RANKABLE_STEPS} steps, or an interval of more than +-{NOISE:.0%}")
    problem, part = shape_problem(plan, model), part_of_card(submission, accelerator)
    if accelerator.unit == "cpu":
        return result_id, Missing("a CPU: predictions are for accelerators")
    if problem is not None or part != 1:
        return result_id, Missing(problem or "a device that is only a part of the device on its card")
    work, count = work_in(submission.trace, window), plan.device.count
    shape = shape_of_plan(plan, model)
    config = Combination(accelerator, count, shape, plan.software_level, "measured", "", max(1.0, count / plan.batch.data_parallel))
    return result_id, observe(result_id, config, work.counts.slot_tokens / work.seconds)


# Figures that follow from the rows -----------------------------------------------------------------

RATE_OF_ROWS = frozenset({"samples_per_s", "epochs", "train_time_s", "wall_s"})
"""Figures from which rows per second follow."""
CONDITIONS_OF_ROWS = frozenset({"sequence_length", "dataset", "precision"})


def add_derived_figures(rows: Rows, calibration: Calibration) -> None:
    """Fill in the derived figures of published and converted results in `result_rows`, and add their calculations to `result_facts`."""
    for row in rows["result_rows"]:
        result = calibration.evidence.by_id.get(row["result_id"])
        if result is None or result.measured:
            continue
        row["software_level"] = software_of(result, calibration.evidence.facts).level
        for name, (value, reason) in calibration.figures(result).items():
            if row.get(name) is None:
                row[name] = value
                rows["result_facts"].append({"result_id": result.id, **fact("derived", name, value, reason)})


def _figures(observed: Observed, result: AuditedResult) -> dict[str, Figure]:
    config, rate = observed.config, observed.tokens_per_s
    shape = config.shape
    per_sample = f"{rate:,.4g} tokens/s / {shape.sequence_length:,} tokens of a row"
    figures: dict[str, Figure] = {"tokens_per_s": (rate, observed.basis), "samples_per_s": (rate / shape.sequence_length, per_sample)}
    rows = rows_per_step(result)
    if rows is not None:
        step_s = rows * shape.sequence_length / rate
        figures["step_time_s"] = (step_s, f"{rows} rows of an optimizer step x {shape.sequence_length:,} tokens / {rate:,.4g} tokens/s")
    return figures | dict(_utilisation(shape, rate, config.accelerator, config.devices, result))


def _utilisation(
    shape: TrainingShape, rate: float, card: AcceleratorCard, devices: int, result: AuditedResult, hfu_unknown: str | None = None
) -> Iterator[tuple[str, Figure]]:
    """Yield FLOP/s and utilisation; `hfu_unknown` is a reason why recomputed work is unknown. See definitions#mfu."""
    ledger = flops_ledger(shape)
    each = ledger.model_flops / ledger.tokens
    yield "model_flop_per_s", (each * rate, f"{each / 1e9:.4g} GFLOP per token x {rate:,.4g} tokens/s")
    peak, words = _peak_flop_per_s(card, devices, shape.method, result, each * rate)
    if peak is None:
        yield "mfu", (None, words)
        return
    yield "mfu", (each * rate / peak, f"model FLOP/s / {words}")
    if hfu_unknown is None:
        yield "mfu_palm", (palm_flops(shape) / shape.slots * rate / peak, f"FLOPs as PaLM counts them x tokens/s / {words}")
    if hfu_unknown is None and "gradient_checkpointing" not in result.conditions.settings:
        hfu_unknown = "it is not stated whether activations are recomputed"
    hardware = ledger.hardware_flops / ledger.tokens * rate / peak
    yield "hfu", (None, hfu_unknown) if hfu_unknown else (hardware, f"model FLOPs and recomputed ones / {words}")


def _of_padded_rows(result: AuditedResult, facts: FactBase, subjects: Subjects) -> Iterator[tuple[str, Figure]]:
    """Yield the rate of real tokens and MFU of rows that are padded: tokens without padding do not depend on how rows are padded.

    FLOPs are those of a row of the mean length. Attention grows with the square, but is a small part of rows this short.
    """
    conditions, rate = result.conditions, samples_per_s(result)
    lengths = result.dataset.lengths_for(conditions.model) if result.dataset and not conditions.packing else None
    if rate is None:
        yield "mfu", (None, "the document states no rate of tokens or rows for this result")
        return
    if result.dataset is None or conditions.sequence_length is None or lengths is None:
        yield "mfu", (None, "the number of real tokens in its rows is not known")
        return
    reason = refutation(subjects.get(result.id, ()), RATE_OF_ROWS, CONDITIONS_OF_ROWS)
    shape = None if result.converted else published_shape(conditions, facts, facts.known.memory_reading(result.source))
    if reason is not None or shape is None or result.accelerator is None:
        yield "mfu", (None, reason or "accelerator, model or micro-batch is not stated")
        return
    mean = lengths.mean_cut_to(conditions.sequence_length)
    tokens_per_s = rate[0].value * mean
    yield "tokens_per_s", (tokens_per_s, f"{rate[1]} x {mean:.2f} tokens of a row without padding, the mean of {result.dataset.key}")
    row = replace(shape, sequence_length=max(1, round(mean)), labels=result.dataset.labels)
    yield from _utilisation(row, tokens_per_s, result.accelerator, result.devices, result, "the padding of rows is not stated")


def _peak_flop_per_s(card: AcceleratorCard, devices: int, method: Method, result: AuditedResult, needed: float) -> tuple[float | None, str]:
    """Return the dense peak of all devices in the format of the matrix products, with words; None with the reason if it is unknown.

    Without a stated format it is the 16-bit peak, unless the device has a faster one: the peak of a wrong format is never used.
    """
    named = precision_class(result.conditions.precision)
    if named is None and Dtype.FP8 in card.peak_tflops:
        return None, f"the format of the products is not stated, and {card.name} is faster in fp8 than in 16 bits"
    if named and method is not Method.QLORA:
        dtype, stated = fastest_format(card, [Dtype(name) for name in named.split("/")]), ""
    else:
        dtype = fastest_format(card, SIXTEEN_BIT)
        stated = "; the format in which 4-bit layers multiply is not stated" if named else "; the format of the products is not stated"
    if dtype is None:
        return None, f"the card of {card.name} has no dense peak for {named or 'bf16'}"
    peak = card.peak_tflops[dtype] * 1e12
    words = f"{devices} x {peak / 1e12:g} TFLOP/s {dtype.value}"
    if stated and needed > peak * devices:
        return None, f"the rate needs more than {words}, and the format of the products is not stated"
    return peak * devices, f"({words} dense{stated})"
