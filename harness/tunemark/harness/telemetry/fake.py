"""A scripted monitor, so that everything that is made of samples is known beforehand."""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from tunemark.harness.telemetry.protocol import Reading


class FakeMonitor:
    """Reads from a script, again and again its last line."""

    interval_s = 0.01
    memory_method = "scripted"
    energy_reason = "the script tells no power"

    def __init__(self, script: Sequence[tuple[Reading, ...]], pids: Iterable[frozenset[int]] | None = None) -> None:
        self._script = chain(script, repeat(script[-1])) if script else repeat(())
        self._pids = None if pids is None else tuple(pids)
        self.closed = False

    def read(self) -> tuple[Reading, ...]:
        """Return the script's next line."""
        return next(self._script)

    def processes(self) -> tuple[frozenset[int], ...] | None:
        """Return the scripted processes."""
        return self._pids

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True
