"""Which files are judged: those that are named, and the JSON files of folders that are named."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import project_root
from tunemark.schema.records.upgrade import InvalidRecord, read_record

SUBMISSIONS = "submissions"
CONVERTED = "data/converted"


@dataclass(slots=True)
class Found:
    """Files to judge, in order, and what was passed over."""

    files: list[Path] = field(default_factory=list)
    """Each file once, sorted by path."""
    ignored: list[tuple[Path, str]] = field(default_factory=list)
    """What is no record, and why."""


def default_folders(root: Path) -> list[Path]:
    """Return the folders of a checkout that hold records, where they exist."""
    return [folder for folder in (root / SUBMISSIONS, root / "data" / "published", root / CONVERTED) if folder.is_dir()]


def find_records(paths: Iterable[Path]) -> Found:
    """Return the record files under paths.

    A file that is named is judged whatever it is called. In folders only regular `.json` files are;
    links are not followed, so that a folder cannot lead out of itself.

    Raises
    ------
    TunemarkError
        For a path that does not exist.

    """
    found = Found()
    for path in paths:
        if path.is_dir():
            _search(path, found)
        elif path.is_file():
            found.files.append(path)
        else:
            raise TunemarkError("path", str(path), "no such file or folder; name a record, or a folder of records")
    found.files = sorted(set(found.files))
    return found


def named_records(paths: Iterable[Path], others: Collection[Path] = ()) -> Found:
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


def records_in(folder: Path) -> Found:
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


def _search(folder: Path, found: Found) -> None:
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
