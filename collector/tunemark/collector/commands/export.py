"""The command `export`: write the collection as Parquet and CSV."""

from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.commands.terminal import AsJson, Database, database_of, print_json, print_table, say


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.", show_default=False)],
    db: Database = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export in the folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the whole collection to a folder: each table as Parquet and CSV, a description of all columns, and a citation.

    All files or none are written, and the same database gives the same bytes. Other files in the folder are never replaced. In CSV, a
    text that a spreadsheet would take for a formula begins with an apostrophe.

    Exit codes: 0 written, 1 the folder cannot be written, 2 no database, or a folder that is not empty.

    Examples
    --------
    - `tunemark export tunemark-data`

    - `tunemark export tunemark-data --force --json`

    - `tunemark export /tmp/data --db /tmp/try.duckdb`
    """
    # Needs duckdb and pyarrow, which --help does not.
    from tunemark.collector.store.export import export as write_export  # noqa: PLC0415

    done = write_export(database_of(db), folder, force=force)
    if as_json:
        print_json({"folder": str(done.folder), "rows": dict(done.rows)})
    else:
        print_table(["table", "rows"], list(done.rows.items()))
        say(f"wrote {done.folder}")
