"""The one way in which the collector calls git: no shell, no monitors of the repository, git's own message on failure."""

import shutil
import subprocess
from pathlib import Path

from tunemark.schema.errors import TunemarkError
from tunemark.schema.safe_text import terminal


def git(root: Path, *arguments: str, content: bytes = b"") -> bytes:
    """Return git's output for a folder; `content` is its input. Raises TunemarkError with git's own message."""
    program = shutil.which("git")
    if program is None:
        raise TunemarkError("git", "", "is not installed; install it")
    # Hooks, aliases and filters of the repository play no part in the commands used here; file system monitors could.
    command = [program, "-C", str(root), "-c", "core.fsmonitor=false", *arguments]
    try:
        return subprocess.run(command, input=content, capture_output=True, check=True, timeout=600).stdout  # noqa: S603 - no shell
    except subprocess.CalledProcessError as error:
        message = terminal(error.stderr.decode(errors="replace").strip()[:500])
        raise TunemarkError(f"git {arguments[0]}", terminal(arguments[-1]), message or "failed") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise TunemarkError(f"git {arguments[0]}", "", terminal(str(error))) from error


def git_text(root: Path, *arguments: str) -> str:
    """Return git's output as text, without the last line break."""
    return git(root, *arguments).decode(errors="replace").strip()
