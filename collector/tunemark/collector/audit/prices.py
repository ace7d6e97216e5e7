"""Prices: who rents out what, for the whole machine or one device of it, and what follows for a run."""

from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base
from tunemark.collector.audit.rule import IMPOSSIBLE, INCONSISTENT, SUSPICIOUS, Found, Rule
from tunemark.collector.audit.span import Span
from tunemark.schema.facts.cards import PriceRow
from tunemark.schema.records.claims import Offer
from tunemark.schema.records.published import Statement
from tunemark.schema.vocabulary import AuditVerdict

FAR = 2.0
"""Prices of one provider for one device move by less than that in a few years."""
NEAR = 1.1
"""The price of one named machine is the same everywhere but for regions and days."""


def _rows(base: Base, offer: Offer) -> list[PriceRow]:
    """Return the prices of a provider, of the instance or family that is named."""
    named = (offer.instance or "").lower()
    return [
        row
        for row in base.facts.prices
        if row.provider == offer.provider and (not named or row.instance.lower() == named or row.instance.lower().startswith(f"{named}."))
    ]


def _name(base: Base, key: str) -> str:
    return base.facts.accelerators[key].name if key in base.facts.accelerators else key


def devices_of_offers(base: Base) -> Iterator[Found]:
    """Yield offers of devices that the named machine does not hold, and of one device of a machine that is rented whole."""
    for statement, offer in base.assertions(Offer):
        rows = _rows(base, offer) if offer.instance else []
        if not rows:
            continue
        shown = f"{_name(base, offer.accelerator)} in {offer.instance}, {_price(statement)}"
        holding = [row for row in rows if row.accelerator == offer.accelerator]
        if not holding:
            row = rows[-1]
            yield Found(
                INCONSISTENT if offer.used_for else IMPOSSIBLE,
                (statement.id, *offer.used_for),
                shown,
                f"{row.instance} holds {row.accelerator_count:g} x {_name(base, row.accelerator)} and no {_name(base, offer.accelerator)} (price book, {row.effective_on})",
                {"holds": row.accelerator, "claimed": offer.accelerator},
            )
        least = min(row.accelerator_count for row in rows)
        if offer.accelerators < least and offer.used_for:
            row = next(row for row in rows if row.accelerator_count == least)
            yield Found(
                INCONSISTENT,
                (statement.id, *offer.used_for),
                shown,
                f"{row.instance} is rented whole, with {least:g} devices: ${row.usd_per_hour:.4g}/h, ${row.usd_per_hour / least:.4g} for each; {offer.accelerators} of them cannot be had",
                {"usd_per_hour": row.usd_per_hour, "devices": least},
            )


def scope_of_prices(base: Base) -> Iterator[Found]:
    """Yield prices of one device that are those of a whole machine, or of another device, or far from all that are known."""
    for statement, offer in base.assertions(Offer):
        claim = statement.claims.get("price_usd_per_hour")
        if claim is None or any(
            _is_price_of(base, claim.value, _each(row) * offer.accelerators) for row in _rows(base, offer) if _same_device(row, offer)
        ):
            continue
        found = _whole_machine(base, offer, claim.value) or _other_device(base, offer, claim.value) or _far(base, offer, claim.value)
        if found:
            verdict, words = found
            shown = f"{offer.accelerators} x {_name(base, offer.accelerator)}, {_price(statement)}"
            yield Found(verdict, (statement.id, *offer.used_for), shown, words, {"claimed_usd_per_hour": claim.value})


def _each(row: PriceRow) -> float:
    return row.usd_per_hour / row.accelerator_count


def _same_device(row: PriceRow, offer: Offer) -> bool:
    return row.accelerator == offer.accelerator


def _is_price_of(base: Base, claimed: float, known: float) -> bool:
    return abs(claimed / known - 1) <= base.facts.known.practice("price-tolerance")


def _whole_machine(base: Base, offer: Offer, claimed: float) -> tuple[AuditVerdict, str] | None:
    rows = [
        row for row in _rows(base, offer) if row.accelerator_count > offer.accelerators and _is_price_of(base, claimed, row.usd_per_hour)
    ]
    if not rows:
        return None
    row = min(rows, key=lambda one: abs(one.usd_per_hour - claimed))
    devices = f"{row.accelerator_count:g} x {_name(base, row.accelerator)}"
    words = f"${claimed:g}/h is the price of a whole {row.instance} with {devices} (${row.usd_per_hour:.5g}/h on {row.effective_on}): ${_each(row):.4g} for each"
    return INCONSISTENT, words


def _other_device(base: Base, offer: Offer, claimed: float) -> tuple[AuditVerdict, str] | None:
    """Return that a price is of another device of the same kind: a price list holds many devices, so other kinds agree by chance."""
    card = base.facts.accelerators.get(offer.accelerator)
    for row in _rows(base, offer):
        other = base.facts.accelerators.get(row.accelerator)
        if card is None or other is None or other.key == card.key or other.name.split()[0] != card.name.split()[0]:
            continue
        if _is_price_of(base, claimed, _each(row) * offer.accelerators):
            return (
                INCONSISTENT,
                f"${claimed:g}/h is what {offer.provider} takes for an {other.name} ({row.instance}, ${_each(row):.4g} on {row.effective_on}), not for an {card.name}",
            )
    return None


