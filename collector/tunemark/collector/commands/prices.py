"""The command `prices`: the price of an instance or accelerator on a day."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any

import typer

from tunemark.collector.commands.options import OnDay, date_option, option, price_kind
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import PriceRow, current_prices
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.names import suggest_accelerator
from tunemark.schema.formats import usd
from tunemark.schema.recommendation import provider_name
from tunemark.schema.vocabulary import PriceKind
from tunemark.terminal import AsJson, print_json, print_table, say

FIGURES = "purchase, years, utilisation, watts, electricity and optionally resale"


def prices(
    name: Annotated[str | None, typer.Argument(metavar="[INSTANCE|ACCELERATOR|PROVIDER]", help="Default: all.")] = None,
    on: OnDay = None,
    *,
    kind: Annotated[str | None, option("--kind", "on_demand, spot, reserved or marketplace. Default: all.")] = None,
    owned: Annotated[str | None, option("--owned", f"Compare with your own hardware: {FIGURES}.", metavar="FIGURES")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the price of an instance or accelerator, or all of a provider, on a day: on-demand, spot, reserved, marketplace; cheapest accelerator-hour first.

    Lists the newest known price per provider, instance, region and kind in force on that day, for the whole instance.

    With --owned, the last column is the number of hours of use per year from which an owned machine is cheaper than as many
    accelerators of the offer: one, or those of a name such as `8 x H100`. A dash means that renting is always cheaper. An accelerator that no provider rents is shown with
    the hourly cost of the owned machine only. The figures are written as
    `purchase=2000,years=3,utilisation=0.5,watts=450,electricity=0.30,resale=500`.

    Examples
    --------
    - `tunemark prices p5.48xlarge`
    - `tunemark prices nvidia-h100-80gb-sxm --on 2026-11-20 --json`
    - `tunemark prices "Google Cloud" --kind on_demand`
    """
    from tunemark.schema.owned_hardware import parse_owned  # noqa: PLC0415 - not needed for --help

    own = None if owned is None else parse_owned(owned)
    facts, day = FactBase.of_project(), date_option("--on", on)
    wanted = None if kind is None else price_kind(kind)
    card = facts.recognise_accelerator(name) if name else None
    rented = card is None or any(row.accelerator == card.key for row in facts.prices)
    number, alone = facts.counted(name) if name else (None, None)
    # A machine of two is compared with two offers of one, too.
    known = [] if own and not rented else offers(facts, alone if own else name, day, wanted)
    rows = [_as_row(row) for row in known if not own or number is None or number % row.accelerator_count == 0]
    if own:
        count = number or 1
        rows = [row | {"owned_break_even_hours_per_year": own.break_even_hours_per_year(row[EACH] * count)} for row in rows]
        rows = [row | {"owned_usd_per_hour": own.hourly_usd()} for row in rows or [{"accelerator": name}]]
        compared = "one accelerator of each offer (name their number for a machine with several, as in '8 x H100')"
        hours = "an hour of yours with an hour of these, which may do more or less work: `tunemark recommend --own` compares jobs"
        cost = f"owned: {usd(own.hourly_usd())} per hour of use, including {usd(own.running_usd_per_hour)} to run it"
        say(f"{cost}; compared with {compared if count == 1 else f'{count} accelerators of each offer'}, {hours}")
    if as_json:
        print_json(rows)
        return
    columns = {name: heading for name, heading in COLUMNS.items() if name in rows[0]}
    rounded = [row | {name: round(row[name], digits) for name, digits in DECIMALS.items() if row.get(name)} for row in rows]
    print_table(list(columns.values()), [[row[name] for name in columns] for row in rounded])
    for remark in remarks(rows, day, datetime.now(tz=UTC).date()):
        say(remark)


# Offers of the price book

CATALOGUE = re.compile(r"\b(v\d+)\b")
EACH = "usd_per_accelerator_hour"
DECIMALS = {EACH: 4, "owned_usd_per_hour": 3, "owned_break_even_hours_per_year": 0}
"""Column of the table -> decimals that a reader needs."""
COLUMNS = {
    "provider": "provider",
    "instance": "instance",
    "region": "region",
    "kind": "kind",
    "accelerator": "accelerator",
    "accelerator_count": "count",
    "usd_per_hour": "usd/h",
    EACH: "usd/h each",
    "effective_on": "known on",
    "evidence": "dated by",
    "owned_usd_per_hour": "owned usd/h",
    "owned_break_even_hours_per_year": "own from h/year",
}


