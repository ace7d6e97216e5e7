"""The project's folders, and atomic file writes."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from tunemark.schema.errors import TunemarkError

ROOT_VARIABLE = "TUNEMARK_ROOT"


def project_root() -> Path:
    """Return the checkout with the facts: TUNEMARK_ROOT, else the folder above the current one, else the checkout of this source.

    A checkout contains the folder `data/accelerators`. The last one is announced on standard error, since results are written there.
    """
    named = os.environ.get(ROOT_VARIABLE)
    if named:
        if not _is_checkout(Path(named)):
            raise TunemarkError(
                ROOT_VARIABLE, named, "this folder has no data/accelerators; name a checkout of Tunemark, or unset the variable"
            )
        return Path(named).resolve()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if _is_checkout(folder):
            return folder
    for folder in Path(__file__).resolve().parents:
        if _is_checkout(folder):
            _announce(folder)
            return folder
    raise TunemarkError("current directory", str(here), f"no checkout of Tunemark here; change into one or set {ROOT_VARIABLE}")


@lru_cache
def _announce(folder: Path) -> None:
    """Say once that files are read from and written to a checkout that the user has not named."""
    sys.stderr.write(
        f"tunemark: the current folder is not in a checkout; using {folder} (change into a checkout, or set {ROOT_VARIABLE})\n"
    )


def _is_checkout(folder: Path) -> bool:
    return (folder / "data" / "accelerators").is_dir()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old or the new content, never a part of it.

    Raises
    ------
    OSError
        When the disk is full or the folder cannot be written; the old file is then unchanged.

    """
    with replacing(path) as partial:
        partial.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in a folder next to the file; on success that file replaces it, on failure it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        partial = Path(folder) / path.name
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
