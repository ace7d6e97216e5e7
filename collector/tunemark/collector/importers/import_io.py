"""Input and output of the importers: files, and problems with their file and line."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from tunemark.collector.commands.options import OPTIONS as SHARED
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.files import write_atomically

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
