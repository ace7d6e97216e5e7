"""Comparisons: ratios and words checked against the figures, columns relative to a baseline, and the comparability of results."""

import math
from collections.abc import Iterator
from operator import attrgetter

from tunemark.collector.audit.distributions import UsualUtilisation, similar_size
from tunemark.collector.audit.evidence import AuditedResult, Evidence, grouped, label, quoted
from tunemark.collector.audit.interval import ROUGHLY, Interval
from tunemark.collector.audit.printed_figures import precision_class
from tunemark.collector.audit.rule import INCONSISTENT, SUSPICIOUS, Finding, rule
from tunemark.collector.audit.token_rates import rows_per_step, training_or_wall_time
from tunemark.schema.records.claims import Claim, Comparison, Extreme, Range
from tunemark.schema.records.published import Statement
from tunemark.schema.statistics.intervals import SIGNIFICANT_ERRORS
from tunemark.schema.vocabulary import Method

RATIO_TOLERANCE = 0.004
"""Share by which a printed ratio may differ beyond its rounding, since documents divide figures before rounding them."""
COLUMN_TOLERANCE = 0.006
"""The same share for a column of a table in which both figures are rounded."""
TIMES_TOLERANCE = 0.05
"""Share by which a ratio of rates may differ from the ratio of the times of the same work."""
FEWEST_STEPS = 20
"""A run of fewer steps is mostly warm-up (definitions#steady-window)."""
TIMES = frozenset({"train_time_s", "wall_s", "epoch_time_s", "step_time_s"})
TIMES_AND_RATES = TIMES | {"tokens_per_s", "samples_per_s", "samples_per_s_reported", "relative_speed"}
TABLE = attrgetter("source", "section")
LIKE = attrgetter("level", "result.conditions.accelerator", "result.conditions.method", "result.devices")
"""What results of different sources must share to be compared."""
TOTAL_OF = {"host_memory_peak_share": "host_memory_total_bytes", "device_memory_peak_share": "device_memory_total_bytes"}
CONDITION_OF = {
    "model": "model",
    "method": "method",
    "dataset": "dataset",
    "sequence length": "sequence_length",
    "rows of the training": "dataset",
    "precision": "precision",
    "rows of a step": "global_batch",
    "torch": "framework",
}
"""Aspects that must agree in a comparison, each with its condition."""
CHANGES_WORK = frozenset({"model", "method", "dataset", "sequence length", "rows of the training"})
"""Aspects that change the work. The others change how the work is done."""


@rule(id="printed-change", family="comparison", verdicts=(INCONSISTENT,))
def printed_changes(evidence: Evidence) -> Iterator[Finding]:
    """Ratio or difference that disagrees with the figures.

    A speed-up is the time before divided by the time after. A percentage change is the ratio minus 1.
    """
    for statement, compared, claims in _compared_figures(evidence):
        if compared.change is None or compared.change_is == "points":
            continue
        first, last = map(Interval.of, claims)
        ratio = last / first if compared.quantity in TIMES else first / last
        less = 1 if compared.change_is == "share" else 0
        computed, printed = Interval(ratio.value - less, ratio.low - less, ratio.high - less), Interval.of(compared.change)
        low, high = (bound + sign * abs(bound) * RATIO_TOLERANCE for bound, sign in ((computed.low, -1), (computed.high, 1)))
        if not Interval(computed.value, low, high).overlaps(printed):
            claim = f"{compared.change.printed} from {label(compared.quantity)} {claims[0].printed} compared with {claims[1].printed}"
            words = f"{compared.change_is} = {computed.value:.3f}, not {compared.change.printed}"
            numbers = {"computed": computed.value, "printed": printed.value}
            yield Finding(INCONSISTENT, (statement.id, *compared.records), claim, words, numbers, quantities=(compared.quantity,))


