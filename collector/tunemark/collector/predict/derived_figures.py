"""Rate and utilisation of published and converted results, from the same rows that calibrate the predictor.

A figure that a document leaves ambiguous is filled in if the audit excludes every other reading, so that the database, the pages and
the predictor agree. Each figure carries its calculation as a fact of the topic `derived`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from tunemark.collector.audit.bounds import SIXTEEN_BIT, fastest_format, software_of
from tunemark.collector.audit.evidence import AuditedResult, Evidence
from tunemark.collector.audit.printed_figures import precision_class
from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.audit.rule import Finding
from tunemark.collector.audit.token_rates import rows_per_step, samples_per_s
from tunemark.collector.predict.fit import Observed
from tunemark.collector.store.database import Rows, fact
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.physics.flops import flops_ledger, palm_flops
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.vocabulary import Dtype, Method

Figure = tuple[float | None, str]
"""A value, or None, with its calculation or the reason why it is unknown."""


RATE_OF_ROWS = frozenset({"samples_per_s", "epochs", "train_time_s", "wall_s"})
"""Figures from which rows per second follow."""
CONDITIONS_OF_ROWS = frozenset({"sequence_length", "dataset", "precision"})


def add_derived_figures(
    rows: Rows, observed: Mapping[str, Observed], refused: Mapping[str, str], evidence: Evidence, findings: Collection[Finding] = ()
) -> None:
    """Fill in the derived figures of published and converted results in `result_rows`, and add their calculations to `result_facts`.

    `observed` has the calibration row of each result, and `refused` the reason why a result has none. Without a row, its figures are
    derived from rows per second, provided that the token lengths of its dataset are known.
    """
    records = {record.id: record for record in evidence.records}
    for row in rows["result_rows"]:
        result = evidence.by_id.get(row["result_id"])
        if result is None or result.measured:
            continue
        row["software_level"] = software_of(result, evidence.facts).level
        if result.id in observed:
            figures = _figures(observed[result.id], result)
        else:
            figures = dict(_of_padded_rows(result, records.get(result.id), evidence, findings))
            if "tokens_per_s" not in figures and result.id in refused:
                figures = {"mfu": (None, refused[result.id])}
        for name, (value, reason) in figures.items():
            if row.get(name) is None:
                row[name] = value
                rows["result_facts"].append({"result_id": result.id, **fact("derived", name, value, reason)})


def _figures(observed: Observed, result: AuditedResult) -> dict[str, Figure]:
    """Return rates and utilisation from a calibration row."""
    shape, rate = observed.config.shape, observed.tokens_per_s
    per_sample = f"{rate:,.4g} tokens/s / {shape.sequence_length:,} tokens of a row"
    figures: dict[str, Figure] = {"tokens_per_s": (rate, observed.basis), "samples_per_s": (rate / shape.sequence_length, per_sample)}
    rows = rows_per_step(result)
    if rows is not None:
        step_s = rows * shape.sequence_length / rate
        figures["step_time_s"] = (step_s, f"{rows} rows of an optimizer step x {shape.sequence_length:,} tokens / {rate:,.4g} tokens/s")
    return figures | dict(_utilisation(observed, result))


def _utilisation(observed: Observed, result: AuditedResult) -> Iterator[tuple[str, Figure]]:
    """Yield FLOP/s and utilisation. See definitions#mfu."""
    shape, rate = observed.config.shape, observed.tokens_per_s
    ledger = flops_ledger(shape)
    model_flop_per_s = ledger.model_flops / ledger.tokens * rate
    yield "model_flop_per_s", (model_flop_per_s, f"{ledger.model_flops / ledger.tokens / 1e9:.2f} GFLOP per token x {rate:,.4g} tokens/s")
    config = observed.config
    peak, words = _peak_flop_per_s(config.accelerator, config.devices, config.shape.method, result, model_flop_per_s)
    if peak is None:
        yield "mfu", (None, words)
        return
    yield "mfu", (model_flop_per_s / peak, f"model FLOP/s / {words}")
    yield "mfu_palm", (palm_flops(shape) / shape.slots * rate / peak, f"FLOPs as PaLM counts them x tokens/s / {words}")
    stated = "gradient_checkpointing" in result.conditions.settings
    hardware = ledger.hardware_flops / ledger.tokens * rate / peak
    yield (
        "hfu",
        (hardware, f"model FLOPs and recomputed ones / {words}")
        if stated
        else (None, "it is not stated whether activations are recomputed"),
    )


def _of_padded_rows(
    result: AuditedResult, record: object, evidence: Evidence, findings: Collection[Finding]
) -> Iterator[tuple[str, Figure]]:
    """Yield the rate of real tokens and MFU of rows that are padded: tokens without padding do not depend on how rows are padded.

    FLOPs are those of a row of the mean length. Attention grows with the square, but is a small part of rows this short.
    """
    conditions, rate = result.conditions, samples_per_s(result)
    lengths = result.dataset.lengths_for(conditions.model) if result.dataset and not conditions.packing else None
    if rate is None or result.dataset is None or conditions.sequence_length is None or lengths is None:
        unknown = (
            "the document states no rate of tokens or rows for this result"
            if rate is None
            else "the number of real tokens in its rows is not known"
        )
        yield "mfu", (None, unknown)
        return
    own = (finding for finding in findings if finding.records[0] == result.id)
    refutation = next((finding for finding in own if finding.refutes(RATE_OF_ROWS, CONDITIONS_OF_ROWS)), None)
    convention = evidence.facts.known.memory_reading(result.source)
    shape = published_shape(conditions, evidence.facts, convention) if isinstance(record, PublishedResult) else None
    if refutation is not None or shape is None or result.accelerator is None:
        stated = "accelerator, model or micro-batch is not stated"
        yield "mfu", (None, f"the audit calls it {refutation.verdict.value}: {refutation.rule}" if refutation else stated)
        return
    mean = lengths.mean_cut_to(conditions.sequence_length)
    tokens_per_s = rate[0].value * mean
    yield "tokens_per_s", (tokens_per_s, f"{rate[1]} x {mean:.2f} tokens of a row without padding, the mean of {result.dataset.key}")
    ledger = flops_ledger(replace(shape, sequence_length=max(1, round(mean)), labels=result.dataset.labels))
    model_flop_per_s = ledger.model_flops / ledger.tokens * tokens_per_s
    yield (
        "model_flop_per_s",
        (model_flop_per_s, f"{ledger.model_flops / ledger.tokens / 1e9:.3f} GFLOP per token x {tokens_per_s:,.4g} tokens/s"),
    )
    peak, words = _peak_flop_per_s(result.accelerator, result.devices, shape.method, result, model_flop_per_s)
    yield "mfu", (None if peak is None else model_flop_per_s / peak, words if peak is None else f"model FLOP/s / {words}")
    yield "hfu", (None, "the padding of rows is not stated")


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
