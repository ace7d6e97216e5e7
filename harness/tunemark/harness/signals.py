"""Signals that ask a run or a series to stop, as an event: nobody is interrupted in writing a record."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _StopOnSignal:
    """A handler of signals that only notes the wish to stop."""

    stopped: threading.Event

    def __call__(self, *_: object) -> None:
        self.stopped.set()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn Ctrl-C, SIGTERM and a closed terminal into an event, until the record of the run is written.

    One inside another is the same event: a wish that comes as a series begins its next run ends that run too.
    """
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _StopOnSignal):
        yield handler.stopped
        return
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = {number: signal.signal(number, _StopOnSignal(stopped)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
