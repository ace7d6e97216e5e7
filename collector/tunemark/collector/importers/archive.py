"""Files of an archive or folder, one after the other, in memory: nothing is ever extracted to disk."""

import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tunemark.collector.importers.mllog import LogProblem
from tunemark.schema.errors import TunemarkError

LARGEST_FILE = 64 * 2**20
"""Bytes; the largest log of three rounds has 1.5 MB."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive or folder."""

    name: str
    """Path in it, with forward slashes."""
    content: bytes


def members(source: Path, problems: list[LogProblem], broken: list[str] | None = None) -> Iterator[Member]:
    """Yield the files of a tar archive (plain, gz, bz2 or xz) or of a folder; what is passed over is added to the problems.

    Where an archive breaks off, the names of the last whole file and of the one that is cut are added to `broken`.

    Raises
    ------
    TunemarkError
        When there is no such file, or it is no archive.

    """
    if source.is_dir():
        yield from _of_folder(source, problems)
    elif source.is_file():
        yield from _of_archive(source, problems, [] if broken is None else broken)
    else:
        raise TunemarkError(
            "archive", str(source), "no such file or folder; name a .tar.xz of result logs, or the folder it was unpacked to"
        )


def unsafe(name: str) -> str | None:
    """Return why a name in an archive is not believed, or None."""
    if name.startswith(("/", "\\")) or name[1:2] == ":":
        return "an absolute path"
    return "a path that leads out of the archive" if ".." in name.replace("\\", "/").split("/") else None


def _of_archive(source: Path, problems: list[LogProblem], broken: list[str]) -> Iterator[Member]:
    last = cut = "its beginning"
    seen: set[str] = set()
    try:
        # A stream reads the archive once from front to back and holds one file at a time.
        with tarfile.open(source, "r|*") as archive:
            for entry in archive:
                reason = _refused(entry, seen)
                if reason:
                    problems.append(LogProblem(entry.name, None, f"{reason}; ignored"))
                elif entry.isreg():
                    cut = entry.name
                    seen.add(entry.name)
                    file = archive.extractfile(entry)
                    yield Member(entry.name, file.read() if file else b"")
                    last = entry.name
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if not seen and isinstance(error, tarfile.ReadError):
            raise TunemarkError(
                "archive", source.name, f"not a tar archive ({error}); name a .tar.xz of result logs, or the folder it was unpacked to"
            ) from error
        broken.extend(dict.fromkeys((last, cut)))
        problems.append(LogProblem(source.name, None, f"cannot be read after {last}: {error}; what came before is kept"))


def _refused(entry: tarfile.TarInfo, seen: set[str]) -> str | None:
    if unsafe(entry.name):
        return unsafe(entry.name)
    if entry.isdir():
        return None
    if not entry.isreg():
        return "a link or device, not a file"
    if entry.name in seen:
        return "is in the archive already; the first one counts"
    return f"{entry.size:,} bytes, more than {LARGEST_FILE:,}" if entry.size > LARGEST_FILE else None


def _of_folder(source: Path, problems: list[LogProblem]) -> Iterator[Member]:
    for folder, folders, files in os.walk(source, followlinks=False):
        folders.sort()
        for name in sorted(files):
            path = Path(folder) / name
            shown = path.relative_to(source).as_posix()
            try:
                size = path.lstat().st_size
                if path.is_symlink() or not path.is_file():
                    problems.append(LogProblem(shown, None, "a link or device, not a file; ignored"))
                elif size > LARGEST_FILE:
                    problems.append(LogProblem(shown, None, f"{size:,} bytes, more than {LARGEST_FILE:,}; ignored"))
                else:
                    yield Member(shown, path.read_bytes())
            except OSError as error:
                problems.append(LogProblem(shown, None, f"cannot be read: {error.strerror}"))
