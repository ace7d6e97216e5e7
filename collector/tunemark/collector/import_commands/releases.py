"""`tunemark import releases`: when versions of libraries came out, from the Python Package Index."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.importers.in_and_out import read_bytes
from tunemark.collector.output import say
from tunemark.schema.files import write_atomically

# Modules that are not needed for --help are imported by the command, so that --help is instant.
# ruff: noqa: PLC0415


def releases(
    files: Annotated[
        list[Path], typer.Argument(help="Files of JSON, as the index serves a project at /pypi/NAME/json.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write, such as `data/known/pypi.toml`; standard output when left out.", show_default=False),
    ] = None,
) -> None:
    """Write when each final version of libraries came out: the audit holds documents against it.

    Nothing is fetched: what to hold documents against is a fact with a source, and is looked at before it is committed.

    Exit codes: 0 written, 2 no such file, 3 not such JSON.

    Examples
    --------
    - `tunemark import releases torch.json transformers.json --out data/known/pypi.toml`

    - `tunemark import releases torch.json`
    """
    from tunemark.collector.importers.releases import as_toml, library_of

    today = datetime.now(tz=UTC).date()
    text = as_toml([library_of(read_bytes(file), today) for file in files])
    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text.encode())
    say(f"wrote {out}: {len(files)} libraries")
