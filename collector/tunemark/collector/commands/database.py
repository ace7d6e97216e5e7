"""Commands of the database: `collect` loads files into it, and `query` answers SQL."""

from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from tunemark.collector.commands.options import Database, database_of, date_option, option
from tunemark.collector.store.database import empty_database, open_database, refuse_unwritable_database
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
    from tunemark.collector.store import loading  # noqa: PLC0415 - needs duckdb, pyarrow and numpy, which --help does not

    database, day = database_of(db), date_option("--as-of", as_of)
    refuse_unwritable_database(database)
    done = loading.collect(project_root(), database, day)
    for file, note in done.notes:
        say(f"{file}: note: {note}")
    for file, problem in done.problems:
        say(f"{file}: {problem}")
    if as_json:
        problems = [{"file": file} | asdict(problem) for file, problem in done.problems]
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
    views: Annotated[bool, option("--views", "List tables and views with their columns.")] = False,
) -> None:
    """Query the database with SQL.

    The connection cannot write, and reads nothing but the database. Start with the view `results`.

    Exit codes: 0 answered, 2 wrong SQL, more than one statement, or no database.

    Examples
    --------
    - `tunemark query "select source, count(*) from results group by 1 order by 1"`
    - `tunemark query "select model_name, tokens_per_s from results" --json`
    - `tunemark query "from largest_models where memory_gib = 24"`
    - `tunemark query --views`
    """
    if views:
        result = relation_reference()
    elif sql is None:
        raise TunemarkError("SQL", "", "give a SELECT, or --views to list tables and columns")
    else:
        result = run_query(sql, database_of(db))
    if as_json:
        print_json(result.records())
    else:
        print_table(*result)


class QueryResult(NamedTuple):
    """Columns and rows of a query, values with full precision."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def run_query(sql: str, database: Path) -> QueryResult:
    """Return the result of one SELECT; the connection can neither write nor read other files.

    Raises TunemarkError for SQL that is wrong or not allowed, and when there is no database.
    """
    import duckdb  # noqa: PLC0415 - only queries need it

    with open_database(database) as connection:
        try:
            statements = len(connection.extract_statements(sql))
            if statements > 1:
                raise TunemarkError("SQL", " ".join(sql.split()), f"is {statements} statements; give one SELECT")
            relation = connection.sql(sql)
            if relation is None:
                raise TunemarkError("SQL", sql, "is not a query; give one SELECT")
            # A projection numbers repeated names. Through Arrow, because fetching a time stamp with a time zone needs one more package.
            table = (relation if len({*relation.columns}) == len(relation.columns) else relation.project("*")).to_arrow_table()
        except (duckdb.Error, RuntimeError) as error:
            # One line with the hints, followed by the line of SQL and the caret below it.
            lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
            place = next((number for number, line in enumerate(lines) if line.startswith("LINE ")), len(lines))
            hints = " ".join(line.strip() for line in (*lines[:place], *lines[place + 2 :])) or type(error).__name__
            if "not found" in hints or "does not " in hints:
                hints += "; `tunemark query --views` lists tables and columns"
            raise TunemarkError("SQL", " ".join(sql.split()), "\n".join([hints, *lines[place : place + 2]])) from error
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return QueryResult(list(table.schema.names), list(zip(*columns, strict=True)))


def relation_reference() -> QueryResult:
    """Return each table and view, followed by its columns, with the comments of views.sql.

    A row without a column describes the relation itself. Relations come in the order of views.sql.
    """
    with empty_database() as connection:
        rows = connection.sql(
            """
            with relations as (
                select table_oid as oid, table_name as relation, 'table' as kind, comment from duckdb_tables()
                union all
                select view_oid, view_name, 'view', comment from duckdb_views() where not internal
            )
            select relation, "column", type, coalesce(meaning, '') from (
                select oid, 0 as position, relation, '' as "column", kind as type, comment as meaning from relations
                union all
                select oid, column_index, relation, column_name, lower(data_type), c.comment
                from duckdb_columns() c join relations on oid = table_oid
            ) order by oid, position
            """
        ).fetchall()
    return QueryResult(["relation", "column", "type", "meaning"], rows)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value of DuckDB
    """Return a decimal, such as a sum of integers, as a JSON number."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
