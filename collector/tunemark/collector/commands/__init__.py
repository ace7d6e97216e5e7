"""Commands of the collector, one module each. They parse options and print; the other folders of the collector do the work."""

import typer

from tunemark.collector.commands import audit, collect, estimate, export, prices, pull_request, query, recommend, schema, submit, validate

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]}
)
for command in (
    validate.validate,
    collect.collect,
    audit.audit,
    query.query,
    export.export,
    prices.prices,
    recommend.recommend,
    estimate.estimate,
    schema.schema,
    submit.submit,
    pull_request.pull_request,
):
    app.command()(command)