@rule(id="words-against-figures", family="comparison", verdicts=(INCONSISTENT,))
def words_against_figures(evidence: Evidence) -> Iterator[Finding]:
    """Words that the figures contradict.

    Higher means a ratio above 1, and slightly means by less than a quarter. Shares of different totals are first multiplied by
    their totals.
    """
    for statement, compared, claims in _compared_figures(evidence):
        if compared.relation == "beside":
            continue
        figures = Interval.of(claims[0]), Interval.of(claims[1])
        reasons = (
            _against_ratio(compared, *figures),
            _against_amounts(evidence, compared, *figures),
            _against_times(evidence, compared, *figures),
        )
        shown = f"{claims[0].printed} compared with {claims[1].printed}{quoted(statement)}"
        claim = f"{label(compared.quantity)} {compared.relation}: {shown}"
        quantities = tuple(dict.fromkeys((compared.quantity, compared.base_quantity or compared.quantity)))
        for words, numbers in filter(None, reasons):
            yield Finding(INCONSISTENT, (statement.id, *compared.records), claim, words, numbers, quantities=quantities)


def _compared_figures(evidence: Evidence) -> Iterator[tuple[Statement, Comparison, tuple[Claim, Claim]]]:
    """Yield comparisons with their first and last figure, if both are unambiguous and positive."""
    for statement, compared in evidence.assertions(Comparison):
        claims = evidence.compared_claims(compared)
        if claims and not any(claim.readings or claim.value <= 0 for claim in claims):
            yield statement, compared, claims


Contradiction = tuple[str, dict[str, float]] | None


def _against_ratio(compared: Comparison, first: Interval, last: Interval) -> Contradiction:
    ratio = first / last
    wrong = {
        "higher": ratio.high < 1,
        "slightly higher": ratio.high < 1 or ratio.low > ROUGHLY,
        "lower": ratio.low > 1,
        "slightly lower": ratio.low > 1 or ratio.high < 1 / ROUGHLY,
        "about equal": ratio.low > ROUGHLY or ratio.high < 1 / ROUGHLY,
    }[compared.relation]
    words = f"{first.value:g} / {last.value:g} = {ratio.value:.2f}, which is not '{compared.relation}'"
    return (words, {"ratio": ratio.value}) if wrong else None


def _against_amounts(evidence: Evidence, compared: Comparison, first: Interval, last: Interval) -> Contradiction:
    """Return a contradiction if shares of different totals compare in the opposite order as amounts."""
    results = evidence.with_ids((compared.records[0], compared.records[-1]))
    totals = [_total(evidence, result, compared.quantity) for result in results]
    if len(totals) < 2 or totals[0] is None or totals[1] is None or totals[0][0] == totals[1][0]:  # noqa: PLR2004 - a pair
        return None
    (total, unit), (last_total, _) = totals[0], totals[1]
    amount, last_amount = first.value * total, last.value * last_total
    amounts, shares = (first * total) / (last * last_total), first / last
    if (shares.value < 1) == (amounts.value < 1):
        return None
    words = (
        f"{first.value:.2%} x {total:g} {unit} = {amount:.2f}, {last.value:.2%} x {last_total:g} {unit} = {last_amount:.2f}: a ratio of "
        f"{amounts.value:.1f}, but the shares have a ratio of {shares.value:.2f}. Shares of different totals cannot be compared"
    )
    return words, {"ratio of amounts": amounts.value, "ratio of shares": shares.value}


def _total(evidence: Evidence, result: AuditedResult, quantity: str) -> tuple[float, str] | None:
    """Return the total of a share with its unit, or None if it is unknown."""
    if quantity == "cpu_utilisation_mean":
        cores = next((row.vcpus for row in evidence.facts.prices if row.vcpus and row.instance == result.conditions.instance), None)
        return (float(cores), "vCPU") if cores else None
    claim = result.claims.get(TOTAL_OF.get(quantity, ""))
    return (claim.value / 1e9, "GB") if claim else None


