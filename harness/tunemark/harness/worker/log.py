"""The worker's log: one JSON object a line, each written at once, so that a killed worker leaves all it did."""

import json
import os
from pathlib import Path
from typing import Any

from tunemark.schema.vocabulary import Phase

ENCODE = json.JSONEncoder(allow_nan=False).encode
"""Made once: `json.dumps` makes an encoder for each line that is not to hold NaN."""


class Log:
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
