"""Prices and costs: offers of devices, hours x price, cost of samples, and owned hardware."""

from collections.abc import Iterator

from tunemark.collector.audit.bounds import dense_peak, least_flop_per_token
from tunemark.collector.audit.evidence import METHOD_NAME, AuditedResult, Evidence, grouped, source_of
from tunemark.collector.audit.interval import Interval
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Finding, about_figures, rule
from tunemark.collector.audit.token_rates import plain_rate
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.formats import HOUR_S
from tunemark.schema.records.claims import Bill, BreakEven, Offer
from tunemark.schema.records.published import Claim, Statement
from tunemark.schema.vocabulary import AuditVerdict

DAY_HOURS, WEEK_DAYS = 24, 7
MILLION = 1_000_000
COST_TOLERANCE = 0.005
"""Share by which a cost may differ from hours x price beyond its printed digits: documents round hours and prices first."""
DEVICE_PRICE_SPREAD = 2.0
"""Factor by which prices of one provider for one device move in a few years."""
INSTANCE_PRICE_SPREAD = 1.1
"""Factor by which prices of one named machine differ between regions and days."""
HOURLY = "price_usd_per_hour"
Price = tuple[str, Interval]
"""A price per hour and the record that states it."""


@rule(id="offer-holds", family="prices", verdicts=(IMPOSSIBLE, INCONSISTENT))
def devices_of_offers(evidence: Evidence) -> Iterator[Finding]:
    """Offer of a device that the machine does not have, or of a part of it.

    A machine is rented with all of its devices, unless its provider divides it. An offer of other devices does not exist, so a
    run with that bill used something else.
    """
    for statement, offer in evidence.assertions(Offer):
        rows = _price_rows(evidence, offer) if offer.instance else []
        if not rows:
            continue
        name = _device_name(evidence, offer.accelerator)
        records, claim = (statement.id, *offer.used_for), f"{name} in {offer.instance}, {_printed_price(statement)}"
        if not any(row.accelerator == offer.accelerator for row in rows):
            row = rows[-1]
            held = f"{row.accelerator_count:g} x {_device_name(evidence, row.accelerator)}"
            words = f"{row.instance} has {held} and no {name} (price book, {row.effective_on})"
            verdict, numbers = INCONSISTENT if offer.used_for else IMPOSSIBLE, {"holds": row.accelerator, "claimed": offer.accelerator}
            yield Finding(verdict, records, claim, words, numbers, (HOURLY,), ("instance", "accelerator"))
        row = min(rows, key=lambda row: row.accelerator_count)
        least = row.accelerator_count
        if offer.accelerators < least and offer.used_for:
            whole = f"{row.instance} is rented whole, with {least:g} devices: ${row.usd_per_hour:.4g}/h, ${_per_device(row):.4g} for each"
            words, costs = f"{whole}; {offer.accelerators} of them cannot be rented", {"usd_per_hour": row.usd_per_hour, "devices": least}
            yield Finding(INCONSISTENT, records, claim, words, costs, (HOURLY,), ("instance", "accelerator_count"))


@rule(id="price-scope", family="prices", verdicts=(INCONSISTENT, SUSPICIOUS))
def scope_of_prices(evidence: Evidence) -> Iterator[Finding]:
    """Price for one device that belongs to another device or a whole machine.

    The price book holds prices of whole instances. The price of one device is the price of the instance divided by the number of devices.
    """
    for statement, offer in evidence.assertions(Offer):
        claim, rows = statement.claims.get(HOURLY), _price_rows(evidence, offer)
        own = [_per_device(row) * offer.accelerators for row in rows if row.accelerator == offer.accelerator]
        if claim is None or any(_same_price(evidence, claim.value, price) for price in own):
            continue
        reason = _price_of_another(evidence, offer, rows, claim.value) or _far_off(evidence, offer, rows, claim.value)
        if reason:
            verdict, words = reason
            shown = f"{offer.accelerators} x {_device_name(evidence, offer.accelerator)}, {_printed_price(statement)}"
            numbers = {"claimed_usd_per_hour": claim.value}
            yield Finding(verdict, (statement.id, *offer.used_for), shown, words, numbers, quantities=(HOURLY,))


def _price_rows(evidence: Evidence, offer: Offer) -> list[PriceRow]:
    """Return the known prices of a provider, for the named instance or family if there is one."""
    named = (offer.instance or "").lower()
    rows = [row for row in evidence.facts.prices if row.provider == offer.provider]
    return [row for row in rows if not named or row.instance.lower() == named or row.instance.lower().startswith(f"{named}.")]