def _against_times(evidence: Evidence, compared: Comparison, first: Interval, last: Interval) -> Contradiction:
    """Return a contradiction if the times of the same work have another ratio than the rates."""
    results = evidence.with_ids((compared.records[0], compared.records[-1]))
    if not compared.quantity.startswith("samples_per_s") or len(results) < 2 or len({result.training_rows for result in results}) > 1:  # noqa: PLR2004 - a pair
        return None
    mine, theirs = (result.interval("epoch_time_s") or result.interval("train_time_s") for result in results)
    if mine is None or theirs is None or (first / last).widened(TIMES_TOLERANCE).overlaps(theirs / mine):
        return None
    by_rate, by_time = first.value / last.value, theirs.value / mine.value
    words = f"rates {first.value:g} / {last.value:g} = {by_rate:.2f}, but times of the same rows {theirs.value:g} s / {mine.value:g} s = {by_time:.2f}"
    return words, {"ratio of rates": by_rate, "ratio of times": by_time}


@rule(id="headline-range", family="comparison", verdicts=(INCONSISTENT,))
def headline_ranges(evidence: Evidence) -> Iterator[Finding]:
    """Headline range that excludes a row.

    A range over rows spans the lowest to the highest of them.
    """
    for statement, claimed in evidence.assertions(Range):
        values = {result.id: value for result in evidence.with_ids(claimed.records) if (value := result.interval(claimed.quantity))}
        low, high = Interval.of(claimed.low), Interval.of(claimed.high)
        outside = [record for record, value in values.items() if value.high < low.low or value.low > high.high]
        if outside:
            rows = ", ".join(f"{evidence.by_id[record].claims[claimed.quantity].printed} ({record})" for record in values)
            claim = f"{label(claimed.quantity)} {claimed.low.printed} to {claimed.high.printed} over {len(values)} rows{quoted(statement)}"
            words = f"the rows are {rows}. Outside the range: {', '.join(outside)}"
            numbers = {"lowest": min(value.value for value in values.values()), "highest": max(value.value for value in values.values())}
            yield Finding(INCONSISTENT, (statement.id, *outside, *values), claim, words, numbers, quantities=(claimed.quantity,))


@rule(id="superlative", family="comparison", verdicts=(INCONSISTENT,))
def superlatives(evidence: Evidence) -> Iterator[Finding]:
    """Superlative that another row contradicts.

    The best of several rows has the most extreme figure.
    """
    for statement, claimed in evidence.assertions(Extreme):
        claims = {record: claim for record in claimed.among if (claim := evidence.claims_of(record).get(claimed.quantity))}
        if claimed.best not in claims:
            continue
        extreme = (max if claimed.where == "highest" else min)(claims, key=lambda record: claims[record].value)
        best, stated = claims[extreme], claims[claimed.best]
        if best.value != stated.value:
            words = f"{claimed.where} {label(claimed.quantity)}: {stated.printed}{quoted(statement)}"
            records, numbers = (statement.id, claimed.best, extreme), {"claimed": stated.value, "best": best.value}
            yield Finding(INCONSISTENT, records, words, f"{extreme} has {best.printed}", numbers, quantities=(claimed.quantity,))


@rule(id="relative-column", family="comparison", verdicts=(INCONSISTENT,))
def relative_speed(evidence: Evidence) -> Iterator[Finding]:
    """Relative speed that differs from the ratio.

    Relative speed is throughput divided by the throughput of the row marked 1.00x.
    """
    for results in grouped(evidence.with_figure("relative_speed"), TABLE).values():
        reference = next((result for result in results if result.claims["relative_speed"].value == 1), None)
        base = reference.interval("tokens_per_s") if reference else None
        for result in results:
            rate = result.interval("tokens_per_s")
            if reference and rate and base:
                yield from wrong_column(result, reference, "relative_speed", rate / base, f"{rate.value:g} / {base.value:g}")


