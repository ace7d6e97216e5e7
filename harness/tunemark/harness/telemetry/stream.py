"""A vendor's tool that prints a line a period, followed by a thread: the latest line is there without waiting."""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Sequence

from tunemark.harness.telemetry.protocol import MonitorUnavailable


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