def _device_name(evidence: Evidence, key: str) -> str:
    card = evidence.facts.accelerators.get(key)
    return card.name if card else key


def _printed_price(statement: Statement) -> str:
    claim = statement.claims.get(HOURLY)
    return f"{claim.printed} an hour" if claim else "no price"


def _per_device(row: PriceRow) -> float:
    return row.usd_per_hour / row.accelerator_count


def _same_price(evidence: Evidence, claimed: float, known: float) -> bool:
    return abs(claimed / known - 1) <= evidence.facts.known.practice("price-tolerance")


def _price_of_another(evidence: Evidence, offer: Offer, rows: list[PriceRow], claimed: float) -> tuple[AuditVerdict, str] | None:
    """Return a finding if the price belongs to a whole machine, or to another device with the same first name.

    A match with an unrelated device can be chance.
    """
    whole = [row for row in rows if row.accelerator_count > offer.accelerators and _same_price(evidence, claimed, row.usd_per_hour)]
    if whole:
        row = min(whole, key=lambda row: abs(row.usd_per_hour - claimed))
        devices = f"{row.accelerator_count:g} x {_device_name(evidence, row.accelerator)}"
        known = f"${row.usd_per_hour:.5g}/h on {row.effective_on}"
        return (
            INCONSISTENT,
            f"${claimed:g}/h is the price of a whole {row.instance} with {devices} ({known}): ${_per_device(row):.4g} for each",
        )
    card = evidence.facts.accelerators.get(offer.accelerator)
    for row in rows:
        other = evidence.facts.accelerators.get(row.accelerator)
        if card is None or other is None or other.key == card.key or other.name.split()[0] != card.name.split()[0]:
            continue
        if _same_price(evidence, claimed, _per_device(row) * offer.accelerators):
            known = f"{row.instance}, ${_per_device(row):.4g} on {row.effective_on}"
            return INCONSISTENT, f"${claimed:g}/h is the price of an {other.name} at {offer.provider} ({known}), not of an {card.name}"
    return None


def _far_off(evidence: Evidence, offer: Offer, rows: list[PriceRow], claimed: float) -> tuple[AuditVerdict, str] | None:
    """Return a finding if all known prices differ by more than regions and years explain."""
    known = {_per_device(row) * offer.accelerators for row in rows if offer.instance or row.accelerator == offer.accelerator}
    limit, what = DEVICE_PRICE_SPREAD, f"{_device_name(evidence, offer.accelerator)} at {offer.provider}"
    if offer.instance:
        known |= {row.usd_per_hour for row in rows}
        limit, what = INSTANCE_PRICE_SPREAD, f"one device of {offer.instance} or the whole instance"
    nearest = min(sorted(known), key=lambda price: abs(price - claimed), default=None)
    if nearest is None or 1 / limit <= claimed / nearest <= limit:
        return None
    shown = ", ".join(f"${price:.4g}" for price in sorted(known))
    words = f"${claimed:g}/h is {claimed / nearest:.2f} times the nearest known price of {what}; known prices: {shown}"
    return INCONSISTENT if offer.instance else SUSPICIOUS, words


@rule(id="price-day", family="prices", verdicts=(SUSPICIOUS,))
def days_of_prices(evidence: Evidence) -> Iterator[Finding]:
    """Price that was in force on another day.

    Prices change: a price from another year is not the price on the stated day (data/prices, dated).
    """
    for statement, offer in evidence.assertions(Offer):
        claim = statement.claims.get(HOURLY)
        if claim is None or offer.on is None:
            continue
        rows = [row for row in _price_rows(evidence, offer) if row.accelerator == offer.accelerator]
        histories = grouped(rows, lambda row: (row.instance, row.region, row.kind.value)).values()
        judged = [_on_the_day(evidence, offer, claim.value, sorted(history, key=lambda row: row.effective_on)) for history in histories]
        refuted = [words for agrees, words in judged if words and not agrees]
        if refuted and not any(agrees for agrees, _ in judged):
            shown = f"{offer.accelerators} x {_device_name(evidence, offer.accelerator)}, {_printed_price(statement)}, of {offer.on}"
            numbers = {"claimed_usd_per_hour": claim.value}
            yield Finding(SUSPICIOUS, (statement.id, *offer.used_for), shown, refuted[0], numbers, quantities=(HOURLY,))


