"""Asks a vendor's tool, and understands it whatever it answers: a tool that is missing, slow or broken has told nothing."""

import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from tunemark.harness.vendors.protocol import MonitorUnavailable

QUERY_TIMEOUT_S = 10.0
MIB = 2**20
LONGEST_NAME = 200


def ask(*command: str, timeout_s: float = QUERY_TIMEOUT_S) -> str | None:
    """Return what a tool prints; None when it is not there, fails, or takes longer than `timeout_s`."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=True)  # noqa: S603 - fixed commands
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def ask_json(*command: str, timeout_s: float = QUERY_TIMEOUT_S) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON that a tool prints; None when there is none."""
    return parse_json(ask(*command, timeout_s=timeout_s))


def parse_json(text: str | None) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON value in a text, which may stand behind lines of warnings; None when there is none."""
    for start in _starts(text or ""):
        try:
            return json.loads((text or "")[start:])
        except ValueError:
            continue
    return None


def _starts(text: str) -> list[int]:
    """Return where JSON could begin: at the first character, and at each line that opens a list or an object."""
    lines, at = [0], 0
    for line in text.splitlines(keepends=True):
        if line.lstrip()[:1] in {"[", "{"} and at:
            lines.append(at)
        at += len(line)
    return lines


def dicts(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any JSON value
    """Return the objects of a JSON list; whatever else it is holds none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def number(value: Any) -> float | None:  # noqa: ANN401 - any JSON value
    """Return a number out of what tools write for one: 750, "750.0", {"value": 750, "unit": "W"}; None for N/A and the like."""
    if isinstance(value, dict):
        value = value.get("value")
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if found == found and abs(found) != float("inf") else None  # noqa: PLR0124 - NaN differs from itself


def positive(value: Any) -> float | None:  # noqa: ANN401 - any JSON value
    """Return a number above zero, or None: tools write 0 for a limit that they do not know."""
    found = number(value)
    return found if found is not None and found > 0 else None


def text_of(value: Any) -> str | None:  # noqa: ANN401 - any JSON value
    """Return a name or version, or None where a tool says that it has none."""
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    return text[:LONGEST_NAME] if text and text.upper() not in {"N/A", "UNKNOWN", "NONE", "[N/A]", "[NOT SUPPORTED]"} else None


def visible_indexes(count: int, variable: str = "CUDA_VISIBLE_DEVICES", names: Sequence[str] = ()) -> list[int]:
    """Return which of the devices an environment variable leaves, in its order, as indexes of what the tool lists.

    Like the drivers it stops at the first number or name that is not there. Names (`GPU-...`) are looked up in `names`;
    where the tool gave none, all devices are left, and the worker checks.
    """
    wanted = os.environ.get(variable)
    if wanted is None:
        return list(range(count))
    parts = [part.strip() for part in wanted.split(",") if part.strip()]
    if not names and not all(part.lstrip("-").isdecimal() for part in parts):
        return list(range(count))
    found = [_index(part, count, names) for part in parts]
    return [index for index in takewhile(lambda index: index is not None, found) if index is not None]


def _index(part: str, count: int, names: Sequence[str]) -> int | None:
    if part.isdecimal():
        return int(part) if int(part) < count else None
    # The start of a name is enough, as for the driver.
    return next((index for index, name in enumerate(names) if name.startswith(part)), None)


def visible_ranges(count: int, variable: str) -> list[int]:
    """Return which of the cores a variable such as NEURON_RT_VISIBLE_CORES leaves: `0-3`, `4`, `0,2,8-11`."""
    wanted, found = os.environ.get(variable), []
    if wanted is None:
        return list(range(count))
    for part in filter(None, (part.strip() for part in wanted.split(","))):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return list(range(count))
        found += [index for index in range(int(first), int(last or first) + 1) if index < count]
    return found


# MOVE: was tunemark.harness.vendors.vendor_tools: A vendor's tool that prints a line a period, followed by a thread: the latest line is there without waiting.


class LineStream:
    """Runs a command until it is closed and keeps the last line that it printed."""

    def __init__(self, command: Sequence[str]) -> None:
        if shutil.which(command[0]) is None:
            msg = f"{command[0]} is not installed"
            raise MonitorUnavailable(msg)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - fixed commands
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, errors="replace"
            )
        except OSError as error:
            msg = f"{command[0]} could not be started ({error.strerror})"
            raise MonitorUnavailable(msg) from error
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for line in self._process.stdout or ():
            with self._lock:
                self._lines.append(line)

    def new_lines(self) -> list[str]:
        """Return what was printed since the last call."""
        with self._lock:
            lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        """End the command."""
        with contextlib.suppress(OSError):
            self._process.terminate()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(timeout=2)
