"""`tunemark import prices`: a catalogue becomes rows of the price book."""

from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.commands.options import AsJson
from tunemark.collector.importers.in_and_out import day, grouped, read_bytes
from tunemark.collector.output import print_json, say
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts import FactBase
from tunemark.schema.files import write_atomically

# Modules that need duckdb, pyarrow or numpy are imported by the command that uses them, so that --help is instant.
# ruff: noqa: PLC0415


def prices(
    file: Annotated[Path, typer.Argument(help="The vms.csv of a provider.", show_default=False)],
    layout: Annotated[str, typer.Option("--format", help="Whose file it is; `skypilot` is known.")] = "skypilot",
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            help="Whose prices: aws, gcp, azure, lambda, vast, runpod, ...; the file's folder when left out.",
            show_default=False,
        ),
    ] = None,
    read_on: Annotated[
        str | None, typer.Option("--read-on", metavar="DATE", help="YYYY-MM-DD; today when left out.", show_default=False)
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Cited in each row; name the commit.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("--out", help="CSV file to write; standard output when left out.", show_default=False)] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Read a SkyPilot catalogue as rows of the price book.

    Known traps are rules, each with its reason: GCP's a2, a3, a4 and g2 rows are the machine without its accelerators,
    700.0 is a filler for TPUs, v4 and v5p slices count cores, Vast's spot price 0.00 is unknown, RunPod repeats the
    on-demand price as spot. Zones of a region become their median. An accelerator that is not in the catalogue, or whose
    memory contradicts it, is refused with a suggestion.

    Exit codes: 0 all rows used or dropped for a known reason, 2 usage, 3 rows were refused.

    Examples
    --------
    - `tunemark import prices catalogs/v8/lambda/vms.csv`

    - `tunemark import prices vms.csv --format skypilot --provider gcp --read-on 2026-11-20 --out gcp.csv`
    """
    from tunemark.collector.importers.skypilot import price_book_text, read_catalogue

    if layout != "skypilot":
        raise TunemarkError("--format", layout, did_you_mean(layout, ["skypilot"]))
    owner = provider or (file.absolute().parent.name if file.stem in {"vms", "instances"} else file.stem)
    cited = source or f"SkyPilot catalogue {'/'.join(file.parts[-4:]) if 'catalogs' in file.parts else file.name}"
    found = read_catalogue(read_bytes(file), owner.lower(), day(read_on), cited, FactBase.of_project())
    reasons = grouped(found.dropped)
    if as_json:
        print_json({"rows": [row.model_dump(mode="json") for row in found.rows], "lines": found.lines, "dropped": reasons})
    else:
        for reason in reasons:
            lines = reason["lines"]
            say(f"{file.name}:{lines[0]}: {reason['what']}: {reason['reason']}" + (f" ({len(lines)} rows)" if len(lines) > 1 else ""))
        say(f"{found.lines} rows read, {len(found.rows)} prices")
    if out is not None:
        write_atomically(out, price_book_text(found.rows).encode())
    elif not as_json:
        typer.echo(price_book_text(found.rows), nl=False)
    raise typer.Exit(Exit.INVALID if any(dropped.refused for dropped in found.dropped) else Exit.OK)
