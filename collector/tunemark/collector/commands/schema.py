"""The command `schema`: the fields of a record, as a table or as JSON Schema."""

from typing import Annotated

import typer

from tunemark.collector.commands.options import chosen, option
from tunemark.schema.records.reading import FILES, MODELS, field_reference, schema_files
from tunemark.terminal import AsJson, print_table


def schema(
    *,
    fields: Annotated[str, option("--fields", "Of `submission`, `published`, `source` or `converted`.", metavar="KIND")] = "submission",
    as_json: AsJson = False,
) -> None:
    """Show the fields of a record, or with --json its JSON Schema, which the site publishes too.

    Examples
    --------
    - `tunemark schema`
    - `tunemark schema --fields published --json`
    """
    kinds = {name.removeprefix("tunemark.").partition("/")[0]: (file, MODELS[name]) for file, name in FILES.items()}
    file, model = kinds[chosen("--fields", fields, kinds)]
    if as_json:
        typer.echo(schema_files()[file], nl=False)
    else:
        print_table(["field", "type", "meaning"], field_reference(model))
