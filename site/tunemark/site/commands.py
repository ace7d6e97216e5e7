"""Shows the built site on this machine, and to this machine only."""

import errno
import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import project_root

HOST = "127.0.0.1"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """A server that notices when its port is taken."""

    # On POSIX reuse only skips the minute after a server ended; on Windows it would let two servers share a port.
    allow_reuse_address = os.name == "posix"
    daemon_threads = True


def open_server(folder: Path, port: int) -> Server:
    """Return a server of a built site; raises TunemarkError when there is no site or the port is taken."""
    if not (folder / "index.html").is_file():
        raise TunemarkError("site", str(folder), "run `tunemark site build` first")
    try:
        return Server((HOST, port), partial(Quiet, directory=str(folder)))
    except OSError as error:
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            raise TunemarkError("--port", port, "this port is taken or not allowed; name another with --port") from error
        raise


def run(server: Server) -> None:
    """Serve until Ctrl-C."""
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return


# MOVE: was tunemark.site.commands: `tunemark site build` and `tunemark site serve`.

app = typer.Typer(add_completion=False)
site = typer.Typer(no_args_is_help=True, help="Build and serve the site.", context_settings={"help_option_names": ["-h", "--help"]})
app.add_typer(site, name="site")

Out = Annotated[Path | None, typer.Option("--out", help="Folder of the built site.", show_default="build")]


@app.callback()
def _room() -> None:
    """Tell what the database holds."""


@site.command(epilog="Examples: `tunemark site build`; `tunemark site build --db /tmp/other.duckdb --out /tmp/preview`")
def build(
    db: Annotated[
        Path | None, typer.Option("--db", help="Database that `tunemark collect` wrote.", show_default="build/tunemark.duckdb")
    ] = None,
    out: Out = None,
    *,
    strict: Annotated[bool, typer.Option("--strict/--no-strict", help="Fail on any warning of MkDocs.")] = True,
) -> None:
    """Write all pages from the database and lay them out into build/site.

    Nothing is fetched. A build that fails leaves the site that was there.
    """
    from tunemark.site.build import build_site  # noqa: PLC0415 - charts and MkDocs take a second to import, --help need not wait

    root = project_root()
    number = build_site(
        db or root / "build" / "tunemark.duckdb", out or root / "build", root / "mkdocs.yml", strict=strict, progress=typer.echo
    )
    typer.echo(f"{number} pages; look at them with `tunemark site serve`")


@site.command(epilog="Examples: `tunemark site serve`; `tunemark site serve --port 8080`")
def serve(
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8_000,
    out: Out = None,
) -> None:
    """Show the built site on this machine; Ctrl-C ends it."""
    # MOVE: import vanished

    folder = (out or project_root() / "build") / "site"
    with open_server(folder, port) as server:
        typer.echo(f"serving {folder} on http://127.0.0.1:{server.server_port}/ (Ctrl-C ends it)")
        run(server)
    typer.echo("stopped")
