"""Commands that read what other tools wrote, one module each. Thin: the work is in importers/."""

import typer

from tunemark.collector.importers import axolotl, mlperf, prices, releases, trainer_log

HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", context_settings=HELP)
imports = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", context_settings=HELP)
app.add_typer(imports, name="import")


@imports.callback()
def import_group() -> None:
    """Import results, workloads, prices and days of releases from elsewhere.

    Nothing of a file is ever executed. What cannot be read is reported with its file and line, and never stops the rest.

    Examples
    --------
    - `tunemark import mlperf mlperf-training.tar.xz`

    - `tunemark import axolotl qlora.yml --out data/workloads`

    - `tunemark import prices catalogs/v8/lambda/vms.csv --out lambda.csv`

    - `tunemark import releases torch.json transformers.json --out data/known/pypi.toml`
    """


imports.command()(mlperf.mlperf)
imports.command("trainer-log")(trainer_log.trainer_log)
imports.command()(axolotl.axolotl)
imports.command()(prices.prices)
imports.command()(releases.releases)
