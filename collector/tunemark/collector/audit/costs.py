"""What runs are said to cost: hours x price, samples x time x price, and what owned hardware is said to save."""

from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base
from tunemark.collector.audit.physics_of import least_flop_per_token
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.span import Span
from tunemark.collector.audit.token_rates import plain_rate
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.records.claims import Bill, BreakEven, Offer
from tunemark.schema.records.published import Claim, Statement
from tunemark.schema.vocabulary import Dtype

HOUR_S = 3_600
MILLION = 1_000_000
CENT = 0.005


def _price(base: Base, statement: Statement, bill: Bill) -> tuple[str, Span] | None:
    """Return the price of a bill: of its offer, else the cheapest that the document has for the device."""
    if bill.offer is not None:
        claim = base.claims_of(bill.offer).get("price_usd_per_hour")
        return (bill.offer, Span.of(claim)) if claim else None
    offers = [
        (one.id, one.claims["price_usd_per_hour"])
        for one, offer in base.assertions(Offer)
        if one.id[:3] == statement.id[:3] and offer.accelerator == bill.accelerator and "price_usd_per_hour" in one.claims
    ]
    name, claim = min(offers, key=lambda one: one[1].value, default=(None, None))
    return (name, Span.of(claim)) if name and claim else None


def runs(base: Base) -> Iterator[Found]:
    """Yield costs of runs that are not hours x price, in statements and in results."""
    for statement, bill in base.assertions(Bill):
        price = _price(base, statement, bill)
        yield from _run(statement.id, statement.claims, price)
    for run in base.runs:
        claim = run.claims.get("price_usd_per_hour")
        price = (run.id, Span.of(claim)) if claim else None
        yield from _run(run.id, run.claims, price)
        yield from _run(run.id, run.claims, price, "cost_per_epoch_usd", "epoch_time_s")


def _run(
    record: str, claims: dict[str, Claim], price: tuple[str, Span] | None, cost: str = "cost_usd", time: str = "train_time_s"
) -> Iterator[Found]:
    if price is None or cost not in claims or time not in claims:
        return
    computed, printed = Span.of(claims[time]) / HOUR_S * price[1], Span.of(claims[cost])
    if not computed.widened(CENT).overlaps(printed):
        yield Found(
            INCONSISTENT,
            (record, price[0]),
            f"{claims[cost].printed} for {claims[time].printed}",
            f"{claims[time].value / HOUR_S:.4g} h x ${price[1].value:g} = ${computed.value:.4g}, not {claims[cost].printed}",
            {"computed_usd": computed.value, "printed_usd": printed.value},
        )


def durations(base: Base) -> Iterator[Found]:
    """Yield bills whose time is not epochs x the time of an epoch of the result they rest on."""
    for statement, bill in base.assertions(Bill):
        result = base.by_id.get(bill.result or "")
        epochs, time, each = (
            statement.claims.get("epochs"),
            statement.claims.get("train_time_s"),
            result.span("epoch_time_s") if result else None,
        )
        if result and epochs and time and each and not (each * epochs.value).overlaps(Span.of(time)):
            yield Found(
                INCONSISTENT,
                (statement.id, result.id),
                f"{time.printed} for {epochs.printed}",
                f"{epochs.value:g} x {each.value / HOUR_S:.2f} h = {epochs.value * each.value / HOUR_S:.1f} h",
                {"computed_h": epochs.value * each.value / HOUR_S},
            )


def samples(base: Base) -> Iterator[Found]:
    """Yield costs of a million samples that do not follow from throughput, length and price."""
    for statement, bill in base.assertions(Bill):
        claim, price, result = (
            statement.claims.get("cost_per_1m_samples_usd"),
            _price(base, statement, bill),
            base.by_id.get(bill.result or ""),
        )
        rate = plain_rate(result) if result else None
        length = result.conditions.sequence_length if result else None
        if claim is None or price is None or rate is None or length is None or result is None:
            continue
        computed = Span.exact(float(length * MILLION)) / rate.tokens_per_s / HOUR_S * price[1]
        if not computed.overlaps(Span.of(claim)):
            yield Found(
                INCONSISTENT,
                (statement.id, result.id, price[0]),
                f"{claim.printed} for a million samples",
                f"{length:,} tokens / {rate.tokens_per_s.value:,.0f} tokens/s x 10^6 = {length * MILLION / rate.tokens_per_s.value / HOUR_S:,.0f} h, x ${price[1].value:g} an hour, the document's "
                f"lowest, = ${computed.value:,.2f}: {computed.value / claim.value:.1f} times the claim",
                {"computed_usd": computed.value, "printed_usd": claim.value},
            )


