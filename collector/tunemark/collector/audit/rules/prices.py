"""Prices and costs: offers of devices, what a bill covers, and owned hardware. Products of hours and prices are identities."""

from collections.abc import Iterator

from tunemark.collector.audit.bounds import dense_peak, least_flop_per_token
from tunemark.collector.audit.evidence import Evidence, source_of
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.printed_figures import WORDS
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, rule
from tunemark.collector.audit.rules.identities import HOURLY, MILLION, price_of
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.formats import HOUR_S
from tunemark.schema.records.claims import Bill, BreakEven, Offer
from tunemark.schema.vocabulary import AuditVerdict

DEVICE_PRICE_SPREAD = 2.0
"""Factor by which prices of one provider for one device move in a few years."""
INSTANCE_PRICE_SPREAD = 1.1
"""Factor by which prices of one named machine differ between regions and days."""


@rule(id="offer", family="prices", verdicts=(IMPOSSIBLE, INCONSISTENT, SUSPICIOUS))
def offers(evidence: Evidence) -> Iterator[Finding]:
    """Offer of devices that the machine does not have, or at the price of something else.

    A machine is rented with all of its devices, unless its provider divides it, and every device of a run is paid for. An offer of other
    devices does not exist, so a run with that bill used something else. The price book holds prices of whole instances: the price of one
    device is the price of the instance divided by the number of devices.
    """
    for statement, offer in evidence.assertions(Offer):
        price, rows = statement.claims.get(HOURLY), _price_rows(evidence, offer)
        name = _device_name(evidence, offer.accelerator)
        records, claim = (
            (statement.id, *offer.used_for),
            f"{offer.accelerators} x {name}, {f'{price.printed} an hour' if price else 'no price'}",
        )
        if offer.instance and rows and not any(row.accelerator == offer.accelerator for row in rows):
            row = rows[-1]
            held = f"{row.accelerator_count:g} x {_device_name(evidence, row.accelerator)}"
            words = f"{row.instance} has {held} and no {name} (price book, {row.effective_on})"
            verdict = INCONSISTENT if offer.used_for else IMPOSSIBLE
            yield Finding(verdict, records, claim, words, (HOURLY,), ("instance", "accelerator"))
        least = min(rows, key=lambda row: row.accelerator_count, default=None) if offer.instance else None
        if least and offer.accelerators < least.accelerator_count and offer.used_for:
            whole = f"{least.instance} is rented whole, with {least.accelerator_count:g} devices: ${least.usd_per_hour:.4g}/h, ${_per_device(least):.4g} for each"
            words = f"{whole}; {offer.accelerators} of them cannot be rented"
            yield Finding(INCONSISTENT, records, claim, words, (HOURLY,), ("instance", "accelerator_count"))
        for result in evidence.with_ids(offer.used_for):
            if result.devices > offer.accelerators:
                words = f"{result.id} used {result.devices} devices, but the price covers {offer.accelerators}"
                yield Finding(INCONSISTENT, (statement.id, result.id), claim, words, (HOURLY,), ("accelerator_count",))
        reason = _other_price(evidence, offer, rows, price.value) if price else None
        if reason and price:
            yield Finding(reason[0], records, claim, reason[1], quantities=(HOURLY,))


def _price_rows(evidence: Evidence, offer: Offer) -> list[PriceRow]:
    """Return the known prices of a provider, for the named instance or family if there is one."""
    named = (offer.instance or "").lower()
    rows = [row for row in evidence.facts.prices if row.provider == offer.provider]
    return [row for row in rows if not named or row.instance.lower() == named or row.instance.lower().startswith(f"{named}.")]


def _device_name(evidence: Evidence, key: str) -> str:
    card = evidence.facts.accelerators.get(key)
    return card.name if card else key


def _per_device(row: PriceRow) -> float:
    return row.usd_per_hour / row.accelerator_count


def _other_price(evidence: Evidence, offer: Offer, rows: list[PriceRow], claimed: float) -> tuple[AuditVerdict, str] | None:
    """Return a finding if the price belongs to a whole machine, or if all known prices differ by more than regions and years explain."""
    tolerance = evidence.facts.known.practice("price-tolerance")
    own = [_per_device(row) * offer.accelerators for row in rows if row.accelerator == offer.accelerator]
    if any(abs(claimed / price - 1) <= tolerance for price in own):
        return None
    whole = [row for row in rows if row.accelerator_count > offer.accelerators and abs(claimed / row.usd_per_hour - 1) <= tolerance]
    if whole:
        row = min(whole, key=lambda row: abs(row.usd_per_hour - claimed))
        devices = f"{row.accelerator_count:g} x {_device_name(evidence, row.accelerator)}"
        known = f"${row.usd_per_hour:.5g}/h on {row.effective_on}"
        words = f"${claimed:g}/h is the price of a whole {row.instance} with {devices} ({known}): ${_per_device(row):.4g} for each"
        return INCONSISTENT, words
    limit, what, prices = DEVICE_PRICE_SPREAD, f"{_device_name(evidence, offer.accelerator)} at {offer.provider}", set(own)
    if offer.instance:
        prices = {_per_device(row) * offer.accelerators for row in rows} | {row.usd_per_hour for row in rows}
        limit, what = INSTANCE_PRICE_SPREAD, f"one device of {offer.instance} or the whole instance"
    nearest = min(sorted(prices), key=lambda price: abs(price - claimed), default=None)
    if nearest is None or 1 / limit <= claimed / nearest <= limit:
        return None
    shown = ", ".join(f"${price:.4g}" for price in sorted(prices))
    words = f"${claimed:g}/h is {claimed / nearest:.2f} times the nearest known price of {what}; known prices: {shown}"
    return INCONSISTENT if offer.instance else SUSPICIOUS, words


