"""Offers of the price book: the price of an instance or accelerator on a day. No database is needed."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import PriceRow, current_prices
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import suggest_accelerator
from tunemark.schema.vocabulary import PriceKind

CATALOGUE = re.compile(r"\b(v\d+)\b")
COLUMNS = ["provider", "instance", "region", "kind", "accelerator", "count", "usd/h", "usd/h each", "known on", "dated by"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A price that is in force."""

    price: PriceRow

    @property
    def usd_per_accelerator_hour(self) -> float:
        """US dollars per hour for one accelerator of the instance."""
        return self.price.usd_per_hour / self.price.accelerator_count

    @property
    def dated_by(self) -> str:
        """The evidence for the date: a price list, a version of a catalogue, or earlier and later lists."""
        row = self.price
        if row.dated_by != "catalog":
            return "price list" if row.dated_by == "provider" else row.dated_by
        version = CATALOGUE.search(f"{row.source} {row.notes or ''}")
        return f"catalog {version[1]}" if version else "catalog"

    def cells(self) -> tuple[object, ...]:
        """Return the values of `COLUMNS`."""
        row = self.price
        place = row.provider, row.instance, row.region, row.kind.value, row.accelerator, row.accelerator_count
        return *place, row.usd_per_hour, self.usd_per_accelerator_hour, row.effective_on, self.dated_by

    def as_json(self) -> dict[str, object]:
        """Return the offer as plain data."""
        return self.price.model_dump(mode="json") | {"usd_per_accelerator_hour": self.usd_per_accelerator_hour}


def offers(facts: FactBase, name: str | None, on: date, kind: PriceKind | None = None) -> list[Offer]:
    """Return the newest price per provider, instance, region and kind on a day, cheapest accelerator-hour first within each kind.

    Raises TunemarkError for a name that is neither an instance nor an accelerator, a name without a price, and a day before its first price.
    """
    if name is not None and not name.strip():
        raise TunemarkError("name", name, "give an instance or accelerator, or leave it out for all")
    card = facts.recognise_accelerator(name) if name else None
    rows = [
        row
        for row in facts.prices
        if (name is None or row.instance.lower() == name.lower() or (card is not None and row.accelerator == card.key))
        and kind in {None, row.kind}
    ]
    if not rows:
        raise _unknown(facts, name or "", kind)
    begun = [row for row in rows if row.effective_on <= on]
    if not begun:
        first = min(rows, key=lambda row: row.effective_on)
        dated = "was first read on" if first.dated_by == "catalog" else "is of"
        owner = f" of {name}" if name else ""
        fix = f"before the first price{owner}, which {dated} {first.effective_on.isoformat()}; give that day or a later one"
        raise TunemarkError("--on", on.isoformat(), fix)
    kinds = list(PriceKind)
    return sorted(
        map(Offer, current_prices(begun)),
        key=lambda offer: (
            *(kinds.index(offer.price.kind), offer.usd_per_accelerator_hour),
            *(offer.price.provider, offer.price.instance, offer.price.region or ""),
        ),
    )


def _unknown(facts: FactBase, name: str, kind: PriceKind | None) -> TunemarkError:
    """Return the error of a name without prices."""
    card = facts.recognise_accelerator(name)
    if not name or card is not None or name.lower() in {known.lower() for known in facts.instances}:
        of_kind = f" {kind.value.replace('_', '-')}" if kind else ""
        known = card.key if card else name or "anything"
        return TunemarkError("name", name, f"the price book has no{of_kind} price of {known}; add one to data/prices/prices.csv")
    suggestion = suggest_accelerator(name, facts.accelerators, facts.instances)
    return TunemarkError("name", name, f"neither an instance nor an accelerator; {suggestion}")


def remarks(shown: Iterable[Offer], on: date, today: date) -> Iterator[str]:
    """Yield remarks on a table of offers: how prices are dated and sorted, and that future prices are unknown."""
    shown = list(shown)
    if on > today:
        yield f"note: {on.isoformat()} is in the future; these are the newest prices known today"
    if any(offer.price.dated_by == "catalog" for offer in shown):
        yield "catalog: the source has versions but no dates; the price was read on that day and may be older"
    if any(offer.price.dated_by == "inferred" for offer in shown):
        yield "inferred: the date is inferred from earlier and later price lists"
    kinds = list(dict.fromkeys(offer.price.kind.value.replace("_", "-") for offer in shown))
    if len(kinds) > 1:
        yield f"cheapest accelerator-hour first within each kind: {', '.join(kinds)}; --kind shows one"
