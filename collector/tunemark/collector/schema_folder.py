"""The committed JSON Schema files, and whether they are what the models say."""

from pathlib import Path

from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.files import write_atomically
from tunemark.schema.records.json_schema import field_reference, schema_files
from tunemark.schema.records.upgrade import MODELS

FOLDER = Path("schema") / "json"


def outdated(root: Path) -> list[str]:
    """Return the names of schema files that are missing or differ from what is generated."""
    return [name for name, content in schema_files().items() if not _holds(root / FOLDER / name, content)]


def write(root: Path) -> list[Path]:
    """Write all schema files and return their paths."""
    for name, content in schema_files().items():
        write_atomically(root / FOLDER / name, content.encode())
    return [root / FOLDER / name for name in schema_files()]


def fields_of(kind: str) -> list[tuple[str, str, str]]:
    """Return (path, type, meaning) of each field of `submission`, `published`, `source` or `converted`."""
    kinds = {name.removeprefix("tunemark.").partition("/")[0]: model for name, model in MODELS.items()}
    if kind not in kinds:
        raise TunemarkError("--fields", kind, did_you_mean(kind, kinds))
    return field_reference(kinds[kind])


def _holds(path: Path, content: str) -> bool:
    return path.is_file() and path.read_bytes() == content.encode()
