"""Commands that read what other tools wrote: mlperf, trainer-log, axolotl, prices. Thin: the work is in importers/."""

import time
from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.importers.in_and_out import (
    claims_of,
    day,
    grouped,
    mlperf_answer,
    read_bytes,
    read_text,
    rounds,
    write_changed,
    write_new,
)
from tunemark.collector.output import print_json, print_table, progress, say
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean
from tunemark.schema.facts import FactBase
from tunemark.schema.files import project_root, write_atomically
from tunemark.schema.vocabulary import Method

# The importers are imported by the command that uses them, so that --help is instant.
# ruff: noqa: PLC0415

HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", context_settings=HELP)
imports = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", context_settings=HELP)
app.add_typer(imports, name="import")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
USUAL_LOGS = 1_400


@imports.callback()
def import_group() -> None:
    """Import results, workloads and prices from other tools.

    Nothing of a file is ever executed. What cannot be read is reported with its file and line, and never stops the rest.

    Examples
    --------
    - `tunemark import mlperf mlperf-training.tar.xz`

    - `tunemark import axolotl qlora.yml --out data/workloads`

    - `tunemark import prices catalogs/v8/lambda/vms.csv --out lambda.csv`
    """


@imports.command()
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
    A log without run_stop is kept as incomplete. The results are an unofficial conversion, not verified by MLCommons Association.

    Exit codes: 0 all converted, 2 no archive, 3 a log or file could not be used.

    Examples
    --------
    - `tunemark import mlperf mlperf-training.tar.xz`

    - `tunemark import mlperf training_results/ --out /tmp/converted --json`
    """
    from tunemark.collector.importers.mlperf import read_entries
    from tunemark.schema.base import canonical_json

    started = time.perf_counter()
    root = project_root()
    folder = root / "data" / "converted" / "mlperf" if out is None else out
    with progress("import mlperf", USUAL_LOGS) as advance:
        found = read_entries(archive, FactBase(root / "data"), advance)
    written = sum(write_changed(folder / result.round / f"{result.id}.json", canonical_json(result)) for result in found.results)
    seconds = time.perf_counter() - started
    for problem in found.problems:
        say(str(problem))
    unresolved = sorted(spelling for spelling, key in found.spellings.items() if key is None)
    if as_json:
        print_json(mlperf_answer(found) | {"written": written, "seconds": round(seconds, 3)})
    else:
        print_table(["round", "entries", "runs", "incomplete", "without card"], rounds(found))
        if unresolved:
            say(f"no card in data/accelerators for {len(unresolved)} of {len(found.spellings)} spellings: {', '.join(unresolved)}")
        say(f"{found.logs} logs and {found.descriptions} system descriptions in {seconds:.1f} s; {written} files written to {folder}")
    raise typer.Exit(Exit.OK if found.results and all(problem.noted for problem in found.problems) else Exit.INVALID)


@imports.command("trainer-log")
def trainer_log(
    file: Annotated[str, typer.Argument(help="The log, or - for standard input.", show_default=False)],
    *,
    source: Annotated[str, typer.Option("--source", help="Three digits: the document that the log stands in.")] = "000",
    first_number: Annotated[int, typer.Option("--first-number", min=1, help="Number of the first record in that document.")] = 1,
    section: Annotated[str, typer.Option("--section", help="Place in the document.")] = "Log",
    model: Annotated[str | None, typer.Option("--model", help="Model card or alias.", show_default=False)] = None,
    method: Annotated[
        Method | None, typer.Option("--method", help="How the weights were tuned; a log does not say it.", show_default=False)
    ] = None,
    accelerator: Annotated[str | None, typer.Option("--accelerator", help="Accelerator card or alias.", show_default=False)] = None,
    accelerator_count: Annotated[int | None, typer.Option("--accelerator-count", min=1, help="Devices used.", show_default=False)] = None,
    instance: Annotated[str | None, typer.Option("--instance", help="Instance.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of published results to write to, such as `data/published`.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read the end of a trainer's log: the HF Trainer's last dictionary, the tqdm bar, and the output of `time`.

    Several runs may follow one another. Without --out the claims are shown; with it one record is written for each run,
    which needs --method, because a log does not say how the weights were tuned.

    Exit codes: 0 read, 2 no such file or --method missing, 3 nothing found or a line could not be read.

    Examples
    --------
    - `tunemark import trainer-log train.log`

    - `tunemark import trainer-log - --source 005 --first-number 3 --method lora --model qwen3-8b --out data/published < train.log`
    """
    from tunemark.collector.importers.published_record import Said, record, record_path
    from tunemark.collector.importers.trainer_log import read_trainer_log
    from tunemark.schema.base import canonical_json

    log = read_trainer_log(read_text(file), "standard input" if file == "-" else file)
    for problem in log.problems:
        say(str(problem))
    if len(source) != 3 or not (source.isascii() and source.isdigit()):  # noqa: PLR2004 - three digits
        raise TunemarkError("--source", source, "a source has three digits, such as 005")
    records = []
    if method is not None or out is not None:
        said = Said(source, first_number, section, model, method, accelerator, accelerator_count, instance)
        facts = FactBase.of_project()
        records = [record(run, index, said, facts) for index, run in enumerate(log.runs)]
    for one in records if out else []:
        write_new(record_path(out or Path(), one), canonical_json(one))
    if as_json:
        claims = [{"id": f"{source}-{first_number + index:03d}", "claims": claims_of(log, index)} for index in range(len(log.runs))]
        print_json([one.model_dump(mode="json") for one in records] if records else claims)
    else:
        rows = [
            (f"{source}-{first_number + index:03d}", quantity, claim.value, claim.printed, claim.note)
            for index, run in enumerate(log.runs)
            for quantity, claim in sorted(run.claims.items())
        ]
        print_table(["record", "quantity", "value", "printed", "note"], rows)
    raise typer.Exit(Exit.INVALID if log.problems else Exit.OK)


