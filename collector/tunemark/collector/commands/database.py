"""Commands of the database: `collect` loads files into it, and `query` answers SQL."""

from typing import Annotated

import typer

from tunemark.collector.commands.options import Database, database_of, date_option, option, problem_json
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.files import project_root
from tunemark.schema.formats import counted
from tunemark.terminal import AsJson, print_json, print_table, say


def collect(
    db: Database = None,
    *,
    as_of: Annotated[str | None, option("--as-of", "Day of the current prices, as YYYY-MM-DD. Default: today.", metavar="DATE")] = None,
    as_json: AsJson = False,
) -> None:
    """Load all results and facts into the database.

    All or nothing: the new database replaces the old one once it is complete. A submission with a problem is reported,
    noted in the table `load_problems` and left out. A problem in the facts of data/ stops the command.

    Exit codes: 0 all loaded, 1 the disk is full, 2 the database cannot be written there, 3 a file is invalid.

    Examples
    --------
    - `tunemark collect`
    - `tunemark collect --db /tmp/try.duckdb --json`
    - `tunemark collect --as-of 2026-11-20`
    """
    # Needs duckdb, pyarrow and numpy, which --help does not.
    from tunemark.collector.store import loading  # noqa: PLC0415
    from tunemark.collector.store.database import refuse_unwritable_database  # noqa: PLC0415

    root = project_root()
    database, day = database_of(db), date_option("--as-of", as_of)
    refuse_unwritable_database(database)
    done = loading.collect(root, database, day)
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
        say(f"wrote {database}")
        if done.problems:
            count = len({file for file, _ in done.problems})
            say(f"{counted(count, 'file')} left out, with the problems above; they are also in the table load_problems")
    raise typer.Exit(Exit.INVALID if done.problems else Exit.OK)


def query(
    sql: Annotated[str | None, typer.Argument(help="One SELECT.")] = None,
    db: Database = None,
    *,
    as_json: AsJson = False,
    as_csv: Annotated[bool, option("--csv", "Print CSV on standard output.")] = False,
    views: Annotated[bool, option("--views", "List tables and views with their columns.")] = False,
) -> None:
    """Query the database with SQL.

    The connection cannot write, and reads nothing but the database. Start with the view `results`.

    Exit codes: 0 answered, 2 wrong SQL, more than one statement, or no database.

    Examples
    --------
    - `tunemark query "select source, count(*) from results group by 1 order by 1"`
    - `tunemark query "select model_name, tokens_per_s from results" --csv`
    - `tunemark query "select * from current_prices order by usd_per_hour"`
    - `tunemark query --views`
    """
    # Needs duckdb, which --help does not.
    from tunemark.collector.store.sql_query import relation_reference, run_query  # noqa: PLC0415

    if as_json and as_csv:
        raise TunemarkError("--csv", "with --json", "choose one output format")
    if views:
        result = relation_reference()
    elif sql is None:
        raise TunemarkError("SQL", "", "give a SELECT, or --views to list tables and columns")
    else:
        result = run_query(sql, database_of(db))
    if as_json:
        print_json(result.records())
    elif as_csv:
        typer.echo(result.csv(), nl=False)
    else:
        print_table(result.columns, result.rows)
