"""The command `schema`: the JSON Schema files and the fields of a record."""

from typing import Annotated

import typer

from tunemark.collector.commands.options import AsJson
from tunemark.collector.output import print_json, print_table, say
from tunemark.schema.errors import Exit
from tunemark.schema.files import project_root

# Modules that need duckdb, pyarrow or numpy are imported by the command that uses them, so that --help is instant.
# ruff: noqa: PLC0415


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
    from tunemark.collector import schema_folder

    if fields is not None:
        reference = schema_folder.fields_of(fields)
        if as_json:
            print_json([{"field": path, "type": kind, "meaning": meaning} for path, kind, meaning in reference])
        else:
            print_table(["field", "type", "meaning"], reference)
        return
    root = project_root()
    written = schema_folder.write(root) if write else []
    stale = schema_folder.outdated(root)
    if as_json:
        print_json({"written": [str(path.relative_to(root)) for path in written], "outdated": stale})
    else:
        for path in written:
            typer.echo(f"wrote {path.relative_to(root)}")
        for name in stale:
            say(f"{schema_folder.FOLDER / name}: not current; run `tunemark schema --write`")
        if not written and not stale:
            typer.echo(f"{schema_folder.FOLDER} is current")
    raise typer.Exit(Exit.INVALID if stale else Exit.OK)