@rule(id="implied-rate", family="prices", verdicts=(IMPOSSIBLE,))
def implied_rates(evidence: Evidence) -> Iterator[Finding]:
    """Cost of samples that requires more FLOPs per second than the device can execute.

    A cost and a price give a time, a time and a length give a rate, and a rate times the FLOPs of a token cannot exceed the dense peak.
    """
    for statement, bill in evidence.assertions(Bill):
        claim, price = statement.claims.get("cost_per_1m_samples_usd"), price_of(evidence, statement.id, bill)
        model, card = evidence.facts.models.get(bill.model or ""), evidence.facts.accelerators.get(bill.accelerator or "")
        # The bills of the same table give the tokens of a sample, if their results agree.
        place = (source_of(statement.id), statement.section)
        table = [other_bill for other, other_bill in evidence.assertions(Bill) if (source_of(other.id), other.section) == place]
        lengths = {result.conditions.sequence_length for result in evidence.with_ids(row.result or "" for row in table)}
        length, peak = lengths.pop() if len(lengths) == 1 else None, dense_peak(card)
        if bill.result is not None or claim is None or not claim.value or price is None or not price[1].value:
            continue
        if model is None or bill.method is None or card is None or not length or not peak:
            continue
        # The document's lowest price allows the longest time.
        seconds = Interval.of(claim) / Interval.of(price[1]) * HOUR_S
        rate, each = length * MILLION / seconds.value, least_flop_per_token(model, bill.method, length)
        share = Interval.exact(length * MILLION * each) / seconds / peak
        if share.low > 1:
            shown = f"{claim.printed} for a million samples of {model.name}, {WORDS['methods'][bill.method]}, on {card.name}"
            words = (
                f"{claim.printed} / {price[1].printed} an hour, the document's lowest, = {seconds.value / HOUR_S:,.0f} h for 10^6 x {length:,} "
                f"tokens = {rate:,.0f} tokens/s x {each / 1e9:.1f} GFLOP, {share.value:.0%} of {peak / 1e12:g} TFLOP/s dense"
            )
            yield Finding(IMPOSSIBLE, (statement.id, price[0]), shown, words, quantities=("cost_per_1m_samples_usd",))


@rule(id="owned-hardware", family="prices", verdicts=(SUSPICIOUS, INCONSISTENT))
def owned_hardware(evidence: Evidence) -> Iterator[Finding]:
    """Cost on owned hardware without its inputs, or a break-even that does not follow from it.

    The cost of an hour follows from purchase price, years, hours of use, watts and electricity. Owning pays after purchase price / saving
    per run, so costs that are already amortised have no break-even number of runs.
    """
    lines = {}
    for statement, bill in evidence.assertions(Bill):
        cost, time = statement.claims.get("cost_local_usd"), statement.claims.get("train_time_s")
        if cost and time and time.value and not bill.owned_inputs:
            rate, device = cost.value / time.value * HOUR_S, _device_name(evidence, bill.accelerator or "")
            lines[statement.id] = f"{statement.id}: {cost.printed} / {time.printed} = ${rate:.2f} an hour on {device}"
    if lines:
        claim = "amortised cost on owned hardware, without purchase price, years, hours of use, watts and electricity"
        words = f"{'; '.join(lines.values())}. The sum purchase / (years x hours of use) + watts x electricity cannot be checked"
        yield Finding(SUSPICIOUS, tuple(lines), claim, words, quantities=("cost_local_usd",))
    for statement, claimed in evidence.assertions(BreakEven):
        costs = [(bill, evidence.claims_of(bill).get("cost_usd"), evidence.claims_of(bill).get("cost_local_usd")) for bill in claimed.bills]
        pays = [
            f"{bill}: {local.printed} owned and {cloud.printed} rented per run, so owning {'always' if local.value < cloud.value else 'never'} pays"
            for bill, cloud, local in costs
            if cloud and local
        ]
        if pays:
            claim = f"owning pays at {claimed.runs_per_year.printed}"
            words = "; ".join(pays) + ". Amortised costs of a run do not depend on the number of runs, so they have no break-even number"
            yield Finding(INCONSISTENT, (statement.id, *claimed.bills), claim, words, quantities=("cost_usd", "cost_local_usd"))