@rule(id="saving-column", family="comparison", verdicts=(INCONSISTENT,))
def memory_saved(evidence: Evidence) -> Iterator[Finding]:
    """Memory saving that differs from the computed one.

    A saving is (before - after) / before.
    """
    table_and_model = attrgetter("source", "section", "conditions.model")
    peaks = [result for result in evidence.with_figure("peak_memory_bytes") if result.conditions.method is Method.FULL]
    # The first row of each table and model is the baseline.
    baselines = {table_and_model(result): result for result in reversed(peaks)}
    for result in evidence.with_figure("memory_reduction"):
        full = baselines.get(table_and_model(result))
        mine, theirs = result.interval("peak_memory_bytes"), full.interval("peak_memory_bytes") if full else None
        if full and mine and theirs:
            left = mine / theirs
            words = f"({theirs.value / 1e9:g} - {mine.value / 1e9:g}) / {theirs.value / 1e9:g}"
            yield from wrong_column(result, full, "memory_reduction", Interval(1 - left.value, 1 - left.high, 1 - left.low), words)


def wrong_column(result: AuditedResult, other: AuditedResult, quantity: str, computed: Interval, words: str) -> Iterator[Finding]:
    """Yield a finding if a relative figure differs from the computed one."""
    printed = result.interval(quantity)
    if printed is not None and not computed.widened(COLUMN_TOLERANCE).overlaps(printed):
        words = f"{words} = {computed.value:.3f}, not {result.claims[quantity].printed}"
        numbers = {"computed": computed.value, "printed": printed.value}
        yield Finding(INCONSISTENT, (result.id, other.id), result.printed(quantity), words, numbers, quantities=(quantity,))


@rule(id="comparability", family="comparison", verdicts=(INCONSISTENT, SUSPICIOUS))
def comparability(evidence: Evidence) -> Iterator[Finding]:
    """Comparison of results under different conditions.

    Times and rates compare devices only when model, method, data, length, batch and precision agree (definitions#comparability).
    """
    for statement, compared in evidence.assertions(Comparison):
        results = evidence.with_ids(dict.fromkeys(compared.records))
        devices = {(result.conditions.accelerator, result.devices) for result in results}
        if compared.quantity not in TIMES_AND_RATES or len(devices) < 2:  # noqa: PLR2004 - one device is not compared
            continue
        keys = {result.id: _comparability_keys(result) for result in results}
        differing = {}
        for name, condition in CONDITION_OF.items():
            values = {record: known[name] for record, known in keys.items() if known[name] is not None}
            if len(set(values.values())) > 1:
                differing[name] = (condition, values)
        if not differing:
            continue
        other_work = bool(CHANGES_WORK & set(differing))
        lines = (
            f"{name}: {', '.join(f'{value} ({record})' for record, value in values.items())}" for name, (_, values) in differing.items()
        )
        ending = "Their times and rates measure different work" if other_work else "They did the same work under different conditions"
        yield Finding(
            INCONSISTENT if other_work else SUSPICIOUS,
            (statement.id, *compared.records),
            f"{label(compared.quantity)} of {len(results)} results compared",
            f"{'; '.join(lines)}. {ending}",
            {"differing": ", ".join(differing)},
            quantities=(compared.quantity,),
            conditions=tuple(dict.fromkeys(condition for condition, _ in differing.values())),
        )


def _comparability_keys(result: AuditedResult) -> dict[str, object]:
    conditions, rows, steps = result.conditions, rows_per_step(result), result.interval("steps")
    return {
        "model": conditions.model,
        "method": conditions.method.value,
        "dataset": conditions.dataset,
        "sequence length": conditions.sequence_length,
        "rows of the training": round(steps.value) * rows if steps and rows else None,
        "precision": precision_class(conditions.precision),
        "rows of a step": rows,
        "torch": conditions.framework.get("torch"),
    }


