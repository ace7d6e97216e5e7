"""Give a command the options of a run. typer reads them from a signature that is built here."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from typing import Annotated, Any, get_type_hints

import typer

from tunemark.harness.plan.options import Options
from tunemark.schema.vocabulary import Backend

Family = StrEnum("Family", {backend.name: backend.value for backend in Backend if backend is not Backend.FAKE})  # type: ignore[misc]
"""Device families that can be requested."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Workload = Annotated[str, typer.Argument(help="Name of a workload; `tunemark workloads` lists them.")]


class Starter(StrEnum):
    """Programs that start several processes."""

    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"


READ_AS: dict[str, Any] = {"overrides": list[str] | None, "until_ci": str | None, "backend": Family | None, "launcher": Starter}
"""Types that typer reads, for options whose field has a type that it does not know."""


def fraction(option: str, text: str | None) -> float | None:
    """Return a fraction given as `1%` or `0.01`. Raises BadParameter if it is not between 0 and 1."""
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise typer.BadParameter(f"{text!r} is not a fraction between 0 and 1; give 1% or 0.01", param_hint=option)
    return value


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of Options, which it receives as its parameter `options`."""
    hints, own_hints = get_type_hints(Options, include_extras=True), get_type_hints(command, include_extras=True)

    def run(**arguments: Any) -> None:  # noqa: ANN401 - what typer read
        chosen = {field.name: arguments.pop(field.name) for field in fields(Options)}
        chosen["overrides"] = tuple(chosen["overrides"] or ())
        chosen["until_ci"] = fraction("--until-ci", chosen["until_ci"])
        chosen["backend"] = Backend(chosen["backend"].value) if chosen["backend"] else None
        chosen["launcher"] = Starter(chosen["launcher"]).value
        command(**arguments, options=Options(**chosen))

    parameters = inspect.signature(command).parameters
    own = [parameters[name].replace(annotation=own_hints[name]) for name in parameters if name != "options"]
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[READ_AS.get(field.name, hints[field.name].__origin__), *hints[field.name].__metadata__],
        )
        for field in fields(Options)
    ]
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run
