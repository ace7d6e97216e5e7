"""`tunemark site build` and `tunemark site serve`."""

import errno
import os
import re
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import project_root
from tunemark.schema.formats import counted

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
site = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Build and serve the site.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(site, name="site")

Out = Annotated[Path | None, typer.Option("--out", help="Folder of the built site.", show_default="build")]


@app.callback()
def _room() -> None:
    """Show the contents of the database as a site."""


@site.command()
def build(
    db: Annotated[
        Path | None, typer.Option("--db", help="Database written by `tunemark collect`.", show_default="build/tunemark.duckdb")
    ] = None,
    out: Out = None,
    *,
    strict: Annotated[bool, typer.Option("--strict/--no-strict", help="Fail on any MkDocs warning.")] = True,
    site_url: Annotated[
        str | None,
        typer.Option(
            "--site-url",
            help="Public address of the site, for canonical links, the feed and the sitemap.",
            show_default="site_url in mkdocs.yml",
        ),
    ] = None,
) -> None:
    """Build the site from the database into build/site.

    Nothing is downloaded. Links within the site are relative, so it works at any address and offline. If the
    build fails, the previous site is kept.

    Examples
    --------
    - `tunemark site build`

    - `tunemark site build --db /tmp/other.duckdb --out /tmp/preview`
    """
    from tunemark.site.build import build_site  # noqa: PLC0415 - charts and MkDocs take a second to import, which --help does not need

    root = project_root()
    pages = build_site(
        db or root / "build" / "tunemark.duckdb",
        out or root / "build",
        root / "mkdocs.yml",
        strict=strict,
        progress=typer.echo,
        url=_address(site_url),
    )
    typer.echo(f"{counted(pages, 'page')}; view them with `tunemark site serve`")


def _address(text: str | None) -> str | None:
    """Return an http(s) address with a slash at the end."""
    if text is None:
        return None
    if not re.fullmatch(r"https?://[A-Za-z0-9.:\[\]-]+(?:/[A-Za-z0-9._~/-]*)?", text):
        raise TunemarkError("--site-url", text, "give an address such as https://example.org/tunemark/")
    return f"{text.rstrip('/')}/"


@site.command()
def serve(
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port on 127.0.0.1; 0 picks a free one.")] = 8_000, out: Out = None
) -> None:
    """Serve the built site on this machine until Ctrl-C.

    Examples
    --------
    - `tunemark site serve`

    - `tunemark site serve --port 8080`
    """
    folder = (out or project_root() / "build") / "site"
    with open_server(folder, port) as server:
        typer.echo(f"serving {folder} on http://127.0.0.1:{server.server_port}/ (Ctrl-C stops it)")
        serve_until_interrupted(server)
    typer.echo("stopped")


class QuietHandler(SimpleHTTPRequestHandler):
    """A request handler that does not log requests, and answers unknown addresses with the site's own page."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send 404.html for an unknown address, otherwise the plain page of the base class."""
        page = Path(self.directory) / "404.html"
        if code != HTTPStatus.NOT_FOUND or not page.is_file():
            super().send_error(code, message, explain)
            return
        content = page.read_bytes()
        self.send_response(code, message)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Log nothing."""


class SiteServer(ThreadingHTTPServer):
    """An HTTP server that fails if its port is taken."""

    # On POSIX, address reuse only skips the wait after a server stopped; on Windows it would let two servers share a port.
    allow_reuse_address = os.name == "posix"
    daemon_threads = True


def open_server(folder: Path, port: int) -> SiteServer:
    """Return a server of a built site on 127.0.0.1. Raise TunemarkError if there is no site or the port is taken."""
    if not (folder / "index.html").is_file():
        raise TunemarkError("site", str(folder), "run `tunemark site build` first")
    try:
        return SiteServer(("127.0.0.1", port), partial(QuietHandler, directory=str(folder)))
    except OSError as error:
        if error.errno in {errno.EADDRINUSE, errno.EACCES}:
            raise TunemarkError("--port", port, "the port is taken or not permitted; choose another with --port") from error
        raise


def serve_until_interrupted(server: SiteServer) -> None:
    """Serve requests until Ctrl-C."""
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        return