def _on_the_day(evidence: Evidence, offer: Offer, claimed: float, history: list[PriceRow]) -> tuple[bool, str]:
    """Return True if a price agrees with the known prices near its date, else the date on which it was in force, if any."""
    before = [row for row in history if offer.on and row.effective_on <= offer.on]
    after = [row for row in history if offer.on and row.effective_on > offer.on]
    around = [*before[-1:], *after[:1]]
    prices = [(row, price) for row in history for price in (row.usd_per_hour, _per_device(row) * offer.accelerators)]
    matching = [row for row, price in prices if _same_price(evidence, claimed, price)]
    if any(row in around for row in matching):
        return True, ""
    if not matching or not before:
        return False, ""
    first = matching[0]
    known = " and ".join(f"${row.usd_per_hour:.5g} on {row.effective_on}" for row in around)
    was = f"{first.instance} was ${first.usd_per_hour:.5g} an hour on {first.effective_on}"
    return False, f"{was}; around {offer.on} the price book has {known}"


@rule(id="price-times", family="prices", verdicts=(INCONSISTENT,))
def longer_times(evidence: Evidence) -> Iterator[Finding]:
    """Price per day or week that disagrees with the price per hour.

    A day has 24 hours and a week 168.
    """
    for statement in evidence.statements.values():
        hour, day, week = (statement.claims.get(f"price_usd_per_{name}") for name in ("hour", "day", "week"))
        if hour is None:
            continue
        daily = Interval.of(hour) * DAY_HOURS
        expected = {"day": (day, DAY_HOURS, [daily]), "week": (week, DAY_HOURS * WEEK_DAYS, [daily * WEEK_DAYS])}
        if day is not None:
            expected["week"][2].append(Interval.of(day) * WEEK_DAYS)
        for name, (claim, hours, allowed) in expected.items():
            if claim is not None and not any(price.overlaps(Interval.of(claim)) for price in allowed):
                words, numbers = f"{hours} x {hour.value:g} = {hours * hour.value:.2f}", {name: claim.value}
                shown = f"{hour.printed} an hour, {claim.printed} a {name}"
                yield Finding(INCONSISTENT, (statement.id,), shown, words, numbers, quantities=(HOURLY, f"price_usd_per_{name}"))


@rule(id="cost-of-a-run", family="prices", verdicts=(INCONSISTENT,))
def costs_of_runs(evidence: Evidence) -> Iterator[Finding]:
    """Cost that differs from hours x price.

    Cost is price per hour x hours (definitions#cost).
    """
    for statement, bill in evidence.assertions(Bill):
        yield from _wrong_cost(statement.id, statement.claims, _price(evidence, statement, bill), "cost_usd", "train_time_s")
    for result in evidence.results:
        claim = result.claims.get(HOURLY)
        price = (result.id, Interval.of(claim)) if claim else None
        yield from _wrong_cost(result.id, result.claims, price, "cost_usd", "train_time_s")
        yield from _wrong_cost(result.id, result.claims, price, "cost_per_epoch_usd", "epoch_time_s")


def _price(evidence: Evidence, statement: Statement, bill: Bill) -> Price | None:
    """Return the price of a bill: the price of its offer, else the document's lowest price for the device."""
    if bill.offer is not None:
        claim = evidence.claims_of(bill.offer).get(HOURLY)
        return (bill.offer, Interval.of(claim)) if claim else None
    offers = [
        (other.id, Interval.of(other.claims[HOURLY]))
        for other, offer in evidence.assertions(Offer)
        if source_of(other.id) == source_of(statement.id) and offer.accelerator == bill.accelerator and HOURLY in other.claims
    ]
    return min(offers, key=lambda price: price[1].value, default=None)


def _wrong_cost(record: str, claims: dict[str, Claim], price: Price | None, cost: str, time: str) -> Iterator[Finding]:
    if price is None or cost not in claims or time not in claims:
        return
    computed, printed = Interval.of(claims[time]) / HOUR_S * price[1], Interval.of(claims[cost])
    if not computed.widened(COST_TOLERANCE).overlaps(printed):
        hours = f"{claims[time].value / HOUR_S:.4g} h"
        words = f"{hours} x ${price[1].value:g} = ${computed.value:.4g}, not {claims[cost].printed}"
        numbers = {"computed_usd": computed.value, "printed_usd": printed.value}
        shown = f"{claims[cost].printed} for {claims[time].printed}"
        yield Finding(INCONSISTENT, (record, price[0]), shown, words, numbers, quantities=(cost, time))


