"""The command `schema`: the committed JSON Schema files, and the fields of a record."""

from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.commands.options import chosen, option
from tunemark.schema.errors import Exit
from tunemark.schema.files import is_checkout, project_root, write_atomically
from tunemark.schema.records.reading import MODELS, field_reference, schema_files
from tunemark.terminal import AsJson, print_json, print_table, say

FOLDER = Path("schema") / "json"


def outdated(root: Path) -> list[str]:
    """Return the names of schema files that are missing or differ from the generated ones."""
    paths = {name: (root / FOLDER / name, content.encode()) for name, content in schema_files().items()}
    return [name for name, (path, content) in paths.items() if not path.is_file() or path.read_bytes() != content]


def schema(
    *,
    write: Annotated[bool, option("--write", "Write schema/json. Default: only check that it is current.")] = False,
    fields: Annotated[
        str | None, option("--fields", "Show the fields of `submission`, `published`, `source` or `converted`.", metavar="KIND")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the JSON Schema files, or show the fields of a record.

    Exit codes: 0 current or written, 3 the files in schema/json are not current.

    Examples
    --------
    - `tunemark schema`
    - `tunemark schema --write`
    - `tunemark schema --fields submission`
    """
    if fields is not None:
        kinds = {name.removeprefix("tunemark.").partition("/")[0]: model for name, model in MODELS.items()}
        reference = field_reference(kinds[chosen("--fields", fields, kinds)])
        if as_json:
            print_json([{"field": path, "type": kind, "meaning": meaning} for path, kind, meaning in reference])
        else:
            print_table(["field", "type", "meaning"], reference)
        return
    root = project_root()
    written = list(schema_files()) if write else []
    for name in written:
        write_atomically(root / FOLDER / name, schema_files()[name].encode())
    # Outside a checkout there are no committed files that could be old.
    stale = outdated(root) if write or is_checkout(root) else []
    if as_json:
        print_json({"written": [str(FOLDER / name) for name in written], "outdated": stale})
    else:
        for name in written:
            typer.echo(f"wrote {FOLDER / name}")
        for name in stale:
            say(f"{FOLDER / name}: not current; run `tunemark schema --write`")
        if not written and not stale:
            typer.echo(f"{FOLDER} is current")
    raise typer.Exit(Exit.INVALID if stale else Exit.OK)
