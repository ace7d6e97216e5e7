"""The command `prices`: what an instance or accelerator costs on a day."""

from typing import Annotated

import typer

from tunemark.collector.commands.options import AsJson
from tunemark.collector.days import day_of
from tunemark.collector.output import print_json, print_table, say
from tunemark.schema.facts import FactBase

# Modules that need duckdb, pyarrow or numpy are imported by the command that uses them, so that --help is instant.
# ruff: noqa: PLC0415


def prices(
    name: Annotated[str | None, typer.Argument(metavar="[INSTANCE|ACCELERATOR]", help="All when left out.", show_default=False)] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="DATE", help="YYYY-MM-DD; today when left out.", show_default=False)] = None,
    *,
    own: Annotated[
        str | None, typer.Option("--owned", metavar="FIGURES", help="Compare with hardware of your own.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what an instance or accelerator costs on a day, cheapest accelerator-hour first.

    The newest price per provider, instance, region and kind that has begun on that day, for the whole instance.

    Examples
    --------
    - `tunemark prices p5.48xlarge`

    - `tunemark prices nvidia-h100-80gb-sxm --on 2026-11-20 --json`

    - `tunemark prices nvidia-rtx-4090 --owned purchase=2000,years=3,utilisation=0.5,watts=450,electricity=0.30`

    With --owned, one accelerator of each offer stands beside the owned one: the last column says from how many hours of use a year owning is cheaper.
    """
    from tunemark.collector.owned import owned
    from tunemark.collector.price_book import offer_json, offer_table, offers

    machine = owned(own) if own else None
    found = offers(FactBase.of_project(), name, day_of("--on", on))
    if as_json:
        print_json([offer_json(offer) | (machine.facts(offer) if machine else {}) for offer in found])
        return
    columns, lines = offer_table(found)
    if machine:
        say(machine.sentence())
        columns, lines = [*columns, "own from h/year"], [(*line, machine.cell(offer)) for line, offer in zip(lines, found, strict=True)]
    print_table(columns, lines)
