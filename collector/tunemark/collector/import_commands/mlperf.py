"""`tunemark import mlperf`: result logs of MLPerf Training."""

import time
from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.commands.options import AsJson
from tunemark.collector.importers.in_and_out import mlperf_answer, rounds, write_changed
from tunemark.collector.output import print_json, print_table, progress, say
from tunemark.schema.errors import Exit
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root

# Modules that need duckdb, pyarrow or numpy are imported by the command that uses them, so that --help is instant.
# ruff: noqa: PLC0415

USUAL_LOGS = 1_400
EXPECTED = "logs are expected as <round>/<submitter>/results/<system>/llama2_70b_lora/result_<n>.txt, such as v5.1/Dell/results/..."


def mlperf(
    archive: Annotated[
        Path, typer.Argument(help="A tar archive of MLPerf Training results, or the folder it was unpacked to.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write to; `data/converted/mlperf` of the checkout when left out.", show_default=False),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Convert MLPerf Training logs (llama2_70b_lora): one file for each entry, `<round>/<id>.json`.

    Reads `<round>/<submitter>/results/<system>/llama2_70b_lora/result_<n>.txt` and `<round>/<submitter>/systems/<system>.json`,
    in memory: nothing of an archive is extracted. Raw values of each run are kept; statistics are worked out when they are shown.
    A log without run_stop is kept as incomplete, a success without an evaluation at the target as missed. The results are an unofficial conversion, not verified by MLCommons Association.

    Exit codes: 0 all converted, 2 no archive, 3 a log or file could not be used.

    Examples
    --------
    - `tunemark import mlperf mlperf-training.tar.xz`

    - `tunemark import mlperf training_results/ --out /tmp/converted --json`
    """
    from tunemark.collector.importers.mlperf import read_entries
    from tunemark.schema.records.base import canonical_json

    started = time.perf_counter()
    root = project_root()
    folder = root / "data" / "converted" / "mlperf" if out is None else out
    with progress("import mlperf", USUAL_LOGS) as advance:
        found = read_entries(archive, FactBase(root / "data"), advance)
    written = sum(write_changed(folder / result.round / f"{result.id}.json", canonical_json(result)) for result in found.results)
    seconds = time.perf_counter() - started
    for problem in found.problems:
        say(str(problem))
    if not found.results:
        say(f"{archive.name}: no entry was found in {found.other_files + found.logs + found.descriptions} files; {EXPECTED}")
    unresolved = sorted(spelling for spelling, key in found.spellings.items() if key is None)
    if as_json:
        print_json(mlperf_answer(found) | {"written": written, "seconds": round(seconds, 3)})
    else:
        print_table(["round", "entries", "runs", "incomplete", "without card"], rounds(found))
        if unresolved:
            say(f"no card in data/accelerators for {len(unresolved)} of {len(found.spellings)} spellings: {', '.join(unresolved)}")
        say(f"{found.logs} logs and {found.descriptions} system descriptions in {seconds:.1f} s; {written} files written to {folder}")
    raise typer.Exit(Exit.OK if found.results and all(problem.noted for problem in found.problems) else Exit.INVALID)
