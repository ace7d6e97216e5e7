"""The command `collect`: from files to the database."""

from typing import Annotated

import typer

from tunemark.collector.commands.terminal import AsJson, Database, database_of, parse_date, print_json, print_table, progress, say
from tunemark.schema.errors import Exit
from tunemark.schema.files import project_root

# Modules that need duckdb, pyarrow or numpy are imported by the command that uses them, so that --help is instant.
# ruff: noqa: PLC0415


def collect(
    db: Database = None,
    *,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="DATE", help="Day of the current prices, YYYY-MM-DD; today when left out.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Load all results and facts into the database.

    All or nothing: the new database takes the place of the old one once it is complete. A submission with a
    problem is reported, noted in the table `load_problems` and left out; a problem in our own facts stops.

    Exit codes: 0 all loaded, 3 a file is invalid.

    Examples
    --------
    - `tunemark collect`

    - `tunemark collect --db /tmp/try.duckdb --json`

    - `tunemark collect --as-of 2026-11-20`
    """
    from tunemark.collector.store.loading import collect as load
    from tunemark.collector.store.loading import submission_files

    root = project_root()
    found = submission_files(root)
    database, day = database_of(db), parse_date("--as-of", as_of)
    with progress("collect", len(found.files)) as advance:
        done = load(root, database, advance, day)
    for file, note in done.notes:
        say(f"{file}: note: {note}")
    for file, problem in done.problems:
        say(f"{file}: {problem}")
    if as_json:
        problems = [{"file": file, "field": problem.field, "value": problem.value, "fix": problem.fix} for file, problem in done.problems]
        print_json({"database": str(database), "rows": done.rows, "results": done.results, "problems": problems})
    else:
        counts = [
            *((f"results of {source}", count) for source, count in sorted(done.results.items())),
            *sorted((table, count) for table, count in done.rows.items() if count),
        ]
        print_table(["what", "rows"], counts)
        say(f"wrote {database}")
    raise typer.Exit(Exit.INVALID if done.problems else Exit.OK)