def _as_row(row: PriceRow) -> dict[str, Any]:
    """Return a price as JSON values, with the price of one accelerator and the evidence for its date."""
    version = CATALOGUE.search(f"{row.source} {row.notes or ''}")
    evidence = {"provider": "price list", "catalog": f"catalog {version[1]}" if version else "catalog"}.get(row.dated_by, row.dated_by)
    return row.model_dump(mode="json") | {EACH: row.usd_per_hour / row.accelerator_count, "evidence": evidence}


def offers(facts: FactBase, name: str | None, on: date, kind: PriceKind | None = None) -> list[PriceRow]:
    """Return the newest price per provider, instance, region and kind on a day, cheapest accelerator-hour first within each kind.

    Raises TunemarkError for a name that is neither an instance nor an accelerator, a name without a price, and a day before its first price.
    """
    count, name = facts.counted(name) if name else (None, None)
    card = facts.recognise_accelerator(name or "")
    # A part of a name, such as H100, is all accelerators with it; A100 80GB is those of any board.
    alike = facts.variants_of(name or "") if card and (name or "").lower() not in {card.key, card.name.lower()} else []
    keys = [card.key, *alike] if card else facts.sharing_name(name or "")
    spelled = (name or "").lower()
    listed = [
        row
        for row in facts.prices
        if kind in {None, row.kind}
        if name is None or row.accelerator in keys or spelled in {row.instance.lower(), row.provider, provider_name(row.provider).lower()}
    ]
    rows = [row for row in listed if count in {None, row.accelerator_count}]
    if not listed:
        raise _unknown(facts, name or "", kind)
    if not rows:
        numbers = ", ".join(f"{number:g}" for number in sorted({row.accelerator_count for row in listed}))
        raise TunemarkError(name or "", count, f"no instance has this many; they have {numbers}: `recommend` rents several, too")
    begun = [row for row in rows if row.effective_on <= on]
    if not begun:
        first = min(row.effective_on for row in rows).isoformat()
        raise TunemarkError("--on", on.isoformat(), f"before the first known price{f' of {name}' if name else ''}; give {first} or later")
    kinds = list(PriceKind)
    return sorted(
        current_prices(begun),
        key=lambda row: (
            *(kinds.index(row.kind), row.usd_per_hour / row.accelerator_count),
            *(row.provider, row.instance, row.region or ""),
        ),
    )


def _unknown(facts: FactBase, name: str, kind: PriceKind | None) -> TunemarkError:
    card = facts.recognise_accelerator(name)
    if not name or card is not None or (kind and facts.sharing_name(name)) or name.lower() in {known.lower() for known in facts.instances}:
        of_kind = f" {kind.value.replace('_', '-')}" if kind else ""
        known = card.key if card else name or "anything"
        instead = "leave out --kind for all" if kind else "`recommend --own` needs none"
        return TunemarkError(name or "--kind", None, f"the price book has no{of_kind} price of {known}; {instead}")
    suggestion = suggest_accelerator(name, facts.accelerators, facts.instances)
    return TunemarkError(name, None, f"neither an instance, an accelerator nor a provider; {suggestion}")


def remarks(rows: Sequence[Mapping[str, Any]], on: date, today: date) -> Iterator[str]:
    """Yield remarks on a table of offers: how prices are dated and sorted, and that future prices are unknown."""
    dated = {row.get("dated_by") for row in rows}
    kinds = list(dict.fromkeys(row["kind"].replace("_", "-") for row in rows if "kind" in row))
    if on > today:
        yield f"note: {on.isoformat()} is in the future; these are the newest prices known today"
    if "catalog" in dated:
        yield "catalog: the source has versions but no dates; the price was read on that day and may be older"
    if "inferred" in dated:
        yield "inferred: the date is inferred from earlier and later price lists"
    if len(kinds) > 1:
        yield f"cheapest accelerator-hour first within each kind: {', '.join(kinds)}; --kind shows one"
    if not kinds:
        yield "the price book has no offer for it, so there is no break-even"
