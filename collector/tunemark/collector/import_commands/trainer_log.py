"""`tunemark import trainer-log`: the last lines of a Trainer run."""

from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.commands.options import AsJson
from tunemark.collector.importers.in_and_out import claims_of, read_text, write_new
from tunemark.collector.output import print_json, print_table, say
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts import FactBase
from tunemark.schema.vocabulary import Method

# Modules that need duckdb, pyarrow or numpy are imported by the command that uses them, so that --help is instant.
# ruff: noqa: PLC0415


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
