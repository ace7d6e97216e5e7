"""What documents compare: ratios and words against the figures, shares of different totals, and whether the pair may be compared."""

from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run, label, quoted
from tunemark.collector.audit.rule import INCONSISTENT, Found, Rule
from tunemark.collector.audit.span import Span
from tunemark.schema.records.claims import Comparison, Extreme, Range
from tunemark.schema.records.published import Statement

SLIGHT = 1.25
"""More than a quarter is not slight, and no equality."""
ROUNDED_TWICE = 0.004
LOWER_IS_FASTER = frozenset({"train_time_s", "wall_s", "epoch_time_s", "step_time_s"})


def _spans(base: Base, said: Comparison) -> tuple[Span, Span] | None:
    first, last = (
        base.claims_of(said.records[0]).get(said.quantity),
        base.claims_of(said.records[-1]).get(said.base_quantity or said.quantity),
    )
    if first is None or last is None or first.readings or last.readings or min(first.value, last.value) <= 0:
        return None
    return Span.of(first), Span.of(last)


def _shown(base: Base, said: Comparison) -> str:
    first = base.claims_of(said.records[0])[said.quantity].printed
    last = base.claims_of(said.records[-1])[said.base_quantity or said.quantity].printed
    return f"{first} against {last}"


def changes(base: Base) -> Iterator[Found]:
    """Yield printed ratios and differences that their figures do not give."""
    for statement, said in base.assertions(Comparison):
        spans = _spans(base, said)
        if said.change is None or spans is None:
            continue
        first, last = spans
        printed = Span.of(said.change)
        faster = last / first if said.quantity in LOWER_IS_FASTER else first / last
        computed = {
            "ratio": faster,
            "share": Span(faster.value - 1, faster.low - 1, faster.high - 1),
            "points": Span(abs(first.value - last.value), abs(first.value - last.value), abs(first.value - last.value)),
        }[said.change_is]
        wide = Span(computed.value, computed.low - abs(computed.low) * ROUNDED_TWICE, computed.high + abs(computed.high) * ROUNDED_TWICE)
        if said.change_is != "points" and not wide.overlaps(printed):
            yield Found(
                INCONSISTENT,
                (statement.id, *said.records),
                f"{said.change.printed} from {label(said.quantity)} {_shown(base, said)}",
                f"{'share' if said.change_is == 'share' else 'ratio'} = {computed.value:.3f}, not {said.change.printed}",
                {"computed": computed.value, "printed": printed.value},
            )


def words(base: Base) -> Iterator[Found]:
    """Yield words that the figures contradict; shares are multiplied with their totals where these differ."""
    for statement, said in base.assertions(Comparison):
        spans = _spans(base, said)
        if said.relation == "beside" or spans is None:
            continue
        yield from _against_words(base, statement, said, *spans)
        yield from _totals(base, statement, said, *spans)
        yield from _times(base, statement, said, *spans)


def _against_words(base: Base, statement: Statement, said: Comparison, first: Span, last: Span) -> Iterator[Found]:
    ratio = first / last
    wrong = {
        "higher": ratio.high < 1,
        "slightly higher": ratio.high < 1 or ratio.low > SLIGHT,
        "lower": ratio.low > 1,
        "slightly lower": ratio.low > 1 or ratio.high < 1 / SLIGHT,
        "about equal": ratio.low > SLIGHT or ratio.high < 1 / SLIGHT,
    }[said.relation]
    if wrong:
        yield Found(
            INCONSISTENT,
            (statement.id, *said.records),
            f"{label(said.quantity)} {said.relation}: {_shown(base, said)}{quoted(statement)}",
            f"{first.value:g} / {last.value:g} = {ratio.value:.2f}, which is not '{said.relation}'",
            {"ratio": ratio.value},
        )


def _times(base: Base, statement: Statement, said: Comparison, first: Span, last: Span) -> Iterator[Found]:
    """Yield rates that are compared, where the times of the same work say another ratio."""
    runs = base.named((said.records[0], said.records[-1]))
    if not said.quantity.startswith("samples_per_s") or len(runs) < 2 or runs[0].training_rows != runs[1].training_rows:  # noqa: PLR2004 - a pair
        return
    mine, theirs = (run.span("epoch_time_s") or run.span("train_time_s") for run in runs)
    if mine is None or theirs is None or (first / last).widened(0.05).overlaps(theirs / mine):
        return
    by_time = theirs / mine
    yield Found(
        INCONSISTENT,
        (statement.id, *said.records),
        f"{label(said.quantity)} {said.relation}: {_shown(base, said)}{quoted(statement)}",
        f"rates {first.value:g} / {last.value:g} = {first.value / last.value:.2f}, but times of the same rows {theirs.value:g} s / {mine.value:g} s = {by_time.value:.2f}",
        {"ratio of rates": first.value / last.value, "ratio of times": by_time.value},
    )


