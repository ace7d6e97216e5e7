"""The command `prices`: the price of an instance or accelerator on a day."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from tunemark.collector.commands.terminal import AsJson, chosen, date_option, print_json, print_table, say
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import MISSING
from tunemark.schema.vocabulary import PriceKind

FIGURES = "purchase, years, utilisation, watts, electricity and optionally resale"
NEVER = f"{MISSING}: renting is always cheaper"


def prices(
    name: Annotated[str | None, typer.Argument(metavar="[INSTANCE|ACCELERATOR]", help="Default: all.", show_default=False)] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="DATE", help="Day, as YYYY-MM-DD. Default: today.", show_default=False)] = None,
    *,
    kind: Annotated[
        str | None, typer.Option("--kind", help="on_demand, spot, reserved or marketplace. Default: all.", show_default=False)
    ] = None,
    own: Annotated[
        str | None,
        typer.Option("--owned", metavar="FIGURES", help=f"Compare with your own hardware: {FIGURES}.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the price of an instance or accelerator on a day: on-demand, spot, reserved, marketplace; cheapest accelerator-hour first.

    Lists the newest known price per provider, instance, region and kind in force on that day, for the whole instance.

    With --owned, the last column is the number of hours of use per year from which an owned machine is cheaper than one
    accelerator of the offer. A dash means that renting is always cheaper. An accelerator that no provider rents is shown with
    the hourly cost of the owned machine only.

    Examples
    --------
    - `tunemark prices p5.48xlarge`

    - `tunemark prices nvidia-h100-80gb-sxm --kind on_demand --on 2026-11-20 --json`

    - `tunemark prices nvidia-rtx-4090 --owned purchase=2000,years=3,utilisation=0.5,watts=450,electricity=0.30,resale=500`
    """
    from tunemark.collector.predict import price_book  # noqa: PLC0415 - not needed for --help
    from tunemark.schema.owned_hardware import parse_owned  # noqa: PLC0415 - as above

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
    shown = price_book.offers(facts, name, day, wanted)
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
        print_table([*price_book.COLUMNS, "own from h/year"], rows)
    else:
        print_table(price_book.COLUMNS, [offer.cells() for offer in shown])
    for remark in (*price_book.remarks(shown, day, datetime.now(tz=UTC).date()), *([NEVER] if owned else [])):
        say(remark)
