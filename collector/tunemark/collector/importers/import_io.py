"""Input and output of the importers: files, archives read in memory, and problems with their file and line."""

import lzma
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.files import write_atomically
from tunemark.schema.formats import MIB

LARGEST_TEXT = 64 * MIB
"""Bytes of a log given on the command line."""
LARGEST_MEMBER = 64 * MIB
"""Bytes of a file in an archive; the largest log of three MLPerf rounds has 1.5 MB."""
NAME_ONE = "name a .tar.xz of result logs, or the folder it was unpacked to"


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
                raise TunemarkError(
                    f"--{name.replace('_', '-')}",
                    value,
                    f"no setting of this import; {did_you_mean(name, known)}; known: {', '.join(known)}",
                )
        return dict(self.settings)

    def file(self) -> Path:
        """Return the only file; raises TunemarkError if there are several."""
        if len(self.files) > 1:
            raise TunemarkError("FILE", str(self.files[1]), "this import reads one file at a time")
        return self.files[0]


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


def printable(text: str) -> str:
    """Return foreign text as one line without control characters, which can rewrite a terminal or a page."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def first_error(error: ValidationError) -> str:
    """Return the first error of a record as `field: message`."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


# Single files --------------------------------------------------------------------------------------


def read_bytes(file: Path) -> bytes:
    """Return the content of a file; raises TunemarkError when it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise TunemarkError("file", str(file), f"cannot be read: {error.strerror}") from error


def read_text(file: str) -> str:
    """Return the text of a file, or of standard input for `-`; bytes that are not UTF-8 are replaced."""
    content = sys.stdin.buffer.read(LARGEST_TEXT + 1) if file == "-" else read_bytes(Path(file))
    if len(content) > LARGEST_TEXT:
        raise TunemarkError("file", file, f"larger than {LARGEST_TEXT:,} bytes; cut out the end of the log")
    return content.decode("utf-8", "replace")


def refuse_existing(path: Path) -> None:
    """Raise TunemarkError if a file exists already: an import never overwrites facts."""
    if path.exists():
        raise TunemarkError("--out", str(path), "already exists; use another name or number, or remove it first")


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


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive or folder."""

    name: str
    """Path in it, with forward slashes."""
    content: bytes


def members(source: Path, problems: list[LogProblem], broken: list[str] | None = None) -> Iterator[Member]:
    """Yield the files of a tar archive (plain, gz, bz2 or xz) or of a folder; skipped files are added to `problems`.

    Nothing is extracted to disk. Where an archive breaks off, the names of the last whole file and of the incomplete one
    are added to `broken`.

    Raises TunemarkError when the file does not exist or is not an archive.
    """
    if source.is_dir():
        yield from _of_folder(source, problems)
    elif source.is_file():
        yield from _of_archive(source, problems, [] if broken is None else broken)
    else:
        raise TunemarkError("archive", str(source), f"no such file or folder; {NAME_ONE}")


def _of_archive(source: Path, problems: list[LogProblem], broken: list[str]) -> Iterator[Member]:
    last = incomplete = "its beginning"
    seen: set[str] = set()
    try:
        # A stream reads the archive once from front to back and holds one file at a time.
        with tarfile.open(source, "r|*") as archive:
            for entry in archive:
                reason = _refused(entry, seen)
                if reason:
                    problems.append(LogProblem(entry.name, None, f"{reason}; ignored"))
                elif entry.isreg():
                    incomplete = entry.name
                    seen.add(entry.name)
                    file = archive.extractfile(entry)
                    yield Member(entry.name, file.read() if file else b"")
                    last = entry.name
    except (tarfile.TarError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        if not seen and isinstance(error, tarfile.ReadError):
            raise TunemarkError("archive", source.name, f"not a tar archive ({error}); {NAME_ONE}") from error
        broken.extend(dict.fromkeys((last, incomplete)))
        problems.append(LogProblem(source.name, None, f"cannot be read after {last}: {error}; everything before it is kept"))


def _refused(entry: tarfile.TarInfo, seen: set[str]) -> str | None:
    """Return the reason why a file of an archive is not read, or None."""
    if entry.isdir():
        return None
    if not entry.isreg():
        return "a link or device, not a file"
    if entry.name in seen:
        return "is in the archive already; the first one counts"
    return f"{entry.size:,} bytes, more than {LARGEST_MEMBER:,}" if entry.size > LARGEST_MEMBER else None


def _of_folder(source: Path, problems: list[LogProblem]) -> Iterator[Member]:
    for path in sorted(source.rglob("*")):
        shown = path.relative_to(source).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            problems.append(LogProblem(shown, None, "a link or device, not a file; ignored"))
        elif path.is_file():
            yield Member(shown, path.read_bytes())
