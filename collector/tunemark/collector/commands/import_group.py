"""The command group `import`: one command for each importer.

A module of `tunemark.collector.importers` is an importer if it has a function of its own name: `wandb_runs()` in
`wandb_runs.py` is the command `tunemark import wandb-runs`. Nothing else needs to be registered.
"""

import importlib
import pkgutil

import typer

from tunemark.collector import importers

HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", context_settings=HELP)
imports = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", context_settings=HELP)
app.add_typer(imports, name="import")


@imports.callback()
def import_group() -> None:
    """Import results, logs of your own training, workloads, prices and release dates from other tools.

    Nothing in a file is ever executed. Anything that cannot be read is reported with its file and line, and never stops the rest.

    Examples
    --------
    - `tunemark import mlperf LOGS.tar.xz`

    - `tunemark import axolotl CONFIG.yml --out data/workloads`

    - `tunemark import prices VMS.csv --provider lambda --out LAMBDA.csv`

    - `tunemark import table TABLES.md --map MAP.toml`

    - `tunemark import log TRAINER_STATE.json --method lora`

    - `tunemark import releases TORCH.json PEFT.json --out data/known/pypi.toml`
    """


for _module in pkgutil.iter_modules(importers.__path__):
    _command = getattr(importlib.import_module(f"{importers.__name__}.{_module.name}"), _module.name, None)
    if callable(_command):
        imports.command(_module.name.replace("_", "-"))(_command)
