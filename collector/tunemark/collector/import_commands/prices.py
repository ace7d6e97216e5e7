"""`tunemark import prices`: a catalogue becomes rows of the price book."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunemark.collector.commands.options import AsJson
from tunemark.collector.importers.in_and_out import grouped, read_bytes
from tunemark.collector.output import print_json, say
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase

if TYPE_CHECKING:
    from tunemark.collector.importers.skypilot import Prices

# The importer is imported when it is called, so that --help is instant.
# ruff: noqa: PLC0415


def prices(
    file: Annotated[Path, typer.Argument(help="The vms.csv of a provider.", show_default=False)],
    *,
    layout: Annotated[str, typer.Option("--format", help="Whose file it is; `skypilot` is known.")] = "skypilot",
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            help="Whose prices: aws, gcp, azure, lambda, vast, runpod, ...; the file's folder when left out, if it is a known provider.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            "--catalog-version", help="Version of the catalogue, such as v8; read from the path where that has it.", show_default=False
        ),
    ] = None,
    read_on: Annotated[
        str | None, typer.Option("--read-on", metavar="DATE", help="YYYY-MM-DD; today when left out.", show_default=False)
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Cited in each row; name the commit.", show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="CSV file to write, which is not there yet; standard output when left out.", show_default=False),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Add the rows to the end of --out; none of them may be in it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Read a SkyPilot catalogue as rows of the price book.

    Known traps are rules, each with its reason: GCP's a2, a3, a4 and g2 rows are the machine without its accelerators,
    700.0 is a filler for TPUs, v4 and v5p slices count cores, Vast's spot price 0.00 is unknown, RunPod repeats the
    on-demand price as spot. Zones of a region become their median. An accelerator that is not in data/accelerators, whose
    memory contradicts it, or that may be several cards is refused with a suggestion.

    Exit codes: 0 all rows used or dropped for a known reason, 2 usage, 3 rows were refused.

    Examples
    --------
    - `tunemark import prices catalogs/v8/lambda/vms.csv`

    - `tunemark import prices vms.csv --provider gcp --catalog-version v8 --read-on 2026-11-20 --out gcp.csv`

    - `tunemark import prices catalogs/v8/aws/vms.csv --out data/prices/prices.csv --append`
    """
    from tunemark.collector.importers.price_files import cited, day_read, price_book_text, provider_of, write_prices
    from tunemark.collector.importers.skypilot import read_catalogue
    from tunemark.collector.importers.skypilot_rows import providers

    if layout != "skypilot":
        raise TunemarkError("--format", layout, did_you_mean(layout, ["skypilot"]))
    if append and out is None:
        raise TunemarkError("--append", "", "adds rows to a file; name it with --out")
    facts = FactBase.of_project()
    owner = provider_of(file, provider, providers(facts))
    found = read_catalogue(read_bytes(file), owner, day_read(read_on), cited(file, owner, version, source), facts)
    _report(file, found, as_json=as_json)
    if out is not None:
        write_prices(out, found.rows, append=append)
        say(f"added {len(found.rows)} rows to {out}" if append else f"wrote {out}")
    elif not as_json:
        typer.echo(price_book_text(found.rows), nl=False)
    raise typer.Exit(Exit.INVALID if any(dropped.refused for dropped in found.dropped) else Exit.OK)


def _report(file: Path, found: "Prices", *, as_json: bool) -> None:
    reasons = grouped(found.dropped)
    if as_json:
        print_json({"rows": [row.model_dump(mode="json") for row in found.rows], "lines": found.lines, "dropped": reasons})
        return
    for reason in reasons:
        lines = reason["lines"]
        say(f"{file.name}:{lines[0]}: {reason['what']}: {reason['reason']}" + (f" ({len(lines)} rows)" if len(lines) > 1 else ""))
    say(f"{found.lines} rows read, {len(found.rows)} prices")
