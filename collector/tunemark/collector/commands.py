"""Commands of the collector: validate, collect, query, prices, schema. Thin: the work is in the modules beside this one."""

from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.days import day_of
from tunemark.collector.output import print_csv, print_json, print_table, progress, say
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts import FactBase
from tunemark.schema.files import project_root

# Modules that need duckdb, pyarrow or numpy are imported by the command that uses them, so that --help is instant.
# ruff: noqa: PLC0415

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]}
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Database = Annotated[
    Path | None, typer.Option("--db", help="The DuckDB file; `build/tunemark.duckdb` of the checkout when left out.", show_default=False)
]


@app.command()
def validate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders; `submissions/`, `data/published/` and `data/converted/` when left out.", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Check submissions, published and converted results.

    Schema, rules between fields, re-derivation of the headline numbers, identity of people and machines,
    cards, file name. All files are checked; each problem is one line: `file: field: value: fix`.

    What was right when it was measured and has changed since in `data/` is a problem of a new submission, and a
    note on one that git has already.

    Exit codes: 0 all valid, 2 no such path or no record in it, 3 a file is invalid.

    Examples
    --------
    - `tunemark validate`

    - `tunemark validate submissions/smoke-lora/ --json`
    """
    from tunemark.collector.record_files import default_folders, find_records, named_records, shown_path
    from tunemark.collector.validating import validate_files

    root = project_root()
    found = named_records(paths) if paths else find_records(default_folders(root))
    for path, why in found.ignored:
        say(f"ignored {shown_path(path, root)}: {why}")
    with progress("validate", len(found.files)) as advance:
        done = validate_files(found, root, FactBase(root / "data"), advance)
    for file, note in done.notes:
        say(f"{file}: note: {note}")
    if as_json:
        problems = [{"file": file, "field": problem.field, "value": problem.value, "fix": problem.fix} for file, problem in done.problems]
        print_json({"files": done.files, "invalid": done.invalid, "problems": problems})
    else:
        for file, problem in done.problems:
            say(f"{file}: {problem}")
        typer.echo(f"{done.files} files, {done.invalid} invalid")
    raise typer.Exit(Exit.INVALID if done.problems else Exit.OK)


@app.command()
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
    from tunemark.collector.loading import collect as load
    from tunemark.collector.loading import submission_files

    root = project_root()
    found = submission_files(root)
    database, day = _database(db), day_of("--as-of", as_of)
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


@app.command()
def query(
    sql: Annotated[str | None, typer.Argument(help="One SELECT.", show_default=False)] = None,
    db: Database = None,
    *,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on standard output.")] = False,
    views: Annotated[bool, typer.Option("--views", help="List tables and views with their columns.")] = False,
) -> None:
    """Ask the database with SQL.

    The connection cannot write, and reads nothing but the database. Start with the view `results`.

    Exit codes: 0 answered, 2 wrong SQL, more than one statement, or no database.

    Examples
    --------
    - `tunemark query "select source, count(*) from results group by 1 order by 1"`

    - `tunemark query "select model_name, accelerator_name, tokens_per_s from results order by 3 desc nulls last limit 10" --csv`

    - `tunemark query --views`
    """
    from tunemark.collector.asking import Answer, ask

    if as_json and as_csv:
        raise TunemarkError("--csv", "with --json", "an answer has one form; give one of the two")
    if views:
        from tunemark.collector.documentation import view_reference

        answer = Answer(["relation", "column", "type", "meaning"], view_reference())
    elif sql is None:
        raise TunemarkError("sql", "", "give a SELECT, or --views to see what can be asked")
    else:
        answer = ask(sql, _database(db))
    if as_json:
        print_json(answer.records())
    elif as_csv:
        print_csv(answer.columns, answer.rows)
    else:
        print_table(answer.columns, answer.rows)


@app.command()
def prices(
    name: Annotated[str | None, typer.Argument(metavar="[INSTANCE|ACCELERATOR]", help="All when left out.", show_default=False)] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="DATE", help="YYYY-MM-DD; today when left out.", show_default=False)] = None,
    *,
    own: Annotated[
        str | None, typer.Option("--owned", metavar="FIGURES", help="Compare with hardware of your own.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what an instance or accelerator costs on a day, cheapest accelerator-hour first.

    The newest price per provider, instance, region and kind that has begun on that day, for the whole instance.

    Examples
    --------
    - `tunemark prices p5.48xlarge`

    - `tunemark prices nvidia-h100-80gb-sxm --on 2026-11-20 --json`

    - `tunemark prices nvidia-rtx-4090 --owned purchase=2000,years=3,utilisation=0.5,watts=450,electricity=0.30`

    With --owned, one accelerator of each offer stands beside the owned one: the last column says from how many hours of use a year owning is cheaper.
    """
    from tunemark.collector.owned import owned
    from tunemark.collector.price_book import offer_json, offer_table, offers

    machine = owned(own) if own else None
    found = offers(FactBase.of_project(), name, day_of("--on", on))
    if as_json:
        print_json([offer_json(offer) | (machine.facts(offer) if machine else {}) for offer in found])
        return
    columns, lines = offer_table(found)
    if machine:
        say(machine.sentence())
        columns, lines = [*columns, "own from h/year"], [(*line, machine.cell(offer)) for line, offer in zip(lines, found, strict=True)]
    print_table(columns, lines)


@app.command()
def schema(
    *,
    write: Annotated[bool, typer.Option("--write", help="Write schema/json; without it only say whether it is current.")] = False,
    fields: Annotated[
        str | None,
        typer.Option("--fields", metavar="KIND", help="Show the fields of `submission`, `published` or `source`.", show_default=False),
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


def _database(path: Path | None) -> Path:
    return project_root() / "build" / "tunemark.duckdb" if path is None else path
