"""Commands of the collector, one module each. Thin: the work is in the modules beside this package."""

import typer

from tunemark.collector.commands import audit, collect, prices, query, schema, validate

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]}
)
for command in (validate.validate, collect.collect, audit.audit, query.query, prices.prices, schema.schema):
    app.command()(command)