@rule(id="cross-source", family="comparison", verdicts=(SUSPICIOUS,))
def across_sources(evidence: Evidence) -> Iterator[Finding]:
    """Far better than other sources on the same device.

    For one method, device and level of software, utilisation changes slowly with the model. A large factor needs an explanation,
    unless two other sources reach as much with like devices.
    """
    factor, usual = evidence.facts.known.practice("cross-source"), UsualUtilisation(evidence)
    for group in grouped(usual.attained.values(), LIKE).values():
        published = [item for item in group if not item.result.measured]
        for item in group:
            # Measured results may be many: each is compared with documents only.
            peers = [other for other in published if other.result.source != item.result.source and similar_size(item, other)]
            middle = sorted(other.share for other in peers)[len(peers) // 2] if peers else item.share
            limit = usual.limit(item.result)
            if item.share > factor * middle and (item.hardware_share > limit.share or not limit.measured):
                claim = f"{item.result.printed(item.rate.quantity)} on {item.result.device_name}"
                words = (
                    f"{item.share:.1%} of the dense peak. {len(peers)} results of other sources with the same device, method, software level "
                    f"and model size reach {middle:.1%}: {item.share / middle:.1f} times less{f'; {limit.words}' if limit.measured else ''}"
                )
                numbers = {"utilisation": item.share, "peers": middle}
                records = (item.result.id, *(other.result.id for other in peers))
                yield Finding(SUSPICIOUS, records, claim, words, numbers, quantities=(item.rate.quantity,))


@rule(id="same-run", family="comparison", verdicts=(INCONSISTENT,))
def repeated_runs(evidence: Evidence) -> Iterator[Finding]:
    """Repeats of one run with very different times.

    A run repeated on the same device takes about the same time. A large factor means that the work or the device was different.
    """
    limit = evidence.facts.known.practice("same-run")
    printed = ("epochs", "steps", "total_steps", "train_time_s", "wall_s")
    for result, other in evidence.published_pairs():
        if not _same_conditions(result, other):
            continue
        first, last = _seconds_per_row(result), _seconds_per_row(other)
        if first is None or last is None:
            continue
        fast, slow = sorted((first[0], last[0]))
        if slow > limit * fast:
            yield Finding(
                INCONSISTENT,
                (result.id, other.id),
                f"{result.printed(*printed)} and {other.printed(*printed)} for the same model, method, batch and length on the same device",
                f"{first[1]} = {1e3 * first[0]:.2f} ms per row; {last[1]} = {1e3 * last[0]:.2f} ms per row: {slow / fast:.2f} times as long",
                {"s_per_row": first[0], "s_per_row, other": last[0]},
                quantities=tuple(name for name in ("train_time_s", "wall_s") if name in result.claims or name in other.claims),
            )


def _seconds_per_row(result: AuditedResult) -> tuple[float, str] | None:
    """Return seconds per row of the training data, by whole epochs or by the steps that were done, with the calculation."""
    steps, epochs, time = result.interval("steps"), result.interval("epochs"), training_or_wall_time(result)
    conditions, rows = result.conditions, result.training_rows
    if time is None:
        return None
    if epochs is not None and rows is not None and result.finished:
        return time.value / (epochs.value * rows), f"{time.value:g} s / ({epochs.value:g} x {rows:,} rows)"
    batch = conditions.global_batch or (conditions.micro_batch if result.devices == 1 else None)
    if steps is None or batch is None or steps.value < FEWEST_STEPS:
        return None
    return time.value / (steps.value * batch), f"{time.value:g} s / ({steps.value:,.0f} steps x {batch} rows)"


def _same_conditions(result: AuditedResult, other: AuditedResult) -> bool:
    """Return True if two results have the same batch, length and format, and no setting that is known to differ."""
    a, b = result.conditions, other.conditions
    required = ("micro_batch", "sequence_length", "precision", "accelerator", "accelerator_count")
    optional = ("global_batch", "gradient_accumulation", "padding", "packing", "dataset")
    same = all(getattr(a, name) is not None and getattr(a, name) == getattr(b, name) for name in required)
    agree = all(None in {getattr(a, name), getattr(b, name)} or getattr(a, name) == getattr(b, name) for name in optional)
    fewer, more = sorted((dict(a.settings), dict(b.settings)), key=len)
    return same and agree and all(more.get(name) == value for name, value in fewer.items()) and (not fewer or len(fewer) == len(more))


ACCURACIES = frozenset({"accuracy", "accuracy_baseline", "accuracy_stochastic_rounding", "accuracy_epoch1", "accuracy_epoch2"})
"""Standard errors below which a difference is not significant (definitions#quality)."""


@rule(id="significance", family="significance", verdicts=(SUSPICIOUS,))
def differences(evidence: Evidence) -> Iterator[Finding]:
    """Difference in accuracy within two standard errors.

    A share over n rows has the standard error sqrt(p (1 - p) / n). A difference below two standard errors can be chance.
    """
    for statement, compared in evidence.assertions(Comparison):
        rows, claims = _test_rows(evidence, (compared.records[0], compared.records[-1])), evidence.compared_claims(compared)
        if compared.quantity not in ACCURACIES or compared.relation in {"beside", "about equal"} or rows is None or claims is None:
            continue
        first, last = claims
        errors = [_standard_error(claim.value, rows) for claim in claims]
        difference, error = first.value - last.value, math.hypot(*errors)
        if abs(difference) < SIGNIFICANT_ERRORS * error:
            claim = f"{label(compared.quantity)} {compared.relation}: {first.printed} compared with {last.printed}{quoted(statement)}"
            words = (
                f"difference {difference * 100:+.2f} points; over {rows:,} rows the standard errors are {errors[0] * 100:.2f} and "
                f"{errors[1] * 100:.2f} points, and {error * 100:.2f} for the difference: {abs(difference) / error:.1f} standard "
                "errors, not significant"
            )
            numbers = {"difference": difference, "standard_error": error, "rows": rows}
            yield Finding(SUSPICIOUS, (statement.id, *compared.records), claim, words, numbers, quantities=(compared.quantity,))


@rule(id="best-of-many", family="significance", verdicts=(SUSPICIOUS,))
def best_of_many(evidence: Evidence) -> Iterator[Finding]:
    """Best accuracy with others within two standard errors.

    The highest of several shares over n rows is high partly by chance. Others within two standard errors of the difference may be as
    good.
    """
    for statement, claimed in evidence.assertions(Extreme):
        rows, best = _test_rows(evidence, [claimed.best]), evidence.claims_of(claimed.best).get(claimed.quantity)
        if claimed.quantity not in ACCURACIES or rows is None or best is None:
            continue
        error, claims = _standard_error(best.value, rows), {record: evidence.claims_of(record) for record in claimed.among}
        others = {record: claim for record, known in claims.items() if record != claimed.best and (claim := known.get(claimed.quantity))}
        near = {
            record: claim.printed
            for record, claim in others.items()
            if abs(best.value - claim.value) < SIGNIFICANT_ERRORS * math.hypot(error, _standard_error(claim.value, rows))
        }
        if near:
            shown = f"{label(claimed.quantity)} {best.printed} is the {claimed.where} of {len(others) + 1}{quoted(statement)}"
            words = (
                f"over {rows:,} rows its standard error is {error * 100:.2f} points. {len(near)} of the {len(others)} others "
                f"({', '.join(near.values())}) lie within {SIGNIFICANT_ERRORS} standard errors of the difference, so any of these may be the best"
            )
            numbers = {"near": len(near), "others": len(others), "rows": rows}
            yield Finding(SUSPICIOUS, (statement.id, claimed.best, *near), shown, words, numbers, quantities=(claimed.quantity,))


def _test_rows(evidence: Evidence, records: list[str] | tuple[str, str]) -> int | None:
    results = evidence.with_ids(records)
    return results[0].dataset.test_rows if results and results[0].dataset else None


def _standard_error(share: float, rows: int) -> float:
    """Return sqrt(p (1 - p) / n). A figure that is not a share has none; another rule reports it."""
    return math.sqrt(max(0.0, share * (1 - share)) / rows)
