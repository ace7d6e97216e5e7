"""Definitions: the meaning, unit and scope of a figure, rooflines and formulas."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped, label
from tunemark.collector.audit.interval import ROUGHLY, Interval
from tunemark.collector.audit.printed_figures import WORDS
from tunemark.collector.audit.rule import AMBIGUOUS, INCONSISTENT, SUSPICIOUS, Finding, rule
from tunemark.schema.records.claims import Formula, Metric, Roof

BYTES_OF = {"GiB": 2.0**30, "GB": 1e9, "MiB": 2.0**20, "MB": 1e6}
METRICS = WORDS["metrics"]


@rule(id="metric", family="definitions", verdicts=(SUSPICIOUS, INCONSISTENT, AMBIGUOUS))
def metrics(evidence: Evidence) -> Iterator[Finding]:
    """Figure that does not match its name, or one name for different counts.

    A peak is the highest value, a rate measures completed work, and a unit is the number that bytes were divided by
    (definitions#throughput, definitions#memory). Slots, real tokens and supervised tokens are three counts, and so are allocated, reserved
    and used memory.
    """
    for statement, metric in evidence.assertions(Metric):
        quantities = (metric.quantity,)
        records, claim = (statement.id, *metric.records), f"printed as {label(metric.quantity)}"
        if metric.quantity in METRICS["peaks"] and metric.counts in METRICS["not_a_peak"]:
            words = (
                f"the code reads memory {metric.counts}, on one {metric.scope or 'device'}. It misses tensors that were already freed, "
                "and counts cached blocks (definitions#memory)"
            )
            yield Finding(SUSPICIOUS, records, claim, words, quantities=quantities)
        if metric.counts in METRICS["counters"]:
            words = f"the code divides {metric.counts} by the time, whatever work was done"
            yield Finding(INCONSISTENT, records, claim, words, quantities=quantities)
        claims = {
            record.id: record.claims[metric.quantity].printed
            for record in evidence.with_ids(metric.records)
            if metric.quantity in record.claims
        }
        units = {record: (unit[0], printed) for record, printed in claims.items() if (unit := re.search(r"[GM]i?B", printed))}
        wrong = {record: unit for record, unit in units.items() if metric.bytes_per_unit not in {None, BYTES_OF[unit[0]]}}
        if wrong and metric.bytes_per_unit:
            name, printed = next(iter(wrong.values()))
            excess = BYTES_OF[name] / metric.bytes_per_unit - 1
            words = (
                f"the code divides bytes by {metric.bytes_per_unit:g}, but {name} is {BYTES_OF[name]:g} bytes: "
                f"the printed {printed} is {abs(excess):.1%} too {'high' if excess > 0 else 'low'}"
            )
            yield Finding(INCONSISTENT, (statement.id, *wrong), f"{label(metric.quantity)} in {name}", words, quantities=quantities)
    yield from _counted_differently(evidence)


def _counted_differently(evidence: Evidence) -> Iterator[Finding]:
    """Yield names that several sources give to different counts (definitions#step, definitions#tokens, definitions#memory)."""
    for name, meanings in METRICS["same_name"].items():
        metrics_of = [(statement.id, metric) for statement, metric in evidence.assertions(Metric) if metric.counts in meanings]
        counted = grouped(metrics_of, lambda item: item[1].counts)
        if len(counted) < 2:  # noqa: PLR2004 - one count under one name
            continue
        every = [item for items in counted.values() for item in items]
        records = (*(statement for statement, _ in every), *(record for _, metric in every for record in metric.records))
        claim = f"{name} in several sources"
        words = (
            "; ".join(
                f"{counts}: {', '.join(f'{statement} (results: {len(metric.records)})' for statement, metric in items)}"
                for counts, items in counted.items()
            )
            + ". These are different counts under one name (definitions#step, definitions#tokens, definitions#memory), so the figures "
            "cannot share a ranking"
        )
        yield Finding(AMBIGUOUS, records, claim, words, quantities=tuple(dict.fromkeys(metric.quantity for _, metric in every)))


@rule(id="roof", family="definitions", verdicts=(INCONSISTENT,))
def roofs(evidence: Evidence) -> Iterator[Finding]:
    """Roofline of a whole device with points of one part.

    A roofline compares the work of a unit with the peak of the same unit (Williams et al. 2009).
    """
    for statement, roof in evidence.assertions(Roof):
        card, peak = evidence.facts.accelerators.get(roof.accelerator), Interval.of(roof.peak_flop_per_s)
        implied = {
            result.id: peak_of_result for result in evidence.with_ids(roof.records) if (peak_of_result := _implied_peak(result)) is not None
        }
        off = {record: (value, words) for record, (value, words) in implied.items() if peak.low > value.high * ROUGHLY}
        if not off or card is None:
            continue
        middle = sorted(value.value for value, _ in off.values())[len(off) // 2]
        claim = f"roof {roof.peak_flop_per_s.printed}, points of {len(implied)} results"
        calculation = (
            "; ".join(f"{record}: {words}" for record, (_, words) in off.items())
            + f". The points are of one core and the roof is of {card.cores_per_unit or 1} cores: the distance is overstated {peak.value / middle:.1f} times"
        )
        yield Finding(INCONSISTENT, (statement.id, *off), claim, calculation, quantities=("attained_flop_per_s", "hfu"))


def _implied_peak(result: AuditedResult) -> tuple[Interval, str] | None:
    """Return the peak that a result's attained FLOP/s and HFU imply, with the calculation, or None."""
    flop, time, share = (result.interval(name) for name in ("hardware_flop", "profile_step_time_s", "hfu"))
    attained = flop / time if flop and time else result.interval("attained_flop_per_s")
    if attained is None or share is None:
        return None
    names = ("hardware_flop", "profile_step_time_s") if flop and time else ("attained_flop_per_s",)
    printed = " / ".join(result.claims[name].printed for name in names)
    words = f"{printed} = {attained.value / 1e12:.2f} TFLOP/s" if flop and time else printed
    implied = attained / share
    return implied, f"{words} at HFU {share.value:.2%} implies a peak of {implied.value / 1e12:.1f} TFLOP/s"


@rule(id="formula", family="definitions", verdicts=(INCONSISTENT,))
def formulas(evidence: Evidence) -> Iterator[Finding]:
    """Wrong units in a formula, or tables that contradict it.

    Both sides of an equation have the same unit, and memory of one micro-step does not grow with the number of micro-steps. A formula and
    a table of one document describe the same amounts.
    """
    for statement, formula in evidence.assertions(Formula):
        written = " x ".join(f"{term.name}{'' if term.power == 1 else f'^{term.power}'} [{term.unit}]" for term in formula.terms)
        name, quantities = label(formula.quantity), (formula.quantity,)
        powers = defaultdict[str, int](int)
        for term in formula.terms:
            for unit, power in _parsed(term.unit).items():
                powers[unit] += power * term.power
        units = {unit: power for unit, power in powers.items() if power}
        if units != _parsed(formula.unit):
            claim, words = f"a formula for {name} in {formula.unit}", f"{written} has the unit {_written(units)}, not {formula.unit}"
            yield Finding(INCONSISTENT, (statement.id,), claim, words, quantities)
        for term in formula.terms:
            if term.name in METRICS["not_in_memory"] and formula.quantity.endswith("_bytes"):
                claim, words = f"a formula in which {name} grows with {term.name}", f"{written}: {METRICS['not_in_memory'][term.name]}"
                yield Finding(INCONSISTENT, (statement.id,), claim, words, quantities, (term.name,))
        for result in evidence.with_ids(formula.records):
            claimed = result.interval(formula.quantity)
            # A term without a value is known only if it is the number of parameters.
            known = [{"parameters": result.parameters}.get(term.name) if term.value is None else term.value for term in formula.terms]
            factors = [(term, factor) for term, factor in zip(formula.terms, known, strict=True) if factor is not None]
            if claimed is None or len(factors) < len(known):
                continue
            value = math.prod(factor**term.power for term, factor in factors)
            if not claimed.low / ROUGHLY <= value <= claimed.high * ROUGHLY:
                product = " x ".join(f"{factor:.4g} {term.name}" for term, factor in factors)
                claim = f"{name} {result.claims[formula.quantity].printed} in a table, and a formula for it"
                words = f"{product} = {value / 1e9:.4g} x 10^9, {value / claimed.value:.2f} times the table"
                yield Finding(INCONSISTENT, (statement.id, result.id), claim, words, quantities)


def _parsed(text: str) -> dict[str, int]:
    """Return powers of units: `FLOP/token*s` is FLOP per token and per second."""
    above, _, below = text.replace(" ", "").partition("/")
    powers: dict[str, int] = defaultdict(int)
    for part, sign in ((above, 1), (below, -1)):
        for unit in part.replace("/", "*").split("*"):
            if unit and unit != "1":
                powers[unit] += sign
    return {unit: power for unit, power in powers.items() if power}


def _written(units: dict[str, int]) -> str:
    return " ".join(f"{unit}^{power}" if power != 1 else unit for unit, power in sorted(units.items(), key=lambda item: -item[1])) or "1"
