"""`make demo`: run, validate, collect and build on this machine. Each step is a command in its own process."""

import json
import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from tunemark.schema.errors import Exit
from tunemark.schema.files import project_root
from tunemark.terminal import say

WORKLOADS = ("smoke-lora", "smoke-full", "smoke-bert")


def demo(
    *,
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="Serve the site on 127.0.0.1 at the end.")] = True,
    again: Annotated[bool, typer.Option("--again", help="Measure again even if an earlier demo measured here.")] = False,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to serve on.")] = 8000,
) -> None:
    """Fine-tune three small models, validate and collect the results, build the site and serve it."""
    root = project_root()
    if serve:
        check_port(port)
    measured = set() if again else measured_before(root)
    for workload in WORKLOADS:
        if workload in measured:
            say(f"{workload}: measured by an earlier run here; AGAIN=1 measures again")
        else:
            # A run that fails leaves its record, which the site shows.
            step("run", workload, root=root, failures=(Exit.UNSUPPORTED, Exit.OUT_OF_MEMORY, Exit.UNTRUSTWORTHY))
    step("validate", "submissions", "data/published", root=root)
    step("collect", root=root)
    step("site", "build", root=root)
    step("runs", root=root)
    sys.stdout.write(f"site: {root / 'build' / 'site' / 'index.html'}\n")
    sys.stdout.flush()
    if serve:
        step("site", "serve", "--port", str(port), root=root)


def measured_before(root: Path) -> set[str]:
    """Return the workloads with a complete run of this machine, so that a second demo is quick."""
    runs = json.loads(command("runs", "--json", root=root, capture=True).stdout or "[]")
    return {run["workload"] for run in runs if run["status"] == "ok" and run["tokens_per_s"] and not run["try"]}


def check_port(port: int) -> None:
    """End if the port cannot be used, before the runs start."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        sys.exit(f"demo: port {port} is taken or not permitted; choose another with `make demo PORT=8001`")


def step(*arguments: str, root: Path, failures: Collection[int] = ()) -> None:
    """Run one command. Exit if it fails, other than with one of some exit codes."""
    say(f"tunemark {' '.join(arguments)}")
    done = command(*arguments, root=root, capture=False)
    if done.returncode and done.returncode not in failures:
        raise typer.Exit(done.returncode)


def command(*arguments: str, root: Path, capture: bool) -> "subprocess.CompletedProcess[str]":
    """Run a Tunemark command in the checkout and return its output. Messages go to the terminal."""
    return subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "tunemark.cli", *arguments], cwd=root, stdout=subprocess.PIPE if capture else None, text=True, check=False
    )


if __name__ == "__main__":
    typer.run(demo)
