"""The command `collect`: load files into the database."""

from typing import Annotated

import typer

from tunemark.collector.commands.terminal import (
    AsJson,
    Database,
    database_of,
    date_option,
    print_json,
    print_table,
    problem_json,
    progress,
    say,
)
from tunemark.schema.errors import Exit
from tunemark.schema.files import project_root
from tunemark.schema.formats import counted


def collect(
    db: Database = None,
    *,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="DATE", help="Day of the current prices, as YYYY-MM-DD. Default: today.", show_default=False),
    ] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build the database even if nothing has changed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Load all results and facts into the database.

    All or nothing: the new database replaces the old one once it is complete. A submission with a problem is reported,
    noted in the table `load_problems` and left out. A problem in the facts of data/ stops the command. If the files, the code
    and the day are unchanged, the existing database is kept.

    Exit codes: 0 all loaded, 3 a file is invalid.

    Examples
    --------
    - `tunemark collect`

    - `tunemark collect --db /tmp/try.duckdb --json`

    - `tunemark collect --as-of 2026-11-20`
    """
    # Needs duckdb, pyarrow and numpy, which --help does not.
    from tunemark.collector.store import loading  # noqa: PLC0415

    root = project_root()
    database, day = database_of(db), date_option("--as-of", as_of)
    with progress("collect", len(loading.submission_files(root).files)) as advance:
        done = loading.collect(root, database, advance, day, rebuild=rebuild)
    for file, note in done.notes:
        say(f"{file}: note: {note}")
    for file, problem in done.problems:
        say(f"{file}: {problem}")
    if as_json:
        problems = [problem_json(file, problem) for file, problem in done.problems]
        print_json({"database": str(database), "rows": done.rows, "results": done.results, "problems": problems})
    else:
        results = [(f"results of {source}", count) for source, count in sorted(done.results.items())]
        print_table(["what", "rows"], [*results, *sorted((table, count) for table, count in done.rows.items() if count)])
        say(
            f"{database} is up to date: nothing has changed since it was built (--rebuild builds it anyway)"
            if done.unchanged
            else f"wrote {database}"
        )
        if done.problems:
            count = len({file for file, _ in done.problems})
            say(f"{counted(count, 'file')} left out, with the problems above; they are also in the table load_problems")
    raise typer.Exit(Exit.INVALID if done.problems else Exit.OK)
