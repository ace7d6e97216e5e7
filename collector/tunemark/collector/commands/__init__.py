"""Commands of the collector. They parse options and print; the other folders of the collector do the work."""

import typer

from tunemark.collector.commands import (
    audit,
    database,
    estimate,
    prices,
    recommend,
    schema,
    submit,
    validate,
)

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]}
)
for command in (
    validate.validate,
    database.collect,
    audit.audit,
    database.query,
    prices.prices,
    recommend.recommend,
    estimate.estimate,
    schema.schema,
    submit.submit,
):
    app.command()(command)
