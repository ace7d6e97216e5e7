"""The command `query`: query the database with SQL."""

from typing import Annotated

import typer

from tunemark.collector.commands.terminal import AsJson, Database, database_of, print_csv, print_json, print_table
from tunemark.schema.errors import TunemarkError


def query(
    sql: Annotated[str | None, typer.Argument(help="One SELECT.", show_default=False)] = None,
    db: Database = None,
    *,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on standard output.")] = False,
    views: Annotated[bool, typer.Option("--views", help="List tables and views with their columns.")] = False,
) -> None:
    """Query the database with SQL.

    The connection cannot write, and reads nothing but the database. Start with the view `results`.

    Exit codes: 0 answered, 2 wrong SQL, more than one statement, or no database.

    Examples
    --------
    - `tunemark query "select source, count(*) from results group by 1 order by 1"`

    - `tunemark query "select model_name, accelerator_name, tokens_per_s from results order by 3 desc nulls last limit 10" --csv`

    - `tunemark query "select section, accelerator_name, accelerator_count, time_to_target_s / 60 as minutes from results where source = 'mlperf-v5.1' order by minutes"`

    - `tunemark query --views`
    """
    # Needs duckdb, which --help does not.
    from tunemark.collector.store.sql_query import relation_reference, run_query  # noqa: PLC0415

    if as_json and as_csv:
        raise TunemarkError("--csv", "with --json", "choose one output format")
    if views:
        result = relation_reference()
    elif sql is None:
        raise TunemarkError("sql", "", "give a SELECT, or --views to list tables and columns")
    else:
        result = run_query(sql, database_of(db))
    if as_json:
        print_json(result.records())
    elif as_csv:
        print_csv(result.columns, result.rows)
    else:
        print_table(result.columns, result.rows)
