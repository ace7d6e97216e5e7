"""Columns that follow from others: speed against a baseline, scaling efficiency, memory saved, shares of a total."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.span import Span
from tunemark.schema.vocabulary import Method

ROUNDED_TWICE = 0.006
"""Columns are made of figures before rounding: one more half digit."""


def _by_section(base: Base, quantity: str) -> dict[tuple[str, str], list[Run]]:
    sections: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in base.runs:
        if quantity in run.claims:
            sections[run.source, run.section].append(run)
    return sections


def _column(run: Run, other: Run, quantity: str, computed: Span, words: str) -> Iterator[Found]:
    printed = run.span(quantity)
    if printed is not None and not computed.widened(ROUNDED_TWICE).overlaps(printed):
        yield Found(
            INCONSISTENT,
            (run.id, other.id),
            run.printed(quantity),
            f"{words} = {computed.value:.3f}, not {run.claims[quantity].printed}",
            {"computed": computed.value, "printed": printed.value},
        )


def relative_speed(base: Base) -> Iterator[Found]:
    """Yield relative speeds that are not the ratio to the row that is 1."""
    for runs in _by_section(base, "relative_speed").values():
        reference = next((run for run in runs if run.claims["relative_speed"].value == 1), None)
        for run in runs:
            rate, of = run.span("tokens_per_s"), reference.span("tokens_per_s") if reference else None
            if reference and rate and of:
                yield from _column(run, reference, "relative_speed", rate / of, f"{rate.value:g} / {of.value:g}")


def efficiency(base: Base) -> Iterator[Found]:
    """Yield scaling efficiencies that are not throughput over devices x that of one, and those above 1."""
    for runs in _by_section(base, "scaling_efficiency").values():
        single = next((run for run in runs if run.devices == 1), None)
        for run in runs:
            rate, of = run.span("tokens_per_s"), single.span("tokens_per_s") if single else None
            if single and rate and of:
                yield from _column(
                    run, single, "scaling_efficiency", rate / (of * run.devices), f"{rate.value:g} / ({run.devices} x {of.value:g})"
                )


def memory_saved(base: Base) -> Iterator[Found]:
    """Yield savings of memory that are not those of the rows they compare."""
    for runs in _by_section(base, "memory_reduction").values():
        for run in runs:
            full = next(
                (
                    one
                    for one in base.runs
                    if (one.source, one.section, one.conditions.model) == (run.source, run.section, run.conditions.model)
                    and one.conditions.method is Method.FULL
                    and "peak_memory_bytes" in one.claims
                ),
                None,
            )
            mine, theirs = run.span("peak_memory_bytes"), full.span("peak_memory_bytes") if full else None
            if full and mine and theirs:
                left = mine / theirs
                saved = Span(1 - left.value, 1 - left.high, 1 - left.low)
                yield from _column(
                    run, full, "memory_reduction", saved, f"({theirs.value / 1e9:g} - {mine.value / 1e9:g}) / {theirs.value / 1e9:g}"
                )


def shares_of_totals(base: Base) -> Iterator[Found]:
    """Yield memory that is not its share of the printed total."""
    for run in base.runs:
        share, total = run.span("device_memory_peak_share"), run.span("device_memory_total_bytes")
        for name, peak in run.readings("peak_memory_bytes"):
            if share is None or total is None or "together" in name:
                continue
            each = share * total / run.devices
            if not each.overlaps(peak):
                yield Found(
                    INCONSISTENT,
                    (run.id,),
                    run.printed("device_memory_peak_share", "device_memory_total_bytes", "peak_memory_bytes"),
                    f"{share.value:.2%} x {total.value / 1e9:g} GB / {run.devices} = {each.value / 1e9:.1f} GB, not {peak.value / 1e9:.1f} GB",
                    {"computed": each.value, "printed": peak.value},
                )


def proportional_to_batch(base: Base) -> Iterator[Found]:
    """Yield series in which a rate is the batch times a constant: a counter of batches, not a measured speed."""
    series: dict[tuple[object, ...], list[Run]] = defaultdict(list)
    for run in base.runs:
        if run.span("eval_samples_per_s") and run.conditions.micro_batch:
            conditions = run.conditions
            series[run.source, conditions.model, conditions.method, conditions.accelerator, conditions.sequence_length].append(run)
    least, tolerance = 3, 0.03
    for runs in series.values():
        batches = sorted({run.conditions.micro_batch or 0: run for run in reversed(runs)}.items())
        each = [run.claims["eval_samples_per_s"].value / batch for batch, run in batches]
        middle = sorted(each)[len(each) // 2] if each else 0.0
        same = [(batch, run) for (batch, run), rate in zip(batches, each, strict=True) if abs(rate / middle - 1) <= tolerance]
        if len(same) >= least and same[-1][0] >= 2 * same[0][0]:
            yield Found(
                SUSPICIOUS,
                tuple(run.id for _, run in same),
                "evaluation rates " + ", ".join(f"{run.claims['eval_samples_per_s'].printed} at batch {batch}" for batch, run in same),
                "; ".join(
                    f"{run.claims['eval_samples_per_s'].value:g} / {batch} = {run.claims['eval_samples_per_s'].value / batch:.2f}"
                    for batch, run in same
                )
                + " batches/s: a rate in exact proportion to the training batch counts batches",
                {f"batches/s at {batch}": run.claims["eval_samples_per_s"].value / batch for batch, run in same},
            )


RULES = (
    Rule(
        "relative-column",
        "a relative speed that is not the ratio",
        "comparison",
        "Relative speed is throughput over the throughput of the row that is 1.00x.",
        (INCONSISTENT,),
        relative_speed,
    ),
    Rule(
        "efficiency-column",
        "a scaling efficiency that is not the ratio",
        "scaling",
        "Efficiency is throughput over devices x the throughput of one.",
        (INCONSISTENT,),
        efficiency,
    ),
    Rule(
        "saving-column",
        "a saving that is not the difference",
        "comparison",
        "A saving is (before - after) / before.",
        (INCONSISTENT,),
        memory_saved,
    ),
    Rule(
        "share-of-total",
        "memory that is not its share of the total",
        "arithmetic",
        "A share times its total is the amount; of several devices together, divided by their number.",
        (INCONSISTENT,),
        shares_of_totals,
    ),
    Rule(
        "counter-not-rate",
        "a rate in exact proportion to the batch",
        "arithmetic",
        "A fixed set of rows takes a time of its own; its rate cannot follow the training batch to the per cent.",
        (SUSPICIOUS,),
        proportional_to_batch,
    ),
)
