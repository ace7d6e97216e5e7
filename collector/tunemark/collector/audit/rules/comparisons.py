"""Words of documents: a sentence that compares, ranks or summarises results, the meaning, unit and scope of a figure, rooflines and formulas."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator

from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped, label, quoted
from tunemark.collector.audit.interval import ROUGHLY, TIMES, TIMES_TOLERANCE, Interval
from tunemark.collector.audit.printed_figures import WORDS, precision_class
from tunemark.collector.audit.rule import AMBIGUOUS, INCONSISTENT, SUSPICIOUS, Finding, rule
from tunemark.collector.audit.token_rates import rows_per_step
from tunemark.schema.records.published import Claim, Comparison, Extreme, Formula, Metric, Range, Statement
from tunemark.schema.statistics.intervals import SIGNIFICANT_ERRORS

RATIO_TOLERANCE = 0.004
"""Share by which a printed ratio may differ beyond its rounding, since documents divide figures before rounding them."""
TIMES_AND_RATES = {*TIMES, "tokens_per_s", "samples_per_s", "samples_per_s_reported", "relative_speed"}


@rule(id="comparison", family="comparison", verdicts=(INCONSISTENT,))
def compared(evidence: Evidence) -> Iterator[Finding]:
    """Ratio, difference or comparing word that the figures contradict.

    A speed-up is the time before divided by the time after, and a percentage change is the ratio minus 1. Higher means a ratio above 1, and
    slightly means by less than a quarter. Shares of different totals are first multiplied by their totals, and rates of the same work have
    the ratio of its times.
    """
    for statement, stated in evidence.assertions(Comparison):
        claims = evidence.compared_claims(stated)
        if not claims or any(claim.readings or claim.value <= 0 for claim in claims):
            continue
        first, last = Interval.of(claims[0]), Interval.of(claims[1])
        reasons = [_against_change(stated, first, last)]
        if stated.relation != "beside":
            ends = evidence.with_ids((stated.records[0], stated.records[-1]))
            reasons.append(_against_word(stated, first, last))
            reasons += [_against_amounts(evidence, stated, ends, first, last), _against_times(stated, ends, first, last)]
        claim = f"{label(stated.quantity)}: {claims[0].printed} compared with {claims[1].printed}{quoted(statement)}"
        quantities = tuple(dict.fromkeys((stated.quantity, stated.base_quantity or stated.quantity)))
        for words in filter(None, reasons):
            yield Finding(INCONSISTENT, (statement.id, *stated.records), claim, words, quantities=quantities)


def _against_change(stated: Comparison, first: Interval, last: Interval) -> str | None:
    """Return a contradiction if a printed ratio or percentage is not that of the figures."""
    if stated.change is None or stated.change_is == "points":
        return None
    ratio = last / first if stated.quantity in TIMES else first / last
    less = 1 if stated.change_is == "share" else 0
    low, high = (bound - less + sign * abs(bound - less) * RATIO_TOLERANCE for bound, sign in ((ratio.low, -1), (ratio.high, 1)))
    if Interval(ratio.value - less, low, high).overlaps(Interval.of(stated.change)):
        return None
    return f"{stated.change_is} = {ratio.value - less:.3f}, not {stated.change.printed}"


def _against_word(stated: Comparison, first: Interval, last: Interval) -> str | None:
    ratio = first / last
    wrong = {
        "higher": ratio.high < 1,
        "slightly higher": ratio.high < 1 or ratio.low > ROUGHLY,
        "lower": ratio.low > 1,
        "slightly lower": ratio.low > 1 or ratio.high < 1 / ROUGHLY,
        "about equal": ratio.low > ROUGHLY or ratio.high < 1 / ROUGHLY,
    }[stated.relation]
    return f"{first.value:g} / {last.value:g} = {ratio.value:.2f}, which is not '{stated.relation}'" if wrong else None


def _against_amounts(evidence: Evidence, stated: Comparison, results: list[AuditedResult], first: Interval, last: Interval) -> str | None:
    """Return a contradiction if shares of different totals compare in the opposite order as amounts."""
    totals = [known for result in results if (known := _total(evidence, result, stated.quantity))]
    if len(totals) < 2 or totals[0] == totals[1]:  # noqa: PLR2004 - a pair
        return None
    (total, unit), (last_total, _) = totals[0], totals[1]
    amounts, shares = (first * total) / (last * last_total), first / last
    if (shares.value < 1) == (amounts.value < 1):
        return None
    return (
        f"{first.value:.2%} x {total:g} {unit} = {first.value * total:.2f}, {last.value:.2%} x {last_total:g} {unit} = {last.value * last_total:.2f}: "
        f"a ratio of {amounts.value:.1f}, but the shares have a ratio of {shares.value:.2f}. Shares of different totals cannot be compared"
    )


def _total(evidence: Evidence, result: AuditedResult, quantity: str) -> tuple[float, str] | None:
    """Return the total of a share with its unit, or None if it is unknown."""
    if quantity == "cpu_utilisation_mean":
        cores = next((row.vcpus for row in evidence.facts.prices if row.vcpus and row.instance == result.conditions.instance), None)
        return (float(cores), "vCPU") if cores else None
    claim = result.claims.get(WORDS["quantities"]["total_of"].get(quantity, ""))
    return (claim.value / 1e9, "GB") if claim else None


def _against_times(stated: Comparison, results: list[AuditedResult], first: Interval, last: Interval) -> str | None:
    """Return a contradiction if the times of the same work have another ratio than the rates."""
    if not stated.quantity.startswith("samples_per_s") or len(results) < 2 or len({result.training_rows for result in results}) > 1:  # noqa: PLR2004 - a pair
        return None
    mine, theirs = (result.interval("epoch_time_s") or result.interval("train_time_s") for result in results)
    if mine is None or theirs is None or (first / last).widened(TIMES_TOLERANCE).overlaps(theirs / mine):
        return None
    by_rate, by_time = first.value / last.value, theirs.value / mine.value
    return f"rates {first.value:g} / {last.value:g} = {by_rate:.2f}, but times of the same rows {theirs.value:g} s / {mine.value:g} s = {by_time:.2f}"


@rule(id="summary", family="comparison", verdicts=(INCONSISTENT,))
def summaries(evidence: Evidence) -> Iterator[Finding]:
    """Range or superlative that a row contradicts.

    A range over rows spans the lowest to the highest of them, and the best of several rows has the most extreme figure.
    """
    for statement, claimed in evidence.assertions(Range):
        values = {result.id: value for result in evidence.with_ids(claimed.records) if (value := result.interval(claimed.quantity))}
        low, high = Interval.of(claimed.low), Interval.of(claimed.high)
        outside = [record for record, value in values.items() if value.high < low.low or value.low > high.high]
        if outside:
            rows = ", ".join(f"{evidence.by_id[record].claims[claimed.quantity].printed} ({record})" for record in values)
            claim = f"{label(claimed.quantity)} {claimed.low.printed} to {claimed.high.printed} over {len(values)} rows{quoted(statement)}"
            words = f"the rows are {rows}. Outside the range: {', '.join(outside)}"
            yield Finding(INCONSISTENT, (statement.id, *outside, *values), claim, words, quantities=(claimed.quantity,))
    for statement, extreme, claims in _extremes(evidence):
        best = (max if extreme.where == "highest" else min)(claims, key=lambda record: claims[record].value)
        if claims[best].value != claims[extreme.best].value:
            claim = f"{extreme.where} {label(extreme.quantity)}: {claims[extreme.best].printed}{quoted(statement)}"
            words, records = f"{best} has {claims[best].printed}", (statement.id, extreme.best, best)
            yield Finding(INCONSISTENT, records, claim, words, quantities=(extreme.quantity,))


def _extremes(evidence: Evidence) -> Iterator[tuple[Statement, Extreme, dict[str, Claim]]]:
    """Yield superlatives with the figures of the rows that they are about, if the best row has one."""
    for statement, extreme in evidence.assertions(Extreme):
        claims = {record: claim for record in extreme.among if (claim := evidence.claims_of(record).get(extreme.quantity))}
        if extreme.best in claims:
            yield statement, extreme, claims


def _rows_of_steps(result: AuditedResult) -> int | None:
    rows, steps = rows_per_step(result), result.interval("steps")
    return round(steps.value) * rows if steps and rows else None


ASPECTS: tuple[tuple[str, str, bool, Callable[[AuditedResult], object]], ...] = (
    ("model", "model", True, lambda result: result.conditions.model),
    ("method", "method", True, lambda result: result.conditions.method.value),
    ("dataset", "dataset", True, lambda result: result.conditions.dataset),
    ("sequence length", "sequence_length", True, lambda result: result.conditions.sequence_length),
    ("rows of the training", "dataset", True, _rows_of_steps),
    ("precision", "precision", False, lambda result: precision_class(result.conditions.precision)),
    ("rows of a step", "global_batch", False, rows_per_step),
    ("torch", "framework", False, lambda result: result.conditions.framework.get("torch")),
)
"""Aspects that must agree in a comparison: name, condition, whether it changes the work and not only how it is done, and its value."""


@rule(id="comparability", family="comparison", verdicts=(INCONSISTENT, SUSPICIOUS))
def comparability(evidence: Evidence) -> Iterator[Finding]:
    """Comparison of results under different conditions.

    Times and rates compare devices only when model, method, data, length, batch and precision agree (definitions#comparability).
    """
    for statement, stated in evidence.assertions(Comparison):
        results = evidence.with_ids(dict.fromkeys(stated.records))
        devices = {(result.conditions.accelerator, result.devices) for result in results}
        if stated.quantity not in TIMES_AND_RATES or len(devices) < 2:  # noqa: PLR2004 - one device is not compared
            continue
        lines, conditions, other_work = list[str](), list[str](), False
        for name, condition, changes_work, value_of in ASPECTS:
            values = {result.id: value for result in results if (value := value_of(result)) is not None}
            if len(set(values.values())) > 1:
                lines.append(f"{name}: {', '.join(f'{value} ({record})' for record, value in values.items())}")
                conditions.append(condition)
                other_work = other_work or changes_work
        if lines:
            ending = "Their times and rates measure different work" if other_work else "They did the same work under different conditions"
            yield Finding(
                INCONSISTENT if other_work else SUSPICIOUS,
                (statement.id, *stated.records),
                f"{label(stated.quantity)} of {len(results)} results compared",
                f"{'; '.join(lines)}. {ending}",
                quantities=(stated.quantity,),
                conditions=tuple(dict.fromkeys(conditions)),
            )


@rule(id="significance", family="significance", verdicts=(SUSPICIOUS,))
def differences(evidence: Evidence) -> Iterator[Finding]:
    """Difference in accuracy within two standard errors.

    A share over n rows has the standard error sqrt(p (1 - p) / n). A difference below two standard errors can be chance, and the highest of
    several shares is high partly by chance.
    """
    for statement, stated in evidence.assertions(Comparison):
        claims = evidence.compared_claims(stated)
        if claims and stated.relation not in {"beside", "about equal"}:
            pair = {stated.records[0]: claims[0], f"{stated.records[-1]}, the reference": claims[1]}
            records = (statement.id, *stated.records)
            yield from _not_significant(evidence, stated.quantity, pair, stated.records[0], records, stated.relation + quoted(statement))
    for statement, extreme, figures in _extremes(evidence):
        near = (statement.id, extreme.best)
        yield from _not_significant(evidence, extreme.quantity, figures, extreme.best, near, f"is the {extreme.where}{quoted(statement)}")


def _not_significant(
    evidence: Evidence, quantity: str, claims: dict[str, Claim], best: str, records: tuple[str, ...], words: str
) -> Iterator[Finding]:
    """Yield a finding if other shares over the same rows lie within two standard errors of the best one."""
    results = evidence.with_ids([best])
    rows = results[0].dataset.test_rows if results and results[0].dataset else None
    if quantity not in WORDS["quantities"]["accuracies"] or not rows:
        return
    # A figure that is not a share has no standard error; another rule reports it.
    errors = {record: math.sqrt(max(0.0, claim.value * (1 - claim.value)) / rows) for record, claim in claims.items()}
    others = [record for record in claims if record != best]
    distances = {record: (claims[best].value - claims[record].value, math.hypot(errors[best], errors[record])) for record in others}
    near = {record: each for record, each in distances.items() if abs(each[0]) < SIGNIFICANT_ERRORS * each[1]}
    if near:
        shown = "; ".join(
            f"{record} {claims[record].printed}: {difference * 100:+.2f} points, standard error {error * 100:.2f}"
            for record, (difference, error) in near.items()
        )
        claim = f"{label(quantity)} {claims[best].printed} {words}"
        calculation = f"over {rows:,} rows, {len(near)} of {len(others)} others lie within {SIGNIFICANT_ERRORS} standard errors of the difference ({shown})"
        known = tuple(record for record in near if record in evidence.by_id)
        yield Finding(SUSPICIOUS, (*records, *known), claim, calculation, quantities=(quantity,))


# Definitions --------------------------------------------------------------------------------------


BYTES_OF = {"GiB": 2.0**30, "GB": 1e9, "MiB": 2.0**20, "MB": 1e6}
METRICS = WORDS["metrics"]
DEFINED = "definitions#step, definitions#tokens, definitions#memory"


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
        found = ((each.id, each.claims.get(metric.quantity)) for each in evidence.with_ids(metric.records))
        units = {record: (unit[0], each.printed) for record, each in found if each and (unit := re.search(r"[GM]i?B", each.printed))}
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
        shown = [(counts, [f"{statement} (results: {len(metric.records)})" for statement, metric in of]) for counts, of in counted.items()]
        words = "; ".join(f"{counts}: {', '.join(places)}" for counts, places in shown)
        words += f". These are different counts under one name ({DEFINED}), so the figures cannot share a ranking"
        quantities = tuple(dict.fromkeys(metric.quantity for _, metric in every))
        yield Finding(AMBIGUOUS, records, f"{name} in several sources", words, quantities=quantities)


@rule(id="formula", family="definitions", verdicts=(INCONSISTENT,))
def formulas(evidence: Evidence) -> Iterator[Finding]:
    """Wrong units in a formula, or tables that contradict it.

    Both sides of an equation have the same unit, and memory of one micro-step does not grow with the number of micro-steps. A formula and
    a table of one document describe the same amounts.
    """
    for statement, formula in evidence.assertions(Formula):
        written = " x ".join(f"{term.name}{'' if term.power == 1 else f'^{term.power}'} [{term.unit}]" for term in formula.terms)
        name, quantities = label(formula.quantity), (formula.quantity,)
        powers = Counter[str]()
        for term in formula.terms:
            powers.update({unit: power * term.power for unit, power in _parsed(term.unit).items()})
        units = {unit: power for unit, power in powers.items() if power}
        if units != _parsed(formula.unit):
            ordered = sorted(units.items(), key=lambda item: -item[1])
            unit = " ".join(f"{each}^{power}" if power != 1 else each for each, power in ordered) or "1"
            claim, words = f"a formula for {name} in {formula.unit}", f"{written} has the unit {unit}, not {formula.unit}"
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
    powers = Counter(above.split("*"))
    powers.subtract(below.replace("/", "*").split("*"))
    return {unit: power for unit, power in powers.items() if power and unit not in {"", "1"}}