@imports.command()
def axolotl(
    file: Annotated[Path, typer.Argument(help="The YAML configuration.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder to write the card to, such as `data/workloads`; standard output when left out.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Name of the card; made of the file's name when left out.", show_default=False)
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Make a workload card of an axolotl configuration.

    What the card cannot express, and what the configuration leaves to defaults, is listed in the card's `not_stated`;
    the former is also reported. A name of a model that is not in data/models is refused with a suggestion.

    Exit codes: 0 card made, 2 unknown model or no such file, 3 not a configuration.

    Examples
    --------
    - `tunemark import axolotl qlora.yml`

    - `tunemark import axolotl examples/llama-3/lora-8b.yml --out data/workloads --key llama-3-8b-lora`
    """
    from tunemark.collector.importers.axolotl import workload_of
    from tunemark.collector.importers.toml_text import card_text

    imported = workload_of(read_bytes(file), file.name, FactBase.of_project(), key)
    for text in imported.not_expressed:
        say(f"not expressed: {text}")
    if out is not None:
        write_new(out / f"{imported.card.key}.toml", card_text(imported.card).encode())
    if as_json:
        print_json({"card": imported.card.model_dump(mode="json"), "not_expressed": imported.not_expressed})
    elif out is None:
        typer.echo(card_text(imported.card), nl=False)


@imports.command()
def prices(
    file: Annotated[Path, typer.Argument(help="The vms.csv of a provider.", show_default=False)],
    layout: Annotated[str, typer.Option("--format", help="Whose file it is; `skypilot` is known.")] = "skypilot",
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            help="Whose prices: aws, gcp, azure, lambda, vast, runpod, ...; the file's folder when left out.",
            show_default=False,
        ),
    ] = None,
    read_on: Annotated[
        str | None, typer.Option("--read-on", metavar="DATE", help="YYYY-MM-DD; today when left out.", show_default=False)
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Cited in each row; name the commit.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("--out", help="CSV file to write; standard output when left out.", show_default=False)] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Read a SkyPilot catalogue as rows of the price book.

    Known traps are rules, each with its reason: GCP's a2, a3, a4 and g2 rows are the machine without its accelerators,
    700.0 is a filler for TPUs, v4 and v5p slices count cores, Vast's spot price 0.00 is unknown, RunPod repeats the
    on-demand price as spot. Zones of a region become their median. An accelerator that is not in the catalogue, or whose
    memory contradicts it, is refused with a suggestion.

    Exit codes: 0 all rows used or dropped for a known reason, 2 usage, 3 rows were refused.

    Examples
    --------
    - `tunemark import prices catalogs/v8/lambda/vms.csv`

    - `tunemark import prices vms.csv --format skypilot --provider gcp --read-on 2026-11-20 --out gcp.csv`
    """
    from tunemark.collector.importers.skypilot import price_book_text, read_catalogue

    if layout != "skypilot":
        raise TunemarkError("--format", layout, did_you_mean(layout, ["skypilot"]))
    owner = provider or (file.absolute().parent.name if file.stem in {"vms", "instances"} else file.stem)
    cited = source or f"SkyPilot catalogue {'/'.join(file.parts[-4:]) if 'catalogs' in file.parts else file.name}"
    found = read_catalogue(read_bytes(file), owner.lower(), day(read_on), cited, FactBase.of_project())
    reasons = grouped(found.dropped)
    if as_json:
        print_json({"rows": [row.model_dump(mode="json") for row in found.rows], "lines": found.lines, "dropped": reasons})
    else:
        for reason in reasons:
            lines = reason["lines"]
            say(f"{file.name}:{lines[0]}: {reason['what']}: {reason['reason']}" + (f" ({len(lines)} rows)" if len(lines) > 1 else ""))
        say(f"{found.lines} rows read, {len(found.rows)} prices")
    if out is not None:
        write_atomically(out, price_book_text(found.rows).encode())
    elif not as_json:
        typer.echo(price_book_text(found.rows), nl=False)
    raise typer.Exit(Exit.INVALID if any(dropped.refused for dropped in found.dropped) else Exit.OK)
