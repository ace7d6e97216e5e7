"""Release dates of libraries, from the JSON that the Python Package Index serves at /pypi/NAME/json."""

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime

import tomlkit
import typer
from packaging.version import InvalidVersion, Version

from tunemark.collector.commands.options import named_as
from tunemark.collector.importers.import_io import Request, read_bytes, write_out
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.world_facts import Library
from tunemark.schema.formats import counted
from tunemark.terminal import say

SOURCE = "Python Package Index, /pypi/{}/json: day of the first file"


def releases(request: Request) -> None:
    """Write the release date of each final version of libraries, from PyPI's JSON; the audit checks documents against them."""
    request.known(())
    today = datetime.now(tz=UTC).date()
    libraries = []
    for file in request.files:
        with named_as(str(file)):
            libraries.append(library_of(read_bytes(file), today))
    text = as_toml(libraries)
    if request.out is None:
        typer.echo(text, nl=False)
        return
    write_out(request.out, text.encode())
    say(f"wrote {request.out}: {counted(len(request.files), 'file')}")


def library_of(content: bytes, read_on: date) -> Library:
    """Return the final versions of a project with the day on which the first file of each was uploaded (UTC).

    Raises TunemarkError with exit code 3 when the content is not such JSON.
    """
    try:
        answer = json.loads(content)
        name, files = answer["info"]["name"], answer["releases"]
        uploads = {version: [file["upload_time_iso_8601"] for file in uploaded] for version, uploaded in files.items() if _final(version)}
        days = {version: min(map(datetime.fromisoformat, times)).date() for version, times in uploads.items() if times}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fix = f"is not the JSON of a project on PyPI ({error}); fetch /pypi/NAME/json of the index"
        raise TunemarkError("releases", content[:40], fix, exit_code=Exit.INVALID) from error
    ordered = dict(sorted(days.items(), key=lambda item: Version(item[0])))
    return Library(library=name.lower(), source=SOURCE.format(name.lower()), read_on=read_on, released_on=ordered)


def _final(version: str) -> bool:
    try:
        return not Version(version).is_prerelease
    except InvalidVersion:
        return False


def as_toml(libraries: Iterable[Library]) -> str:
    """Return the text of a file of data/known."""
    document = tomlkit.document()
    document.add(tomlkit.comment("Written by `tunemark import releases`: when each final version of a library came out."))
    document.add("libraries", tomlkit.item([library.model_dump() for library in libraries]))
    return tomlkit.dumps(document)
