"""`tunemark runs`: list the records on this machine, and remove those that were not sent."""

import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from tunemark.harness.plan.options import Json, Out
from tunemark.harness.run.record import submissions, tries
from tunemark.harness.run.show import answers, print_json, say, summary, table
from tunemark.schema import formats
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.records.reading import InvalidRecord, read_record
from tunemark.schema.records.submission import Submission

ALL_TRIES = "tries"


def runs(
    *,
    out: Out = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="ID", help="Remove the run with this id, or all `tries`. What git tracks stays."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the runs on this machine that git does not track, newest first: submissions, and tries, which are not sent.

    Examples
    --------
    - `tunemark runs`

    - `tunemark runs --remove 24749ae9966b`

    - `tunemark runs --remove tries`
    """
    folder = submissions(out)
    untracked = set(_files(folder)) - _tracked(folder)
    tried = set(_files(tries(folder))) if tries(folder) != folder else set()
    rows = []
    for path in sorted(untracked | tried, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            record = read_record(path.read_bytes())
        except InvalidRecord:
            continue
        if isinstance(record, Submission):
            rows.append({"id": path.stem.rsplit("-", 1)[-1], "try": path in tried, **summary(record), "file": str(path)})
    if remove:
        chosen = [row for row in rows if row["id"] in remove or (row["try"] and ALL_TRIES in remove)]
        for name in set(remove) - {ALL_TRIES} - {row["id"] for row in chosen}:
            known = did_you_mean(name, [row["id"] for row in rows]) if rows else "there is none"
            raise TunemarkError("--remove", name, f"no run that git does not track has this id; {known}")
        for row in chosen:
            Path(row["file"]).unlink()
        say(f"removed {formats.counted(len(chosen), 'run')}")
        rows = [row for row in rows if row not in chosen]
    if as_json:
        print_json(rows)
    elif rows:
        cells = [
            (
                row["id"],
                row["workload"],
                row["status"],
                row["steps"],
                row["tokens_per_s"] and formats.significant(row["tokens_per_s"]),
                row["file"],
            )
            for row in rows
        ]
        answers().print(table(("id", "workload", "status", "steps", "tokens/s", "file"), cells, folded=("workload", "status", "file")))
    elif not remove:
        answers().print("no run here that git does not track; `tunemark run` makes one")


def _files(folder: Path) -> list[Path]:
    return [path.absolute() for path in folder.glob("*/*.json")]


def _tracked(folder: Path) -> set[Path]:
    """Return the files of a folder that git tracks; none outside a checkout."""
    git = shutil.which("git")
    if git is None or not folder.is_dir():
        return set()
    done = subprocess.run([git, "-C", str(folder), "ls-files", "-z"], capture_output=True, text=True, check=False)  # noqa: S603 - fixed arguments
    return {(folder / name).absolute() for name in done.stdout.split("\0") if name}
