"""The command `prices`: the price of an instance or accelerator on a day."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated

import typer

from tunemark.collector.commands.terminal import AsJson, OnDay, chosen, date_option, print_json, print_table, say
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import PriceRow, current_prices
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import suggest_accelerator
from tunemark.schema.formats import MISSING
from tunemark.schema.vocabulary import PriceKind

FIGURES = "purchase, years, utilisation, watts, electricity and optionally resale"
NEVER = f"{MISSING}: renting is always cheaper"


def prices(
    name: Annotated[str | None, typer.Argument(metavar="[INSTANCE|ACCELERATOR]", help="Default: all.")] = None,
    on: OnDay = None,
    *,
    kind: Annotated[str | None, typer.Option("--kind", help="on_demand, spot, reserved or marketplace. Default: all.")] = None,
    own: Annotated[
        str | None,
        typer.Option("--owned", metavar="FIGURES", help=f"Compare with your own hardware: {FIGURES}."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the price of an instance or accelerator on a day: on-demand, spot, reserved, marketplace; cheapest accelerator-hour first.

    Lists the newest known price per provider, instance, region and kind in force on that day, for the whole instance.

    With --owned, the last column is the number of hours of use per year from which an owned machine is cheaper than one
    accelerator of the offer. A dash means that renting is always cheaper. An accelerator that no provider rents is shown with
    the hourly cost of the owned machine only. The figures are written as
    `purchase=2000,years=3,utilisation=0.5,watts=450,electricity=0.30,resale=500`.

    Examples
    --------
    - `tunemark prices p5.48xlarge`

    - `tunemark prices nvidia-h100-80gb-sxm --on 2026-11-20 --json`

    - `tunemark prices nvidia-rtx-4090 --kind on_demand`
    """
    from tunemark.schema.owned_hardware import parse_owned  # noqa: PLC0415 - not needed for --help

    owned = parse_owned(own) if own else None
    facts, day = FactBase.of_project(), date_option("--on", on)
    wanted = None if kind is None else chosen("--kind", kind.replace("-", "_"), PriceKind)
    card = facts.recognise_accelerator(name) if name else None
    if owned and name and card and not any(row.accelerator == card.key for row in facts.prices):
        if as_json:
            print_json([{"owned_usd_per_hour": owned.usd_per_hour()}])
            return
        say(owned.sentence())
        print_table(["accelerator", "owned usd/h"], [(name, owned.usd_per_hour())])
        say("the price book has no offer for it, so there is no break-even")
        return
    shown = offers(facts, name, day, wanted)
    hours = [owned.break_even_hours_per_year(offer.usd_per_accelerator_hour) if owned else None for offer in shown]
    if as_json:
        print_json(
            [
                offer.as_json()
                | ({"owned_usd_per_hour": owned.usd_per_hour(), "owned_break_even_hours_per_year": break_even} if owned else {})
                for offer, break_even in zip(shown, hours, strict=True)
            ]
        )
        return
    if owned:
        say(owned.sentence())
        rows = [(*offer.cells(), MISSING if even is None else f"{even:,.0f}") for offer, even in zip(shown, hours, strict=True)]
        print_table([*COLUMNS, "own from h/year"], rows)
    else:
        print_table(COLUMNS, [offer.cells() for offer in shown])
    for remark in (*remarks(shown, day, datetime.now(tz=UTC).date()), *([NEVER] if owned else [])):
        say(remark)


# Offers of the price book

CATALOGUE = re.compile(r"\b(v\d+)\b")
COLUMNS = ["provider", "instance", "region", "kind", "accelerator", "count", "usd/h", "usd/h each", "known on", "dated by"]


@dataclass(frozen=True, slots=True)
class CurrentPrice:
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


def offers(facts: FactBase, name: str | None, on: date, kind: PriceKind | None = None) -> list[CurrentPrice]:
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
        map(CurrentPrice, current_prices(begun)),
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


def remarks(shown: Iterable[CurrentPrice], on: date, today: date) -> Iterator[str]:
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
