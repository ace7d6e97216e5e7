"""The command `prices`: what an instance or accelerator costs on a day."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tunemark.collector.commands.terminal import AsJson, parse_date, print_json, print_table, say
from tunemark.schema.facts.fact_base import FactBase

if TYPE_CHECKING:
    from tunemark.collector.predict.owned_hardware_cost import OwnedMachine

# What it needs is imported when it is called, so that --help is instant.
# ruff: noqa: PLC0415

FIGURES = "purchase, years, utilisation, watts, electricity and, if it is sold afterwards, resale"


def prices(
    name: Annotated[str | None, typer.Argument(metavar="[INSTANCE|ACCELERATOR]", help="All when left out.", show_default=False)] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="DATE", help="YYYY-MM-DD; today when left out.", show_default=False)] = None,
    *,
    kind: Annotated[str | None, typer.Option("--kind", help="on_demand, spot or reserved; all when left out.", show_default=False)] = None,
    own: Annotated[
        str | None,
        typer.Option("--owned", metavar="FIGURES", help=f"Compare with hardware of your own: {FIGURES}.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what an instance or accelerator costs on a day: on-demand, then spot, then reserved, each cheapest accelerator-hour first.

    The newest price per provider, instance, region and kind that is known to be in force on that day, for the whole instance.

    Examples
    --------
    - `tunemark prices p5.48xlarge`

    - `tunemark prices nvidia-h100-80gb-sxm --kind on_demand --on 2026-11-20 --json`

    - `tunemark prices nvidia-rtx-4090 --owned purchase=2000,years=3,utilisation=0.5,watts=450,electricity=0.30,resale=500`

    With --owned, one accelerator of each offer stands beside the owned one: the last column says from how many hours of use a
    year owning is cheaper, and has a dash where renting is, however much it is used. What an hour on it costs is shown also
    for an accelerator that nobody rents out.
    """
    from tunemark.collector.predict.owned_hardware_cost import NEVER, parse_owned
    from tunemark.collector.predict.price_book import kind_of, offer_json, offer_table, offers, remarks

    machine = parse_owned(own) if own else None
    facts, day, wanted = FactBase.of_project(), parse_date("--on", on), kind_of(kind)
    if machine and name and facts.recognise_accelerator(name) and not _has_price(facts, name):
        _alone(machine, name, as_json=as_json)
        return
    found = offers(facts, name, day, wanted)
    if as_json:
        print_json([offer_json(offer) | (machine.facts(offer) if machine else {}) for offer in found])
        return
    columns, lines = offer_table(found)
    if machine:
        say(machine.sentence())
        columns, lines = [*columns, "own from h/year"], [(*line, machine.cell(offer)) for line, offer in zip(lines, found, strict=True)]
    print_table(columns, lines)
    for remark in (*remarks(found, day, datetime.now(tz=UTC).date()), *([NEVER] if machine else [])):
        say(remark)


def _has_price(facts: FactBase, name: str) -> bool:
    card = facts.recognise_accelerator(name)
    return any(card and row.accelerator == card.key for row in facts.prices)


def _alone(machine: "OwnedMachine", name: str, *, as_json: bool) -> None:
    """Show what an hour on hardware of one's own costs that nobody rents out."""
    if as_json:
        print_json([machine.facts()])
        return
    say(machine.sentence())
    print_table(["accelerator", "owned usd/h"], [(name, machine.hardware.usd_per_hour())])
    say("the price book has no offer of it, so there is no break-even")
