"""The committed JSON Schema files, and whether they are what the models say."""

from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.commands.terminal import AsJson, print_json, print_table, say
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.files import project_root, write_atomically
from tunemark.schema.records.json_schema import field_reference, schema_files
from tunemark.schema.records.upgrade import MODELS

FOLDER = Path("schema") / "json"


def outdated(root: Path) -> list[str]:
    """Return the names of schema files that are missing or differ from what is generated."""
    return [name for name, content in schema_files().items() if not _holds(root / FOLDER / name, content)]


def write_schemas(root: Path) -> list[Path]:
    """Write all schema files and return their paths."""
    for name, content in schema_files().items():
        write_atomically(root / FOLDER / name, content.encode())
    return [root / FOLDER / name for name in schema_files()]


def fields_of(kind: str) -> list[tuple[str, str, str]]:
    """Return (path, type, meaning) of each field of `submission`, `published`, `source` or `converted`."""
    kinds = {name.removeprefix("tunemark.").partition("/")[0]: model for name, model in MODELS.items()}
    if kind not in kinds:
        raise TunemarkError("--fields", kind, did_you_mean(kind, kinds))
    return field_reference(kinds[kind])


def _holds(path: Path, content: str) -> bool:
    return path.is_file() and path.read_bytes() == content.encode()


# MOVE: was tunemark.collector.commands.schema: The command `schema`: the JSON Schema files and the fields of a record.

# Modules that need duckdb, pyarrow or numpy are imported by the command that uses them, so that --help is instant.


def schema(
    *,
    write: Annotated[bool, typer.Option("--write", help="Write schema/json; without it only say whether it is current.")] = False,
    fields: Annotated[
        str | None,
        typer.Option(
            "--fields", metavar="KIND", help="Show the fields of `submission`, `published`, `source` or `converted`.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the JSON Schema files and show the fields of a record.

    Exit codes: 0 current or written, 3 the files in schema/json are not current.

    Examples
    --------
    - `tunemark schema`

    - `tunemark schema --write`

    - `tunemark schema --fields submission`
    """
    if fields is not None:
        reference = fields_of(fields)
        if as_json:
            print_json([{"field": path, "type": kind, "meaning": meaning} for path, kind, meaning in reference])
        else:
            print_table(["field", "type", "meaning"], reference)
        return
    root = project_root()
    written = write_schemas(root) if write else []
    stale = outdated(root)
    if as_json:
        print_json({"written": [str(path.relative_to(root)) for path in written], "outdated": stale})
    else:
        for path in written:
            typer.echo(f"wrote {path.relative_to(root)}")
        for name in stale:
            say(f"{FOLDER / name}: not current; run `tunemark schema --write`")
        if not written and not stale:
            typer.echo(f"{FOLDER} is current")
    raise typer.Exit(Exit.INVALID if stale else Exit.OK)
