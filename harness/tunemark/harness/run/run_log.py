"""The files between parent and worker, above all the log that the worker writes and the parent reads while it grows.

Also what an exception in the worker means. The log has one JSON object per line, each written at once, so a killed worker leaves a complete log. An incomplete last line is
ignored and noted. Times are seconds since the worker was spawned.
"""

import json
import os
import re
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tunemark.schema.records.trace import COUNT_COLUMNS, MOST_MICRO_STEPS, StepTrace
from tunemark.schema.vocabulary import Phase, Status

FOLDER_PREFIX = "tunemark-"
"""Prefix of the temporary folder of a run."""
ORDER_FILE = "order.json"
LOG_FILE = "log.jsonl"
OUTPUT_FILE = "output"
"""Standard output and error of the worker."""
STOP_FILE = "stop"
"""The parent, which reads the log, creates this file to end training."""
SOURCE = Path(__file__).resolve().parents[4]
"""The checkout of this source; another folder where it is installed."""
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""ru_maxrss counts bytes on macOS and KiB elsewhere."""


def rank_of_this_process() -> int:
    """Return the number that the launcher gave this process; 0 for a single process."""
    return int(os.environ.get("RANK", "0"))


CacheState = Literal["cold", "warm", "none"]
ENCODE = json.JSONEncoder(allow_nan=False).encode
"""Created once: `json.dumps` with allow_nan=False creates an encoder for each line."""


class LogWriter:
    """Appends events to a file."""

    def __init__(self, path: Path, spawned_at_s: float) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._spawned_at_s = spawned_at_s

    def since_spawn(self, now_s: float) -> float:
        """Return a time of the host's monotonic clock as seconds since the worker was spawned."""
        return now_s - self._spawned_at_s

    def phase(self, phase: Phase, now_s: float) -> None:
        """Note that a phase begins."""
        self.event("phase", phase=phase.value, at_s=self.since_spawn(now_s))

    def event(self, kind: str, **content: Any) -> None:  # noqa: ANN401 - any JSON value
        """Write one event, normally in a single write, so that a kill does not tear a line."""
        line = (ENCODE({"event": kind, **content}) + "\n").encode()
        while line:
            # A disk that is nearly full takes a part; the next write then fails.
            line = line[os.write(self._file, line) :]


LISTS = {"phase": "phases", "step": "steps", "disturbed": "events", "gate": "gates", "rank": "ranks", "note": "notes"}
"""Events that occur several times, and the lists that contain them. Each other event has its own attribute; a later one adds to it."""


@dataclass
class RunLog:
    """Everything the worker has written so far."""

    phases: list[dict[str, Any]] = field(default_factory=list)
    started_at_s: float = 0.0
    steps: list[dict[str, Any]] = field(default_factory=list)
    row_lengths: dict[str, Any] | None = None
    model: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    effective: dict[str, Any] | None = None
    gates: list[dict[str, Any]] = field(default_factory=list)
    probe: dict[str, Any] = field(default_factory=dict)
    """As the record holds it; the first process's of several."""
    events: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    """What the worker could not do as planned."""
    stack: dict[str, Any] | None = None
    """Versions of the libraries of the device's vendor."""
    data_wait: dict[str, Any] | None = None
    compile_cache: dict[str, Any] | None = None
    saved: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    ended: bool = False
    torn: bool = False
    """True when a line could not be read and was left out."""

    def trace(self) -> StepTrace:
        """Return the steps as columns."""
        names = ("completed_at_s", *COUNT_COLUMNS, "loss")
        columns: dict[str, tuple[Any, ...]] = {name: tuple(step[name] for step in self.steps) for name in names}
        waited_s = self.data_wait["seconds"] if self.data_wait and self.steps else None
        # In a long run only the last steps have the times of their micro-steps, to limit the size of the record.
        micro, left = list[tuple[float, ...]](), MOST_MICRO_STEPS
        for step in reversed(self.steps):
            times = tuple(step.get("micro_completed_at_s", ()))
            left -= len(times)
            micro.append(times if left >= 0 else ())
        known = tuple(reversed(micro)) if any(micro) else ()
        return StepTrace(started_at_s=self.started_at_s, **columns, micro_completed_at_s=known, data_wait_s=waited_s)


class LogReader:
    """Follows a log file from where it was last read."""

    def __init__(self, path: Path) -> None:
        self.log = RunLog()
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> RunLog:
        """Return the log with everything appended since the last call."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
            self._offset += len(new)
            *lines, self._rest = (self._rest + new).split(b"\n")
            for line in lines:
                self._take(line)
        return self.log

    def finish(self) -> RunLog:
        """Return the log after the worker has ended. A line without an end is torn."""
        log = self.read()
        log.torn = log.torn or bool(self._rest)
        return log

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            self.log.torn = True
            return
        name = event.pop("event")
        if name in LISTS:
            getattr(self.log, LISTS[name]).append(event)
        elif name == "training":
            self.log.started_at_s = event["started_at_s"]
        elif name == "end":
            self.log.ended = True
        else:
            setattr(self.log, name, (getattr(self.log, name) or {}) | event)


# What an exception in the worker means

MESSAGE_LINES = 4
LOOK = "read the worker's output above; `tunemark doctor` shows this machine's software"
FAILURES = tomllib.loads(Path(__file__).with_name("failures.toml").read_text(encoding="utf-8"))["failure"]


def describe(error: BaseException) -> dict[str, str]:
    """Return `status`, `message` and `fix` of an exception."""
    status, fix = judge(f"{type(error).__name__}: {error}") or (Status.CRASH, LOOK)
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    # A first line that ends in the middle of its sentence needs the next ones.
    message = " ".join(lines[:MESSAGE_LINES]) if lines[0].endswith((":", ",", " of", " from one of")) else lines[0]
    return {"status": status.value, "message": f"{type(error).__name__}: {message}".rstrip(": ")[:500], "fix": fix}


def judge(text: str) -> tuple[Status, str] | None:
    """Return the meaning of an error's name and text, with the fix; None if no rule matches."""
    rule = next((rule for rule in FAILURES if re.search(rule["pattern"], text, re.IGNORECASE)), None)
    return (Status(rule["status"]), rule["fix"]) if rule else None
