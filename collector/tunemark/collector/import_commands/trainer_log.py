"""`tunemark import trainer-log`: the last lines of a Trainer run."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunemark.collector.commands.options import AsJson
from tunemark.collector.importers.in_and_out import claims_of, read_text, refuse_existing
from tunemark.collector.output import print_json, print_table, say
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase

if TYPE_CHECKING:
    from tunemark.schema.records.published import PublishedResult

# The importer is imported when it is called, so that --help is instant.
# ruff: noqa: PLC0415


def trainer_log(
    file: Annotated[str, typer.Argument(help="The log, or - for standard input.", show_default=False)],
    *,
    source: Annotated[
        str | None, typer.Option("--source", help="Three digits: the document that the log stands in; needed by --out.", show_default=False)
    ] = None,
    first_number: Annotated[int, typer.Option("--first-number", min=1, help="Number of the first record in that document.")] = 1,
    section: Annotated[str, typer.Option("--section", help="Place in the document.")] = "Log",
    model: Annotated[str | None, typer.Option("--model", help="Model card or alias.", show_default=False)] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="How the weights were tuned, full, lora or qlora; a log does not say it.", show_default=False),
    ] = None,
    accelerator: Annotated[str | None, typer.Option("--accelerator", help="Accelerator card or alias.", show_default=False)] = None,
    accelerator_count: Annotated[int | None, typer.Option("--accelerator-count", min=1, help="Devices used.", show_default=False)] = None,
    instance: Annotated[str | None, typer.Option("--instance", help="Instance, as its provider writes it.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of published results to write to, such as `data/published`.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read the end of a trainer's log: the HF Trainer's last dictionary or table, the tqdm bar, and the output of `time`.

    Several runs may follow one another. Without --out the claims are shown; with it one record is written for each run,
    which needs --source and --method, because a log does not say how the weights were tuned. A skeleton of the source's
    `source.json` is written where there is none, and its count of results is kept right where there is one.

    Exit codes: 0 read, 2 no such file, an unknown name, or --source or --method missing, 3 nothing found or a line could not be read.

    Examples
    --------
    - `tunemark import trainer-log train.log`

    - `tunemark import trainer-log - --source 005 --first-number 3 --method lora --model qwen3-8b --out data/published < train.log`
    """
    from tunemark.collector.importers.published_record import Said, conditions_of, method_of, record
    from tunemark.collector.importers.trainer_log import read_trainer_log

    if source is not None and (len(source) != 3 or not (source.isascii() and source.isdigit())):  # noqa: PLR2004 - three digits
        raise TunemarkError("--source", source, "a source has three digits, such as 005")
    if out is not None and source is None:
        raise TunemarkError("--source", "", "--out writes records of a document; give its three digits, such as 005")
    said = Said(source or "000", first_number, section, model, method_of(method), accelerator, accelerator_count, instance)
    facts = FactBase.of_project()
    conditions_of(said, facts)
    log = read_trainer_log(read_text(file), "standard input" if file == "-" else file)
    for problem in log.problems:
        say(str(problem))
    wanted = source is not None and (said.method is not None or out is not None)
    records = [record(run, index, said, facts) for index, run in enumerate(log.runs)] if wanted else []
    if out is not None and records:
        _write(out, records)
    names = [f"{source}-{first_number + index:03d}" if source else f"run {index + 1}" for index in range(len(log.runs))]
    if as_json:
        claims = [{"id": name if source else None, "claims": claims_of(log, index)} for index, name in enumerate(names)]
        print_json([one.model_dump(mode="json") for one in records] if records else claims)
    else:
        rows = [
            (name, quantity, claim.value, claim.printed, claim.note)
            for name, run in zip(names, log.runs, strict=True)
            for quantity, claim in sorted(run.claims.items())
        ]
        print_table(["record", "quantity", "value", "printed", "note"], rows)
    raise typer.Exit(Exit.OK if all(problem.noted for problem in log.problems) else Exit.INVALID)


def _write(out: Path, records: "list[PublishedResult]") -> None:
    """Write all records and the document that they belong to, or nothing."""
    from tunemark.collector.importers.published_record import DOCUMENT, document_of, record_path
    from tunemark.schema.files import write_atomically
    from tunemark.schema.records.base import canonical_json

    paths = [record_path(out, one) for one in records]
    for path in paths:
        refuse_existing(path)
    folder, source = paths[0].parent, records[0].source
    document = document_of(folder, source, len(records), datetime.now(UTC).date())
    new = not (folder / DOCUMENT).exists()
    for path, one in zip(paths, records, strict=True):
        write_atomically(path, canonical_json(one))
        say(f"wrote {path}")
    write_atomically(folder / DOCUMENT, document)
    say(f"wrote {folder / DOCUMENT}: {'a skeleton; say in it where the logs come from' if new else 'its count of results'}")