@rule(id="bill-for-all-devices", family="prices", verdicts=(INCONSISTENT,))
def devices_of_a_bill(evidence: Evidence) -> Iterator[Finding]:
    """Cost of fewer devices than the result used.

    An instance is rented with all of its devices, and every device of a run is paid for.
    """
    for statement, offer in evidence.assertions(Offer):
        for result in evidence.with_ids(offer.used_for):
            if result.devices > offer.accelerators:
                words = f"{result.id} used {result.devices} devices, but the price covers {offer.accelerators}"
                counts = {"devices": result.devices, "paid": offer.accelerators}
                claim = f"{_printed_price(statement)} for {offer.accelerators} x {_device_name(evidence, offer.accelerator)}"
                yield Finding(INCONSISTENT, (statement.id, result.id), claim, words, counts, (HOURLY,), ("accelerator_count",))
    for result in evidence.published:
        price = _hourly(result)
        rows = [row for row in evidence.facts.prices if price and row.instance == result.conditions.instance and row.accelerator_count > 1]
        whole = any(_same_price(evidence, price[0], row.usd_per_hour) for row in rows) if price else False
        row = next((row for row in rows if price and _same_price(evidence, price[0], _per_device(row))), None)
        if price is None or row is None or whole:
            continue
        words = (
            f"{price[1]} is the price of one device of {row.instance}, which is rented whole with {row.accelerator_count:g} devices for "
            f"${row.usd_per_hour:.5g} an hour ({row.effective_on})"
        )
        numbers = {"claimed_usd_per_hour": price[0], "usd_per_hour": row.usd_per_hour}
        yield about_figures(INCONSISTENT, result, price[2], words, numbers, ("instance", "accelerator_count"))


def _hourly(result: AuditedResult) -> tuple[float, str, tuple[str, ...]] | None:
    """Return the hourly price of a result, in words, with its quantities: as printed, else its cost over its time."""
    price, cost, time = (result.interval(name) for name in (HOURLY, "cost_usd", "train_time_s"))
    if price:
        return price.value, f"${price.value:.4g} an hour", (HOURLY,)
    if cost and time:
        hourly = cost.value / time.value * HOUR_S
        return hourly, f"${cost.value:.4g} for {time.value / HOUR_S:.4g} h, ${hourly:.4g} an hour,", ("cost_usd", "train_time_s")
    return None


@rule(id="time-of-a-bill", family="prices", verdicts=(INCONSISTENT,))
def durations(evidence: Evidence) -> Iterator[Finding]:
    """Bill for a different number of hours than its result took.

    Epochs run one after another, so n epochs take n times as long as one.
    """
    for statement, bill in evidence.assertions(Bill):
        result = evidence.by_id.get(bill.result or "")
        epochs, time = statement.claims.get("epochs"), statement.claims.get("train_time_s")
        each = result.interval("epoch_time_s") if result else None
        if result and epochs and time and each and not (each * epochs.value).overlaps(Interval.of(time)):
            hours = epochs.value * each.value / HOUR_S
            words = f"{epochs.value:g} x {each.value / HOUR_S:.2f} h = {hours:.1f} h"
            records, claim = (statement.id, result.id), f"{time.printed} for {epochs.printed}"
            yield Finding(INCONSISTENT, records, claim, words, {"computed_h": hours}, quantities=("train_time_s", "epochs"))


@rule(id="cost-of-samples", family="prices", verdicts=(INCONSISTENT,))
def costs_of_samples(evidence: Evidence) -> Iterator[Finding]:
    """Cost of samples that disagrees with throughput and price.

    The cost of n samples is n x tokens per sample / tokens per second x price.
    """
    for statement, bill in evidence.assertions(Bill):
        claim, price = statement.claims.get("cost_per_1m_samples_usd"), _price(evidence, statement, bill)
        result = evidence.by_id.get(bill.result or "")
        rate, length = (plain_rate(result), result.conditions.sequence_length) if result else (None, None)
        if claim is None or not claim.value or price is None or result is None or rate is None or length is None:
            continue
        hours = Interval.exact(float(length * MILLION)) / rate.tokens_per_s / HOUR_S
        computed = hours * price[1]
        if not computed.overlaps(Interval.of(claim)):
            shown = f"{claim.printed} for a million samples"
            words = (
                f"{length:,} tokens / {rate.tokens_per_s.value:,.0f} tokens/s x 10^6 = {hours.value:,.0f} h, x ${price[1].value:g} an hour, the "
                f"document's lowest, = ${computed.value:,.2f}: {computed.value / claim.value:.1f} times the claim"
            )
            numbers = {"computed_usd": computed.value, "printed_usd": claim.value}
            yield Finding(INCONSISTENT, (statement.id, result.id, price[0]), shown, words, numbers, quantities=("cost_per_1m_samples_usd",))


