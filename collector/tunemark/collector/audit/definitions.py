"""Definitions: what a figure counts, in which unit, over what; roofs and what is under them."""

import re
from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run, label
from tunemark.collector.audit.rule import AMBIGUOUS, INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.span import Span
from tunemark.schema.records.claims import Metric, Roof

BYTES_OF = {"GiB": 2.0**30, "GB": 1e9, "MiB": 2.0**20, "MB": 1e6}
NOT_A_PEAK = {"held by the allocator at the end of a step"}
PEAKS = frozenset({"peak_memory_bytes", "device_memory_peak_share"})
COUNTERS = {"batches x training batch", "rows of the data set"}
KINDS = {
    "tokens": frozenset({"real tokens", "slots of tokens"}),
    "a step": frozenset({"micro-step", "optimizer step"}),
    "peak memory": frozenset(
        {"peak of live tensors", "peak held by the allocator", "held by the allocator at the end of a step", "used of the device"}
    ),
}
"""What one name is counted as in different documents."""
FAR = 1.25
FLOP_UNIT = re.compile(r"([0-9][0-9,.]*) ?([KMGTP])(?:F|FLOP|FLOPS|FLOPs)", re.IGNORECASE)
PREFIXES = "KMGTP"
SAME = 0.01


def metrics(base: Base) -> Iterator[Found]:
    """Yield figures that are not what they are called."""
    for statement, metric in base.assertions(Metric):
        runs = base.named(metric.records)
        if metric.quantity in PEAKS and metric.counts in NOT_A_PEAK:
            yield Found(
                SUSPICIOUS,
                (statement.id, *metric.records),
                f"printed as {label(metric.quantity)}",
                f"the code takes what is {metric.counts}, of one {metric.scope or 'device'}: tensors freed before are not seen, and cached blocks are counted (definitions.md 11)",
                {"counts": metric.counts},
            )
        if metric.counts in COUNTERS:
            yield Found(
                INCONSISTENT,
                (statement.id, *metric.records),
                f"printed as {label(metric.quantity)}",
                f"the code divides {metric.counts} by the time, whatever was done in it",
                {"counts": metric.counts},
            )
        yield from _units(statement.id, metric, runs)
        several = [run.id for run in runs if run.devices > 1]
        if metric.scope in {"rank", "core"} and several:
            yield Found(
                AMBIGUOUS,
                (statement.id, *several),
                f"{label(metric.quantity)} of results on several devices",
                f"the code takes one {metric.scope} only; the others may have more",
                {"scope": metric.scope},
            )


def _units(name: str, metric: Metric, runs: list[Run]) -> Iterator[Found]:
    if metric.bytes_per_unit is None:
        return
    wrong = []
    for run in runs:
        unit = re.search(r"[GM]i?B", run.claims[metric.quantity].printed) if metric.quantity in run.claims else None
        if unit and BYTES_OF[unit[0]] != metric.bytes_per_unit:
            wrong.append((run, unit[0]))
    if wrong:
        run, unit_name = wrong[0]
        yield Found(
            INCONSISTENT,
            (name, *(one.id for one, _ in wrong)),
            f"{label(metric.quantity)} in {unit_name}",
            f"the code divides bytes by {metric.bytes_per_unit:g}, and {unit_name} is {BYTES_OF[unit_name]:g} bytes: {run.claims[metric.quantity].printed} is "
            f"{BYTES_OF[unit_name] / metric.bytes_per_unit - 1:.1%} less than it says",
            {"bytes_per_unit": metric.bytes_per_unit, "printed_unit_bytes": BYTES_OF[unit_name]},
        )


def across_sources(base: Base) -> Iterator[Found]:
    """Yield figures of several sources that count different things under one name."""
    for name, kinds in KINDS.items():
        counted: dict[str, list[tuple[str, Metric]]] = defaultdict(list)
        for statement, metric in base.assertions(Metric):
            if metric.counts in kinds:
                counted[metric.counts].append((statement.id, metric))
        if len(counted) > 1:
            statements = [one for found in counted.values() for one, _ in found]
            records = [record for found in counted.values() for _, metric in found for record in metric.records]
            yield Found(
                AMBIGUOUS,
                (*statements, *records),
                f"{name} of several sources",
                "; ".join(
                    f"{counts}: {', '.join(f'{one} ({len(metric.records)} results)' for one, metric in found)}"
                    for counts, found in counted.items()
                )
                + ". One name, several counts (definitions.md 1, 6 and 11): figures of different kinds share no ranking",
                {counts: len(found) for counts, found in counted.items()},
            )


