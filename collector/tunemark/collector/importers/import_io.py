"""Input and output of the importers: files, archives read in memory, and problems with their file and line."""

import lzma
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from tunemark.collector.commands.options import OPTIONS as SHARED
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.files import write_atomically
from tunemark.schema.formats import MIB

LARGEST_MEMBER = 64 * MIB
"""Bytes of a file in an archive; the largest log of three MLPerf rounds has 1.5 MB."""
NAME_ONE = "name a .tar.xz of result logs, or the folder it was unpacked to"
OPTIONS = SHARED | {"devices": "--devices", "micro_batch": "--micro-batch", "map": "--map"}
"""Setting with an option of its own -> the option as typed."""


def option_of(setting: str) -> str:
    """Return the option that gives a setting, for messages."""
    return OPTIONS.get(setting, f"--set {setting}")


@dataclass(frozen=True, slots=True)
class Request:
    """What the command `import` was asked for: the files of one importer, and its settings by name."""

    files: tuple[Path, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    out: Path | None = None
    as_json: bool = False

    def known(self, names: Iterable[str]) -> dict[str, str]:
        """Return the settings; raises TunemarkError for one that the importer does not know."""
        known = list(names)
        for name, value in self.settings.items():
            if name not in known:
                fix = f"no setting of this import; {did_you_mean(name, known)}; known: {', '.join(known)}"
                raise TunemarkError(option_of(name), value, fix)
        return dict(self.settings)


@dataclass(frozen=True, slots=True)
class LogProblem:
    """A problem in a file, and its line."""

    file: str
    line: int | None
    reason: str
    noted: bool = False
    """True for a remark: all of the file is kept."""

    def __str__(self) -> str:
        """Return `file:line: reason` without anything that a terminal would obey."""
        return printable(f"{self.file}:{self.line}: {self.reason}" if self.line else f"{self.file}: {self.reason}")


@dataclass(slots=True)
class Log:
    """A file while it is read."""

    file: str
    problems: list[LogProblem] = field(default_factory=list)
    """Problems of the file: several trainings in one file share them."""

    def problem(self, line: int | None, reason: str, *, noted: bool = False) -> None:
        """Add a problem of a line."""
        self.problems.append(LogProblem(self.file, line, reason, noted))


def printable(text: str) -> str:
    """Return foreign text as one line without control characters, which can rewrite a terminal or a page."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def first_error(error: ValidationError) -> str:
    """Return the first error of a record as `field: message`."""
    first = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, "))))


# Single files --------------------------------------------------------------------------------------


def read_bytes(file: Path) -> bytes:
    """Return the content of a file; raises TunemarkError when it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise TunemarkError(str(file), "", f"cannot be read: {error.strerror}") from error


def read_text(file: str) -> str:
    """Return the text of a file, or of standard input for `-`; bytes that are not UTF-8 are replaced."""
    content = sys.stdin.buffer.read() if file == "-" else read_bytes(Path(file))
    return content.decode("utf-8", "replace")


def write_out(path: Path, content: bytes) -> None:
    """Write a file; raises TunemarkError where that is impossible."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise TunemarkError("--out", str(path), f"cannot be written ({error.strerror}); name a place that you may write to") from error


def write_changed(path: Path, content: bytes) -> bool:
    """Write a file unless it has this content already; return True if it was written."""
    if path.is_file() and path.read_bytes() == content:
        return False
    write_out(path, content)
    return True


# Archives and folders ------------------------------------------------------------------------------


class Member(NamedTuple):
    """A file in an archive or folder."""

    name: str
    """Path in it, with forward slashes."""
    content: bytes


def members(source: Path) -> Iterator[Member]:
    """Yield the files of a tar archive (plain, gz, bz2 or xz) or of a folder; links and devices are passed over.

    Nothing is extracted to disk. Raises TunemarkError when the file does not exist, is not a whole archive, or has a larger file.
    """
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield Member(path.relative_to(source).as_posix(), path.read_bytes())
        return
    if not source.is_file():
        raise TunemarkError(str(source), "", f"no such file or folder; {NAME_ONE}")
    try:
        # A stream reads the archive once from front to back and holds one file at a time.
        with tarfile.open(source, "r|*") as archive:
            for entry in archive:
                if entry.isreg() and entry.size > LARGEST_MEMBER:
                    raise TunemarkError(str(source), entry.name, f"has {entry.size:,} bytes, more than {LARGEST_MEMBER:,}")
                file = archive.extractfile(entry) if entry.isreg() else None
                if file is not None:
                    yield Member(entry.name, file.read())
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise TunemarkError(str(source), "", f"not a whole tar archive ({error}); {NAME_ONE}") from error