def _totals(base: Base, statement: Statement, said: Comparison, first: Span, last: Span) -> Iterator[Found]:
    runs = base.named((said.records[0], said.records[-1]))
    totals = [_total(base, run, said.quantity) for run in runs]
    if len(runs) < 2 or totals[0] is None or totals[1] is None or totals[0][0] == totals[1][0]:  # noqa: PLR2004 - a pair
        return
    amounts = first * totals[0][0], last * totals[1][0]
    ratio, of_shares = amounts[0] / amounts[1], first / last
    if (of_shares.value < 1) == (ratio.value < 1):
        return
    unit = totals[0][1]
    yield Found(
        INCONSISTENT,
        (statement.id, *said.records),
        f"{label(said.quantity)} {said.relation}: {_shown(base, said)}{quoted(statement)}",
        f"{first.value:.2%} x {totals[0][0]:g} {unit} = {amounts[0].value:.2f}, {last.value:.2%} x {totals[1][0]:g} {unit} = {amounts[1].value:.2f}: "
        f"{ratio.value:.1f} times, where the shares say {of_shares.value:.2f} times; shares of different totals cannot be compared",
        {"ratio of amounts": ratio.value, "ratio of shares": of_shares.value},
    )


def _total(base: Base, run: Run, quantity: str) -> tuple[float, str] | None:
    """Return what a share is of, where the evidence says so."""
    if quantity == "cpu_utilisation_mean":
        cores = next((row.vcpus for row in base.facts.prices if row.vcpus and row.instance == run.conditions.instance), None)
        return (float(cores), "vCPU") if cores else None
    of = {"host_memory_peak_share": "host_memory_total_bytes", "device_memory_peak_share": "device_memory_total_bytes"}.get(quantity)
    claim = run.claims.get(of or "")
    return (claim.value / 1e9, "GB") if claim else None


def ranges(base: Base) -> Iterator[Found]:
    """Yield headline ranges that do not hold the rows they are about."""
    for statement, said in base.assertions(Range):
        values = {run.id: span for run in base.named(said.records) if (span := run.span(said.quantity))}
        low, high = Span.of(said.low), Span.of(said.high)
        outside = {name: span for name, span in values.items() if span.high < low.low or span.low > high.high}
        if outside:
            yield Found(
                INCONSISTENT,
                (statement.id, *outside, *values),
                f"{label(said.quantity)} {said.low.printed} to {said.high.printed} over {len(values)} rows{quoted(statement)}",
                f"the rows are {', '.join(f'{base.by_id[name].claims[said.quantity].printed} ({name})' for name in values)}: {', '.join(outside)} lies outside",
                {"lowest": min(span.value for span in values.values()), "highest": max(span.value for span in values.values())},
            )


def extremes(base: Base) -> Iterator[Found]:
    """Yield superlatives that another row beats."""
    for statement, said in base.assertions(Extreme):
        claims = {record: claim for record in said.among if (claim := base.claims_of(record).get(said.quantity))}
        if said.best not in claims:
            continue
        pick = max if said.where == "highest" else min
        best = pick(claims, key=lambda record: claims[record].value)
        if claims[best].value != claims[said.best].value:
            yield Found(
                INCONSISTENT,
                (statement.id, said.best, best),
                f"{said.where} {label(said.quantity)}: {claims[said.best].printed}{quoted(statement)}",
                f"{best} has {claims[best].printed}",
                {"claimed": claims[said.best].value, "best": claims[best].value},
            )


RULES = (
    Rule(
        "printed-change",
        "a ratio or difference that the figures do not give",
        "comparison",
        "A speedup is time before over time after; a share is the ratio less 1.",
        (INCONSISTENT,),
        changes,
    ),
    Rule(
        "words-against-figures",
        "words that the figures contradict",
        "comparison",
        "Higher is above 1, slightly is below a quarter; shares of different totals are multiplied with them first.",
        (INCONSISTENT,),
        words,
    ),
    Rule(
        "headline-range",
        "a headline range that leaves out a row",
        "comparison",
        "A range over rows runs from the lowest to the highest of them.",
        (INCONSISTENT,),
        ranges,
    ),
    Rule(
        "superlative",
        "a best that another row beats",
        "comparison",
        "The best of several is the extreme of their figures.",
        (INCONSISTENT,),
        extremes,
    ),
)
