"""Days of a library's releases, from the JSON that the Python Package Index serves of a project, at /pypi/NAME/json."""

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import InvalidVersion, Version

from tunemark.collector.commands.terminal import say
from tunemark.collector.importers.import_io import read_bytes
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.world_facts import Library
from tunemark.schema.files import write_atomically

SOURCE = "Python Package Index, /pypi/{}/json: day of the first file"


def library_of(content: bytes, read_on: date) -> Library:
    """Return the final versions of a project with the day on which the first file of each was uploaded (UTC).

    Raises
    ------
    TunemarkError
        With exit code 3 when it is not such JSON.

    """
    try:
        answer = json.loads(content)
        name, releases = answer["info"]["name"], answer["releases"]
        days = {version: _first_day(files) for version, files in releases.items() if files and _final(version)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = f"is not the JSON of a project on PyPI ({error}); fetch /pypi/NAME/json of the index"
        raise TunemarkError("releases", content[:40], fix, exit_code=Exit.INVALID) from error
    ordered = dict(sorted(days.items(), key=lambda item: Version(item[0])))
    return Library(library=name.lower(), source=SOURCE.format(name.lower()), read_on=read_on, released_on=ordered)


def _final(version: str) -> bool:
    try:
        read = Version(version)
    except InvalidVersion:
        return False
    return not read.is_prerelease


def _first_day(files: list[dict[str, str]]) -> date:
    return min(datetime.fromisoformat(file["upload_time_iso_8601"]) for file in files).date()


def as_toml(libraries: Iterable[Library]) -> str:
    """Return the text of a file of data/known."""
    lines = ["# Written by `tunemark import releases`: when each final version of a library came out."]
    for one in libraries:
        lines += ["", "[[libraries]]", f"library = {json.dumps(one.library)}", f"source = {json.dumps(one.source)}"]
        lines += [f"read_on = {one.read_on.isoformat()}", "", "[libraries.released_on]"]
        lines += [f"{json.dumps(version)} = {day.isoformat()}" for version, day in one.released_on.items()]
    return "\n".join(lines) + "\n"


# MOVE: was tunemark.collector.importers.releases: `tunemark import releases`: when versions of libraries came out, from the Python Package Index.

# Modules that are not needed for --help are imported by the command, so that --help is instant.


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
    today = datetime.now(tz=UTC).date()
    text = as_toml([library_of(read_bytes(file), today) for file in files])
    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text.encode())
    say(f"wrote {out}: {len(files)} libraries")
