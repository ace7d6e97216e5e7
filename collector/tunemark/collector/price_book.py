"""What an instance or an accelerator costs on a day, from the price book: no database is needed."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from tunemark.schema.cards import PriceRow
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts import FactBase
from tunemark.schema.naming import suggest_accelerator


@dataclass(frozen=True, slots=True)
class Offer:
    """A price that is in force."""

    price: PriceRow

    @property
    def usd_per_accelerator_hour(self) -> float:
        """US dollars an hour for one accelerator of the instance."""
        return self.price.usd_per_hour / self.price.accelerator_count


def offers(facts: FactBase, name: str | None, on: date) -> list[Offer]:
    """Return the newest price per provider, instance, region and kind on a day, cheapest accelerator-hour first.

    Raises
    ------
    TunemarkError
        For a name that is neither an instance nor an accelerator, and for a day before its first price.

    """
    rows = [row for row in facts.prices if name is None or matches(row, name, facts)]
    if not rows:
        raise _unknown(facts, name or "")
    begun = [row for row in rows if row.effective_on <= on]
    if not begun:
        first = min(row.effective_on for row in rows)
        raise TunemarkError(
            "--on",
            on.isoformat(),
            f"before the first price{f' of {name}' if name else ''}, which is of {first.isoformat()}; give that day or a later one",
        )
    return sorted((Offer(row) for row in newest(begun)), key=_order)


def offer_json(offer: Offer) -> dict[str, object]:
    """Return an offer as plain data."""
    return offer.price.model_dump(mode="json") | {"usd_per_accelerator_hour": offer.usd_per_accelerator_hour}


def offer_table(found: Iterable[Offer]) -> tuple[list[str], list[tuple[object, ...]]]:
    """Return columns and rows of a table of offers."""
    columns = ["provider", "instance", "region", "kind", "accelerator", "count", "usd/h", "usd/h each", "since", "dated by"]
    return columns, [_cells(offer.price, offer.usd_per_accelerator_hour) for offer in found]


def _cells(row: PriceRow, each: float) -> tuple[object, ...]:
    place = row.provider, row.instance, row.region, row.kind.value
    return *place, row.accelerator, row.accelerator_count, row.usd_per_hour, each, row.effective_on, row.dated_by


def matches(row: PriceRow, name: str, facts: FactBase) -> bool:
    """Return whether a price is of the instance or accelerator of this name."""
    card = facts.recognise_accelerator(name)
    return row.instance.lower() == name.lower() or (card is not None and row.accelerator == card.key)


def newest(rows: Iterable[PriceRow]) -> list[PriceRow]:
    """Return the newest price per provider, instance, region and kind; of one day the later line of the book."""
    latest: dict[tuple[str, str, str | None, str], PriceRow] = {}
    for row in rows:
        key = (row.provider, row.instance, row.region, row.kind.value)
        if key not in latest or row.effective_on >= latest[key].effective_on:
            latest[key] = row
    return list(latest.values())


def _order(offer: Offer) -> tuple[float, str, str, str, str]:
    row = offer.price
    return offer.usd_per_accelerator_hour, row.provider, row.instance, row.region or "", row.kind.value


def _unknown(facts: FactBase, name: str) -> TunemarkError:
    card = facts.recognise_accelerator(name)
    if card is not None:
        return TunemarkError("name", name, f"the price book has no price of {card.key}; add one to data/prices/prices.csv")
    return TunemarkError(
        "name", name, f"neither an instance nor an accelerator; {suggest_accelerator(name, facts.accelerators, facts.instances)}"
    )
