"""`tunemark demo`: run, validate, collect and build on this machine. Each step is a command in its own process."""

import importlib
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.files import project_root, write_atomically

WORKLOADS = ("smoke-lora", "smoke-full", "smoke-bert")
EXPECTED_WARNINGS = {"random_weights", "unknown_accelerator", "dirty_source"}
"""Warnings that apply to every demo and are therefore not shown."""
MEMORY_FILE = "demo.json"
"""Lists in build/ the runs of earlier demos, so a second demo is quick."""

app = typer.Typer(rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def rooms() -> None:
    """Make typer treat the single command below as a group, like those of the other packages."""


@app.command()
def demo(
    *,
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="Serve the site on 127.0.0.1 at the end.")] = True,
    again: Annotated[bool, typer.Option("--again", help="Measure again even if an earlier demo measured here.")] = False,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to serve on.")] = 8000,
) -> None:
    """Fine-tune three small models, validate and collect the results, build the site and serve it.

    Examples
    --------
    - `tunemark demo`

    - `tunemark demo --no-serve`

    - `tunemark demo --again`
    """
    root, screen = project_root(), Console(stderr=True, highlight=False)
    for package in ("duckdb", "mkdocs"):
        # Without the extra `site`, fail before the runs.
        importlib.import_module(package)
    if serve:
        check_port(port)
    runs = [measure(name, root, screen, again=again) for name in WORKLOADS]
    step("validate", "submissions", "data/published", root=root, screen=screen)
    step("collect", root=root, screen=screen)
    step("site", "build", root=root, screen=screen)
    Console(highlight=False).print(table_of(runs))
    for run in runs:
        warnings = sorted({warning.partition(":")[0] for warning in run["warnings"]} - EXPECTED_WARNINGS)
        sys.stdout.write(f"submission: {run['file']}{' (warnings: ' + ', '.join(warnings) + ')' if warnings else ''}\n")
    sys.stdout.write(f"site: {root / 'build' / 'site' / 'index.html'}\n")
    sys.stdout.flush()
    if serve:
        step("site", "serve", "--port", str(port), root=root, screen=screen)


def measure(workload: str, root: Path, screen: Console, *, again: bool) -> dict[str, Any]:
    """Return the summary of a run of the workload: from an earlier demo in this checkout, or from a new run."""
    memory = root / "build" / MEMORY_FILE
    known: dict[str, Any] = json.loads(memory.read_text(encoding="utf-8")) if memory.exists() else {}
    before = known.get(workload)
    if before and before["tokens_per_s"] and not again and Path(before["file"]).exists():
        screen.print(f"[bold]{workload}[/bold]: measured by an earlier demo; --again measures again")
        return dict(before)
    done = command("run", workload, "--json", root=root, capture=True)
    if not done.stdout.strip():
        raise typer.Exit(done.returncode or Exit.INTERNAL)
    summary: dict[str, Any] = json.loads(done.stdout)
    if summary["status"] == "ok":
        write_atomically(memory, (json.dumps({**known, workload: summary}, indent=1) + "\n").encode())
    return summary


def check_port(port: int) -> None:
    """Raise TunemarkError if the port cannot be used, before the runs start."""
    try:
        with socket.create_server(("127.0.0.1", port)):
            return
    except OSError as error:
        raise TunemarkError(
            "--port", port, "this port is taken or not permitted; choose another with --port 8001 or make demo PORT=8001"
        ) from error


def step(*arguments: str, root: Path, screen: Console) -> None:
    """Run one command. Exit if it fails."""
    screen.print(f"[bold]tunemark {' '.join(arguments)}[/bold]")
    done = command(*arguments, root=root, capture=False)
    if done.returncode:
        raise typer.Exit(done.returncode)


def command(*arguments: str, root: Path, capture: bool) -> "subprocess.CompletedProcess[str]":
    """Run a Tunemark command in the checkout and return its output. Messages go to the terminal."""
    return subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "tunemark.cli", *arguments], cwd=root, stdout=subprocess.PIPE if capture else None, text=True, check=False
    )


def table_of(runs: list[dict[str, Any]]) -> Table:
    """Return a table of the runs."""
    table = Table(title="Measured on this machine", title_justify="left")
    for head in ("workload", "status"):
        table.add_column(head, no_wrap=True)
    for head in ("step time", "tokens/s", "peak memory", "loss"):
        table.add_column(head, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            run["workload"],
            run["status"],
            formats.duration(run["step_time_s"]) if run["step_time_s"] else formats.MISSING,
            formats.significant(run["tokens_per_s"]) if run["tokens_per_s"] else formats.MISSING,
            formats.gib(run["peak_memory_bytes"]) if run["peak_memory_bytes"] else formats.MISSING,
            f"{run['loss_start']:.2f} -> {run['train_loss']:.2f}" if run["train_loss"] is not None else formats.MISSING,
        )
    return table