@rule(id="implied-rate", family="prices", verdicts=(IMPOSSIBLE,))
def implied_rates(evidence: Evidence) -> Iterator[Finding]:
    """Cost of samples that requires more FLOPs per second than the device can execute.

    A cost and a price give a time, a time and a length give a rate, and a rate times the FLOPs of a token cannot exceed the dense peak.
    """
    for statement, bill in evidence.assertions(Bill):
        claim, price = statement.claims.get("cost_per_1m_samples_usd"), _price(evidence, statement, bill)
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
        seconds = Interval.of(claim) / price[1] * HOUR_S
        rate, each = length * MILLION / seconds.value, least_flop_per_token(model, bill.method, length)
        share = Interval.exact(length * MILLION * each) / seconds / peak
        if share.low > 1:
            shown = f"{claim.printed} for a million samples of {model.name}, {METHOD_NAME[bill.method]}, on {card.name}"
            words = (
                f"{claim.printed} / ${price[1].value:g} an hour, the document's lowest, = {seconds.value / HOUR_S:,.0f} h for 10^6 x {length:,} "
                f"tokens = {rate:,.0f} tokens/s x {each / 1e9:.1f} GFLOP = {rate * each / 1e12:,.0f} TFLOP/s, {share.value:.0%} of "
                f"{peak / 1e12:g} TFLOP/s dense"
            )
            numbers = {"utilisation": share.value, "tokens_per_s": rate}
            yield Finding(IMPOSSIBLE, (statement.id, price[0]), shown, words, numbers, quantities=("cost_per_1m_samples_usd",))


@rule(id="owned-inputs", family="prices", verdicts=(SUSPICIOUS,))
def owned_hardware(evidence: Evidence) -> Iterator[Finding]:
    """Cost on owned hardware without its inputs.

    The cost of an hour follows from purchase price, years, hours of use, watts and electricity. Without them it cannot be checked.
    """
    rates, lines = {}, []
    cards = evidence.facts.accelerators
    for statement, bill in evidence.assertions(Bill):
        cost, time = statement.claims.get("cost_local_usd"), statement.claims.get("train_time_s")
        if cost and time and time.value and not bill.owned_inputs:
            key = bill.accelerator or ""
            rate = cost.value / time.value * HOUR_S
            rates[statement.id] = (key, rate)
            lines.append(f"{statement.id}: {cost.printed} / {time.printed} = ${rate:.2f} an hour on {_device_name(evidence, key)}")
    if not rates:
        return
    priced = dict.fromkeys(key for key, _ in rates.values() if key in cards and cards[key].msrp_usd)
    bought = "; ".join(f"{cards[key].name} was ${cards[key].msrp_usd:,.0f}" for key in priced)
    claim = "amortised cost on owned hardware, without purchase price, years, hours of use, watts and electricity"
    words = (
        f"{'; '.join(lines)}. Devices with different prices cost about the same{f' ({bought})' if bought else ''}. "
        "The sum purchase / (years x hours of use) + watts x electricity cannot be checked"
    )
    numbers = {f"usd_per_hour, {record}": rate for record, (_, rate) in rates.items()}
    yield Finding(SUSPICIOUS, tuple(rates), claim, words, numbers, quantities=("cost_local_usd",))


@rule(id="break-even", family="prices", verdicts=(INCONSISTENT,))
def break_even(evidence: Evidence) -> Iterator[Finding]:
    """Break-even that does not follow from the costs.

    Owning pays after purchase price / saving per run. Costs that are already amortised have no break-even number of runs.
    """
    for statement, claimed in evidence.assertions(BreakEven):
        lines = []
        for bill in claimed.bills:
            cloud, local = evidence.claims_of(bill).get("cost_usd"), evidence.claims_of(bill).get("cost_local_usd")
            if cloud and local:
                answer = "always" if local.value < cloud.value else "never"
                lines.append(f"{bill}: {local.printed} owned and {cloud.printed} rented per run, so owning {answer} pays")
        if lines:
            claim = f"owning pays at {claimed.runs_per_year.printed}"
            words = "; ".join(lines) + ". Amortised costs of a run do not depend on the number of runs, so they have no break-even number"
            numbers = {"runs_per_year": claimed.runs_per_year.value}
            yield Finding(INCONSISTENT, (statement.id, *claimed.bills), claim, words, numbers, quantities=("cost_usd", "cost_local_usd"))
