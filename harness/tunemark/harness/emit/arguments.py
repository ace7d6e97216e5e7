"""Chosen options as a command line again: each that is not at its default, under the name that the command line gives it."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_type_hints

from tunemark.harness.run_options import RunOptions

OF_THE_PLACE = {"backend", "devices", "strategy", "nodes", "node_rank", "rendezvous"}
"""Options that the script itself gives, from its target and from the node that it runs on."""


def run_arguments(workload: str, chosen: RunOptions) -> list[str]:
    """Return `run WORKLOAD` and the options that were given, but those of the place."""
    hints = get_type_hints(RunOptions, include_extras=True)
    arguments = ["run", workload]
    for field in fields(RunOptions):
        value = getattr(chosen, field.name)
        if field.name not in OF_THE_PLACE and value not in (field.default, []):
            (option,) = hints[field.name].__metadata__
            # Between Annotated and typer, an option's name is what would elsewhere be its default.
            arguments += _option(str(option.default), value)
    return arguments


def _option(name: str, value: Any) -> Iterator[str]:  # noqa: ANN401 - of any option
    on, _, off = name.partition("/")
    if isinstance(value, bool):
        yield on if value else off
        return
    for one in value if isinstance(value, list | tuple) else [value]:
        yield from (name, str(getattr(one, "value", one)))
