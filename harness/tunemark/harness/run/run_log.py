"""Reads the worker's log while it grows and after it ended; a torn last line is left out and said."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunemark.schema.records.trace import COUNT_COLUMNS, StepTrace
from tunemark.schema.vocabulary import Phase

LISTS = {"phase": "phases", "step": "steps", "disturbed": "events", "gate": "gates", "rank": "ranks", "note": "notes"}
"""Events of which there are several, and where they are kept; the others stand for themselves."""


@dataclass
class RunLog:
    """All that the worker has written so far."""

    phases: list[dict[str, Any]] = field(default_factory=list)
    started_at_s: float = 0.0
    steps: list[dict[str, Any]] = field(default_factory=list)
    model: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    effective: dict[str, Any] | None = None
    gates: list[dict[str, Any]] = field(default_factory=list)
    probes: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    """By `before` and `after`."""
    events: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    """What libraries said and the output does not show."""
    compile_cache: dict[str, Any] | None = None
    saved: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    ended: bool = False
    torn: bool = False
    """True when a line could not be read and was left out."""

    def trace(self) -> StepTrace:
        """Return the steps as columns."""
        columns: dict[str, tuple[Any, ...]] = {
            name: tuple(step[name] for step in self.steps) for name in ("completed_at_s", *COUNT_COLUMNS, "loss")
        }
        return StepTrace(started_at_s=self.started_at_s, **columns)


class LogReader:
    """Follows a log file from where it was read to last."""

    def __init__(self, path: Path) -> None:
        self.log = RunLog()
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> RunLog:
        """Take in what was appended since the last call."""
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
        """Take in the rest after the worker has ended; a line without an end is torn."""
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
        elif name == "probe":
            self.log.probes[event["when"]] = event["found"]
        elif name == "end":
            self.log.ended = True
        else:
            setattr(self.log, name, event)


# MOVE: was tunemark.harness.run.run_log: The worker's log: one JSON object a line, each written at once, so that a killed worker leaves all it did.

ENCODE = json.JSONEncoder(allow_nan=False).encode
"""Made once: `json.dumps` makes an encoder for each line that is not to hold NaN."""


class LogWriter:
    """Appends events to a file. Times in it are seconds since the worker was spawned."""

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
        """Write one event: as a rule in a single write, so that no line is torn by a kill."""
        line = (ENCODE({"event": kind, **content}) + "\n").encode()
        while line:
            # A disk that is nearly full takes a part; the next write then says so.
            line = line[os.write(self._file, line) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