def _far(base: Base, offer: Offer, claimed: float) -> tuple[AuditVerdict, str] | None:
    rows = [row for row in _rows(base, offer) if offer.instance or _same_device(row, offer)]
    known = sorted(amount for row in rows for amount in {_each(row) * offer.accelerators, *([row.usd_per_hour] if offer.instance else [])})
    if not known:
        return None
    nearest = min(known, key=lambda one: abs(one / claimed - 1))
    ratio = claimed / nearest
    limit = NEAR if offer.instance else FAR
    if 1 / limit <= ratio <= limit:
        return None
    of = f"a device or the whole of {offer.instance}" if offer.instance else f"{_name(base, offer.accelerator)} at {offer.provider}"
    words = f"${claimed:g}/h; known prices of {of} are {', '.join(f'${one:.4g}' for one in dict.fromkeys(known))}: {ratio:.2f} times the nearest"
    return (INCONSISTENT if offer.instance else SUSPICIOUS), words


def days_of_prices(base: Base) -> Iterator[Found]:
    """Yield prices that were in force on another day than theirs, while the prices known around their day are others."""
    for statement, offer in base.assertions(Offer):
        claim = statement.claims.get("price_usd_per_hour")
        if claim is None or offer.on is None:
            continue
        histories: dict[tuple[str, str | None, str], list[PriceRow]] = defaultdict(list)
        for row in _rows(base, offer):
            if _same_device(row, offer):
                histories[row.instance, row.region, row.kind.value].append(row)
        judged = [_day_of(base, offer, claim.value, sorted(rows, key=lambda row: row.effective_on)) for rows in histories.values()]
        refuted = [words for fits, words in judged if words and not fits]
        if refuted and not any(fits for fits, _ in judged):
            shown = f"{offer.accelerators} x {_name(base, offer.accelerator)}, {_price(statement)}, of {offer.on}"
            yield Found(SUSPICIOUS, (statement.id, *offer.used_for), shown, refuted[0], {"claimed_usd_per_hour": claim.value})


def _day_of(base: Base, offer: Offer, claimed: float, history: list[PriceRow]) -> tuple[bool, str]:
    """Return whether a price agrees with those known around its day, and otherwise when it was in force; empty where it never was."""
    day = offer.on
    before = [row for row in history if day and row.effective_on <= day]
    after = [row for row in history if day and row.effective_on > day]
    around = [*before[-1:], *after[:1]]

    def is_it(row: PriceRow) -> bool:
        return any(_is_price_of(base, claimed, amount) for amount in (row.usd_per_hour, _each(row) * offer.accelerators))

    if any(is_it(row) for row in around):
        return True, ""
    elsewhen = [row for row in history if is_it(row)]
    if not elsewhen or not before:
        return False, ""
    known = " and ".join(f"${row.usd_per_hour:.5g} on {row.effective_on}" for row in around)
    return (
        False,
        f"{elsewhen[0].instance} was ${elsewhen[0].usd_per_hour:.5g} an hour on {elsewhen[0].effective_on}; around {day} the price book has {known}",
    )


def longer_times(base: Base) -> Iterator[Found]:
    """Yield prices of a day or a week that are not 24 or 168 times that of an hour."""
    for statement in base.statements.values():
        hour, day, week = (statement.claims.get(f"price_usd_per_{name}") for name in ("hour", "day", "week"))
        if hour is None:
            continue
        per_hour = Span.of(hour)
        if day is not None and not (per_hour * 24).overlaps(Span.of(day)):
            yield Found(
                INCONSISTENT,
                (statement.id,),
                f"{hour.printed} an hour, {day.printed} a day",
                f"24 x {hour.value:g} = {24 * hour.value:.2f}",
                {"day": day.value},
            )
        if week is not None and not any(one.overlaps(Span.of(week)) for one in (per_hour * 168, *([Span.of(day) * 7] if day else []))):
            yield Found(
                INCONSISTENT,
                (statement.id,),
                f"{hour.printed} an hour, {week.printed} a week",
                f"168 x {hour.value:g} = {168 * hour.value:.2f}",
                {"week": week.value},
            )


def _price(statement: Statement) -> str:
    claim = statement.claims.get("price_usd_per_hour")
    return f"{claim.printed} an hour" if claim else "no price"


RULES = (
    Rule(
        "offer-holds",
        "an offer of a device that the machine has not, or of part of it",
        "prices",
        "A machine is rented with the devices it has, whole where its provider does not divide it. An offer of what it has not cannot be bought; a run that was billed so was on something else.",
        (IMPOSSIBLE, INCONSISTENT),
        devices_of_offers,
    ),
    Rule(
        "price-scope",
        "a price of one device that is another's, or a whole machine's",
        "prices",
        "The price book knows prices of whole instances; for one device they are divided by the devices.",
        (INCONSISTENT, SUSPICIOUS),
        scope_of_prices,
    ),
    Rule(
        "price-day",
        "a price that was in force on another day",
        "prices",
        "Prices change: one of another year is not the price of the day that is stated (data/prices, dated).",
        (SUSPICIOUS,),
        days_of_prices,
    ),
    Rule(
        "price-times",
        "prices of a day or week that do not follow from the hour's",
        "prices",
        "A day has 24 hours and a week 168.",
        (INCONSISTENT,),
        longer_times,
    ),
)
