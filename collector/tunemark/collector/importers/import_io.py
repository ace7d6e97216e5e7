"""What the import commands share: files read and written with errors that say what to do, and tables of what was found."""

import lzma
import os
import sys
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunemark.collector.commands.terminal import say
from tunemark.collector.importers.mlperf_log import LogProblem
from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import write_atomically

if TYPE_CHECKING:
    # Only for their types: --help of the commands imports none of the importers.
    from tunemark.collector.importers.mlperf import Entries
    from tunemark.collector.importers.prices import DroppedRow
    from tunemark.collector.importers.trainer_log import TrainerLog

LARGEST_TEXT = 64 * 2**20
"""Bytes."""


def rounds(found: "Entries") -> list[tuple[str, int, int, int, int]]:
    """Return one row for each round: entries, runs, incomplete runs, entries without an accelerator card."""
    rounds = sorted({result.round for result in found.results})
    return [
        (
            name,
            len(entries),
            sum(len(result.runs) for result in entries),
            sum(run.status == "incomplete" for result in entries for run in result.runs),
            sum(result.conditions.accelerator is None for result in entries),
        )
        for name in rounds
        for entries in [[result for result in found.results if result.round == name]]
    ]


def mlperf_answer(found: "Entries") -> dict[str, Any]:
    """Return what an archive gave as JSON values."""
    return {
        "entries": [
            {"id": result.id, "round": result.round, "runs": len(result.runs), "accelerator": result.conditions.accelerator}
            for result in found.results
        ],
        "logs": found.logs,
        "spellings": found.spellings,
        "problems": [
            {"file": problem.file, "line": problem.line, "reason": problem.reason, "noted": problem.noted} for problem in found.problems
        ],
    }


def claims_of(log: "TrainerLog", index: int) -> dict[str, dict[str, object]]:
    """Return the claims of a run of a log as JSON values."""
    return {name: claim.model_dump(mode="json") for name, claim in sorted(log.runs[index].claims.items())}


def grouped(dropped: "Sequence[DroppedRow]") -> list[dict[str, Any]]:
    """Return one entry for each reason with all of its lines."""
    groups: dict[tuple[str, bool], list[DroppedRow]] = {}
    for one in dropped:
        groups.setdefault((one.reason, one.refused), []).append(one)
    return [
        {
            "reason": reason,
            "refused": refused,
            "what": ", ".join(dict.fromkeys(one.what for one in members[:3])),
            "lines": [one.line for one in members],
        }
        for (reason, refused), members in groups.items()
    ]


def write_changed(path: Path, content: bytes) -> bool:
    """Write a file unless it holds just that; return whether it was written."""
    if path.is_file() and path.read_bytes() == content:
        return False
    write_atomically(path, content)
    return True


def write_new(path: Path, content: bytes) -> None:
    """Write a file that is not there yet: facts are never overwritten by an import."""
    refuse_existing(path)
    write_atomically(path, content)
    say(f"wrote {path}")


def refuse_existing(path: Path) -> None:
    """Raise TunemarkError where a file is there already."""
    if path.exists():
        raise TunemarkError("--out", str(path), "is there already; take another name or number, or remove it first")


def read_bytes(file: Path) -> bytes:
    """Return the content of a file; raises TunemarkError when it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise TunemarkError("file", str(file), f"cannot be read: {error.strerror}") from error


def read_text(file: str) -> str:
    """Return the text of a file, or of standard input for `-`; bytes that are no UTF-8 are replaced."""
    content = sys.stdin.buffer.read(LARGEST_TEXT + 1) if file == "-" else read_bytes(Path(file))
    if len(content) > LARGEST_TEXT:
        raise TunemarkError("file", file, f"larger than {LARGEST_TEXT:,} bytes; cut out the end of the log")
    return content.decode("utf-8", "replace")


# MOVE: was tunemark.collector.importers.import_io: Files of an archive or folder, one after the other, in memory: nothing is ever extracted to disk.

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
