"""Record files: which files under a path are records, where records are kept, and how one is read."""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.records.reading import InvalidRecord, read_record
from tunemark.schema.safe_text import terminal

SUBMISSIONS = "submissions"
PUBLISHED = "data/published"
CONVERTED = "data/converted"
TABLES = ("data", "tables")
"""Folder with the tables from which results were imported."""
DOCUMENT = "source.json"


@dataclass(slots=True)
class RecordFiles:
    """Files to check, and files that were ignored."""

    files: list[Path] = field(default_factory=list)
    """Each file once, sorted by path."""
    ignored: list[tuple[Path, str]] = field(default_factory=list)
    """Files that are not records, with the reason."""
    unusual: list[tuple[Path, str]] = field(default_factory=list)
    """Records that `tunemark check` refuses for what they are in the file system."""


def find_records(paths: Iterable[Path]) -> RecordFiles:
    """Return the record files under paths.

    A named file is a record whatever it is called. In folders only regular `.json` files are records. Links are not followed, so
    a folder cannot lead outside itself.

    Raises TunemarkError for a path that does not exist.
    """
    records = RecordFiles()
    for path in paths:
        if path.is_dir():
            _search(path, records)
        elif path.is_file():
            records.files.append(path)
        else:
            raise TunemarkError(terminal(str(path)), None, "no such file or folder; name a record, or a folder of records")
    records.files = sorted(set(records.files))
    return records


def named_records(paths: Iterable[Path], others: Collection[Path] = ()) -> RecordFiles:
    """Return the record files under paths given on the command line, without the `others`, which are fact files.

    Raises TunemarkError for a path that does not exist, and for a folder that contains neither a record nor a fact file.
    """
    paths = list(paths)
    for path in paths:
        if path.is_dir() and not find_records([path]).files and not any(other.is_relative_to(path) for other in others):
            raise TunemarkError(terminal(str(path)), None, "this folder has no records (.json) and no facts; name another folder or a file")
    records = find_records(path for path in paths if path not in others)
    records.files = [path for path in records.files if path not in others]
    records.ignored = [(path, reason) for path, reason in records.ignored if path not in others]
    return records


def records_in(folder: Path) -> RecordFiles:
    """Return the record files of a folder; none if the folder does not exist."""
    return find_records([folder] if folder.is_dir() else [])


def _search(folder: Path, records: RecordFiles) -> None:
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            records.ignored.append((path, "a symbolic link"))
        elif (path.parent.name, path.name) == TABLES and path.is_dir():
            records.ignored.append((path, "tables of documents, which `tunemark import table` reads"))
        elif path.is_dir():
            if path.suffix == ".json":
                records.ignored.append((path, "a folder with the name of a file"))
            _search(path, records)
        elif path.suffix == ".json" and path.is_file():
            records.files.append(path)
            if path.stat().st_mode & 0o111:
                records.unusual.append((path, "an executable file"))
        else:
            records.ignored.append((path, "not a .json file"))


def read_valid(path: Path) -> BaseModel:
    """Return the record in a file. Raises TunemarkError with exit code 3 for an invalid file."""
    try:
        return read_record(path.read_bytes())
    except (InvalidRecord, ValueError, TypeError, RecursionError, OSError) as error:
        fix = f"is not a valid record: {error}; run `tunemark validate` for details"
        raise TunemarkError(terminal(str(path)), None, terminal(fix), exit_code=Exit.INVALID) from error


def read_or_none(path: Path) -> BaseModel | None:
    """Return the record in a file, or None for an invalid file; `tunemark validate` reports the reason."""
    try:
        return read_valid(path)
    except TunemarkError:
        return None


def submission_id(path: Path) -> str:
    """Return the id of a submission, which is the last part of its file name."""
    return path.stem.rsplit("-", 1)[-1]


def shown_path(path: Path, root: Path) -> str:
    r"""Return a path as it is stored and printed: relative to the checkout if it is inside, with forward slashes.

    Bytes of a name that are not UTF-8 are written as `\xff`, and so are characters that a terminal obeys.
    """
    absolute = path.absolute()
    text = absolute.relative_to(root).as_posix() if absolute.is_relative_to(root) else path.as_posix()
    return terminal(os.fsencode(text).decode("utf-8", "backslashreplace"))
