"""The command line. It lists the commands of each package by name and imports a package only when one of its commands is called."""

import gc
import importlib
import os
import select
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tunemark.schema import VERSION
from tunemark.schema.errors import Exit, TunemarkError, did_you_mean, must_be
from tunemark.schema.safe_text import terminal

TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_name("cli.toml").read_text(encoding="utf-8"))
COMMANDS: dict[str, tuple[str, str]] = {name: tuple(row) for name, row in TABLE["commands"].items()}
"""Name -> (module, one line of help). The module has a typer app `app` with a command of that name, or a function of that name."""
CALLED_COMMAND = "tunemark.called"


def imported_command(name: str) -> Any:  # noqa: ANN401 - the classes of typer's commands are private
    """Return a command from its module."""
    module = importlib.import_module(COMMANDS[name][0])
    if hasattr(module, "app"):
        return get_command(module.app).commands[name]  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False, rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]})
    alone.command()(getattr(module, name))
    return get_command(alone)


class LazyGroup(TyperGroup):
    """A group whose commands are imported on demand."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - typer's own context type is private
        """Return the command names in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - as above
        """Import the module of the called command. Other commands are listed without importing them."""
        if cmd_name not in COMMANDS:
            return None
        if ctx.meta.get(CALLED_COMMAND) != cmd_name:
            return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])
        return imported_command(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - as above
        """Store the name of the called command, then resolve it."""
        ctx.meta[CALLED_COMMAND] = args[0] if args else None
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise TunemarkError("command", args[0], did_you_mean(args[0], COMMANDS))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 internal error, 2 usage, 3 invalid record, 4 unsupported on this device, 5 out of memory, 6 no valid measurement.",
)


def _version(requested: bool) -> None:  # noqa: FBT001 - typer passes the value of the flag
    if requested:
        typer.echo(f"tunemark {VERSION}")
        raise typer.Exit


@app.callback()
def tunemark(
    *, _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")] = False
) -> None:
    """Which accelerator should I fine-tune this model on, how long will it take, and what will it cost?

    Start with `tunemark doctor`, `tunemark workloads`, `tunemark plan smoke-lora`, `tunemark run smoke-lora`.
    """  # noqa: D400 - the question is the summary


os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's matrices are small here: several threads only wait for each other


def main() -> NoReturn:
    """Run the command line. An error that the user can fix prints one line and ends with a documented exit code."""
    # A command makes little garbage: looking for it after every 700 new objects takes 5% of `collect`.
    gc.set_threshold(50_000)
    try:
        _run()
    except TunemarkError as error:
        # A name in a message may come from a stranger's file.
        sys.stderr.write("\n".join(map(terminal, f"tunemark: {error}".split("\n"))) + "\n")
        sys.exit(error.exit_code)
    except SystemExit as ended:
        # typer ends with 1 when the reader of the pipe, such as `head`, has seen enough.
        if ended.code != Exit.INTERNAL or not _reader_is_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(Exit.OK)


def _reader_is_gone() -> bool:
    """Return True if standard output is a pipe that nobody reads any longer."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _run() -> None:
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else Exit.OK)
    except typer.Abort:
        sys.stderr.write("tunemark: aborted\n")
        sys.exit(Exit.INTERNAL)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in TABLE["extras"]:
            raise
        extra = TABLE["extras"][package]
        raise TunemarkError(
            "package", package, f"install it with `pip install 'tunemark[{extra}]'`, or `make setup` in a checkout"
        ) from error
    except Exception as error:
        # typer's own errors, which it would print in a box: their class is private.
        if not hasattr(error, "format_message"):
            raise
        message = _usage_message(error)
        sys.stderr.write(f"tunemark: {message}\n" if message else "")
        sys.exit(Exit.USAGE)


def _usage_message(error: Any) -> str:  # noqa: ANN401 - a private class of typer
    """Return an error in the use of the command line as `option: value: fix`, like all others; empty if help was shown instead."""
    context, parameter, cause = getattr(error, "ctx", None), getattr(error, "param", None), error.__cause__
    words = context.command_path.removeprefix(context.find_root().command_path) if context else ""
    more = f"`tunemark{words} --help` shows its use"
    if parameter is None or not error.message:
        # A missing argument, or an unknown option with similar ones.
        text = str(error.format_message()).rstrip(".").removeprefix("Invalid value for ")
        return f"{text[:1].lower()}{text[1:]}; {more}" if text else ""
    name = parameter.get_error_hint().replace("'", "")
    value = repr(cause.errors()[0]["input"]) if hasattr(cause, "errors") else ""
    problem = must_be(str(error.message)).rstrip(".").replace(f"{value} is not one of", "must be one of")
    return f"{name}: {value}{': ' if value else ''}{problem}; {more}"
