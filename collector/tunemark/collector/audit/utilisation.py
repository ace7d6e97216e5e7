"""Utilisation: no device does more than its dense peak, and few do more than six tenths of it."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base, Run
from tunemark.collector.audit.physics_of import flop_per_token, kept_without_recompute, peak_flop_per_s, weight_bytes
from tunemark.collector.audit.rule import AMBIGUOUS, IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.settled import settled_reading
from tunemark.collector.audit.span import Span
from tunemark.collector.audit.token_rates import Rate, samples_per_s, token_rates

FAR = 1.5
"""A profile of one step leaves out waiting, but not a third of the time."""


def _share(run: Run, rate: Rate, *, recompute: bool = False) -> tuple[Span, str] | None:
    peak, length = peak_flop_per_s(run), run.conditions.sequence_length
    if peak is None or run.model is None or length is None:
        return None
    each = flop_per_token(run, length, recompute=recompute)
    share = rate.tokens_per_s * each / peak
    again = ", every block computed twice" if recompute else ""
    made = f"{rate.formula} = " if rate.formula else ""
    words = (
        f"{made}{rate.tokens_per_s.value:,.0f} tokens/s x {each / 1e9:.2f} GFLOP{again} = {rate.tokens_per_s.value * each / 1e12:,.1f} TFLOP/s, "
        f"{share.value:.1%} of {run.devices} x {peak / run.devices / 1e12:g} TFLOP/s dense"
    )
    return share, words


def above_peak(base: Base) -> Iterator[Found]:
    """Yield results whose rates need more FLOPs than the devices have, in each reading."""
    high, low = base.facts.known.practice("high-utilisation"), base.facts.known.practice("low-utilisation")
    for run in base.runs:
        rates: dict[str, list[Rate]] = defaultdict(list)
        for rate in token_rates(run):
            rates[rate.quantity].append(rate)
        for quantity, readings in rates.items():
            shares = [(rate, found) for rate in readings if (found := _share(run, rate))]
            if not shares:
                continue
            if len(shares) == 1:
                yield from _one_reading(run, quantity, *shares[0][1], high, low)
            elif settled_reading(run, quantity) is None:
                yield _readings(run, quantity, shares)


def _one_reading(run: Run, quantity: str, share: Span, words: str, high: float, low: float) -> Iterator[Found]:
    if share.low > 1:
        yield Found(IMPOSSIBLE, (run.id,), run.printed(quantity), words, {"utilisation": share.value})
    elif share.low > high:
        yield Found(
            SUSPICIOUS, (run.id,), run.printed(quantity), f"{words}; tuned stacks stay below {high:.0%}", {"utilisation": share.value}
        )
    elif share.high < low and not run.measured:
        yield Found(
            SUSPICIOUS, (run.id,), run.printed(quantity), f"{words}; so little that the device hardly works", {"utilisation": share.value}
        )


def _readings(run: Run, quantity: str, shares: list[tuple[Rate, tuple[Span, str]]]) -> Found:
    excluded = [(rate, share) for rate, (share, _) in shares if share.low > 1]
    possible = [(rate, share) for rate, (share, _) in shares if share.low <= 1]
    lines = [f"{'impossible' if share.low > 1 else 'possible'}, read as {rate.meaning}: {words}" for rate, (share, words) in shares]
    verdict = AMBIGUOUS if possible else IMPOSSIBLE
    ending = f"; only '{possible[0][0].meaning}' is left" if len(possible) == 1 and excluded else ""
    numbers: dict[str, float | int | str] = {f"utilisation, {rate.meaning}": share.value for rate, (share, _) in shares}
    return Found(verdict, (run.id,), run.printed(quantity), "; ".join(lines) + ending, numbers)


def with_recompute(base: Base) -> Iterator[Found]:
    """Yield results whose printed memory leaves no room for activations, so that each block must be computed twice."""
    high = base.facts.known.practice("high-utilisation")
    for run in base.runs:
        memory, conditions = run.readings("peak_memory_bytes"), run.conditions
        if not memory or run.model is None or conditions.sequence_length is None or conditions.micro_batch is None or run.devices > 1:
            continue
        room = max(span.high for _, span in memory)
        weights, weight_words = weight_bytes(run.model, conditions.method)
        needed, words = kept_without_recompute(run, conditions.sequence_length, conditions.micro_batch)
        if weights + needed <= room:
            continue
        for rate in token_rates(run):
            plain, again = _share(run, rate), _share(run, rate, recompute=True)
            if rate.meaning or plain is None or again is None or plain[0].low > 1 or again[0].low <= high:
                continue
            verdict = IMPOSSIBLE if again[0].low > 1 else SUSPICIOUS
            ending = "" if verdict is IMPOSSIBLE else f"; tuned stacks stay below {high:.0%}"
            yield Found(
                verdict,
                (run.id,),
                run.printed(rate.quantity, "peak_memory_bytes"),
                f"weights {weights / 1e9:.1f} GB ({weight_words}) and activations without recompute {needed / 1e9:.1f} GB ({words}) do not fit into "
                f"{run.claims['peak_memory_bytes'].printed}: blocks are computed twice, and {again[1]}{ending}",
                {"utilisation": again[0].value, "weights_bytes": weights, "activations_bytes": needed},
            )


def possible_rates(run: Run) -> list[Rate]:
    """Return tokens a second by one figure, without the readings that the devices' peak excludes."""
    by_quantity: dict[str, list[Rate]] = defaultdict(list)
    for rate in token_rates(run):
        if not rate.quantity.endswith("_reported"):
            by_quantity[rate.quantity].append(rate)
    for rates in by_quantity.values():
        left = [rate for rate in rates if (share := _share(run, rate)) is None or share[0].low <= 1]
        if left:
            return left
    return []


