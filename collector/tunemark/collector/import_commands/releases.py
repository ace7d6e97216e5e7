"""`tunemark import releases`: when versions of libraries came out, from PyPI."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.importers.in_and_out import read_bytes
from tunemark.collector.output import say
from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import write_atomically

# Modules that are not needed for --help are imported by the command, so that --help is instant.
# ruff: noqa: PLC0415

TIMEOUT_S = 60


def releases(
    names: Annotated[list[str], typer.Argument(help="Names on PyPI, or files of JSON fetched from there.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write, such as `data/known/pypi.toml`; standard output when left out.", show_default=False),
    ] = None,
) -> None:
    """Write when each final version of libraries came out: the audit holds documents against it.

    Exit codes: 0 written, 2 no such file, or PyPI cannot be reached or has no such project, 3 not PyPI's JSON.

    Examples
    --------
    - `tunemark import releases torch transformers peft --out data/known/pypi.toml`

    - `tunemark import releases torch.json`
    """
    from tunemark.collector.importers.releases import as_toml, library_of

    today = datetime.now(tz=UTC).date()
    text = as_toml([library_of(_content(name), today) for name in names])
    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text.encode())
    say(f"wrote {out}: {len(names)} libraries")


def _content(name: str) -> bytes:
    if name.endswith(".json"):
        return read_bytes(Path(name))
    import urllib.error
    import urllib.parse
    import urllib.request

    address = f"https://pypi.org/pypi/{urllib.parse.quote(name, safe='')}/json"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            return bytes(answer.read())
    except (urllib.error.URLError, TimeoutError) as error:
        fix = f"{address} could not be read ({error}); check the name and the network, or give a file of its JSON"
        raise TunemarkError("name", name, fix) from error
