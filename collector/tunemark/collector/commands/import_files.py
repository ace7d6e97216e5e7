"""The command `import`: results, logs of your own training and prices from other tools.

A module of `tunemark.collector.importers` is an importer if it has a function of its own name: `wandb_runs(request)` in
`wandb_runs.py` is `tunemark import wandb-runs`. Nothing else needs to be registered.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector import importers
from tunemark.collector.commands.options import Model, Settings, named_settings, option
from tunemark.collector.importers.import_io import Request
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.terminal import AsJson

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]}
)


def known_importers() -> dict[str, Callable[[Request], None]]:
    """Return the importers by name."""
    found = {}
    for module in pkgutil.iter_modules(importers.__path__):
        importer = getattr(importlib.import_module(f"{importers.__name__}.{module.name}"), module.name, None)
        if callable(importer):
            found[module.name.replace("_", "-")] = importer
    return found


def import_files(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="What the files are, see above.", show_default=False, autocompletion=known_importers)
    ],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files, or - for standard input.", show_default=False)],
    *,
    model: Annotated[str | None, Model] = None,
    method: Annotated[str | None, option("--method", "full, lora, qlora or peft.")] = None,
    accelerator: Annotated[str | None, option("--accelerator", "-a", "An accelerator, or as in '8 x H100'.")] = None,
    devices: Annotated[str | None, option("--devices", "Number of devices.")] = None,
    micro_batch: Annotated[str | None, option("--micro-batch", "Rows of a micro-step on a device.")] = None,
    sequence_length: Annotated[str | None, option("--seq", "Tokens in a row (8k).")] = None,
    map_file: Annotated[str | None, option("--map", "What each column of a table means.", metavar="TOML")] = None,
    settings: Settings = None,
    out: Annotated[Path | None, option("--out", "File or folder to write to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Import results, logs of your own training and prices from other tools.

    Nothing in a file is ever executed. What cannot be read is reported with its file and line, and never stops the rest.

    {kinds}

    Exit codes: 0 all read, 2 no such file or an unknown name, 3 a part of it could not be read.

    Examples
    --------
    - `tunemark import log TRAINER_STATE.json --method lora`
    - `tunemark import log TRAIN.LOG CONFIG.yml`
    - `tunemark import mlperf LOGS`
    - `tunemark import table TABLES.md --map MAP.toml`
    - `tunemark import prices VMS.csv --set provider=lambda --set version=v8`
    """
    given = {
        "model": model,
        "method": method,
        "accelerator": accelerator,
        "devices": devices,
        "micro_batch": micro_batch,
        "sequence_length": sequence_length,
        "map": map_file,
    }
    named = {name: value for name, value in given.items() if value is not None} | named_settings(settings)
    found = known_importers()
    if kind not in found:
        raise TunemarkError("KIND", kind, did_you_mean(kind, found))
    if as_json and kind != "log":
        raise TunemarkError("--json", kind, "writes files; only `import log` has an answer as JSON")
    found[kind](Request(tuple(files), named, out, as_json))


KINDS = [f"- {name}: {(importer.__doc__ or '').strip().partition(chr(10))[0]}" for name, importer in known_importers().items()]
app.command("import", no_args_is_help=True, help=inspect.cleandoc(import_files.__doc__ or "").format(kinds="\n".join(KINDS)))(import_files)
app.callback()(lambda: None)