def missing_length(base: Base) -> Iterator[Found]:
    """Yield results with a rate of samples whose length nobody says: utilisation is then a matter of it."""
    for run in base.runs:
        rate, peak = samples_per_s(run), peak_flop_per_s(run)
        if rate is None or peak is None or run.model is None or run.conditions.sequence_length is not None:
            continue
        lengths = [length for length in (1_024, 2_048, 4_096) if length <= run.model.context_length] or [run.model.context_length]
        shares = {length: rate[0].value * length * flop_per_token(run, length) / peak for length in lengths}
        yield Found(
            AMBIGUOUS,
            (run.id,),
            "a rate of samples without the length of a sample",
            f"{rate[1]} = {rate[0].value:.3f} rows/s; "
            + ", ".join(f"{share:.1%} of the dense peak at {length:,} tokens" for length, share in shares.items()),
            {f"utilisation at {length}": share for length, share in shares.items()},
        )


def claimed_shares(base: Base) -> Iterator[Found]:
    """Yield claimed utilisations that cannot be: above 1, or without recompute above with it."""
    for run in base.runs:
        mfu, hfu = run.span("mfu"), run.span("hfu")
        for name, share in (("mfu", mfu), ("hfu", hfu)):
            if share and share.low > 1:
                yield Found(
                    IMPOSSIBLE, (run.id,), run.printed(name), f"{share.value:.1%} of the peak is more than all of it", {name: share.value}
                )
        if mfu and hfu and mfu.low > hfu.high:
            yield Found(
                INCONSISTENT,
                (run.id,),
                run.printed("mfu", "hfu"),
                f"MFU {mfu.value:.2%} > HFU {hfu.value:.2%}, which counts recomputed work on top",
                {"mfu": mfu.value, "hfu": hfu.value},
            )


def claimed_against_rate(base: Base) -> Iterator[Found]:
    """Yield claimed utilisations that the result's own rate does not give."""
    for run in base.runs:
        mfu, rates = run.span("mfu"), [rate for rate in token_rates(run) if rate.quantity in {"tokens_per_s", "samples_per_s"}]
        settled = settled_reading(run, "samples_per_s")
        rate = next((one for one in rates if settled and one.meaning == settled[0]), rates[0] if len(rates) == 1 else None)
        found = _share(run, rate) if rate is not None else None
        if run.measured or mfu is None or found is None or mfu.low <= found[0].high * FAR:
            continue
        yield Found(
            SUSPICIOUS,
            (run.id,),
            run.printed("mfu", "samples_per_s", "profile_step_time_s"),
            f"{found[1]}: {mfu.value / found[0].value:.1f} times less than the claimed {mfu.value:.2%}, which is of a profiled graph and not of the run",
            {"claimed": mfu.value, "utilisation": found[0].value},
        )


RULES = (
    Rule(
        "utilisation",
        "more FLOPs a second than the devices have",
        "utilisation",
        "FLOPs of a token follow from the model (6 N for full, 4 N for adapters, attention on top: Kaplan et al. 2020, Hu et al. 2021); "
        "times tokens a second they cannot exceed the dense peak. Where a figure can be read in several ways, impossible readings fall out.",
        (IMPOSSIBLE, SUSPICIOUS, AMBIGUOUS),
        above_peak,
    ),
    Rule(
        "utilisation-and-memory",
        "fast, and in less memory than its activations need",
        "utilisation",
        "Results of matrix products are kept for the backward pass or computed again (Chen et al. 2016). What does not fit into the printed "
        "memory was computed again, and that work has to fit into the peak too.",
        (IMPOSSIBLE, SUSPICIOUS),
        with_recompute,
    ),
    Rule(
        "sample-length",
        "a rate of samples, and no length of a sample",
        "definitions",
        "Work grows with the length of a row; without it a rate of rows says nothing about a device.",
        (AMBIGUOUS,),
        missing_length,
    ),
    Rule(
        "claimed-utilisation",
        "claimed utilisation above 1, or MFU above HFU",
        "utilisation",
        "HFU is MFU with recomputed work added (definitions.md 9 and 10); neither can exceed 1.",
        (IMPOSSIBLE, INCONSISTENT),
        claimed_shares,
    ),
    Rule(
        "mfu-and-rate",
        "a claimed utilisation that the result's own rate does not give",
        "utilisation",
        "MFU is model FLOPs over time x peak; the rate of the same result gives both (definitions.md 9).",
        (SUSPICIOUS,),
        claimed_against_rate,
    ),
)