def roofs(base: Base) -> Iterator[Found]:
    """Yield roofs of a whole chip over points of a part of it, and roofs that are not the device's."""
    for statement, roof in base.assertions(Roof):
        card = base.facts.accelerators.get(roof.accelerator)
        peak = Span.of(roof.peak_flop_per_s)
        implied = {run.id: found for run in base.named(roof.records) if (found := _implied_peak(run)) is not None}
        off = {name: span for name, span in implied.items() if peak.low > span.high * FAR}
        if off and card is not None:
            middle = sorted(span.value for span in off.values())[len(off) // 2]
            cores = card.cores_per_unit or 1
            yield Found(
                INCONSISTENT,
                (statement.id, *off),
                f"roof {roof.peak_flop_per_s.printed}, points of {len(implied)} results",
                "; ".join(_implied_words(run) for run in base.named(roof.records) if run.id in off)
                + f". The points are of one core, the roof is of {cores} cores: the distance is {peak.value / middle:.1f} times overstated",
                {"roof_flop_per_s": peak.value, "implied_peak_flop_per_s": middle},
            )


def _implied_peak(run: Run) -> Span | None:
    attained, share = _attained(run), run.span("hfu")
    return attained / share if attained and share else None


def _attained(run: Run) -> Span | None:
    flop, time = run.span("hardware_flop"), run.span("profile_step_time_s")
    return flop / time if flop and time else run.span("attained_flop_per_s")


def _implied_words(run: Run) -> str:
    attained, share = _attained(run), run.span("hfu")
    if attained is None or share is None:
        return run.id
    made = (
        f"{run.claims['hardware_flop'].printed} / {run.claims['profile_step_time_s'].printed}"
        if "hardware_flop" in run.claims
        else run.claims["attained_flop_per_s"].printed
    )
    return f"{run.id}: {made} = {attained.value / 1e12:.2f} TFLOP/s at HFU {share.value:.2%}, so of {attained.value / share.value / 1e12:.1f} TFLOP/s"


def flop_units(base: Base) -> Iterator[Found]:
    """Yield FLOPs printed with a decimal prefix that counts in powers of two: 2^30 is 7.4% more than 10^9."""
    for run in base.runs:
        for name, claim in run.claims.items():
            found = FLOP_UNIT.fullmatch(claim.printed.strip())
            if found is None or claim.readings:
                continue
            printed, power = float(found[1].replace(",", "")), PREFIXES.index(found[2].upper()) + 1
            decimal, binary = printed * 1e3**power, printed * 2.0 ** (10 * power)
            if abs(claim.value / binary - 1) < SAME < abs(claim.value / decimal - 1):
                yield Found(
                    AMBIGUOUS,
                    (run.id,),
                    f"{label(name)} {claim.printed}",
                    f"read as 10^{3 * power}: {decimal:.4e} FLOP; read as 2^{10 * power}, as the trainer's code shifts by {10 * power} bits: {binary:.4e} FLOP, "
                    f"{binary / decimal - 1:.1%} more. The printed unit says the first",
                    {"decimal_flop": decimal, "binary_flop": binary},
                )


RULES = (
    Rule(
        "metric",
        "a figure that is not what it is called",
        "definitions",
        "A peak is the highest, a rate is of what was done, a unit is what bytes were divided by (definitions.md 5, 11).",
        (SUSPICIOUS, INCONSISTENT, AMBIGUOUS),
        metrics,
    ),
    Rule(
        "counted-differently",
        "one name for different counts in several sources",
        "definitions",
        "Slots, real and supervised tokens are three counts (definitions.md 6); allocated, reserved and used memory as well (11).",
        (AMBIGUOUS,),
        across_sources,
    ),
    Rule(
        "roof",
        "a roof of the whole over points of a part",
        "definitions",
        "A roofline compares the work of a unit with the peak of the same unit (Williams et al. 2009).",
        (INCONSISTENT,),
        roofs,
    ),
    Rule(
        "flop-unit",
        "FLOPs with a decimal prefix that counts in powers of two",
        "definitions",
        "G is 10^9 (SI brochure, 9th edition, table 7); 2^30 is Gi. Who compares the two is 7.4% off.",
        (AMBIGUOUS,),
        flop_units,
    ),
)
