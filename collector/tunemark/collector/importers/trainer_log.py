"""Trainer logs as published results: the printed figures, and the conditions that only the person who ran it knows."""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tunemark.collector.commands.terminal import AsJson, chosen, print_json, print_table, say
from tunemark.collector.gate.read import DOCUMENT
from tunemark.collector.importers.import_io import read_text, refuse_existing, write_out
from tunemark.collector.importers.trainer_output import TrainerRun, read_trainer_log
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.published import Conditions, Origin, PublishedResult, SourceDocument
from tunemark.schema.vocabulary import Method, PublishedStatus

LARGEST_NUMBER = 999
UNFINISHED = "The log ends without the final line of the Trainer."


def trainer_log(
    file: Annotated[str, typer.Argument(help="The log, or - for standard input.", show_default=False)],
    *,
    source: Annotated[
        str | None, typer.Option("--source", help="Three digits: the document that contains the log; needed by --out.", show_default=False)
    ] = None,
    first_number: Annotated[int, typer.Option("--first-number", min=1, help="Number of the first record in that document.")] = 1,
    section: Annotated[str, typer.Option("--section", help="Place in the document.")] = "Log",
    model: Annotated[str | None, typer.Option("--model", help="Model card or alias.", show_default=False)] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="Method of fine-tuning, full, lora or qlora; a log does not contain it.", show_default=False),
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

    A log may contain several runs. Without --out the claims are shown. With --out one record is written per run, which needs
    --source and --method, because a log does not contain the method. A skeleton of the source's `source.json` is written if
    there is none; otherwise its number of results is updated.

    Exit codes: 0 read, 2 no such file, an unknown name, or --source or --method missing, 3 nothing found or a line could not be read.

    Examples
    --------
    - `tunemark import trainer-log TRAIN.log`

    - `tunemark import trainer-log TRAIN.log --method lora --model qwen3-8b`
    """
    if source is not None and (len(source) != 3 or not (source.isascii() and source.isdigit())):  # noqa: PLR2004 - three digits
        raise TunemarkError("--source", source, "a source has three digits, such as 005")
    if out is not None and source is None:
        raise TunemarkError("--source", "", "--out writes records of a document; give its three digits, such as 005")
    method_stated = None if method is None else chosen("--method", method, Method)
    stated = StatedConditions(source or "000", first_number, section, model, method_stated, accelerator, accelerator_count, instance)
    facts = FactBase.of_project()
    conditions_of(stated, facts)
    log = read_trainer_log(read_text(file), "standard input" if file == "-" else file)
    for problem in log.problems:
        say(str(problem))
    wanted = source is not None and (stated.method is not None or out is not None)
    records = [record(run, index, stated, facts) for index, run in enumerate(log.runs)] if wanted else []
    if out is not None and records:
        write_records(out, records)
    names = [f"{source}-{first_number + index:03d}" if source else f"run {index + 1}" for index in range(len(log.runs))]
    claims = [(name, dict(sorted(run.claims.items()))) for name, run in zip(names, log.runs, strict=True)]
    if as_json and records:
        print_json([result.model_dump(mode="json") for result in records])
    elif as_json:
        plain = [{name: claim.model_dump(mode="json") for name, claim in figures.items()} for _, figures in claims]
        print_json([{"id": name if source else None, "claims": figures} for name, figures in zip(names, plain, strict=True)])
    else:
        rows = [(name, quantity, claim.value, claim.printed, claim.note) for name, figures in claims for quantity, claim in figures.items()]
        print_table(["record", "quantity", "value", "printed", "note"], rows)
    raise typer.Exit(Exit.OK if all(problem.noted for problem in log.problems) else Exit.INVALID)


@dataclass(frozen=True, slots=True)
class StatedConditions:
    """Conditions given on the command line, for all runs of a log, because the log does not contain them."""

    source: str
    first_number: int
    section: str
    model: str | None = None
    method: Method | None = None
    accelerator: str | None = None
    accelerator_count: int | None = None
    instance: str | None = None


def conditions_of(stated: StatedConditions, facts: FactBase) -> dict[str, Any]:
    """Return the stated conditions with the keys of cards; raises TunemarkError for a name without a card."""
    model = facts.model(stated.model).key if stated.model else None
    accelerator = facts.accelerator(stated.accelerator).key if stated.accelerator else None
    instance = facts.instance(stated.instance) if stated.instance else None
    installed = {row.accelerator for row in facts.prices if row.instance == instance}
    if accelerator and installed and accelerator not in installed:
        raise TunemarkError("--accelerator", stated.accelerator, f"an instance {instance} has {' or '.join(sorted(installed))}")
    return {"model": model, "accelerator": accelerator, "accelerator_count": stated.accelerator_count, "instance": instance}


def record(run: TrainerRun, index: int, stated: StatedConditions, facts: FactBase) -> PublishedResult:
    """Return the record of the index-th run (from 0) of a log.

    Raises TunemarkError if the method is missing, a card does not exist, or all numbers of a source are used.
    """
    number = stated.first_number + index
    if number > LARGEST_NUMBER:
        raise TunemarkError("--first-number", stated.first_number, f"a source has numbers up to {LARGEST_NUMBER}")
    if stated.method is None:
        raise TunemarkError("--method", "", f"a log does not contain the fine-tuning method; give one of {', '.join(Method)}")
    labels = {"model": stated.model, "accelerator": stated.accelerator, "instance": stated.instance}
    status, reason = (PublishedStatus.OK, None) if run.finished else (PublishedStatus.PARTIAL, UNFINISHED)
    if run.out_of_memory is not None:
        status, reason = PublishedStatus.OOM, f"Out of memory in line {run.out_of_memory} of the log."
    elif run.not_a_number is not None:
        status, reason = PublishedStatus.FAILED, f"The training diverged: {run.not_a_number} of the log."
    return PublishedResult(
        id=f"{stated.source}-{number:03d}",
        source=stated.source,
        section=stated.section,
        origin=Origin(kind="document"),
        labels={name: text for name, text in labels.items() if text},
        conditions=Conditions(method=stated.method, **conditions_of(stated, facts)),
        claims=dict(sorted(run.claims.items())),
        status=status,
        note=" ".join([*([reason] if reason else []), *run.notes]) or None,
    )


def write_records(out: Path, records: list[PublishedResult]) -> None:
    """Write all records of a source and their document to a folder of published results, or nothing."""
    folder = out / records[0].source
    paths = [folder / f"{result.id}.json" for result in records]
    for path in paths:
        refuse_existing(path)
    new = not (folder / DOCUMENT).exists()
    document = document_of(folder, records[0].source, len(records), datetime.now(UTC).date())
    for path, result in zip(paths, records, strict=True):
        write_out(path, canonical_json(result))
        say(f"wrote {path}")
    write_out(folder / DOCUMENT, document)
    say(f"wrote {folder / DOCUMENT}: {'a skeleton; describe in it where the logs come from' if new else 'its number of results'}")


def document_of(folder: Path, source: str, added: int, read_on: date) -> bytes:
    """Return the document of a source with its number of results increased; a skeleton if there is none yet.

    Raises TunemarkError with exit code 3 when the existing document cannot be read.
    """
    path = folder / DOCUMENT
    if not path.exists():
        title = f"Trainer logs, source {source}"
        summary = "Imported from trainer logs; describe here what they measure, and their origin in `url` and `authors`."
        return canonical_json(SourceDocument(id=source, title=title, summary=summary, results=added, read_on=read_on))
    try:
        content = json.loads(path.read_bytes())
        before = int(content["results"])
    except (ValueError, KeyError, TypeError) as error:
        raise TunemarkError(str(path), "", "is not the document of a source; correct it first", exit_code=Exit.INVALID) from error
    return canonical_json(content | {"results": before + added})
