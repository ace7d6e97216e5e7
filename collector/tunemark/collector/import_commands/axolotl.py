"""`tunemark import axolotl`: a configuration becomes a workload card."""

from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.commands.options import AsJson
from tunemark.collector.importers.in_and_out import read_bytes, write_new
from tunemark.collector.output import print_json, say
from tunemark.schema.facts.fact_base import FactBase

# Modules that need duckdb, pyarrow or numpy are imported by the command that uses them, so that --help is instant.
# ruff: noqa: PLC0415


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
    model: Annotated[
        str | None, typer.Option("--model", help="Model card, where base_model is a name that no card has.", show_default=False)
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Make a workload card of an axolotl configuration.

    What the card cannot express, and what the configuration leaves to defaults, is listed in the card's `not_stated`;
    the former is also reported. A name of a model that is not in data/models is refused with a suggestion; --model says
    which it is. Preference tuning (`rl`) and reward models are other tasks and refused.

    Exit codes: 0 card made, 2 unknown model or no such file, 3 not a configuration.

    Examples
    --------
    - `tunemark import axolotl qlora.yml`

    - `tunemark import axolotl examples/llama-3/lora-8b.yml --out data/workloads --key llama-3-8b-lora`

    - `tunemark import axolotl qlora.yml --model llama-3-8b`
    """
    from tunemark.collector.importers.axolotl import workload_of
    from tunemark.collector.importers.toml_text import card_text

    imported = workload_of(read_bytes(file), file.name, FactBase.of_project(), key, model)
    for text in imported.not_expressed:
        say(f"not expressed: {text}")
    if out is not None:
        write_new(out / f"{imported.card.key}.toml", card_text(imported.card).encode())
    if as_json:
        print_json({"card": imported.card.model_dump(mode="json"), "not_expressed": imported.not_expressed})
    elif out is None:
        typer.echo(card_text(imported.card), nl=False)
