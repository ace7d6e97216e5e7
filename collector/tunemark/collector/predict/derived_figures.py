"""Rate and utilisation of published and converted results, from the same rows that calibrate the predictor.

A figure that a document leaves ambiguous is filled in if the audit excludes every other reading, so that the database, the pages and
the predictor agree. Each figure carries its calculation as a fact of the topic `derived`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tunemark.collector.audit.bounds import SIXTEEN_BIT, fastest_format, software_of
from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped
from tunemark.collector.audit.printed_figures import precision_class
from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.audit.rule import Finding, refutation
from tunemark.collector.audit.token_rates import rows_per_step, samples_per_s
from tunemark.collector.predict.fit import Observed
from tunemark.collector.store.database import Rows, fact
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.physics.flops import flops_ledger, palm_flops
from tunemark.schema.physics.training_shape import TrainingShape
from tunemark.schema.vocabulary import Dtype, Method

Figure = tuple[float | None, str]
"""A value, or None, with its calculation or the reason why it is unknown."""


RATE_OF_ROWS = frozenset({"samples_per_s", "epochs", "train_time_s", "wall_s"})
"""Figures from which rows per second follow."""
CONDITIONS_OF_ROWS = frozenset({"sequence_length", "dataset", "precision"})


@dataclass(frozen=True)
class Derivation:
    """What the figures of a result follow from: calibration rows by result, the reasons why others have none, and the audit."""

    observed: Mapping[str, Observed]
    refused: Mapping[str, str]
    evidence: Evidence
    findings: Collection[Finding] = ()

    @cached_property
    def by_subject(self) -> dict[str, list[Finding]]:
        """Findings by the result that they are about."""
        return grouped(self.findings, lambda finding: finding.records[0])

    def figures(self, result: AuditedResult) -> dict[str, Figure]:
        """Return the derived figures of a published or converted result, each with its calculation or the reason why it is unknown.

        Without a calibration row they follow from rows per second, provided that the token lengths of its dataset are known.
        """
        if result.id in self.observed:
            return _figures(self.observed[result.id], result)
        figures = dict(_of_padded_rows(result, self))
        if "tokens_per_s" not in figures and result.id in self.refused:
            return {"mfu": (None, self.refused[result.id])}
        return figures


def add_derived_figures(rows: Rows, derivation: Derivation) -> None:
    """Fill in the derived figures of published and converted results in `result_rows`, and add their calculations to `result_facts`."""
    for row in rows["result_rows"]:
        result = derivation.evidence.by_id.get(row["result_id"])
        if result is None or result.measured:
            continue
        row["software_level"] = software_of(result, derivation.evidence.facts).level
        for name, (value, reason) in derivation.figures(result).items():
            if row.get(name) is None:
                row[name] = value
                rows["result_facts"].append({"result_id": result.id, **fact("derived", name, value, reason)})


def _figures(observed: Observed, result: AuditedResult) -> dict[str, Figure]:
    """Return rates and utilisation from a calibration row."""
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


def _of_padded_rows(result: AuditedResult, derivation: Derivation) -> Iterator[tuple[str, Figure]]:
    """Yield the rate of real tokens and MFU of rows that are padded: tokens without padding do not depend on how rows are padded.

    FLOPs are those of a row of the mean length. Attention grows with the square, but is a small part of rows this short.
    """
    conditions, rate, facts = result.conditions, samples_per_s(result), derivation.evidence.facts
    lengths = result.dataset.lengths_for(conditions.model) if result.dataset and not conditions.packing else None
    if rate is None:
        yield "mfu", (None, "the document states no rate of tokens or rows for this result")
        return
    if result.dataset is None or conditions.sequence_length is None or lengths is None:
        yield "mfu", (None, "the number of real tokens in its rows is not known")
        return
    reason = refutation(derivation.by_subject.get(result.id, ()), RATE_OF_ROWS, CONDITIONS_OF_ROWS)
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
    if stated and needed > peak * devices:
        return (
            None,
            f"the rate needs more than {devices} x {peak / 1e12:g} TFLOP/s {dtype.value}, and the format of the products is not stated",
        )
    return peak * devices, f"({devices} x {peak / 1e12:g} TFLOP/s {dtype.value} dense{stated})"
