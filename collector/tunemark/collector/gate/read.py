"""Which files are judged: those that are named, and the JSON files of folders that are named."""

import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import project_root
from tunemark.schema.records.upgrade import InvalidRecord, read_record

SUBMISSIONS = "submissions"
CONVERTED = "data/converted"


@dataclass(slots=True)
class RecordFiles:
    """Files to judge, in order, and what was passed over."""

    files: list[Path] = field(default_factory=list)
    """Each file once, sorted by path."""
    ignored: list[tuple[Path, str]] = field(default_factory=list)
    """What is no record, and why."""


def default_folders(root: Path) -> list[Path]:
    """Return the folders of a checkout that hold records, where they exist."""
    return [folder for folder in (root / SUBMISSIONS, root / "data" / "published", root / CONVERTED) if folder.is_dir()]


def find_records(paths: Iterable[Path]) -> RecordFiles:
    """Return the record files under paths.

    A file that is named is judged whatever it is called. In folders only regular `.json` files are;
    links are not followed, so that a folder cannot lead out of itself.

    Raises
    ------
    TunemarkError
        For a path that does not exist.

    """
    found = RecordFiles()
    for path in paths:
        if path.is_dir():
            _search(path, found)
        elif path.is_file():
            found.files.append(path)
        else:
            raise TunemarkError("path", str(path), "no such file or folder; name a record, or a folder of records")
    found.files = sorted(set(found.files))
    return found


def named_records(paths: Iterable[Path], others: Collection[Path] = ()) -> RecordFiles:
    """Return the record files under paths that a person named.

    Raises
    ------
    TunemarkError
        Also for a folder that holds neither a record nor one of the other files.

    """
    paths = list(paths)
    for path in paths:
        if path.is_dir() and not find_records([path]).files and not any(other.is_relative_to(path) for other in others):
            raise TunemarkError("path", str(path), "this folder holds no record (.json) and no facts; name one that does, or a file")
    found = find_records(path for path in paths if path not in others)
    found.ignored = [(path, why) for path, why in found.ignored if path not in others]
    return found


def records_in(folder: Path) -> RecordFiles:
    """Return the record files of a folder; none where there is no such folder."""
    return find_records([folder] if folder.is_dir() else [])


def shown_path(path: Path, root: Path) -> str:
    """Return a path as it is stored and printed: relative to the checkout where it is in it, with forward slashes."""
    absolute = path.absolute()
    return absolute.relative_to(root).as_posix() if absolute.is_relative_to(root) else path.as_posix()


def checkout_or_here() -> Path:
    """Return the checkout, or the current folder where there is none."""
    try:
        return project_root()
    except TunemarkError:
        return Path.cwd()


def _search(folder: Path, found: RecordFiles) -> None:
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            found.ignored.append((path, "a symbolic link"))
        elif path.is_dir():
            _search(path, found)
        elif path.suffix == ".json" and path.is_file():
            found.files.append(path)
        else:
            found.ignored.append((path, "not a .json file"))


def read_or_none(path: Path) -> object:
    """Return the record of a file, or None where it holds none: `tunemark validate` says why."""
    try:
        return read_record(path.read_bytes())
    except (InvalidRecord, TunemarkError, ValueError, OSError, RecursionError):
        return None


def submission_id(path: Path) -> str:
    """Return the id of a submission, the last part of its file's name."""
    return path.stem.rsplit("-", 1)[-1]


# MOVE: was tunemark.collector.gate.read: Many files through a pool of processes, few files in this one: the same results in the same order.

Result = TypeVar("Result")

MANY = 200
"""Above this the start of worker processes pays."""
CHUNK = 50
MOST_WORKERS = 8
"""Each needs the memory of a Python with numpy and pyarrow."""


def over_files(work: Callable[[Path], Result], files: Sequence[Path], *, many: int = MANY) -> Iterator[Result]:
    """Yield `work(file)` for each file, in order. `work` must be picklable when there are many files."""
    workers = min(_usable_cores(), MOST_WORKERS)
    if len(files) <= many or workers == 1:
        yield from map(work, files)
        return
    # Spawned, not forked: this process has threads of numpy and DuckDB.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_leave_interrupts_to_parent)
    try:
        yield from pool.map(work, files, chunksize=CHUNK)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _usable_cores() -> int:
    """Return the cores this process may use, which in a container are fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
