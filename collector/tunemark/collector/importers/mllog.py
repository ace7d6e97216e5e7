"""MLLOG lines: the events in the log of an MLPerf run, among whatever else was printed.

Such a line holds `:::MLLOG ` and then one JSON object with `key`, `time_ms`, `value` and `metadata`; launchers
put a rank in front of it. Only keys that a converted result needs are parsed.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MARK = b":::MLLOG"
KEY = b'"key":'
LARGEST_LINE = 2**20
"""Bytes; the longest MLLOG line of three rounds has 2,123."""

SETTINGS = frozenset(
    {
        "eval_samples",
        "global_batch_size",
        "gradient_accumulation_steps",
        "lora_alpha",
        "lora_rank",
        "opt_adamw_weight_decay",
        "opt_base_learning_rate",
        "opt_gradient_clip_norm",
        "opt_learning_rate_training_steps",
        "opt_learning_rate_warmup_factor",
        "seed",
        "submission_benchmark",
        "submission_division",
        "target_accuracy",
        "train_samples",
    }
)
"""Keys that are said once in a run; launchers may print them once per rank."""
TIMES = frozenset({"init_start", "init_stop", "run_start", "run_stop", "block_start", "block_stop", "eval_accuracy", "tracked_stats"})
"""Keys of events in time."""
WANTED = SETTINGS | TIMES


@dataclass(frozen=True, slots=True)
class LogProblem:
    """What is wrong in a file, and where."""

    file: str
    line: int | None
    reason: str
    noted: bool = False
    """True for what is worth knowing and costs nothing: all of the file is kept."""

    def __str__(self) -> str:
        """Return `file:line: reason`, with nothing in it that a terminal would obey."""
        return printable(f"{self.file}:{self.line}: {self.reason}" if self.line else f"{self.file}: {self.reason}")


@dataclass(frozen=True, slots=True)
class Event:
    """One MLLOG line."""

    key: str
    at_ms: float
    """`time_ms`: milliseconds since 1970."""
    value: Any
    metadata: dict[str, Any]
    offset: int
    """Where the line is in the file, in bytes."""


def events(content: bytes, file: str, problems: list[LogProblem]) -> Iterator[Event]:
    """Yield the wanted events of a log in the order of its lines; what cannot be read is added to the problems."""
    start = content.find(MARK)
    while start >= 0:
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        if end - start > LARGEST_LINE:
            problems.append(
                problem_at(content, file, start, f"an MLLOG line of {end - start:,} bytes; none is longer than {LARGEST_LINE:,}")
            )
        else:
            line = content[start + len(MARK) : end]
            if _wanted(line):
                event = _event(line, start)
                if isinstance(event, Event):
                    yield event
                else:
                    problems.append(problem_at(content, file, start, event))
        start = content.find(MARK, end)


def problem_at(content: bytes, file: str, offset: int, reason: str) -> LogProblem:
    """Return a problem with the number of the line that this byte is in."""
    return LogProblem(file, content.count(b"\n", 0, offset) + 1, reason)


def printable(text: str) -> str:
    """Return a text of somebody else as one line without control characters: such characters can rewrite a terminal or a page."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def finite(value: object) -> float | None:
    """Return a number of a log, or None where it is no finite one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def count(value: object) -> int | None:
    """Return a number of things, or None where it is no such number; JSON writes some of them as 8.0."""
    number = finite(value)
    return int(number) if number is not None and 0 <= number < 2**53 and number.is_integer() else None


def _wanted(line: bytes) -> bool:
    """Return whether a line has to be parsed; decided on its bytes, since most lines are not wanted."""
    at = line.find(KEY)
    if at < 0:
        # Cut off before its key, or no object at all: parsing says what is wrong.
        return True
    first = line.find(b'"', at + len(KEY))
    key = line[first + 1 : line.find(b'"', first + 1)]
    if key == b"tracked_stats":
        return b'"throughput"' in line
    return key.decode("utf-8", "replace") in WANTED


def _event(line: bytes, offset: int) -> Event | str:
    """Return the event of a line, or what is wrong with it."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"not a whole MLLOG line: {error}"
    if not isinstance(raw, dict) or not isinstance(raw.get("key"), str):
        return "an MLLOG line is a JSON object with a key"
    at_ms = finite(raw.get("time_ms"))
    if at_ms is None or not 0 <= at_ms < 2**53:
        return f"time_ms of {raw['key']!r} is {str(raw.get('time_ms'))[:40]!r}; it is milliseconds since 1970"
    metadata = raw.get("metadata")
    return Event(raw["key"], at_ms, raw.get("value"), metadata if isinstance(metadata, dict) else {}, offset)
