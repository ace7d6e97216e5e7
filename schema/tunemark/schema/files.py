"""The project's folders, atomic replacement of files and folders, and what git says of a folder."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunemark.schema.errors import TunemarkError
from tunemark.schema.safe_text import terminal

ROOT_VARIABLE = "TUNEMARK_ROOT"


def project_root() -> Path:
    """Return the folder of `submissions` and `build`: TUNEMARK_ROOT, else the checkout around the current folder, else the current folder.

    A checkout contains the folder `data/accelerators`. Without one no result is ever written next to the source of this package.
    """
    named = os.environ.get(ROOT_VARIABLE)
    if named:
        if not is_checkout(Path(named)):
            raise TunemarkError(
                ROOT_VARIABLE, named, "this folder has no data/accelerators; name a checkout of Tunemark, or unset the variable"
            )
        return Path(named).resolve()
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if is_checkout(folder)), here)


def data_folder(root: Path) -> Path:
    """Return the folder of the facts: that of a checkout, else the one that the installed package contains."""
    if is_checkout(root):
        return root / "data"
    # A wheel holds the facts next to this module; an editable installation has those of its checkout.
    found = next((folder / "data" for folder in Path(__file__).resolve().parents if is_checkout(folder)), None)
    if found is None:
        raise TunemarkError("current directory", str(root), f"no checkout of Tunemark here; change into one or set {ROOT_VARIABLE}")
    return found


def is_checkout(folder: Path) -> bool:
    """Return True if a folder contains the facts of Tunemark."""
    return (folder / "data" / "accelerators").is_dir()


def refuse_unwritable(option: str, folder: Path, *, named: Path | None = None) -> None:
    """Raise TunemarkError if no file can be written to a folder, which is made if it does not exist.

    The error shows the path that the user named, by default the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        no_folder = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
        why = f"{no_folder} is a {'file' if no_folder.is_file() else 'device'}" if no_folder else error.strerror
        raise TunemarkError(option, str(named or folder), f"cannot be written ({why}); name a folder of yours") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old or the new content, never a part of it.

    Raises OSError when the disk is full or the folder cannot be written; the old file is then unchanged.
    """
    with replacing(path) as partial:
        partial.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in a folder next to the file; on success that file replaces it, on failure it is removed.

    The folder is named after this process, so that what a killed process left behind is removed by the next one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    from psutil import pid_exists  # noqa: PLC0415 - takes longer to import than most commands to write

    for left in path.parent.glob(f".{path.name}.*-*"):
        process = left.name.removeprefix(f".{path.name}.").partition("-")[0]
        if process.isdecimal() and not pid_exists(int(process)):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.{os.getpid()}-") as folder:
        partial = Path(folder) / path.name
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)


def replace_folder(folder: Path, new: Path, old: Path) -> None:
    """Move a complete new folder to the place of a folder, which is first moved to `old` if it exists. The caller deletes `old`.

    All three paths must be on one file system, and `old` must not exist.

    Raises OSError when a folder cannot be moved; the previous folder is then back in its place.
    """
    if folder.exists():
        folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise


def usable_cores() -> int:
    """Return the number of hardware threads that this process may use: its affinity, or the container's quota if lower."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        limit, _, period = quota.read_text(encoding="ascii").strip().partition(" ")
        if limit != "max":
            return max(1, min(affinity, int(limit) // int(period)))
    return affinity


def git(root: Path, *arguments: str) -> bytes:
    """Return git's output for a folder. Raises TunemarkError with git's own message.

    No shell, no monitors of the repository. Git is called in no other way.
    """
    program = shutil.which("git")
    if program is None:
        raise TunemarkError("git", "", "is not installed; install it")
    # Hooks, aliases and filters of the repository play no part in the commands used here; file system monitors could.
    command = [program, "-C", str(root), "-c", "core.fsmonitor=false", *arguments]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=600).stdout  # noqa: S603 - no shell
    except subprocess.CalledProcessError as error:
        message = terminal(error.stderr.decode(errors="replace").strip()[:500])
        raise TunemarkError(f"git {arguments[0]}", terminal(arguments[-1]), message or "failed") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise TunemarkError(f"git {arguments[0]}", "", terminal(str(error))) from error


def git_text(root: Path, *arguments: str) -> str:
    """Return git's output as text, without the last line break."""
    return git(root, *arguments).decode(errors="replace").strip()


def git_or_none(root: Path, *arguments: str) -> str | None:
    """Return git's output as text, without the last line break; None if it fails, as outside of a repository."""
    try:
        return git_text(root, *arguments)
    except TunemarkError:
        return None
