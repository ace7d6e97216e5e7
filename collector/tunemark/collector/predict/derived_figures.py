"""Rate and utilisation of published and converted results, from the same rows that calibrate the predictor.

A figure that a document leaves ambiguous is filled in if the audit excludes every other reading, so that the database, the pages and
the predictor agree. Each figure carries its calculation as a fact of the topic `derived`.
"""

from collections.abc import Iterator, Mapping

from tunemark.collector.audit.bounds import SIXTEEN_BIT, fastest_format
from tunemark.collector.audit.evidence import AuditedResult
from tunemark.collector.audit.printed_figures import precision_class
from tunemark.collector.audit.token_rates import rows_per_step
from tunemark.collector.predict.fit import Observed
from tunemark.collector.store.rows import Rows, fact
from tunemark.schema.physics.flops import flops_ledger, palm_flops
from tunemark.schema.vocabulary import Dtype, Method

Figure = tuple[float | None, str]
"""A value, or None, with its calculation or the reason why it is unknown."""


def add_derived_figures(
    rows: Rows, observed: Mapping[str, Observed], refused: Mapping[str, str], results: Mapping[str, AuditedResult]
) -> None:
    """Fill in the derived figures of published and converted results in `result_rows`, and add their calculations to `result_facts`.

    `observed` has the calibration row of each result, and `refused` the reason why a result has none.
    """
    for row in rows["result_rows"]:
        result = results.get(row["result_id"])
        if result is None or result.measured:
            continue
        calibrated = observed.get(result.id)
        if calibrated is not None:
            figures = _figures(calibrated, result)
        elif result.id in refused:
            figures = {"mfu": (None, refused[result.id])}
        else:
            continue
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
    peak, words = _peak_flop_per_s(observed, result, model_flop_per_s)
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


def _peak_flop_per_s(observed: Observed, result: AuditedResult, needed: float) -> tuple[float | None, str]:
    """Return the dense peak of all devices in the format of the matrix products, with words; None if the card has no peak for it.

    Without a stated format it is the 16-bit peak, or the fp8 peak if the rate exceeds that.
    """
    card, devices = observed.config.accelerator, observed.config.devices
    named = precision_class(result.conditions.precision)
    if named and observed.config.shape.method is not Method.QLORA:
        dtype, stated = fastest_format(card, [Dtype(name) for name in named.split("/")]), ""
    else:
        dtype, stated = fastest_format(card, SIXTEEN_BIT), "; the format of the products is not stated"
        if dtype and needed > card.peak_tflops[dtype] * 1e12 * devices and Dtype.FP8 in card.peak_tflops:
            dtype = Dtype.FP8
    if dtype is None:
        return None, f"the card of {card.name} has no dense peak for {named or 'bf16'}"
    peak = card.peak_tflops[dtype] * 1e12
    return peak * devices, f"({devices} x {peak / 1e12:g} TFLOP/s {dtype.value} dense{stated})"
