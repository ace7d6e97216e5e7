"""The command `validate`: check records and facts."""

from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.commands.terminal import AsJson, print_json, progress, say
from tunemark.schema.errors import Exit
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root

# Modules that need duckdb, pyarrow or numpy are imported by the command that uses them, so that --help is instant.
# ruff: noqa: PLC0415


def validate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders; `submissions/` and all of `data/` when left out.", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Check submissions, published and converted results, and the facts of data/.

    Records: schema, rules between fields, re-derivation of the headline numbers, identity of people and machines,
    cards, file name. Facts: accelerator, model and workload cards, the price book, the document of each source.
    All files are checked; each problem is one line: `file: field: value: fix`, with the line of a fact.

    What was right when it was measured and has changed since in `data/` is a problem of a new submission, and a
    note on one that git has already.

    Exit codes: 0 all valid, 2 no such path or nothing to check in it, 3 a file is invalid.

    Examples
    --------
    - `tunemark validate`

    - `tunemark validate submissions/smoke-lora/ --json`

    - `tunemark validate data/prices/prices.csv`
    """
    from tunemark.collector.gate.check import validate_all
    from tunemark.collector.gate.fact_files import fact_files, is_fact_file
    from tunemark.collector.gate.read import default_folders, find_records, named_records, shown_path

    root = project_root()
    named = [path for path in paths or [] if path.is_file() and is_fact_file(path)]
    cards = [*named, *fact_files(path for path in paths or [root / "data"] if path.is_dir())]
    found = named_records(paths, cards) if paths else find_records(default_folders(root))
    for path, why in found.ignored:
        say(f"ignored {shown_path(path, root)}: {why}")
    with progress("validate", len(found.files)) as advance:
        done = validate_all(found, cards, root, FactBase(root / "data"), advance)
    for file, note in done.notes:
        say(f"{file}: note: {note}")
    if as_json:
        problems = [{"file": file, "field": problem.field, "value": problem.value, "fix": problem.fix} for file, problem in done.problems]
        print_json({"files": done.files, "facts": done.facts, "invalid": done.invalid, "problems": problems})
    else:
        for file, problem in done.problems:
            say(f"{file}: {problem}")
        if cards:
            say(f"{done.facts} files of facts checked" + ("" if done.judged else "; records are judged once the facts are right"))
        typer.echo(f"{done.files} files, {done.invalid} invalid")
    raise typer.Exit(Exit.INVALID if done.problems else Exit.OK)
