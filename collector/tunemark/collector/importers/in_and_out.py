"""What the import commands share: files read and written with errors that say what to do, and tables of what was found."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunemark.collector.output import say
from tunemark.schema.errors import TunemarkError
from tunemark.schema.files import write_atomically

if TYPE_CHECKING:
    # Only for their types: --help of the commands imports none of the importers.
    from tunemark.collector.importers.mlperf import Entries
    from tunemark.collector.importers.skypilot_rows import Dropped
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


def grouped(dropped: "Sequence[Dropped]") -> list[dict[str, Any]]:
    """Return one entry for each reason with all of its lines."""
    groups: dict[tuple[str, bool], list[Dropped]] = {}
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