def implied_rates(base: Base) -> Iterator[Found]:
    """Yield costs of a million samples that no result stands behind, and that need more FLOPs a second than the device has."""
    for statement, bill in base.assertions(Bill):
        claim, price = statement.claims.get("cost_per_1m_samples_usd"), _price(base, statement, bill)
        model, card = base.facts.models.get(bill.model or ""), base.facts.accelerators.get(bill.accelerator or "")
        length, peak = _length_of_siblings(base, statement), _best_16_bit(card)
        if (
            bill.result is not None
            or claim is None
            or price is None
            or model is None
            or bill.method is None
            or not length
            or not peak
            or not card
        ):
            continue
        # The longest time that the claim allows: at the document's lowest price, the cost at the upper end of its last digit.
        seconds = Span.of(claim) / price[1] * HOUR_S
        rate = length * MILLION / seconds.value
        each = least_flop_per_token(model, bill.method, length)
        share = Span.exact(length * MILLION * each) / seconds / peak
        if share.low > 1:
            yield Found(
                IMPOSSIBLE,
                (statement.id, price[0]),
                f"{claim.printed} for a million samples of {model.name}, {bill.method.value}, on {card.name}",
                f"{claim.printed} / ${price[1].value:g} an hour, the document's lowest, = {seconds.value / HOUR_S:,.0f} h for 10^6 x {length:,} tokens = "
                f"{rate:,.0f} tokens/s x {each / 1e9:.1f} GFLOP = {rate * each / 1e12:,.0f} TFLOP/s, {share.value:.0%} of {peak / 1e12:g} TFLOP/s dense",
                {"utilisation": share.value, "tokens_per_s": rate},
            )


def _length_of_siblings(base: Base, statement: Statement) -> int | None:
    """Return the tokens of a sample in the bills of the same table, where their results agree in it."""
    document = base.document_of.get(statement.id[:3])
    lengths = {
        base.by_id[bill.result].conditions.sequence_length
        for one, bill in base.assertions(Bill)
        if document and one in document.statements and one.section == statement.section and bill.result in base.by_id and bill.result
    }
    return lengths.pop() if len(lengths) == 1 else None


def _best_16_bit(card: AcceleratorCard | None) -> float | None:
    peaks = [peak for dtype, peak in card.peak_tflops.items() if dtype in {Dtype.BF16, Dtype.FP16}] if card else []
    return max(peaks) * 1e12 if peaks else None


def owned(base: Base) -> Iterator[Found]:
    """Yield costs on owned hardware without what they are made of."""
    rates = {}
    for statement, bill in base.assertions(Bill):
        cost, time = statement.claims.get("cost_local_usd"), statement.claims.get("train_time_s")
        if cost and time and not bill.owned_inputs:
            rates[statement.id] = (bill.accelerator or "", cost.value / time.value * HOUR_S, f"{cost.printed} / {time.printed}")
    if not rates:
        return
    cards = base.facts.accelerators
    shown = "; ".join(
        f"{name}: {words} = ${rate:.2f} an hour of {cards[key].name if key in cards else key}" for name, (key, rate, words) in rates.items()
    )
    bought = "; ".join(
        f"{cards[key].name} was ${cards[key].msrp_usd:,.0f}"
        for key in dict.fromkeys(key for key, _, _ in rates.values())
        if key in cards and cards[key].msrp_usd
    )
    yield Found(
        SUSPICIOUS,
        tuple(rates),
        "amortised cost on owned hardware, without purchase price, years, hours of use, watts and electricity",
        f"{shown}. Devices of different price come to about the same{f' ({bought})' if bought else ''}; (purchase / (years x hours of use) + watts x electricity) cannot be checked",
        {f"usd_per_hour, {name}": rate for name, (_, rate, _) in rates.items()},
    )


def break_even(base: Base) -> Iterator[Found]:
    """Yield a number of runs from which owning is said to pay, where the document's own costs say always or never."""
    for statement, said in base.assertions(BreakEven):
        lines, decided = [], []
        for name in said.bills:
            cloud, local = base.claims_of(name).get("cost_usd"), base.claims_of(name).get("cost_local_usd")
            if cloud and local:
                better = "always" if local.value < cloud.value else "never"
                decided.append(better)
                lines.append(f"{name}: {local.printed} owned against {cloud.printed} rented for each run, so owning pays {better}")
        if decided:
            yield Found(
                INCONSISTENT,
                (statement.id, *said.bills),
                f"owning pays above {said.runs_per_year.printed} runs a year",
                "; ".join(lines) + ". Amortised costs of a run do not depend on the number of runs, so no number follows from them",
                {"runs_per_year": said.runs_per_year.value},
            )


RULES = (
    Rule(
        "cost-of-a-run",
        "a cost that is not hours x price",
        "prices",
        "Cost is price an hour x hours (definitions.md 15).",
        (INCONSISTENT,),
        runs,
    ),
    Rule(
        "time-of-a-bill",
        "a bill for other hours than its result took",
        "prices",
        "Epochs follow each other: n epochs take n times one.",
        (INCONSISTENT,),
        durations,
    ),
    Rule(
        "cost-of-samples",
        "a cost of samples that throughput and price do not give",
        "prices",
        "Cost of n samples is n x tokens of a sample / tokens a second x price.",
        (INCONSISTENT,),
        samples,
    ),
    Rule(
        "implied-rate",
        "a cost of samples that needs more FLOPs a second than the device has",
        "prices",
        "A cost and a price give a time, a time and a length a rate, and a rate times the FLOPs of a token cannot exceed the dense peak.",
        (IMPOSSIBLE,),
        implied_rates,
    ),
    Rule(
        "owned-inputs",
        "a cost on owned hardware without its inputs",
        "prices",
        "What an hour costs follows from purchase price, years, hours of use, watts and electricity; without them it cannot be checked.",
        (SUSPICIOUS,),
        owned,
    ),
    Rule(
        "break-even",
        "a break-even that the costs do not have",
        "prices",
        "Owning pays from where purchase / saving per run is reached; costs that are amortised already leave no such number.",
        (INCONSISTENT,),
        break_even,
    ),
)
