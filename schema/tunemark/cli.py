"""The front door: knows each room's commands by name, and imports a room when its command is called."""

import importlib
import sys
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tunemark.schema.errors import Exit, TunemarkError, did_you_mean

DOCTOR, RUN, STUDIES = (f"tunemark.harness.commands.{module}" for module in ("doctor", "run", "studies"))
COLLECTOR, SITE = (f"tunemark.{room}.commands" for room in ("collector", "site"))

COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": (DOCTOR, "Say what this machine has and which workloads it can run."),
    "workloads": (DOCTOR, "List the standard workloads."),
    "plan": (RUN, "Show how a workload would run here, each value with its reason."),
    "run": (RUN, "Fine-tune once in a fresh process and write one submission."),
    "sweep": (STUDIES, "Run a workload at several points, each in a fresh process."),
    "frontier": (STUDIES, "Find the largest micro-batch and sequence length that fit."),
    "ab": (STUDIES, "Compare two settings in interleaved runs, with a verdict."),
    "predict": (STUDIES, "Predict time and cost of a whole job from a short run."),
    "validate": (COLLECTOR, "Check submissions and published results."),
    "collect": (COLLECTOR, "Load all results and facts into the database."),
    "audit": ("tunemark.collector.audit_command", "Check claims against physics, arithmetic and catalogues."),
    "query": (COLLECTOR, "Ask the database with SQL."),
    "prices": (COLLECTOR, "Show what an instance or accelerator costs on a day."),
    "estimate": ("tunemark.collector.estimate_command", "Estimate the memory of a training step, and where it fits."),
    "import": ("tunemark.collector.import_commands", "Import results, workloads and prices from other tools."),
    "schema": (COLLECTOR, "Write the JSON Schema files and show the fields of a record."),
    "site": (SITE, "Build and serve the site."),
    "demo": ("tunemark.demo", "Go the whole way: run, validate, collect, build, serve."),
}
"""Name -> (module, one line of help). The module has a typer app `app` with a command of that name."""


CALLED = "tunemark.called"


class Rooms(TyperGroup):
    """A group whose commands live in rooms that are imported on demand."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer's own context type is private
        """Return the command names in the order in which they are used."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - as above
        """Import the command's room, unless only the list of commands is being shown."""
        if cmd_name not in COMMANDS:
            return None
        module, summary = COMMANDS[cmd_name]
        if ctx.meta.get(CALLED) != cmd_name:
            return TyperCommand(cmd_name, help=summary)
        room = get_command(importlib.import_module(module).app)
        return room.commands[cmd_name]  # type: ignore[attr-defined]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - as above
        """Note which command is called, then resolve it as typer does."""
        ctx.meta[CALLED] = args[0] if args else None
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise TunemarkError("command", args[0], did_you_mean(args[0], COMMANDS))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Rooms,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 internal error, 2 usage, 3 invalid record, 4 unsupported on this device, 5 out of memory, 6 measurement not trustworthy.",
)


def _version(asked: bool) -> None:  # noqa: FBT001 - typer gives the flag's value
    if asked:
        typer.echo(f"tunemark {version('tunemark')}")
        raise typer.Exit


@app.callback()
def front_door(
    *,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """Which accelerator should I fine-tune this model on, how long will it take, and what will it cost?

    A first tour: `tunemark doctor`, `tunemark workloads`, `tunemark plan smoke-lora`, `tunemark run smoke-lora`.
    """  # noqa: D400 - the question is the summary


def main() -> NoReturn:
    """Run the command line; errors that a person can mend end in one line and a documented exit code."""
    try:
        app(standalone_mode=True)
    except TunemarkError as error:
        sys.stderr.write(f"tunemark: {error}\n")
        sys.exit(error.exit_code)
    sys.exit(Exit.OK)


if __name__ == "__main__":
    main()
