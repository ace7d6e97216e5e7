"""Shows the built site on this machine, and to this machine only."""

import errno
import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tunemark.schema.errors import TunemarkError

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
